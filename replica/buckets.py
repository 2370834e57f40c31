"""The static layout of gradients in buckets, and the memory that buckets lie in.

All members reduce the same buckets in the same order, whether a bucket was filled by a hook in backward, flushed
afterwards, or is all zeros because a spare computed nothing. So the layout depends on nothing but the parameters: they
are packed in reverse order of registration, which is about the order in which backward finishes them, into buckets of
one dtype and device of about `bucket_bytes`; a larger parameter has a bucket of its own. Parameters that are not
sharded, in a group of several shards, have buckets apart (`whole`), after the others: those are equal on all shards,
and equal sizes are what makes a reduction add up in the same order, so that all shards of a group keep the very same
bits of them.

Which parameters have a gradient at all is not in them: each rank says so behind its record in the roll call.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the layout needs to know of a parameter.

    numel: elements of its local shard (0 where this shard holds nothing of it)
    whole: every shard of a group of several holds all of it
    """

    numel: int
    dtype: torch.dtype
    device: torch.device
    whole: bool = False


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the gradient of a parameter lies: elements `offset … offset + numel - 1` of bucket `bucket`."""

    bucket: int
    offset: int
    numel: int


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """One flat tensor; `parameters` are the places in the list of parameters of what lies in it, in order."""

    numel: int
    dtype: torch.dtype
    device: torch.device
    whole: bool
    parameters: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Buckets in the order in which they are reduced, and for each parameter its place in one of them."""

    buckets: tuple[Bucket, ...]
    places: tuple[Place, ...]

    def allocate(self) -> list[torch.Tensor]:
        """New tensors for one step, one for each bucket."""
        return [torch.empty(b.numel, dtype=b.dtype, device=b.device) for b in self.buckets]

    def view(self, tensors: Sequence[torch.Tensor], parameter: int) -> torch.Tensor:
        """The flat part of `tensors` that holds the gradient of parameter number `parameter`."""
        place = self.places[parameter]
        return tensors[place.bucket].narrow(0, place.offset, place.numel)

    @property
    def bytes(self) -> int:
        """Bytes of all buckets together."""
        return sum(b.numel * b.dtype.itemsize for b in self.buckets)


def lay_out(shapes: Iterable[Shape], bucket_bytes: int) -> Layout:
    """The layout of parameters of these shapes. Raises ValueError if `bucket_bytes` is not positive."""
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes is {bucket_bytes}; a bucket must hold something")
    wanted = list(shapes)
    places: list[Place] = [Place(bucket=0, offset=0, numel=0)] * len(wanted)
    done: list[Bucket] = []
    open_: dict[tuple[torch.dtype, torch.device, bool], list[int]] = {}

    def close(key: tuple[torch.dtype, torch.device, bool]) -> None:
        members, offset = open_.pop(key), 0
        for p in members:
            places[p] = Place(bucket=len(done), offset=offset, numel=wanted[p].numel)
            offset += wanted[p].numel
        dtype, device, whole = key
        done.append(Bucket(numel=offset, dtype=dtype, device=device, whole=whole, parameters=tuple(members)))

    for p in sorted(range(len(wanted)), key=lambda i: (wanted[i].whole, -i)):
        shape = wanted[p]
        key = (shape.dtype, shape.device, shape.whole)
        filled = sum(wanted[m].numel for m in open_.get(key, ()))
        if filled and (filled + shape.numel) * shape.dtype.itemsize > bucket_bytes:
            close(key)
        open_.setdefault(key, []).append(p)
    for key in sorted(open_, key=lambda k: k[2]):
        close(key)
    return Layout(buckets=tuple(done), places=tuple(places))


class ScratchPool:
    """Memory for the buckets of a step, used again once nobody else can touch it.

    A set of tensors is handed out as scratch, becomes the buckets of an entry when its step commits, and is free when
    the entry is gone. Who still refers to it then is not known here: a reader that serves the entry, or a collective of
    an abandoned generation that has not noticed its end. Both hold the storage itself, so the storage's own count of
    references says when a set is free. Where torch does not tell that count every step gets new memory.
    """

    def __init__(self, layout: Layout, *, most_spare: int = 3) -> None:
        """`most_spare`: so many sets are kept for use again: scratch, the last entry, and one in doubt."""
        self._layout = layout
        self._most_spare = most_spare
        self._sets: list[list[torch.UntypedStorage]] = []
        self._count = getattr(torch._C, "_storage_Use_Count", None)

    def take(self) -> list[torch.Tensor]:
        """Tensors laid out as `Layout.allocate` does, with contents left from earlier use."""
        for storages in self._sets:
            if all(self._is_free(s) for s in storages):
                return self._tensors(storages)
        tensors = self._layout.allocate()
        if self._count is not None and len(self._sets) < self._most_spare:
            self._sets.append([t.untyped_storage() for t in tensors])
        return tensors

    def _is_free(self, storage: torch.UntypedStorage) -> bool:
        # A storage that only our Python object refers to counts 1.
        return storage.nbytes() == 0 or (self._count is not None and self._count(storage._cdata) <= 1)

    def _tensors(self, storages: list[torch.UntypedStorage]) -> list[torch.Tensor]:
        return [
            torch.empty(0, dtype=b.dtype, device=s.device).set_(s)
            for b, s in zip(self._layout.buckets, storages, strict=True)
        ]
