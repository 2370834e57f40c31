"""What a training program uses: a `Replica`, its steps, their slots.

    replica = Replica(model=model, optimizer=optimizer, slots=8, slot_size=4, seed=1, steps=1000, dataset_length=50_000)
    for step in replica.steps():
        for slot in step:                      # ends only with the verdict; yields taken-over slots if a peer dies
            loss_sum, tokens = forward(model, data[slot.samples])
            step.backward(loss_sum, tokens)
        step.apply()                           # the registered function

The loop also rehearses, heals and replays: a step may hand out a slot whose gradients are dropped, or no slot at all,
and `step.apply()` may apply what others computed. A program that follows the pattern needs no case for any of it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from lighthouse.values import Version
from replica.apply import Apply
from replica.assembly import Assembly, ReplicaOptions, assemble, exit_on_misuse
from replica.data import Collate, SlotData, open_data
from replica.data_plan import DataPlan
from replica.environment import NotARankError, RankEnvironment, read_environment
from replica.errors import Left, MisuseError
from replica.measures import Times
from replica.state import HasStateDict
from replica.step_parts import Observer
from replica.steps import REHEARSAL, StepLoop
from replica.values import Merged


@dataclass(frozen=True, kw_only=True)
class Slot:
    """One microbatch to compute.

    index: which slot of the step; number: its number in the run, counted from 0
    samples: indices into the data set of this shard's share; None without `dataset_length`
    """

    index: int
    number: int
    samples: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a committed step was, over all groups.

    version: what it made; loss: mean per token; grad_norm: 2-norm of the mean gradient, before clipping
    skipped: the update was left out; save, stop: somebody asked for a save, or for the end of the run
    times: where the seconds of this rank's training thread went; `times.protocol` is what Bellrock itself cost
    """

    version: Version
    loss: float
    tokens: int
    grad_norm: float
    skipped: bool
    save: bool
    stop: bool
    times: Times

    @classmethod
    def of(cls, merged: Merged, times: Times) -> StepResult:
        """The part of a merged roll call that a training program may care for."""
        return cls(
            version=merged.end,
            loss=merged.loss_sum / max(merged.tokens, 1),
            tokens=merged.tokens,
            grad_norm=merged.grad_norm,
            skipped=merged.skip,
            save=merged.save,
            stop=merged.stop,
            times=times,
        )


class Step:
    """One step of the run as this rank takes part in it: iterate over it once, then call `apply`."""

    def __init__(self, loop: StepLoop, slots: Iterator[int], first: int | None, plan: DataPlan | None, shard_rank: int):
        self._loop = loop
        self._slots = slots
        self._first = first
        self._plan = plan
        self._shard_rank = shard_rank
        self._in_hand = False
        self._iterated = False
        self._ended = False
        self.applied = False
        self.result: StepResult | None = None
        """What was committed; None before `apply`, and if this step changed nothing here."""

    @property
    def number(self) -> int:
        """Committed steps before this one."""
        return self._loop.book.version.step

    @property
    def cursor(self) -> int:
        """The number in the run of this step's slot 0."""
        return self._loop.book.cursor

    def __iter__(self) -> Iterator[Slot]:
        """The slots to compute, in order; ends with the verdict. Call `backward` once for each."""
        if self._iterated:
            raise MisuseError("a step is iterated over once: `for slot in step`")
        self._iterated = True
        upcoming = self._first
        while upcoming is not None:
            self._loop.begin_slot(upcoming)
            self._in_hand = True
            yield self._slot(0 if upcoming == REHEARSAL else upcoming)
            if self._in_hand:
                raise MisuseError(
                    f"slot {upcoming} was left out: call step.backward(loss_sum, tokens) once for each slot"
                )
            upcoming = next(self._slots, None)
        self._ended = True

    def backward(self, loss_sum: torch.Tensor, tokens: int) -> None:
        """Adds the slot in hand to the step.

        loss_sum: the *sum* (not mean) of losses over this shard's share of the slot, one element, requiring a gradient
        tokens: how many tokens (or samples: whatever the mean is per) that sum is over
        """
        if not self._in_hand:
            raise MisuseError("step.backward belongs into the loop `for slot in step`, once for each slot")
        _check_loss(loss_sum, tokens)
        self._loop.backward(loss_sum, tokens)
        self._in_hand = False

    def end_of_data(self) -> None:
        """In place of `backward`: there is no data for the slot in hand, nor for any after it. The run ends with this
        step; all groups agree on that in its roll call. All shards of a group must come to this at the same slot."""
        if not self._in_hand:
            raise MisuseError("step.end_of_data belongs into the loop `for slot in step`, in place of step.backward")
        self._loop.without_data()
        self._in_hand = False

    def apply(self) -> None:
        """Carries out the verdict: the registered function on the reduced gradients, if the step was committed."""
        if not self._ended:
            raise MisuseError("step.apply() comes after the loop `for slot in step` has ended by itself")
        if self.applied:
            raise MisuseError("step.apply() is called once for each step")
        self.applied = True
        merged = self._loop.settle()
        self.result = None if merged is None else StepResult.of(merged, self._loop.times)

    def _slot(self, index: int) -> Slot:
        number = self.cursor + index
        samples = self._plan.share(number, self._shard_rank) if self._plan is not None else None
        return Slot(index=index, number=number, samples=samples)


