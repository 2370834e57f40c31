"""A rank of the small worlds: the training thread of `replica/steps.py` around the real `Book`, without any time.

Computing takes no time: a rank that is told to begin an attempt has launched its buckets at once. That loses nothing:
launching early only lets more happen elsewhere, and what the others do not complete looks as if it was launched late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lighthouse.values import EntryName, Version
from replica.rollcall import pack, unpack
from replica.values import (
    Abandoned,
    Apply,
    Commit,
    Drop,
    Fetch,
    FetchFailed,
    Go,
    Held,
    Load,
    Loaded,
    LoadFailed,
    Open,
    Quit,
    RankDown,
    RankFailed,
    RankOpened,
    ReadyFor,
    RollCall,
    StageFor,
    UpToDate,
)
from replica.work import OutOfOrder, begun, done, heard, loaded, opened, record
from simulation.small_values import Comm, Entry, Members, Rank, Snapshot, Sum

if TYPE_CHECKING:
    from simulation.small_host import Machine

_NO_VERDICT = (Abandoned, Open, ReadyFor, StageFor, Drop, Fetch)


class Thread:
    """What one rank does in one event. `now` is the rank as it is by then."""

    def __init__(self, machine: Machine, shard_rank: int, rank: Rank) -> None:
        self.machine = machine
        self.shard_rank = shard_rank
        self.now = rank

    def _put(self, **fields: Any) -> None:
        self.now = msgspec.structs.replace(self.now, **fields)

    # ---- what happens to it ----------------------------------------------------------------------------------------

    def hear(self, message: RankDown) -> None:
        """The agent says something."""
        if self.now.gone:
            return
        if isinstance(message, Abandoned):
            self._abandon_below(message.number)
        elif isinstance(message, Open) and message.size:
            self._join(message.number, message.place, message.size)
        elif isinstance(message, Go) and message.work.size:
            self._join(message.work.generation, message.work.place, message.work.size)
        elif isinstance(message, Fetch):
            self._put(fetch=message, fetch_told=False)
        self._put(inbox=(*self.now.inbox, message))
        self._listen()

    def end(self) -> None:
        """The process is gone."""
        self._put(gone=True, comms=(), waiting=False, entered=False, inbox=(), fetch=None, load=None)

    def reduced(self, total: Sum) -> None:
        """The reduction completed here: the roll call begins."""
        self._put(total=total)
        self._release_log()
        self._roll_call()

    def gathered(self, records: tuple[bytes, ...]) -> None:
        """The roll call completed here."""
        work = self.now.book.work
        assert work is not None
        slots = work.step_slots
        said = [unpack(r, slots) for r in records]
        if {(r.generation, r.version) for r in said} != {(work.generation, work.version)}:
            self.machine.wrong(f"members of one step stand on {[str(r.version) for r in said]}")
        if sorted(s for r in said for s in r.slots) != ([] if work.farewell else list(range(slots))):
            self.machine.wrong(f"the members summed slots {[r.slots for r in said]}")
        self._put(comms=tuple(c for c in self.now.comms if c.number >= work.generation), waiting=False, entered=False)
        self._say(RollCall(generation=work.generation, step=work.version.step, records=b"".join(records)))
        self._listen()

    def collective_lost(self) -> None:
        """What it waits for fails here."""
        rank = self.now
        work = rank.book.work
        if not rank.waiting or work is None:
            return
        comms = tuple(c for c in rank.comms if c.number != work.generation)
        self._put(total=None, waiting=False, entered=False, comms=comms)
        if work.generation >= rank.floor:
            self._say(RankFailed(number=work.generation, reason="lost"))
        self._listen()

    def plan_opened(self, number: int) -> None:
        """The communicator of a planned generation is open here."""
        self._put(opened=(*self.now.opened, number))
        self._say(RankOpened(number=number))

    def plan_lost(self, number: int) -> None:
        """It will not open: a member has left."""
        self._put(lost=(*self.now.lost, number))
        self._say(RankFailed(number=number, reason="not opened"))

    # ---- one attempt -----------------------------------------------------------------------------------------------

    def _begin_attempt(self) -> None:
        rank = self.now
        sums = list(rank.sums)
        for slot in rank.book.pending:
            self._put(book=done(begun(self.now.book, slot)))
            sums.append((rank.weights, rank.book.cursor + slot))
        self._put(sums=tuple(sorted(sums)), total=None, waiting=True, entered=False)
        work = rank.book.work
        assert work is not None
        if work.generation in rank.lost or work.generation < rank.floor:
            self.collective_lost()
            return
        self.machine.out("launch", self._operation(), self.now.sums)
        if work.farewell:
            self._roll_call()

    def _operation(self) -> tuple[int, int, int, int, Members]:
        work, agent = self.now.book.work, self.machine.host.agent
        assert work is not None and agent is not None
        members = tuple((m.name, m.incarnation) for m in agent.seat.roster)
        if len(members) != work.size:
            self.machine.wrong(f"generation {work.generation} has {work.size} members, its roster {len(members)}")
        return work.generation, work.version.step, self.shard_rank, work.place, members

    def _roll_call(self) -> None:
        while self.now.inbox and isinstance(self.now.inbox[0], _NO_VERDICT):
            message = self.now.inbox[0]
            self._put(inbox=self.now.inbox[1:])
            self._take_note(message)
        rank = self.now
        if rank.book.ready in rank.opened:
            self._put(book=opened(rank.book, rank.book.ready))
        work = rank.book.work
        assert work is not None
        said = record(
            self.now.book,
            self.now.book.heals,
            loss_sum=1.0 * len(rank.sums),
            tokens=10 * len(rank.sums),
            grad_sq=float(len(rank.total or ())),
            digest=_digest(rank.weights) if work.digest else None,
        )
        self._put(entered=True)
        self.machine.out("record", self._operation(), pack(said, work.step_slots))

    def _join(self, number: int, place: int, size: int) -> None:
        rank = self.now
        if number < rank.floor or number in rank.lost or any(c.number == number for c in rank.comms):
            return
        self._put(comms=(*rank.comms, Comm(number=number, place=place, size=size)))

    def _abandon_below(self, number: int) -> None:
        self._put(floor=max(self.now.floor, number))
        floor, work = self.now.floor, self.now.book.work
        self._put(
            comms=tuple(c for c in self.now.comms if c.number >= floor),
            opened=tuple(n for n in self.now.opened if n >= floor),
            lost=tuple(n for n in self.now.lost if n >= floor),
        )
        if self.now.waiting and work is not None and work.generation < floor:
            self.collective_lost()

    # ---- verdicts --------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while self.now.inbox and not (self.now.waiting or self.now.gone or self.now.load is not None):
            message = self.now.inbox[0]
            self._put(inbox=self.now.inbox[1:])
            if isinstance(message, Commit):
                self._commit(message)
            elif isinstance(message, Apply):
                self._apply_held(message)
            else:
                self._take_note(message)
            if self.now.gone:
                return
            if isinstance(message, Quit):
                self.machine.rank_leaves(self)
            elif isinstance(message, Load):
                self._put(load=message, fetch=None, held=())
            elif isinstance(message, Go | Commit) and self.now.book.work is not None and not self.now.book.leaving:
                self._begin_attempt()

    def _take_note(self, message: RankDown) -> None:
        before = self.now.book
        try:
            self._put(book=heard(before, message))
        except OutOfOrder as wrong:
            self.machine.wrong(f"a verdict out of order: {wrong}")
            return
        if before.summed and not self.now.book.summed:
            self._put(sums=())
        if isinstance(message, Drop):
            self._put(
                staged=tuple(s for s in self.now.staged if s.heal != message.heal),
                owed=tuple(o for o in self.now.owed if o[0] != message.heal),
            )
            self._release_log()
        elif isinstance(message, StageFor) and message.entries:
            self._owe(message.heal, Version(self.now.book.version.step - 1, 0))
        elif isinstance(message, StageFor) and message.now:
            self._stage(message.heal)
        elif isinstance(message, Load):
            self._put(staged=(), owed=(), log=(), sums=())

    def _commit(self, message: Commit) -> None:
        before, merged = self.now, message.merged
        work = before.book.work
        self._take_note(message)
        if work is None or not work.farewell:
            if before.total is None or work is None or work.generation != merged.generation:
                self.machine.wrong(f"told to commit {merged.end}, which was not reduced")
                return
            if work.size < self.machine.spec.min_groups:
                self.machine.wrong(f"commits {merged.end} with {work.size} groups, below min_groups")
            self._put(total=None)
            name = EntryName(start=before.book.version, end=merged.end)
            self._apply(Entry(name=name, merged=merged, total=before.total), before.book.cursor, True)
        for heal in message.stage:
            self._stage(heal)
        if message.leave:
            self.machine.rank_leaves(self)

    def _apply_held(self, message: Apply) -> None:
        entry = next((e for e in self.now.held if e.name == message.name), None)
        cursor = self.now.book.cursor
        self._put(held=())
        if entry is None:
            self.machine.wrong(f"told to apply {message.name}, which it does not hold")
            return
        self._take_note(message)
        self._apply(entry, cursor, False)

    def _apply(self, entry: Entry, cursor: int, committed: bool) -> None:
        rank, merged = self.now, entry.merged
        wanted = tuple((rank.weights, cursor + slot) for slot in range(merged.slots))
        if entry.total != wanted:
            self.machine.wrong(f"{merged.end} sums {entry.total}, not each slot once: {wanted}")
        self._put(weights=(*rank.weights, merged.generation), sums=(), stop=rank.stop or merged.stop)
        if not committed:
            self._release_log()
        kept = [e for e in self.now.log if e.name.start != entry.name.start]
        self._put(log=(*kept, entry))
        if committed:
            self.machine.commits(entry.name)

    # ---- healing ---------------------------------------------------------------------------------------------------

    def _stage(self, heal: int) -> None:
        rank = self.now
        book = rank.book
        new = Snapshot(heal=heal, version=book.version, cursor=book.cursor, stop=rank.stop, weights=rank.weights)
        self._put(staged=(*(s for s in rank.staged if s.heal != heal), new))
        self._owe(heal, book.version)

    def _owe(self, heal: int, since: Version) -> None:
        self._put(owed=(*(o for o in self.now.owed if o[0] != heal), (heal, since)))

    def _release_log(self) -> None:
        since = min([self.now.book.version, *(version for _, version in self.now.owed)])
        self._put(log=tuple(e for e in self.now.log if e.name.start >= since))

    def fetched(self, entry: Entry) -> None:
        """The entry asked for lies here."""
        self._put(held=(entry,), fetch=None)
        self._say(Held(name=entry.name, merged=entry.merged))

    def up_to_date(self) -> None:
        """The source has nothing newer yet; the rank goes on asking."""
        assert self.now.fetch is not None
        self._put(fetch_told=True)
        self._say(UpToDate(version=self.now.fetch.version))

    def fetch_failed(self) -> None:
        """Nobody can give the entry."""
        assert self.now.fetch is not None
        version = self.now.fetch.version
        self._put(fetch=None)
        self._say(FetchFailed(version=version, reason="no source has it"))

    def loaded(self, snapshot: Snapshot | None) -> None:
        """The load is over: it stands on `snapshot`, or it failed."""
        load = self.now.load
        assert load is not None
        answer: Loaded | LoadFailed = LoadFailed(heal=load.heal, reason="no donor has it")
        if snapshot is not None:
            answer = Loaded(
                heal=load.heal,
                version=snapshot.version,
                cursor=snapshot.cursor,
                stop=snapshot.stop,
                bytes=1,
                seconds=1.0,
            )
            self._put(book=loaded(self.now.book, answer), weights=snapshot.weights, stop=snapshot.stop, sums=())
        self._put(load=None)
        self._say(answer)
        self._listen()

    def _say(self, message: Any) -> None:
        self.machine.rank_says(self, message)


def _digest(weights: tuple[int, ...]) -> int:
    """64 bits that differ for different weights."""
    value = 1
    for generation in weights:
        value = (value * 0x9E3779B97F4A7C15 + generation + 1) & ((1 << 64) - 1)
    return value
