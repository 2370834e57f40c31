"""What happens in a step, on the training thread.

`StepLoop.slots` is the step as one straight story: it yields the slots that this rank has to compute, reduces when all
are summed, takes part in the roll call, and goes back for more slots as often as the agent's verdict says so. It ends
with a verdict that ends the step; `settle` then applies it. All bookkeeping is `replica.work.Book`, a value; what is
here carries it out on tensors.

What keeps the ranks of a group in step with each other: every verdict is acted on in full and in order before the next
is looked at. In particular each attempt computes all its slots and does the sums inside the group, though its
generation may be known to be over by then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator

import torch

from lighthouse.values import EntryName
from replica.apply import Update
from replica.communicator import Communicator, CommunicatorLost
from replica.entry import Entry
from replica.errors import LeaveError, ReplicaError
from replica.measures import Part, Stopwatch, Times
from replica.reduction import Reduced, Reduction
from replica.rollcall import pack
from replica.seeding import seed_slot
from replica.step_parts import Parts, Sums
from replica.values import (
    Abandoned,
    Apply,
    Commit,
    Drop,
    Go,
    Load,
    Loaded,
    Mark,
    MarkKind,
    Merged,
    Open,
    Quit,
    RankDown,
    ReadyFor,
    RollCall,
    StageFor,
    Work,
)
from replica.work import Book, OutOfOrder, begun, done, heard, loaded, opened, record

REHEARSAL = -1
"""Yielded in place of a slot: one whose gradients are dropped."""

_NO_VERDICT = (Abandoned, Open, ReadyFor, StageFor, Drop)


class StepLoop:
    """The steps of one rank, one after another. `begin`, then `slots` to its end, then `settle`."""

    def __init__(self, parts: Parts, wishes: Callable[[], tuple[bool, bool]]) -> None:
        """wishes: whether this rank wants to (stop, save), asked for each roll call."""
        self._parts = parts
        self._wishes = wishes
        self._sums = Sums()
        self._reduced: Reduced | None = None
        self._reduction: Reduction | None = None
        self._verdict: Commit | Apply | Quit | None = None
        self._rehearsed = False
        self._stop = False
        self._through = False
        self._begun_at = 0.0
        self._watch = Stopwatch()
        self.times = Times()
        """Where the time of the last step went."""
        self.book = Book()
        self.finished = False
        """The run is finished, and the state here is its last one."""
        self.left_because = ""

    @property
    def leaving(self) -> bool:
        """The verdict to leave was given: no step follows."""
        return self.book.leaving

    @property
    def ends_silently(self) -> bool:
        """The step has ended, and changes nothing: a farewell, or leave to go."""
        work = self.book.work
        farewell = isinstance(self._verdict, Commit) and work is not None and work.farewell
        return farewell or isinstance(self._verdict, Quit)

    def slots(self) -> Iterator[int]:
        """The slots to compute, until the verdict; REHEARSAL where gradients are dropped. Raises LeaveError.

        The consumer calls `begin_slot` and `backward` for each before it asks for the next.
        """
        self._watch.charge(Part.PROGRAM)
        while self._verdict is None:
            work = self.book.work
            if work is not None:
                yield from self._attempt(work)
            while self._verdict is None:
                command = self._parts.link.next()
                self._hear(command)
                if isinstance(command, Load):
                    yield from self._load(command)
                elif isinstance(command, Go) and self.book.work is not None:
                    break
            self._watch.charge(Part.VERDICT)

    def begin_slot(self, slot: int) -> None:
        """The slot is handed to the training program: seeds what it draws, and marks it."""
        step = self.book.version.step
        if slot == REHEARSAL:
            seed_slot(self._parts.seed, step, 0, self._parts.shard_rank)
            return
        amid = bool(self.book.summed)
        self.book = begun(self.book, slot)
        seed_slot(self._parts.seed, step, slot, self._parts.shard_rank)
        self._mark(MarkKind.SLOT_BEGUN, slot, now=amid)
        self._watch.charge(Part.OWN)
        self._begun_at = time.perf_counter()

    def backward(self, loss_sum: torch.Tensor, tokens: int) -> None:
        """Adds the slot in hand to the local sum: gradients of `loss_sum`, its value, and `tokens`."""
        loss_sum.backward()
        self._watch.charge(Part.PROGRAM)
        self._parts.hooks.backward_done()
        slot = self.book.in_hand
        if slot == REHEARSAL:
            return
        self.book = done(self.book)
        self._sums.losses.append(loss_sum.detach())
        self._sums.tokens += tokens
        self._sums.compute_s += time.perf_counter() - self._begun_at
        self._rehearsed = True
        self._mark(MarkKind.SLOT_DONE, slot)

    def without_data(self) -> None:
        """The slot in hand has no data, as none after it will: it counts as summed, and the run is to end."""
        self._parts.hooks.backward_done()
        self._through = True
        slot = self.book.in_hand
        if slot != REHEARSAL:
            self.book = done(self.book)
            self._mark(MarkKind.SLOT_DONE, slot)

    def settle(self) -> Merged | None:
        """Carries out the verdict that ended the step: the roll call of what was applied, or None; or LeaveError."""
        self._watch.charge(Part.PROGRAM)
        outcome = self._settle()
        self._parts.gate.open()
        self._watch.charge(Part.OWN)
        self.times = self._watch.lap()
        return outcome

    def _settle(self) -> Merged | None:
        verdict, self._verdict = self._verdict, None
        if isinstance(verdict, Commit):
            return self._commit(verdict)
        if isinstance(verdict, Apply):
            entry = self._parts.healing.take(verdict.name)
            self._note(verdict)
            self._parts.log.release_before(entry.name.start)  # all members have what leads there
            merged = self._apply(entry)
            self._stage(verdict.stage)
            return merged
        return None

    # ---- one attempt -----------------------------------------------------------------------------------------------

    def _attempt(self, work: Work) -> Iterator[int]:
        parts = self._parts
        if not (work.slots or work.farewell or self._rehearsed):
            yield from self._rehearse()
        self._reduced, self._reduction = None, None
        if work.digest:
            parts.healing.digest.begin()
        pending = self.book.pending
        for slot in pending:
            if slot == pending[-1]:
                self._arm(work)
            yield slot
            self._watch.charge(Part.PROGRAM)
        parts.gate.shut()
        if not work.farewell:
            reduction = self._reduction or Reduction(
                parts.gradients, parts.pool.take(), lambda: self._observe("bucket")
            )
            reduction.flush()
            self._mark(MarkKind.GRADIENTS)
            self._observe("gradients")
            self._watch.charge(Part.REDUCE)
        try:
            self._observe("open")
            communicator = parts.communicators.get(work.generation)
            self._watch.charge(Part.OPEN)
            if not work.farewell:
                self._reduced = reduction.finish(communicator, lambda: parts.log.release_before(self.book.version))
                self._watch.charge(Part.REDUCE)
            self._roll_call(work, communicator)
        except CommunicatorLost as lost:
            parts.gate.open()
            self._reduced = None
            parts.communicators.fail(work.generation, str(lost))
        finally:
            self._reduction = None

    def _arm(self, work: Work) -> None:
        """Lets backward of the last slot reduce as it goes, if the communicator is there already."""
        communicator = self._parts.communicators.opened(work.generation)
        if communicator is None:
            return
        reduction = Reduction(self._parts.gradients, self._parts.pool.take(), lambda: self._observe("bucket"))
        reduction.over(communicator)
        if self._parts.hooks.arm(reduction):
            self._reduction = reduction

    def _roll_call(self, work: Work, communicator: Communicator) -> None:
        self._drain()
        if self.book.ready and self._parts.communicators.can_name(self.book.ready):
            self.book = opened(self.book, self.book.ready)
        stop, save = self._wishes()
        grad_sq = self._reduced.grad_sq if self._reduced is not None else 0.0
        said = record(
            self.book,
            self._parts.healing.ready(self.book.heals),
            stop=stop or self._through,
            save=save,
            nonfinite=not math.isfinite(grad_sq),
            loss_sum=float(torch.stack([s.double() for s in self._sums.losses]).sum()) if self._sums.losses else 0.0,
            tokens=self._sums.tokens,
            grad_sq=grad_sq,
            compute_s=self._sums.compute_s,
            protocol_s=self.times.protocol,
            digest=self._parts.healing.digest.value() if work.digest else None,
        )
        self._mark(MarkKind.ROLL_CALL)
        self._observe("roll_call")
        mine = pack(said, work.step_slots)
        bits = self._reduced.presence_bits if self._reduced is not None else b""
        pending, gathered = communicator.all_gather(torch.frombuffer(bytearray(mine + bits), dtype=torch.uint8))
        pending.wait()
        self._watch.charge(Part.ROLL_CALL)
        if communicator.abandoned:
            raise CommunicatorLost("abandoned during the roll call")
        rows = gathered.numpy()
        records = rows[:, : len(mine)].tobytes()
        self._parts.link.say(RollCall(generation=work.generation, step=work.version.step, records=records))
        if self._reduced is not None:
            self._reduced = self._reduced.with_presence(rows[:, len(mine) :])
        self._observe("voted")
        self._parts.communicators.close_below(work.generation)

    def _rehearse(self) -> Iterator[int]:
        """One slot whose gradients are dropped, so that nothing is done for the first time while others wait."""
        buffers = [(b, b.detach().clone()) for b in self._parts.model.buffers()]
        yield REHEARSAL
        self._parts.gradients.drop()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        self._rehearsed = True

    # ---- what the agent says ---------------------------------------------------------------------------------------

    def _hear(self, command: RankDown) -> None:
        """Takes note of a command; what cannot wait for the end of the step is done here."""
        before = self.book
        if isinstance(command, Apply):  # taken note of when it is applied
            self._verdict = command
            return
        if isinstance(command, Commit):
            if before.work is None:
                raise ReplicaError("told to commit a step that this rank is not in")
            self._verdict = command
            return
        self._note(command)
        if isinstance(command, Quit):
            if not command.success:
                raise LeaveError(command.reason)
            self._verdict = command
            self.finished = before.usable and self._is_last(before)
            self.left_because = command.reason
        elif isinstance(command, Drop):
            self._parts.healing.drop(command.heal)
        elif isinstance(command, StageFor) and command.entries:
            self._parts.healing.keep(command.heal, self.book.version)
        elif isinstance(command, StageFor):
            self._parts.healing.expect(command)
            if command.now:
                self._stage((command.heal,))
        elif isinstance(command, Load):
            for heal in before.owed:
                self._parts.healing.drop(heal)
        if before.summed and not self.book.summed:
            self._forget_sums()

    def _is_last(self, book: Book) -> bool:
        return self._stop or book.version.step >= self._parts.steps or (book.work is not None and book.work.farewell)

    def _note(self, command: RankDown) -> None:
        try:
            self.book = heard(self.book, command)
        except OutOfOrder as wrong:
            raise ReplicaError(str(wrong)) from wrong

    def _drain(self) -> None:
        """Hears what has arrived and is no verdict, up to the first verdict."""
        while isinstance(self._parts.link.peek(), _NO_VERDICT):
            self._hear(self._parts.link.next())

    def _load(self, command: Load) -> Iterator[int]:
        self._forget_sums()
        if not self._rehearsed:
            yield from self._rehearse()
        self._observe("load")
        answer = self._parts.healing.load(command, lambda: self._observe("loading"))
        if isinstance(answer, Loaded):
            self.book = loaded(self.book, answer)
            self._stop = answer.stop
        self._parts.link.say(answer)

    # ---- verdicts --------------------------------------------------------------------------------------------------

    def _commit(self, commit: Commit) -> Merged | None:
        work, reduced, start = self.book.work, self._reduced, self.book.version
        assert work is not None
        self._note(commit)
        outcome = None
        if not work.farewell:
            if reduced is None or commit.merged.generation != work.generation:
                raise ReplicaError(f"told to commit {commit.merged.end}, which this rank has not reduced")
            entry = Entry(
                name=EntryName(start=start, end=commit.merged.end),
                merged=commit.merged,
                presence=reduced.presence,
                buckets=() if commit.merged.skip else reduced.buckets,
            )
            self._reduced = None
            outcome = self._apply(entry)
        self._stage(commit.stage)
        if commit.leave and not commit.success:
            raise LeaveError(commit.reason)
        if commit.leave:
            self.finished = work.farewell
            self.left_because = commit.reason
        return outcome

    def _apply(self, entry: Entry) -> Merged:
        """Applies what a step did, whether it was reduced here or fetched."""
        parts, merged = self._parts, entry.merged
        self._observe("apply")
        parts.log.keep(entry)
        parts.healing.settle(merged.end)
        self._watch.charge(Part.OWN)
        if merged.skip:
            parts.gradients.drop()
        else:
            parts.gradients.write_back(entry.buckets, entry.presence, parts.factor(merged))
        self._watch.charge(Part.REDUCE)
        parts.apply(Update(merged=merged, gradients=parts.gradients.locals()))
        self._watch.charge(Part.APPLY)
        self._forget_sums()
        self._stop = self._stop or merged.stop
        self._observe("applied")
        return merged

    def _stage(self, heals: tuple[int, ...]) -> None:
        self._parts.healing.stage(heals, self.book.version, self.book.cursor, self._stop)

    def _forget_sums(self) -> None:
        self._parts.gradients.drop()
        self._sums = Sums()

    def _observe(self, phase: str) -> None:
        self._parts.observer(phase, self.book.version.step)

    def _mark(self, kind: MarkKind, slot: int = -1, *, now: bool = False) -> None:
        """now: the agent is woken for it, and hears of those before."""
        say = self._parts.link.say if now else self._parts.link.say_soon
        say(Mark(kind=kind, step=self.book.version.step, slot=slot))
