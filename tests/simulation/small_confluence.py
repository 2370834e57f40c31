"""Whether what a small world does not try twice hides anything: asked of worlds that are explored without reductions.

Where a move may go first (see the page of `small`), it is tried alone. That hides nothing if, of it and of every other
move that can be made there, each leaves the other possible, both orders lead to the same state, and in the state that
the other one leads to the move may still go first: then whatever is done without it can be done after it just as well.
So too if one makes no difference beside the other. That is asked of each state of a world, moves taken in pairs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from simulation.small_explore import Explorer
from simulation.small_host import Spec
from simulation.small_moves import Move, Moves
from simulation.small_product import Rows, Step
from simulation.small_world import World


class Confluence:
    """All states of a world, without reductions, and what its rules claim of them."""

    def __init__(self, spec: Spec, rules: type[Moves] = Moves) -> None:
        self.explorer = Explorer(spec, False, rules(World(spec)), self._note)
        self.next: dict[int, dict[int, int]] = {}
        self.first: dict[int, set[frozenset[int]]] = {}
        self.asked = 0

    def wrong(self) -> Counter[str]:
        """How often a claim of the rules does not hold, by what is claimed."""
        found = self.explorer.run(1 << 40, 1e9)
        assert found.complete, found.wrong
        return Counter(claim for state in self.next for claim in self._wrong_at(state))

    def _note(self, rows: Rows, step: Step, ended: NDArray[np.bool_]) -> None:
        product = self.explorer.product
        keys, after = product.keys(rows).tolist(), product.keys(step.rows).tolist()
        for key, first in zip(keys, product.may_go_first(rows), strict=True):
            self.next[key], self.first[key] = {}, first
        for state, move, key in zip(step.state.tolist(), step.move.tolist(), after, strict=True):
            self.next[keys[state]][move] = key

    def _wrong_at(self, state: int) -> Iterator[str]:
        moves = self.next[state]
        for first in self.first[state]:
            for one, other in product(first, moves.keys() - first):
                self.asked += 1
                if moves[one] == moves[other]:
                    continue
                if not self._commute(state, one, other):
                    yield f"{self._told(one)} and {self._told(other)}"
                elif first not in self.first[moves[other]] and self.next[moves[one]].get(other) != moves[other]:
                    yield f"{self._told(one)} after {self._told(other)}"

    def _commute(self, state: int, one: int, other: int) -> bool:
        """Whether both orders lead to the same state, or one of them makes no difference beside the other."""
        moves = self.next[state]
        first, last = self.next[moves[one]].get(other), self.next[moves[other]].get(one)
        return last == moves[one] or first is not None and first in (last, moves[other])

    def _move(self, move: int) -> Move:
        return self.explorer.moves.moves.values[move]  # type: ignore[no-any-return]

    def _told(self, move: int) -> str:
        words = self._move(move)
        return str(words[2] if words[0] == "host" else words[0])
