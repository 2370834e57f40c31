"""One rank: the training thread of `replica/steps.py` as a state machine, around the real `replica.work.Book`.

It computes every slot it is dealt, reduces, takes part in the roll call, and listens for verdicts only between
attempts. What real ranks do in the background (opening, fetching, leaving abandoned collectives) happens at once too.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any

from lighthouse.values import EntryName
from replica.rollcall import pack, unpack
from replica.values import (
    Abandoned,
    Apply,
    Commit,
    Drop,
    Fetch,
    Go,
    Load,
    Loaded,
    LoadFailed,
    Mark,
    MarkKind,
    Open,
    Patience,
    Quit,
    RankDown,
    RankFailed,
    ReadyFor,
    RollCall,
    StageFor,
)
from replica.work import Book, OutOfOrder, begun, done, heard, loaded, opened, record
from simulation.healing import Entry, Healing, Snapshot
from simulation.opening import Communicators
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
        self.sum: list[tuple[int, int]] = []
        self.wants_stop = world.watch.stop_asked
        self.stop = False
        self.rehearsed = False
        self.healing = Healing(self)
        self._inbox: deque[RankDown] = deque()
        self._reduced: Sum | None = None
        self._attempt = 0
        self._comms = Communicators(self)
        self._wakes: list[tuple[Any, ...]] = []

    # ---- what happens to it ----------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        return self.phase is not Phase.GONE

    def hear(self, message: RankDown) -> None:
        """A message of the agent arrives."""
        if not self.alive or isinstance(message, Patience):  # the world's waits are the run's from the start
            return
        if isinstance(message, Abandoned):
            self._abandon_below(message.number)
        elif isinstance(message, Open) and message.size:
            self._comms.open(message.number, message.place, message.size, message.rendezvous, planned=True)
        elif isinstance(message, Go) and message.work.size:
            work = message.work
            self._comms.open(work.generation, work.place, work.size, message.rendezvous, planned=False)
        elif isinstance(message, Fetch):
            self.healing.fetch(message)
        self._inbox.append(message)
        if isinstance(message, Load | Quit):
            self.healing.supersede(message.heal if isinstance(message, Load) else 1 << 62)
        self._listen()

    def end(self) -> None:
        """The process is gone."""
        if not self.alive:
            return
        self.phase = Phase.GONE
        self.healing.give_up()
        self._comms.close()
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

    def later(self, delay_s: float, act: Any, *args: Any) -> None:
        """Does it in `delay_s`, unless the process is gone; after the stop, if it is stopped."""
        self.world.engine.after(delay_s, self.due, act, *args)

    def due(self, act: Any, *args: Any) -> None:
        """Does it now, unless the process is gone; after the stop, if it is stopped."""
        if not self.alive:
            return
        if self.stopped:
            self._wakes.append((act, *args))
        else:
            act(*args)

    def say(self, message: Any) -> None:
        """Says something to the agent."""
        self.group.rank_says(self, message)

    def _mark(self, kind: MarkKind, slot: int = -1) -> None:
        if self.world.spec.marks:
            self.say(Mark(kind=kind, step=self.book.version.step, slot=slot))

    # ---- one attempt -----------------------------------------------------------------------------------------------

    def _begin_attempt(self) -> None:
        self._attempt += 1
        self._reduced = None
        work = self.book.work
        assert work is not None
        self.phase = Phase.BUSY
        if not (work.slots or work.farewell or self.rehearsed):
            self.rehearsed = True
            self.later(self.group.slot_s(), self._next_slot)
        else:
            self._next_slot()

    def _next_slot(self) -> None:
        if not self.alive:
            return
        if not self.book.pending:
            self._reduce()
            return
        slot = self.book.pending[0]
        self.book = begun(self.book, slot)
        self._mark(MarkKind.SLOT_BEGUN, slot)
        if self.book.cursor + slot in self.world.poison:
            self.later(self.group.slot_s() / 2, self.group.rank_dies, self, -9, "")
        self.later(self.group.slot_s(), self._slot_done, slot)

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
        if not work.farewell:
            self._mark(MarkKind.GRADIENTS)
        if not self.alive:
            return  # what it said made its agent end it
        lost = self._comms.lost(work.generation)
        if lost is not None:
            self._collective_lost(self._attempt, lost)
        elif not self._comms.is_open(work.generation):
            return  # `opened` goes on from here
        elif work.farewell:
            self._roll_call()
        else:
            self._launch(tuple(sorted(self.sum)), self._reduce_done)

    def _launch(self, payload: Any, then: Any) -> None:
        work, attempt = self.book.work, self._attempt
        assert work is not None
        self._comms.launch(
            work.generation,
            payload,
            lambda payloads: self.due(self._completed, attempt, then, payloads),
            lambda reason: self.due(self._collective_lost, attempt, reason),
        )

    def _completed(self, attempt: int, then: Any, payloads: Any) -> None:
        work = self.book.work
        if attempt != self._attempt or self.phase is not Phase.WAITING or work is None:
            return
        if work.generation < self._comms.floor:
            self._collective_lost(attempt, "abandoned")
            return
        then(payloads)

    def _reduce_done(self, payloads: tuple[Sum, ...]) -> None:
        self._reduced = tuple(sorted(c for part in payloads for c in part))
        self.healing.release_log()
        self._roll_call()

    def _roll_call(self) -> None:
        while self._inbox and isinstance(self._inbox[0], _NO_VERDICT):
            self._take_note(self._inbox.popleft())
        if self._comms.is_open(self.book.ready):
            self.book = opened(self.book, self.book.ready)
        work = self.book.work
        assert work is not None
        said = record(
            self.book,
            self.book.heals,
            stop=self.wants_stop,
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
        self.say(RollCall(generation=work.generation, step=work.version.step, records=b"".join(records)))
        self._comms.close_below(work.generation)
        self.phase = Phase.LISTENING
        self._listen()

    def _collective_lost(self, attempt: int, reason: str) -> None:
        work = self.book.work
        if attempt != self._attempt or self.phase is not Phase.WAITING or work is None:
            return
        self._reduced = None
        self._comms.leave(work.generation)
        if work.generation >= self._comms.floor:
            self.say(RankFailed(number=work.generation, reason=reason))
        self.phase = Phase.LISTENING
        self._listen()

    def opened(self, number: int) -> None:
        """A communicator opened, or did not: whoever waits for it goes on."""
        work = self.book.work
        if self.phase is Phase.WAITING and work is not None and work.generation == number:
            self._reduce()

    def _abandon_below(self, number: int) -> None:
        self._comms.abandon_below(number)
        work = self.book.work
        if self.phase is Phase.WAITING and work is not None and work.generation < number:
            self.later(self.world.network.delay(), self._collective_lost, self._attempt, "abandoned")

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
                self.group.rank_dies(self, 0, "")
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
            self.healing.drop(message.heal)
        elif isinstance(message, StageFor) and message.entries:
            self.healing.keep(message.heal)
        elif isinstance(message, StageFor):
            self.healing.expected[message.heal] = message
            if message.now:
                self.healing.stage(message.heal)
        elif isinstance(message, Load):
            self.healing.forget()
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
            self.healing.stage(heal)
        if message.leave:
            self.group.rank_dies(self, 0, "")

    def _apply_held(self, message: Apply) -> None:
        entry = self.healing.held.pop(message.name, None)
        self.healing.held.clear()
        cursor = self.book.cursor
        if entry is None:
            self.world.watch.broken(f"{self.group.name}: told to apply an entry that it does not hold: {message.name}")
            return
        self._take_note(message)
        if self.alive:
            self._apply(entry, cursor, committed=False)
            for heal in message.stage:
                self.healing.stage(heal)

    def _apply(self, entry: Entry, cursor: int, committed: bool) -> None:
        before = self.weights
        self.weights = self.world.weights.applied(before, entry.sum, entry.merged.skip)
        if not committed:
            self.healing.release_log()
        self.healing.log[entry.name.start] = entry
        self.sum.clear()
        self.stop = self.stop or entry.merged.stop
        self.world.watch.applied(self, entry, before, cursor, committed)

    # ---- healing ---------------------------------------------------------------------------------------------------

    def _load(self, message: Load) -> None:
        self.phase = Phase.BUSY
        rehearsal_s = 0.0 if self.rehearsed else self.group.slot_s()
        self.rehearsed = True
        self.healing.load(message, rehearsal_s)

    def take_snapshot(self, snapshot: Snapshot, answer: Loaded) -> None:
        """The state is that of a donor from now on."""
        self.book = loaded(self.book, answer)
        self.weights, self.stop = snapshot.weights, snapshot.stop
        self.sum.clear()
        self.world.watch.loaded(self, snapshot)

    def load_over(self, answer: Loaded | LoadFailed) -> None:
        """The load has an end, good or bad: the agent hears of it, and the rank listens again."""
        self.phase = Phase.LISTENING
        self.say(answer)
        self._listen()


__all__ = ["Entry", "Phase", "Rank", "Snapshot"]