class Replica:
    """This rank's part in a run.

    model, optimizer, scheduler: the training state, with `extras` (what has state_dict and load_state_dict) beside;
    wrap the model with `fully_shard` before, if the group has several shards, and make the optimizer after that
    slots: microbatches in a step over all groups, which never changes; or slots_per_group: microbatches that each
    contributing group brings, so that a step grows and shrinks with them; slot_size: samples in one (divisible by the
    shards)
    seed: of data order and of randomness in compute
    steps: the run ends after so many; epochs (passes over the data set) or samples: it ends when the data is through;
    drop_last: without a last batch that the data does not fill, else that step has fewer slots
    dataset_length: samples in the data set, for `Slot.samples`; data: any text that must be equal in all groups
    apply: a function of an `Update`, in place of the default (mean per token, clip, optimizer, schedule)
    max_grad_norm: for the default apply; None does not clip
    bucket_bytes: gradients are reduced in pieces of about this size (the default is from `make bench-buckets`, see
    docs/benchmarks.md); overlap: while backward still runs
    reduce_dtype: "fp32" or "bf16": what gradients are added up in over the groups; None is each parameter's own dtype.
    Over slots they are added up in the parameter's dtype all the same. bf16 halves the bytes of a reduction and of
    entries, and rounds each group's sum, and each partial sum, to 8 bits; all groups still get the same bits
    process_group: over the shards; None is torch.distributed's default group
    backend: of communicators between groups
    heal: how a group gets the state of the others while they train. "log": a snapshot, then each step since then, by
    `apply` alone, so that nobody waits; "pause": for an `apply` that is no function of its arguments: all wait while
    it loads. Whoever was a donor keeps host memory for its part of a snapshot: two of as many stripes as there were
    donors, or, with fewer than three, all of its shard
    heal_log_bytes: host memory for steps that a joiner has yet to fetch; one that needs more starts over from a newer
    snapshot. None: eight steps' gradients of this shard, at least 64 MiB
    environment: who this rank is; None reads it from the process environment, where `bellrock group` puts it
    observer: called with (phase, step) as steps go on, on the training thread; for profiles, drills and tests
    Raises MisuseError where the program has to be changed.
    """

    _stop = False
    _save = False
    _began = False

    def __new__(cls, *_: Any, **__: Any) -> Self:
        exit_on_misuse()  # before __init__ checks anything
        return super().__new__(cls)

    def __init__(
        self,
        *,
        model: nn.Module,
        optimizer: Optimizer | None,
        slots: int | None = None,
        slots_per_group: int | None = None,
        slot_size: int,
        seed: int,
        steps: int | None = None,
        epochs: int | None = None,
        samples: int | None = None,
        drop_last: bool = True,
        scheduler: Any = None,
        max_grad_norm: float | None = None,
        apply: Apply | None = None,
        extras: Mapping[str, HasStateDict] | None = None,
        dataset_length: int | None = None,
        data: str = "",
        bucket_bytes: int = 4 << 20,
        reduce_dtype: Literal["fp32", "bf16"] | None = None,
        overlap: bool = True,
        process_group: dist.ProcessGroup | None = None,
        backend: str = "gloo",
        heal: str = "log",
        heal_log_bytes: int | None = None,
        environment: RankEnvironment | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._options = ReplicaOptions(
            slots=slots,
            slots_per_group=slots_per_group,
            slot_size=slot_size,
            seed=seed,
            steps=steps,
            epochs=epochs,
            samples=samples,
            drop_last=drop_last,
            max_grad_norm=max_grad_norm,
            dataset_length=dataset_length,
            data=data,
            bucket_bytes=bucket_bytes,
            reduce_dtype=reduce_dtype,
            overlap=overlap,
            backend=backend,
            heal=heal,
            heal_log_bytes=heal_log_bytes,
        )
        self._assembly: Assembly = assemble(
            self._options,
            environment or _environment(),
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            apply=apply,
            extras=extras or {},
            process_group=process_group,
            wishes=lambda: (self._stop, self._save),
            observer=observer,
        )

    @property
    def environment(self) -> RankEnvironment:
        """Who this rank is: run, group, shard_rank, shards."""
        return self._assembly.environment

    @property
    def data_plan(self) -> DataPlan | None:
        """The order of samples; None without `dataset_length`."""
        return self._assembly.plan

    @property
    def version(self) -> Version:
        """What the training state is, between steps."""
        return self._assembly.loop.book.version

    @property
    def setup(self) -> dict[str, str]:
        """What must be equal in all groups of the run, field by field."""
        return dict(self._assembly.setup)

    def request_stop(self) -> None:
        """Asks for the end of the run: all groups finish together after a committed step that tells of it."""
        self._stop = True

    def request_save(self) -> None:
        """Asks that all groups save: `step.result.save` is True at all of them after the same step."""
        self._save = True

    def steps(self) -> Iterator[Step]:
        """The steps of the run. Ends when the run is finished and its final state is here.

        Raises Left (which ends the process with exit code 0) where the group leaves in order before that, and
        LeaveError where it has to leave without success.
        """
        if self._began:
            raise MisuseError("Replica.steps() is called once")
        self._began = True
        assembly = self._assembly
        assembly.start()
        loop = assembly.loop
        while not loop.leaving:
            slots = loop.slots()
            first = next(slots, None)
            if first is None and loop.ends_silently:
                loop.settle()
                continue
            step = Step(loop, slots, first, assembly.plan, assembly.environment.shard_rank)
            yield step
            if not step.applied:
                raise MisuseError("call step.apply() at the end of each step, after the loop `for slot in step`")
            if step.result is not None and step.result.save:
                self._save = False
        if not loop.finished:
            raise Left(loop.left_because)

    def data(
        self, dataset: Any, *, collate: Collate | None = None, workers: int = 0, start_method: str = "spawn"
    ) -> SlotData:
        """Reads `dataset` slot by slot: `for slot, batch in data.batches(step)`.

        dataset: map-style (torch's Dataset; `dataset_length` is its length), or with a cursor (`SeekableData`)
        collate: makes a batch of a list of samples; torch's default_collate by default
        workers: processes that read ahead, started by `start_method` ("fork" copies sockets and locks of this process)
        """
        return open_data(
            dataset,
            plan=self._assembly.plan,
            slot_size=self._options.slot_size,
            shards=self.environment.shards,
            shard_rank=self.environment.shard_rank,
            collate=collate,
            workers=workers,
            start_method=start_method,
        )

    def close(self) -> None:
        """Gives back sockets and threads. Also done when the process ends."""
        self._assembly.close()


def _environment() -> RankEnvironment:
    try:
        return read_environment(os.environ)
    except NotARankError as wrong:
        raise MisuseError(str(wrong)) from wrong


def _check_loss(loss_sum: torch.Tensor, tokens: int) -> None:
    """Raises MisuseError where `step.backward` was given something else than a loss and a count."""
    if not isinstance(loss_sum, torch.Tensor) or loss_sum.numel() != 1 or not loss_sum.requires_grad:
        raise MisuseError(
            "step.backward(loss_sum, tokens) takes the sum of losses over the slot's tokens, as a tensor of one "
            "element that requires a gradient"
        )
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise MisuseError(f"step.backward(loss_sum, tokens) takes the count of tokens as an int, not {tokens!r}")
