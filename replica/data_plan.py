"""Which samples a slot of the run stands for: a function of (seed, number of the slot), and of nothing that happened.

The run is an endless row of *places*. Slot `c` of the run (its cursor says how many slots came before) is the places
`c * slot_size … (c + 1) * slot_size - 1`. Each pass over the data, an epoch, is `length` places, each sample once, in
an order of its own. The order is a keyed permutation that is computed place by place (a Feistel network over the next
power of four, walked until it lands inside), so that nothing of the size of the data set is ever stored, and any group
can compute any slot at any time: a slot taken over, a slot after a rollback, a slot of a run restored years later.

Shard `r` of a group computes the r-th of `shards` equal ranges of a slot's samples.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from lighthouse.values import Value

_ROUNDS = 8
_U64 = np.uint64


class DataPlan(Value, frozen=True):
    """The order of samples of a run.

    seed: the run's; length: samples in the data set; slot_size: samples in one slot; shards: processes in a group
    """

    seed: int
    length: int
    slot_size: int
    shards: int

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"a data set of {self.length} samples cannot be trained on")
        if self.slot_size < 1 or self.shards < 1:
            raise ValueError(f"slot_size {self.slot_size} and shards {self.shards} must be 1 or more")
        if self.slot_size % self.shards:
            raise ValueError(
                f"slot_size {self.slot_size} is not divisible by the {self.shards} shards of a group: "
                "choose a multiple, so that every shard computes the same number of samples"
            )

    def samples(self, run_slot: int) -> tuple[int, ...]:
        """Indices into the data set of all samples of slot `run_slot` of the run."""
        return self._at(run_slot * self.slot_size, self.slot_size)

    def share(self, run_slot: int, shard_rank: int) -> tuple[int, ...]:
        """Indices of the samples of slot `run_slot` that shard `shard_rank` computes."""
        if not 0 <= shard_rank < self.shards:
            raise ValueError(f"shard_rank {shard_rank} is not one of {self.shards} shards")
        size = self.slot_size // self.shards
        return self._at(run_slot * self.slot_size + shard_rank * size, size)

    def epoch(self, run_slot: int) -> int:
        """The pass over the data that the slot's first sample belongs to."""
        return run_slot * self.slot_size // self.length

    def _at(self, place: int, count: int) -> tuple[int, ...]:
        if place < 0:
            raise ValueError("slots of the run are counted from 0")
        found: list[int] = []
        while count:
            epoch, offset = divmod(place, self.length)
            here = min(count, self.length - offset)
            found += permuted(self.seed, epoch, self.length, offset, here)
            place, count = place + here, count - here
        return tuple(found)


def permuted(seed: int, epoch: int, length: int, offset: int, count: int) -> list[int]:
    """Places `offset … offset + count - 1` of the permutation of 0 … length - 1 that (seed, epoch) names."""
    half = max(1, (max(length - 1, 1).bit_length() + 1) // 2)
    keys = _keys(seed, epoch)
    values = np.arange(offset, offset + count, dtype=_U64)
    values = _feistel(values, half, keys)
    outside = values >= length
    while outside.any():  # less than three quarters lie outside, so this ends soon; it must end: a walk is a cycle
        values[outside] = _feistel(values[outside], half, keys)
        outside = values >= length
    return [int(v) for v in values]


def _feistel(values: NDArray[np.uint64], half: int, keys: tuple[int, ...]) -> NDArray[np.uint64]:
    mask = _U64((1 << half) - 1)
    left, right = values >> _U64(half), values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ _U64(key)) & mask)
    return (left << _U64(half)) | right


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit in changes every bit out. Products are meant to wrap."""
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


def _keys(seed: int, epoch: int) -> tuple[int, ...]:
    name = f"bellrock data {seed} {epoch}".encode()
    digest = hashlib.blake2b(name, digest_size=8 * _ROUNDS).digest()
    return tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS))
