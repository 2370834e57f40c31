"""Reads a user's own data set slot by slot: `for slot, batch in data.batches(step)`.

What a slot holds is a function of its number in the run and of nothing that happened, so whoever computes it,
whenever, reads the same samples. A map-style data set is read at the indices that the data plan names. An iterable one
says itself what comes where: it can be put at any *cursor*, a count of samples from the start of the run.

With worker processes, batches are read ahead: those of the coming steps, as if this group kept its slots. What turns
out otherwise (a slot taken over, another deal) is read here and now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from torch.utils.data import DataLoader, default_collate

from replica.data_plan import DataPlan
from replica.errors import MisuseError

if TYPE_CHECKING:
    from replica.api import Slot, Step

Collate = Callable[[list[Any]], Any]
"""Makes a batch of a list of samples."""


@runtime_checkable
class SeekableData(Protocol):
    """An iterable data set with a stated cursor: after `seek(c)`, `iter()` gives samples c, c + 1, … of the run.

    They must be a function of `c` alone (and of the run's seed). Where the samples end, the data is through.
    """

    def seek(self, cursor: int) -> None: ...

    def __iter__(self) -> Iterator[Any]: ...


class SlotData:
    """Batches of slots; made by `Replica.data`."""

    def __init__(self, read: Callable[[Slot], Any]) -> None:
        self._read = read

    def batches(self, step: Step) -> Iterator[tuple[Slot, Any]]:
        """The slots of `step` to compute, each with its batch. Where the data has ended, the step and the run do."""
        for slot in step:
            batch = self._read(slot)
            if batch is None:
                step.end_of_data()
            else:
                yield slot, batch


class StreamReader:
    """Reads an iterable data set. slot_size: samples in a slot; share: which of them this shard takes."""

    def __init__(self, dataset: SeekableData, slot_size: int, share: slice, collate: Collate | None) -> None:
        self._dataset = dataset
        self._slot_size = slot_size
        self._share = share
        self._collate = collate or default_collate
        self._at = -1
        self._samples: Iterator[Any] = iter(())

    def __call__(self, slot: Slot) -> Any:
        """The batch of this shard; None where the data has fewer samples than the whole slot needs."""
        start = slot.number * self._slot_size
        if start != self._at:
            self._dataset.seek(start)
            self._samples = iter(self._dataset)
        samples = list(islice(self._samples, self._slot_size))
        self._at = start + len(samples)
        return self._collate(samples[self._share]) if len(samples) == self._slot_size else None


class MapReader:
    """Reads a map-style data set, ahead if there are worker processes."""

    def __init__(
        self,
        dataset: Any,
        plan: DataPlan,
        shard_rank: int,
        collate: Collate | None,
        workers: int,
        start_method: str,
    ) -> None:
        self._dataset = dataset
        self._collate = collate or default_collate
        self._ahead = _Ahead(plan, shard_rank)
        self._loader: DataLoader[Any] | None = None
        if workers:
            self._loader = DataLoader(
                dataset,
                batch_sampler=self._ahead,
                collate_fn=self._collate,
                num_workers=workers,
                multiprocessing_context=start_method,
                persistent_workers=True,
            )
        self._loaded: Iterator[Any] | None = None
        self._expected: Iterator[int] = iter(())
        self._next = -1
        self._cursor = -1
        self._own: tuple[int, ...] = ()

    def __call__(self, slot: Slot) -> Any:
        """The batch of this shard."""
        if self._loader is not None:
            self._look_ahead(self._loader, slot.number - slot.index)
            self._own = (*self._own, slot.index)
            if self._loaded is not None and slot.number == self._next:
                self._next = next(self._expected)
                return next(self._loaded)
        assert slot.samples is not None
        return self._collate([self._dataset[i] for i in slot.samples])

    def _look_ahead(self, loader: DataLoader[Any], cursor: int) -> None:
        """At the first slot of a step: foretells the slots to come from those of the step before."""
        if cursor == self._cursor:
            return
        stride, own = cursor - self._cursor, self._own
        known = own and self._cursor >= 0 and stride > 0
        self._cursor, self._own = cursor, ()
        if not known or self._ahead.is_at(cursor, stride, own):
            return
        self._ahead.foretell(cursor, stride, own)
        self._expected = self._ahead.numbers()
        self._next = next(self._expected)
        self._loaded = iter(loader)


class _Ahead:
    """Tells a loader which indices to read: those of the slots at `own` places of each step, every `stride` slots."""

    def __init__(self, plan: DataPlan, shard_rank: int) -> None:
        self._plan = plan
        self._shard_rank = shard_rank
        self._cursor, self._stride, self._own = 0, 0, ()  # type: int, int, tuple[int, ...]

    def foretell(self, cursor: int, stride: int, own: Sequence[int]) -> None:
        """From now on: slots `own` of the step at `cursor`, and of those that follow."""
        self._cursor, self._stride, self._own = cursor, stride, tuple(own)

    def is_at(self, cursor: int, stride: int, own: Sequence[int]) -> bool:
        """Whether that is what was foretold already."""
        same = self._stride == stride and self._own == tuple(own)
        return same and (cursor - self._cursor) % stride == 0

    def numbers(self) -> Iterator[int]:
        """Numbers of these slots in the run, without end."""
        cursor, stride, own = self._cursor, self._stride, self._own
        return (start + index for start in count(cursor, stride) for index in own)

    def __iter__(self) -> Iterator[list[int]]:
        return (list(self._plan.share(number, self._shard_rank)) for number in self.numbers())


def open_data(
    dataset: Any,
    *,
    plan: DataPlan | None,
    slot_size: int,
    shards: int,
    shard_rank: int,
    collate: Collate | None,
    workers: int,
    start_method: str,
) -> SlotData:
    """The reader for `dataset`. Raises MisuseError where it is neither map-style nor has a cursor."""
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        if plan is None or plan.length != len(dataset):
            known = "none was given" if plan is None else f"it is {plan.length}"
            raise MisuseError(
                f"the data set has {len(dataset)} samples: give Replica(dataset_length={len(dataset)}); {known}"
            )
        return SlotData(MapReader(dataset, plan, shard_rank, collate, workers, start_method))
    if not isinstance(dataset, SeekableData):
        raise MisuseError(
            "the data set can neither be indexed (__getitem__ and __len__) nor put at a cursor (seek and __iter__): "
            "after a loss or a restart nobody could say which samples come next; give it a seek(cursor) method, "
            "cursor being the number of samples that the run consumed before"
        )
    if workers:
        raise MisuseError("workers read a map-style data set; an iterable one may start its own, or give workers=0")
    size = slot_size // shards
    return SlotData(StreamReader(dataset, slot_size, slice(shard_rank * size, (shard_rank + 1) * size), collate))
