"""Virtual time: one thread, one heap of things to come, one seed.

Everything in the simulated world happens in `Engine.run`, at a virtual time, in an order that the seed fixes. Each kind
of chance draws from a generator of its own, so that a change to one kind (a fault more) leaves the others as they were.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any


class Engine:
    """The clock (`now`, seconds) and what will happen."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now = 0.0
        self.happened = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._chances: dict[str, Random] = {}

    def chance(self, kind: str) -> Random:
        """The random generator for `kind`, fixed by the seed and the kind."""
        if kind not in self._chances:
            self._chances[kind] = Random(f"{self.seed}/{kind}")
        return self._chances[kind]

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Has `act(*args)` happen in `delay_s` seconds; what is due at one time happens in the order of asking."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now + max(delay_s, 0.0), self._sequence, act, args))

    def run(self, until_s: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Lets things happen until `until_s`, or until `enough` says so."""
        while self._heap and self._heap[0][0] <= until_s and not enough():
            self.now, _, act, args = heapq.heappop(self._heap)
            self.happened += 1
            act(*args)
        if not enough():
            self.now = max(self.now, until_s)
