"""Worlds explored in part: an order in which things happen by themselves, and at most so many that are late.

Something is late with all that comes the same way after it; it happens where nothing else can. What is late is a number
in a state's row; the latest goes last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from simulation.small_moves import FAULT
from simulation.small_tables import Ints, Names, Table, packed, unpacked

_BITS = 24


class Candidates(NamedTuple):
    """Moves of many states. state: of which one; order: its place among the moves of a state; kind: see `small_moves`;
    row: its place in its table; late: what is late after it; index: of the site that it is at, -1 for none"""

    state: Ints
    move: Ints
    order: Ints
    kind: Ints
    row: Ints
    late: Ints
    index: int

    def where(self, kept: Ints) -> Candidates:
        """Some of them."""
        return Candidates(*(c[kept] for c in self[:6]), self.index)


class Delays:
    """Chooses what is tried next where at most `most` things may be late."""

    def __init__(self, most: int, moves: Names) -> None:
        self._most = most
        self._moves = moves
        self._lates = Names(())  # ways by which something is late: a move's first three words
        self._ways = Names()
        self._place = Table(1, lambda key: [(self._place_of(*unpacked(key, _BITS, _BITS)),)])
        self._later = Table(1, lambda key: [(self._later_of(*unpacked(key, _BITS, _BITS)),)])
        self._way = Table(1, lambda key: [(self._ways.of(moves.values[key][:3]),)])
        self._size = Table(1, lambda key: [(len(self._lates.values[key]),)])

    def _place_of(self, late: int, way: int) -> int:
        ways = self._lates.values[late]
        return ways.index(way) if way in ways else -1

    def _later_of(self, late: int, way: int) -> int:
        return self._lates.of((*self._lates.values[late], way))

    def chosen(self, kinds: list[Candidates]) -> list[Candidates]:
        """Those of `kinds` that are tried: faults, what comes first, and what comes first once others are late."""
        state, order, late = (np.concatenate([found[i] for found in kinds]) for i in (0, 2, 5))
        fault = np.concatenate([found.kind == FAULT for found in kinds])
        way = self._way.columns[0][self._way.row(packed((np.concatenate([found.move for found in kinds]), 32)))]
        place = self._place.columns[0][self._place.row(packed((late, _BITS), (way, _BITS)))]
        ranked = np.lexsort((order, place, state, fault))
        ranked = ranked[~fault[ranked]]
        ordered = state[ranked]
        rank = np.arange(len(ranked)) - np.searchsorted(ordered, ordered)
        usual = np.bincount(ordered[place[ranked] < 0], minlength=int(state.max(initial=0)) + 1)
        room = self._most - self._size.columns[0][self._size.row(packed((late[ranked], 32)))]
        tried = (rank <= room) & np.where(place[ranked] < 0, True, rank == usual[ordered])
        kept = fault.copy()
        kept[ranked[tried]] = True
        after = late.copy()
        grown = np.zeros(len(usual), np.int64)
        grown[state] = late
        for place_of in range(self._most + 1):
            now = np.flatnonzero(rank == place_of)
            after[ranked[now]] = grown[ordered[now]]
            keys = packed((grown[ordered[now]], _BITS), (way[ranked[now]], _BITS))
            grown[ordered[now]] = self._later.columns[0][self._later.row(keys)]
        ends = np.cumsum([len(found.state) for found in kinds])[:-1]
        parts = zip(kinds, np.split(kept, ends), np.split(after, ends), strict=True)
        return [found._replace(late=late).where(np.flatnonzero(k)) for found, k, late in parts]
