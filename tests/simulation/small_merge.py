"""Whether what a small world leaves out of its states makes a difference: asked of worlds that leave nothing out.

What nobody can ask for any more is left out (see the page of `small`), so that states which differ only in that are
one. That is right if such states do alike: the same may happen in each, with the same outcome, what is left out left
out again; and where nothing may happen in one, nothing may in the others. Then, by induction, whatever follows one of
them follows all. That is asked of every state of a raw world, which is explored without anything left out. A move
that leads to a state which is one with that before it does not count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from lighthouse.core_state import RunState
from simulation.small_explore import Explorer
from simulation.small_host import Spec, plain_host
from simulation.small_lighthouse import plain
from simulation.small_moves import Moves
from simulation.small_product import LEADER, SITES, Rows, Step
from simulation.small_values import Host, Numbers
from simulation.small_world import World, heeded

Ints = NDArray[np.int64]


class Merge:
    """All states of a raw world, and which of them are one.

    states: how many there are; merged: how many of them differ once all is left out that is
    """

    def __init__(self, spec: Spec) -> None:
        world = World(msgspec.structs.replace(spec, raw=True))
        self.explorer = Explorer(world.spec, False, Moves(world), self._note)
        self._rows: list[Rows] = []
        self._ended: list[NDArray[np.bool_]] = []
        self._edges: list[tuple[NDArray[np.uint64], NDArray[np.uint64], Ints]] = []
        self._plain = Numbers()
        found = self.explorer.run(1 << 40, 1e9)
        assert found.complete, found.wrong
        self.states = found.states
        self.merged = 0

    def wrong(self) -> Counter[str]:
        """How often states that are one do not do alike, by the moves in which they differ."""
        rows, ended = np.concatenate(self._rows), np.concatenate(self._ended)
        keys = self.explorer.product.keys(rows)
        order = np.argsort(keys)
        before, after, move = (np.concatenate(parts) for parts in zip(*self._edges, strict=True))
        before, after = (order[np.searchsorted(keys[order], ends)] for ends in (before, after))
        one = self._classes(rows)
        self.merged = int(one.max()) + 1
        does: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for state, then, by in zip(before.tolist(), one[after].tolist(), move.tolist(), strict=True):
            if then != one[state]:
                does[state].add((by, then))
        first: dict[int, tuple[bool, set[tuple[int, int]]]] = {}
        wrong: Counter[str] = Counter()
        for state, (kind, over) in enumerate(zip(one.tolist(), ended.tolist(), strict=True)):
            mine = over, does[state]
            other = first.setdefault(kind, mine)
            if mine != other:
                wrong[self._told(mine[1] ^ other[1])] += 1
        return wrong

    def _note(self, rows: Rows, step: Step, ended: NDArray[np.bool_]) -> None:
        keys = self.explorer.product.keys(rows)
        self._rows.append(rows.copy())
        self._ended.append(ended.copy())
        self._edges.append((keys[step.state], self.explorer.product.keys(step.rows), step.move))

    def _classes(self, rows: Rows) -> Ints:
        """For each state, a number that is the same for those that are one."""
        plain = rows.astype(np.int64)
        for column in (LEADER, *range(SITES, rows.shape[1])):
            of = self._lighthouse if column == LEADER else self._site
            values, at = np.unique(rows[:, column], return_inverse=True)
            plain[:, column] = np.array([self._plain.of(of(value)) for value in values.tolist()])[at]
        return np.unique(plain, axis=0, return_inverse=True)[1].ravel()

    def _lighthouse(self, number: int) -> Any:
        lighthouse, store = self.explorer.world.leaders.values[number]
        return self.leader(self.explorer.world.lighthouses.values[lighthouse]), store

    def _site(self, number: int) -> Any:
        world = self.explorer.world
        site = world.sites.values[number]
        streams = tuple(stream._replace(up=heeded(world, stream.up)) for stream in site.streams)
        return self.host(world.hosts.values[site.host]), streams, site.following

    def leader(self, lighthouse: RunState) -> Any:
        """What is left of a lighthouse."""
        return plain(lighthouse)

    def host(self, host: Host) -> Host:
        """What is left of a host."""
        return plain_host(host)

    def _told(self, moves: set[tuple[int, int]]) -> str:
        words = [self.explorer.moves.moves.values[move] for move, _ in moves]
        return ", ".join(sorted({str(word[2] if word[0] == "host" else word[0]) for word in words})) or "an end"
