"""Breadth first over the states of a small world, so that the first story that breaks a promise is a shortest one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulation.small_checks import stuck
from simulation.small_host import Spec
from simulation.small_moves import Move, Moves
from simulation.small_product import LEADER, LEFT, SITES, Product, Rows, Step
from simulation.small_tables import Seen
from simulation.small_world import World, store_of

_AT_ONCE = 1 << 16
"""So many states are expanded at once."""


@dataclass
class Found:
    """What came of exploring a world.

    ends: how many states in which nothing more can happen, by what they are; wrong, path: a broken promise, and the
    moves that lead to it; complete: every state was seen; cpu_s: processor seconds
    """

    spec: Spec
    states: int = 0
    moves: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    wrong: str = ""
    path: tuple[Move, ...] = ()
    complete: bool = False
    cpu_s: float = 0.0


class Ways:
    """How each state was reached: by which move, from which state. Eight bytes a state."""

    def __init__(self) -> None:
        self._before = [np.array([-1], np.int32)]
        self._by = [np.array([-1], np.int32)]

    def add(self, before: NDArray[np.int64], by: NDArray[np.int64]) -> None:
        """Notes new states, in their order: reached from which states, by which moves."""
        self._before.append(before.astype(np.int32))
        self._by.append(by.astype(np.int32))

    def path(self, state: int) -> list[int]:
        """The moves from the first state to this one."""
        before, by = np.concatenate(self._before), np.concatenate(self._by)
        path = []
        while state > 0:
            path.append(int(by[state]))
            state = int(before[state])
        return path[::-1]


class Explorer:
    """Explores one world.

    reduce: what need not be tried in every order is not; moves: those of its world; watch: is shown every state that is
    expanded, with the moves made there, and whether nothing happens there any more but faults
    """

    def __init__(
        self,
        spec: Spec,
        reduce: bool = True,
        moves: Moves | None = None,
        watch: Callable[[Rows, Step, NDArray[np.bool_]], None] | None = None,
    ) -> None:
        self.found = Found(spec)
        self.moves = moves or Moves(World(spec))
        self.world = self.moves.world
        self.product = Product(self.moves, reduce)
        self._first = self.product.first()
        self._ways = Ways()
        self._seen = Seen()
        self.watch = watch

    def run(self, most_states: int, seconds: float) -> Found:
        """Every state, unless there are more or it takes more processor seconds; up to the first broken promise."""
        found, began_s = self.found, time.process_time()
        rows = self._first
        self._seen.add(self.product.keys(rows))
        number = 0
        while len(rows) and not found.wrong:
            new: list[Rows] = []
            for start in range(0, len(rows), _AT_ONCE):
                part = rows[start : start + _AT_ONCE]
                new.append(self._expanded(part, number + start))
                if found.wrong or self._seen.count >= most_states or time.process_time() > began_s + seconds:
                    break
            else:
                number += len(rows)
                rows = np.concatenate(new)
                continue
            break
        found.complete = not len(rows) and not found.wrong
        found.states, found.cpu_s = self._seen.count, time.process_time() - began_s
        return found

    def _expanded(self, rows: Rows, first: int) -> Rows:
        """The new states after these, the first of which has number `first`."""
        step, ended = self.product.expand(rows)
        self.found.moves += len(step.move)
        if self.watch is not None:
            self.watch(rows, step, ended)
        for state in np.flatnonzero(ended).tolist():
            self._end(rows[state], first + state)
        bad = np.flatnonzero(step.wrong)
        if bad.size and not self.found.wrong:
            at = int(bad[0])
            self._wrong(self.world.wrongs.values[step.wrong[at]][0], first + int(step.state[at]), int(step.move[at]))
        new = self._seen.add(self.product.keys(step.rows))
        self._ways.add(first + step.state[new], step.move[new])
        return step.rows[new]

    def _wrong(self, what: str, state: int, *then: int) -> None:
        path = (*self._ways.path(state), *then)
        self.found.wrong, self.found.path = what, tuple(self.moves.moves.values[move] for move in path)

    def _end(self, row: NDArray[np.int32], number: int) -> None:
        spec, world = self.world.spec, self.world
        views = [world.view(world.sites.values[site].host) for site in row[SITES:]]
        leader = int(row[LEADER])
        harmed = bool(row[LEFT] != self._first[0, LEFT])
        kind, bad = stuck(views, world.waits(leader), store_of(world, leader), spec.groups, spec.min_groups, harmed)
        self.found.ends[kind] += 1
        if bad and not self.found.wrong:
            self._wrong(f"{kind}, but {bad}", number)


def explore(spec: Spec, most_states: int = 1 << 40, seconds: float = 1e9) -> Found:
    """Every state of the world of `spec`, unless there are more or it takes more processor seconds; up to the first
    broken promise."""
    return Explorer(spec).run(most_states, seconds)


def replayed(spec: Spec, path: Sequence[Move]) -> list[str]:
    """The story of these moves, a line for each."""
    explorer = Explorer(spec)
    product, world, names = explorer.product, explorer.world, explorer.moves.moves
    rows, lines = product.first(), []
    for move in path:
        step, _ = product.expand(rows)
        lines.append(" ".join(str(word) for word in move) + _carried(world, rows[0], move))
        at = np.flatnonzero(step.move == names.of(tuple(move)))
        if not at.size:
            return [*lines, "    this cannot happen here"]
        lines += [f"    BROKEN {wrong}" for wrong in world.wrongs.values[step.wrong[at[0]]]]
        rows = step.rows[at[:1]]
    for host in (world.view(world.sites.values[site].host) for site in rows[0, SITES:]):
        lines.append(
            f"{host.name}: generation {host.generation}, stands on {host.version}, waits for {host.hold or '-'}"
        )
    waits = world.waits(int(rows[0, LEADER]))
    lines.append(f"lighthouse: generation {waits.number}, hold {waits.hold or '-'}")
    return lines


def _carried(world: World, row: NDArray[np.int32], move: Move) -> str:
    """What a stream's move brings."""
    if move[0] not in ("up", "down", "amid"):
        return ""
    streams = (s for site in row[SITES:] for s in world.sites.values[site].streams)
    stream = next((s for s in streams if s.conn == move[-1]), None)
    way = () if stream is None else stream.down if move[0] == "down" else stream.up
    return f"  {str(world.things.values[way[0]])[:220]}" if way else ""
