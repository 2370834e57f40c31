"""One rank: the training thread of `replica/steps.py` as a state machine, around the real `replica.work.Book`.

It computes every slot it is dealt, reduces, takes part in the roll call, and listens for verdicts only between
attempts. What real ranks do in the background (opening, fetching, leaving abandoned collectives) happens at once too.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lighthouse.batch import batch_policy
from lighthouse.values import EntryName, Source, Version
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
    Mark,
    MarkKind,
    Merged,
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
from replica.work import Book, OutOfOrder, begun, done, heard, loaded, opened, record
from simulation.collectives import Communicator
from simulation.weights import Sum, digest

if TYPE_CHECKING:
    from simulation.group import Group
    from simulation.world import World

_NO_VERDICT = (Abandoned, Open, ReadyFor, StageFor, Drop, Fetch)


class Phase(str, Enum):
    LISTENING = "listening"
    BUSY = "busy"
    WAITING = "in a collective"
    GONE = "gone"


class Entry(NamedTuple):
    """A step's reduced gradients with its merged roll call."""

    name: EntryName
    merged: Merged
    sum: Sum


class Snapshot(NamedTuple):
    version: Version
    cursor: int
    stop: bool
    weights: int


class Rank:
    """A rank process of `life` of a group."""

    def __init__(self, world: World, group: Group, life: int, shard_rank: int) -> None:
        self.world = world
        self.group = group
        self.life = life
        self.shard_rank = shard_rank
        self.address = world.address(self)
        self.phase = Phase.LISTENING
        self.stopped = False
        self.book = Book()
        self.weights = group.initial
        self._batch = batch_policy(world.setup())
        self.sum: list[tuple[int, int]] = []
        self.wants_stop = False
        self.stop = False
        self.rehearsed = False
        self.log: dict[Version, Entry] = {}
        self.owed: dict[int, Version] = {}
        self.staged: dict[int, Snapshot] = {}
        self._inbox: deque[RankDown] = deque()
        self._reduced: Sum | None = None
        self._held: dict[EntryName, Entry] = {}
        self._turn = 0
        self._attempt = 0
        self._comms: dict[int, tuple[Communicator, int]] = {}
        self._open: set[int] = set()
        self._lost: dict[int, str] = {}
        self._floor = 0
        self._wakes: list[tuple[Any, ...]] = []

    # ---- what happens to it ----------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.phase is not Phase.GONE

    def hear(self, message: RankDown) -> None:
        """A message of the agent arrives."""
        if not self.alive:
            return
        if isinstance(message, Abandoned):
            self._abandon_below(message.number)
        elif isinstance(message, Open) and message.size:
            self._open_communicator(message.number, message.place, message.size, message.rendezvous, planned=True)
        elif isinstance(message, Go) and message.work.size:
            work = message.work
            self._open_communicator(work.generation, work.place, work.size, message.rendezvous, planned=False)
        elif isinstance(message, Fetch):
            self._turn += 1
            self._fetch(message, self._turn, False)
        self._inbox.append(message)
        self._listen()

    def end(self) -> None:
        """The process is gone."""
        if not self.alive:
            return
        self.phase = Phase.GONE
        self._turn += 1
        for communicator, place in self._comms.values():
            communicator.leave(place)
        self._comms.clear()
        self.world.addresses.pop(self.address, None)

    def stop_for(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later: what should happen meanwhile happens then."""
        if not self.alive or self.stopped:
            return
        self.stopped = True
        self.world.engine.after(seconds, self._continue)

    def _continue(self) -> None:
        self.stopped = False
        if not self.alive:
            return
        wakes, self._wakes = self._wakes, []
        for act, *args in wakes:
            act(*args)
        self._listen()

    def _later(self, delay_s: float, act: Any, *args: Any) -> None:
        """Does it in `delay_s`, unless the process is gone; after the stop, if it is stopped."""
        self.world.engine.after(delay_s, self._due, act, *args)

    def _due(self, act: Any, *args: Any) -> None:
        if not self.alive:
            return
        if self.stopped:
            self._wakes.append((act, *args))
        else:
            act(*args)

    def _say(self, message: Any) -> None:
        self.group.rank_says(self, message)

    def _mark(self, kind: MarkKind, slot: int = -1) -> None:
        if self.world.spec.marks:
            self._say(Mark(kind=kind, step=self.book.version.step, slot=slot))

    # ---- one attempt -----------------------------------------------------------------------------------------------

    def _begin_attempt(self) -> None:
        self._attempt += 1
        self._reduced = None
        work = self.book.work
        assert work is not None
        self.phase = Phase.BUSY
        if not (work.slots or work.farewell or self.rehearsed):
            self.rehearsed = True
            self._later(self.group.slot_s(), self._next_slot)
        else:
            self._next_slot()

    def _next_slot(self) -> None:
        if not self.book.pending:
            self._reduce()
            return
        slot = self.book.pending[0]
        self.book = begun(self.book, slot)
        self._mark(MarkKind.SLOT_BEGUN, slot)
        self._later(self.group.slot_s(), self._slot_done, slot)

    def _slot_done(self, slot: int) -> None:
        self.book = done(self.book)
        self.rehearsed = True
        self.sum.append((self.weights, self.book.cursor + slot))
        self.world.watch.computed(self, slot)
        self._mark(MarkKind.SLOT_DONE, slot)
        self._next_slot()

    def _reduce(self) -> None:
        work = self.book.work
        assert work is not None
        self.phase = Phase.WAITING
        if work.generation in self._lost or work.generation < self._floor:
            self._collective_lost(self._attempt, self._lost.get(work.generation, "abandoned"))
        elif work.generation not in self._open:
            return  # `_communicator_open` goes on from here
        elif work.farewell:
            self._roll_call()
        else:
            self._mark(MarkKind.GRADIENTS)
            self._launch(tuple(sorted(self.sum)), self._reduce_done)

    def _launch(self, payload: Any, then: Any) -> None:
        work, attempt = self.book.work, self._attempt
        assert work is not None
        communicator, place = self._comms[work.generation]
        communicator.launch(
            place,
            payload,
            lambda payloads: self._due(self._completed, attempt, then, payloads),
            lambda reason: self._due(self._collective_lost, attempt, reason),
        )

    def _completed(self, attempt: int, then: Any, payloads: Any) -> None:
        work = self.book.work
        if attempt != self._attempt or self.phase is not Phase.WAITING or work is None:
            return
        if work.generation < self._floor:
            self._collective_lost(attempt, "abandoned")
            return
        then(payloads)

    def _reduce_done(self, payloads: tuple[Sum, ...]) -> None:
        self._reduced = tuple(sorted(c for part in payloads for c in part))
        self._release_log()
        self._roll_call()

    def _roll_call(self) -> None:
        while self._inbox and isinstance(self._inbox[0], _NO_VERDICT):
            self._take_note(self._inbox.popleft())
        if self.book.ready in self._open:
            self.book = opened(self.book, self.book.ready)
        work = self.book.work
        assert work is not None
        through = not work.farewell and self._batch.through(work.cursor + work.step_slots)
        said = record(
            self.book,
            stop=self.wants_stop or through,
            loss_sum=1.0 * len(self.sum),
            tokens=10 * len(self.sum),
            grad_sq=float(len(self._reduced or ())),
            compute_s=0.1,
            digest=digest(self.weights) if work.digest else None,
        )
        self._mark(MarkKind.ROLL_CALL)
        self._launch(pack(said, work.step_slots), self._roll_call_done)

    def _roll_call_done(self, records: tuple[bytes, ...]) -> None:
        work = self.book.work
        assert work is not None
        self.world.watch.gathered(self, work, [unpack(r, work.step_slots) for r in records])
        self._say(RollCall(generation=work.generation, step=work.version.step, records=b"".join(records)))
        for number in [n for n in self._comms if n < work.generation]:
            communicator, place = self._comms.pop(number)
            self._open.discard(number)
            communicator.leave(place)
        self.phase = Phase.LISTENING
        self._listen()

    def _collective_lost(self, attempt: int, reason: str) -> None:
        work = self.book.work
        if attempt != self._attempt or self.phase is not Phase.WAITING or work is None:
            return
        self._reduced = None
        if work.generation in self._comms:
            communicator, place = self._comms[work.generation]
            communicator.leave(place)
        if work.generation >= self._floor:
            self._say(RankFailed(number=work.generation, reason=reason))
        self.phase = Phase.LISTENING
        self._listen()

    # ---- communicators, in the background --------------------------------------------------------------------------

    def _open_communicator(self, number: int, place: int, size: int, rendezvous: str, planned: bool) -> None:
        if number < self._floor or number in self._comms or number in self._lost:
            return
        communicator = self.world.communicator(number, self.shard_rank, size, rendezvous)
        self._comms[number] = (communicator, place)
        communicator.open_at(
            place,
            size,
            self.group.label,
            lambda _: self._due(self._communicator_open, number, planned),
            lambda reason: self._due(self._communicator_lost, number, planned, reason),
        )
        self._later(self.world.spec.open_s, self._communicator_lost, number, planned, "not opened in time")

    def _communicator_open(self, number: int, planned: bool) -> None:
        if number < self._floor or number not in self._comms or number in self._lost:
            return
        self._open.add(number)
        if planned:
            self._say(RankOpened(number=number))
        work = self.book.work
        if self.phase is Phase.WAITING and work is not None and work.generation == number:
            self._reduce()

    def _communicator_lost(self, number: int, planned: bool, reason: str) -> None:
        if number in self._open or number in self._lost or number < self._floor or number not in self._comms:
            return
        self._lost[number] = reason
        if planned:
            self._say(RankFailed(number=number, reason=reason))
        work = self.book.work
        if self.phase is Phase.WAITING and work is not None and work.generation == number:
            self._collective_lost(self._attempt, reason)

    def _abandon_below(self, number: int) -> None:
        self._floor = max(self._floor, number)
        for old in [n for n in self._comms if n < number]:
            communicator, place = self._comms[old]
            communicator.leave(place)
        work = self.book.work
        if self.phase is Phase.WAITING and work is not None and work.generation < number:
            self._later(self.world.network.delay(), self._collective_lost, self._attempt, "abandoned")

    # ---- verdicts --------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while self._inbox and self.phase is Phase.LISTENING and not self.stopped:
            message = self._inbox.popleft()
            if isinstance(message, Commit):
                self._commit(message)
            elif isinstance(message, Apply):
                self._apply_held(message)
            else:
                self._take_note(message)
            if not self.alive:
                return
            if isinstance(message, Quit):
                self.group.rank_leaves(self)
            elif isinstance(message, Load):
                self._load(message)
            elif isinstance(message, Go | Commit) and self.book.work is not None and not self.book.leaving:
                self._begin_attempt()

    def _take_note(self, message: RankDown) -> None:
        before = self.book
        try:
            self.book = heard(before, message)
        except OutOfOrder as wrong:
            self.world.watch.broken(f"{self.group.name}.{self.shard_rank}: {wrong} (heard {message})")
            self.group.rank_dies(self, 1, f"OutOfOrder: {wrong}")
            return
        if before.summed and not self.book.summed:
            self.sum.clear()
        if isinstance(message, Drop):
            self.staged.pop(message.heal, None)
            self.owed.pop(message.heal, None)
            self._release_log()
        elif isinstance(message, StageFor) and message.now:
            self._stage(message.heal)
        elif isinstance(message, Load):
            self.staged.clear()
            self.owed.clear()
            self.log.clear()
            self.sum.clear()

    def _commit(self, message: Commit) -> None:
        start, total = self.book.version, self._reduced
        farewell = self.book.work is not None and self.book.work.farewell
        cursor, owner = self.book.cursor, self.book.work
        self._take_note(message)
        if not self.alive:
            return
        if not farewell:
            if total is None or owner is None or owner.generation != message.merged.generation:
                self.world.watch.broken(
                    f"{self.group.name}: told to commit {message.merged.end}, which it has not reduced"
                )
                return
            self._reduced = None
            name = EntryName(start=start, end=message.merged.end)
            self._apply(Entry(name, message.merged, total), cursor, committed=True)
        for heal in message.stage:
            self._stage(heal)
        if message.leave:
            self.group.rank_leaves(self)

    def _apply_held(self, message: Apply) -> None:
        entry = self._held.pop(message.name, None)
        self._held.clear()
        cursor = self.book.cursor
        if entry is None:
            self.world.watch.broken(f"{self.group.name}: told to apply an entry that it does not hold: {message.name}")
            return
        self._take_note(message)
        if self.alive:
            self._apply(entry, cursor, committed=False)

    def _apply(self, entry: Entry, cursor: int, committed: bool) -> None:
        before = self.weights
        self.weights = self.world.weights.applied(before, entry.sum, entry.merged.skip)
        if not committed:
            self._release_log()
        self.log[entry.name.start] = entry
        self.sum.clear()
        self.stop = self.stop or entry.merged.stop
        self.world.watch.applied(self, entry, before, cursor, committed)

    # ---- healing ---------------------------------------------------------------------------------------------------

    def _stage(self, heal: int) -> None:
        self.staged[heal] = Snapshot(self.book.version, self.book.cursor, self.stop, self.weights)
        self.owed[heal] = self.book.version

    def _release_log(self) -> None:
        """What every member has by now is dropped, unless a joiner is owed it."""
        since = min([self.book.version, *self.owed.values()])
        for version in [v for v in self.log if v < since]:
            del self.log[version]

    def _sources(self, sources: tuple[Source, ...]) -> list[Rank]:
        found = [self.world.addresses.get(s.weights[self.shard_rank]) for s in sources]
        here = self.group.label
        return [r for r in found if r is not None and not self.world.network.apart(here, r.group.label)]

    def _fetch(self, message: Fetch, turn: int, told: bool) -> None:
        if turn != self._turn:
            return
        sources = [r for r in self._sources(message.sources) if not r.stopped]
        for source in sources:
            entry = source.log.get(message.version)
            if entry is not None:
                self._later(self.group.transfer_s(), self._fetched, turn, source, entry)
                return
        if any(r.book.usable and r.book.version == message.version for r in sources):
            if not told:
                self._say(UpToDate(version=message.version))
            self._later(0.05, self._fetch, message, turn, True)
            return
        delay_s = 0.01 if sources else self.world.engine.chance("transfers").uniform(0.01, 1.0)
        failed = FetchFailed(version=message.version, reason="no source has it" if sources else "no source answers")
        self._later(delay_s, self._fetch_failed, turn, failed)

    def _fetch_failed(self, turn: int, failed: FetchFailed) -> None:
        if turn == self._turn:
            self._say(failed)

    def _fetched(self, turn: int, source: Rank, entry: Entry) -> None:
        if turn != self._turn:
            return
        if not source.alive or self.world.network.apart(self.group.label, source.group.label):
            self._say(FetchFailed(version=entry.name.start, reason="the source went away"))
            return
        self._held[entry.name] = entry
        self._say(Held(name=entry.name, merged=entry.merged))

    def _load(self, message: Load) -> None:
        self._turn += 1
        self._held.clear()
        self.phase = Phase.BUSY
        rehearsal_s = 0.0 if self.rehearsed else self.group.slot_s()
        self.rehearsed = True
        self._later(rehearsal_s, self._load_from, message, self.world.engine.now + self.world.spec.heal_s)

    def _load_from(self, message: Load, deadline_s: float) -> None:
        if self.group.never_loads:
            if self.world.engine.now < deadline_s:
                self._later(0.1, self._load_from, message, deadline_s)
            else:
                self._load_over(LoadFailed(heal=message.heal, reason="no bytes moved in time"))
            return
        for source in self._sources(message.sources):
            snapshot = source.staged.get(message.heal)
            if snapshot is not None and not source.stopped:
                self._later(self.group.transfer_s() * 5, self._load_done, message, source, snapshot, deadline_s)
                return
        if self.world.engine.now < deadline_s and self._sources(message.sources):
            self._later(0.05, self._load_from, message, deadline_s)
        else:
            self._load_over(LoadFailed(heal=message.heal, reason="no donor staged in time, or none answers"))

    def _load_done(self, message: Load, source: Rank, snapshot: Snapshot, deadline_s: float) -> None:
        if not source.alive or self.world.network.apart(self.group.label, source.group.label):
            self._load_over(LoadFailed(heal=message.heal, reason="the donor went away"))
            return
        answer = Loaded(
            heal=message.heal,
            version=snapshot.version,
            cursor=snapshot.cursor,
            stop=snapshot.stop,
            bytes=1,
            seconds=1.0,
        )
        self.book = loaded(self.book, answer)
        self.weights, self.stop = snapshot.weights, snapshot.stop
        self.sum.clear()
        self.world.watch.loaded(self, snapshot)
        self._load_over(answer)

    def _load_over(self, answer: Loaded | LoadFailed) -> None:
        self.phase = Phase.LISTENING
        self._say(answer)
        self._listen()


__all__ = ["Entry", "Phase", "Rank", "Snapshot", "msgspec"]
