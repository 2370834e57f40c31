"""Tables of numbers for very many states at once: a state of a small world is a row, a column is looked up as a whole.

What the real cores make of a part of a world is computed once and remembered here; all that is done for each state is
gathering from arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Keys = NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)


def mixed(keys: Keys) -> Keys:
    """64 bits in which each bit of a key counts for all."""
    keys = (keys ^ (keys >> _HALF)) * np.uint64(0xD6E8FEB86659FD93)
    keys = (keys ^ (keys >> _HALF)) * np.uint64(0xD6E8FEB86659FD93)
    return keys ^ (keys >> _HALF)


def packed(*parts: tuple[Any, int]) -> Keys:
    """One number of several columns, each with the bits that it may take. Raises OverflowError."""
    keys = np.uint64(0)
    for column, bits in parts:
        if np.max(column, initial=0) >> bits:
            raise OverflowError(f"a part of a key takes more than {bits} bits")
        keys = (keys << np.uint64(bits)) | np.asarray(column).astype(np.uint64)
    return np.atleast_1d(keys)


def unpacked(key: int, *bits: int) -> list[int]:
    """The parts of a packed number."""
    parts = []
    for width in reversed(bits):
        parts.append(key & ((1 << width) - 1))
        key >>= width
    return parts[::-1]


class Names:
    """Gives every hashable value a small number, equal ones the same."""

    def __init__(self, *first: Hashable) -> None:
        self._numbers: dict[Hashable, int] = {}
        self.values: list[Any] = []
        for value in first:
            self.of(value)

    def of(self, value: Hashable) -> int:
        """The number of `value`."""
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


class Column:
    """An array that grows."""

    def __init__(self) -> None:
        self._array: Ints = np.zeros(1024, np.int64)
        self.count = 0

    def extend(self, values: Sequence[int]) -> None:
        """Adds values at the end."""
        needed = self.count + len(values)
        if needed > len(self._array):
            self._array = np.resize(self._array, max(needed, 2 * len(self._array)))
        self._array[self.count : needed] = values
        self.count = needed

    def __getitem__(self, at: Any) -> Any:
        return self._array[at]


class Index:
    """A map from 64-bit numbers to the order in which they came."""

    def __init__(self) -> None:
        self._keys: Keys = np.zeros(1 << 12, np.uint64)
        self._places: NDArray[np.int32] = np.zeros(1 << 12, np.int32)
        self.count = 0

    def find(self, keys: Keys) -> Ints:
        """The place of each key, -1 for one that is not there."""
        mask = np.uint64(len(self._keys) - 1)
        keys = keys + np.uint64(1)
        at = (keys * _ODD >> _HALF) & mask
        there = self._keys[at]
        found = np.where(there == keys, self._places[at], -1).astype(np.int64)
        rest = np.flatnonzero((there != keys) & (there != 0))
        while rest.size:
            at[rest] = (at[rest] + np.uint64(1)) & mask
            there = self._keys[at[rest]]
            hit = there == keys[rest]
            found[rest[hit]] = self._places[at[rest[hit]]]
            rest = rest[~hit & (there != 0)]
        return found

    def add(self, keys: Keys) -> None:
        """Adds keys that are not there, each once."""
        while (self.count + len(keys)) * 2 > len(self._keys):
            self._grow()
        self._put(keys + np.uint64(1), np.arange(self.count, self.count + len(keys), dtype=np.int32))
        self.count += len(keys)

    def _grow(self) -> None:
        kept = self._keys != 0
        keys, places = self._keys[kept], self._places[kept]
        self._keys = np.zeros(2 * len(self._keys), np.uint64)
        self._places = np.zeros(len(self._keys), np.int32)
        self._put(keys, places)

    def _put(self, keys: Keys, places: NDArray[np.int32]) -> None:
        mask = np.uint64(len(self._keys) - 1)
        at = (keys * _ODD >> _HALF) & mask
        while keys.size:
            free = np.flatnonzero(self._keys[at] == 0)
            self._keys[at[free]] = keys[free]
            self._places[at[free]] = places[free]  # of several that meet in one place, the last of both stays
            rest = np.flatnonzero(self._keys[at] != keys)
            keys, places, at = keys[rest], places[rest], (at[rest] + np.uint64(1)) & mask


class Table:
    """Rows of numbers for each key: what `compute` made of the key when it was first asked for."""

    def __init__(self, width: int, compute: Callable[[int], Sequence[Sequence[int]]]) -> None:
        self._index = Index()
        self._compute = compute
        self._starts = Column()
        self._sizes = Column()
        self.columns = [Column() for _ in range(width)]

    @property
    def count(self) -> int:
        """How many keys it knows."""
        return self._index.count

    def _ids(self, keys: Keys) -> Ints:
        ids = self._index.find(keys)
        lacking = np.flatnonzero(ids < 0)
        if lacking.size:
            new = np.unique(keys[lacking])
            for key in new.tolist():
                rows = self._compute(key)
                self._starts.extend((self.columns[0].count,))
                self._sizes.extend((len(rows),))
                for column, values in zip(self.columns, zip(*rows, strict=True), strict=False):
                    column.extend(values)
            self._index.add(new)
            ids[lacking] = self._index.find(keys[lacking])
        return ids

    def rows(self, keys: Keys) -> tuple[Ints, Ints]:
        """(which of `keys`, the place in `columns`) for each row of each key, in their order."""
        ids = self._ids(keys)
        sizes = self._sizes[ids]
        which = np.repeat(np.arange(len(keys)), sizes)
        first = np.cumsum(sizes) - sizes
        return which, np.arange(len(which)) - (first - self._starts[ids])[which]

    def row(self, keys: Keys) -> Ints:
        """The place in `columns` of each key, where each has one row."""
        return self._starts[self._ids(keys)]  # type: ignore[no-any-return]


class Seen:
    """A set of 64-bit numbers, in 13 to 27 bytes each."""

    def __init__(self) -> None:
        self._slots: Keys = np.zeros(1 << 16, np.uint64)
        self.count = 0

    def add(self, keys: Keys) -> Ints:
        """The places in `keys` of those that are new, each once, in their order."""
        keys = np.where(keys == 0, np.uint64(1), keys)
        order = np.argsort(keys)
        ordered = keys[order]
        first = np.ones(len(keys), bool)
        first[1:] = ordered[1:] != ordered[:-1]
        # Of equal ones the sort may give any: which state leads to one is not what matters.
        while (self.count + int(first.sum())) * 5 > len(self._slots) * 3:
            self._grow()
        new = self._put(ordered[first])
        self.count += len(new)
        return np.sort(order[first][new])

    def _grow(self) -> None:
        old = self._slots
        self._slots = np.zeros(2 * len(old), np.uint64)
        for start in range(0, len(old), 1 << 22):
            part = old[start : start + (1 << 22)]
            self._put(part[part != 0])

    def _put(self, keys: Keys) -> Ints:
        """Puts different keys in their slots; the places of those that were not there."""
        mask = np.uint64(len(self._slots) - 1)
        at, left = keys & mask, np.arange(len(keys))
        new = []
        while left.size:
            there = self._slots[at]
            free = np.flatnonzero(there == 0)
            self._slots[at[free]] = keys[left[free]]
            mine = self._slots[at] == keys[left]
            new.append(left[mine & (there == 0)])
            rest = np.flatnonzero(~mine)
            left, at = left[rest], (at[rest] + np.uint64(1)) & mask
        return np.sort(np.concatenate(new)) if new else left
