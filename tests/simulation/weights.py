"""Weights as what was applied to them.

A state of weights is known by a number. It remembers its parent and the exact multiset of contributions of the step
that made it from there: (weights that the gradient was computed on, slot counted in the run's order). So two equal
states have the same history of sums, and no wrong sum can hide: the checkers look at every contribution.
"""

from __future__ import annotations

from typing import NamedTuple

Contribution = tuple[int, int]
"""(weights on which it was computed, slot counted in the run's order)."""

Sum = tuple[Contribution, ...]
"""A multiset of contributions, sorted."""


class State(NamedTuple):
    """How weights came to be: applied to `parent`, the reduced gradients `sum`; skipped: they were not used."""

    parent: int
    sum: Sum
    skipped: bool


class Weights:
    """All states of weights that ever were in one world. 0, 1, … `roots` - 1 are initial ones."""

    def __init__(self, roots: int = 1) -> None:
        self._states: list[State | None] = [None] * roots
        self._numbers: dict[State, int] = {}

    def applied(self, parent: int, total: Sum, skipped: bool) -> int:
        """The weights after one step."""
        state = State(parent, total, skipped)
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self._states)
            self._states.append(state)
        return number

    def state(self, number: int) -> State | None:
        """How they came to be; None for initial ones."""
        return self._states[number]

    def lineage(self, number: int) -> list[int]:
        """All ancestors, oldest first, and `number` itself."""
        line = [number]
        while (state := self._states[line[-1]]) is not None:
            line.append(state.parent)
        return line[::-1]


def digest(weights: int) -> int:
    """64 bits that differ for different weights."""
    return (weights * 0x9E3779B97F4A7C15 + 0x1234567) & ((1 << 64) - 1)
