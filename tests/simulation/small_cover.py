"""Whether what a small world does not try in every order hides anything: asked of worlds explored with and without.

Where something may go first (see the page of `small`), all else is left for later. If that hides nothing, then whatever
happens to any host without it happens to it with it too: the same events, in the same states, with the same outcome;
the same bases are written, and the world ends in the same states. That is what is compared, in numbers of the same
tables. What the lighthouse is in between is not: that some of its events are taken in one order only is the purpose.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulation.small_explore import Explorer
from simulation.small_host import Spec
from simulation.small_moves import Moves
from simulation.small_product import LEADER, Rows, Step
from simulation.small_tables import packed
from simulation.small_world import World


class Met(NamedTuple):
    """What was met in all states of a world: turns of hosts, stores, and ends, each by number."""

    turns: set[int]
    stores: set[int]
    ends: set[int]


class Cover:
    """One world, explored with and without what may go first.

    hidden: what is not met with it, how many of each kind; turns: how many there are without
    """

    def __init__(self, spec: Spec, rules: type[Moves] = Moves) -> None:
        self.spec = spec
        self._moves = rules(World(spec))
        self.reduced, some = self._met(True)
        self.states, whole = self._met(False)
        self.turns = len(whole.turns)
        names = ("turns of hosts", "stores", "ends")
        missed = {name: len(there - here) for name, here, there in zip(names, some, whole, strict=True)}
        self.hidden = {name: count for name, count in missed.items() if count}

    def __str__(self) -> str:
        missed = ", ".join(f"{count} {name}" for name, count in self.hidden.items())
        what = f"hides {missed}" if missed else "nothing is hidden"
        return f"{self.spec.name}: {self.reduced} states for {self.states}, {self.turns} turns of hosts, {what}"

    def _met(self, reduce: bool) -> tuple[int, Met]:
        explorer = Explorer(self.spec, reduce, self._moves)
        turns: list[NDArray[np.uint64]] = []
        stores: list[NDArray[np.int64]] = []
        ends: list[NDArray[np.uint64]] = []

        def watch(rows: Rows, step: Step, ended: NDArray[np.bool_]) -> None:
            product = explorer.product
            for i, (old, new) in enumerate(zip(product.hosts(rows[step.state]), product.hosts(step.rows), strict=True)):
                other = np.flatnonzero(old != new)
                at = (np.full(len(other), i), 4), (old[other], 15), (new[other], 15), (step.move[other], 24)
                turns.append(np.unique(packed(*at)))
            stores.append(np.unique(product.stores(step.rows[:, LEADER])))
            ends.append(product.keys(rows[ended]))

        explorer.watch = watch
        found = explorer.run(1 << 40, 1e9)
        assert found.complete, found.wrong
        return found.states, Met(*(set(np.concatenate(parts).tolist()) for parts in (turns, stores, ends)))
