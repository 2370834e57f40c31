"""An immutable map from names, cheap to change.

Copying one dict of N groups for each event would make an event cost O(N). A table is a fixed number of small dicts; a
change copies one of them, so an event costs about O(N / 128) moves of pointers, which for ten thousand groups is a
microsecond.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from zlib import crc32

import msgspec

V = TypeVar("V")

BUCKETS = 128


class Table(msgspec.Struct, Generic[V], frozen=True):
    """Names to values. `set` and `without` give a new table; the old one stays as it was."""

    buckets: tuple[dict[str, V], ...] = tuple({} for _ in range(BUCKETS))
    size: int = 0

    def get(self, name: str) -> V | None:
        """The value of `name`, None if there is none."""
        return self.buckets[crc32(name.encode()) % BUCKETS].get(name)

    def set(self, name: str, value: V) -> Table[V]:
        """A table in which `name` has `value`."""
        at = crc32(name.encode()) % BUCKETS
        bucket = self.buckets[at]
        return Table(self._with(at, {**bucket, name: value}), self.size + (name not in bucket))

    def without(self, name: str) -> Table[V]:
        """A table without `name`."""
        at = crc32(name.encode()) % BUCKETS
        if name not in self.buckets[at]:
            return self
        return Table(self._with(at, {k: v for k, v in self.buckets[at].items() if k != name}), self.size - 1)

    def _with(self, at: int, bucket: dict[str, V]) -> tuple[dict[str, V], ...]:
        return (*self.buckets[:at], bucket, *self.buckets[at + 1 :])

    def __iter__(self) -> Iterator[str]:
        for bucket in self.buckets:
            yield from bucket

    def values(self) -> Iterator[V]:
        """Every value, in an order that depends on the names alone."""
        for bucket in self.buckets:
            yield from bucket.values()

    def __len__(self) -> int:
        return self.size
