"""Communicators between groups, as unkind as real ones.

One `Communicator` is the collectives of one (generation, shard, rendezvous). Operations match by their order at each
member, as with gloo and NCCL. An operation can complete only after every member has launched it; when a member leaves
(dies, abandons, closes), those waiting for it may be told soon, late, or never; an operation that all had launched may
still complete at some members and fail at others. What a member has left may still be written to, some time later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.engine import Engine

Done = Callable[[Any], None]
Lost = Callable[[str], None]


class Mixed(Exception):
    """Two members disagree about who is in a generation."""


@dataclass
class _Operation:
    launched: dict[int, Any] = field(default_factory=dict)
    waiting: dict[int, tuple[Done, Lost]] = field(default_factory=dict)


class Communicator:
    """The collectives of one generation and shard. `open_at` first; places count from 0 to size - 1."""

    def __init__(self, engine: Engine, size: int, reachable: Callable[[str, str], bool], unkind: bool) -> None:
        self._engine = engine
        self._reachable = reachable
        self._unkind = unkind
        self.size = size
        self.names: dict[int, str] = {}
        self._opening: dict[int, tuple[Done, Lost]] = {}
        self._operations: list[_Operation] = []
        self._count: dict[int, int] = {}
        self._left: set[int] = set()

    def open_at(self, place: int, size: int, name: str, done: Done, lost: Lost) -> None:
        """`name` opens as `place`; `done` once all have, `lost` if somebody leaves before."""
        if size != self.size or self.names.get(place, name) != name:
            raise Mixed(f"{name} opens as {place} of {size}, beside {self.names} of {self.size}")
        self.names[place] = name
        self._opening[place] = (done, lost)
        if self._left:
            self._tell(place, lost, "a member left while it opened")
        elif len(self.names) == self.size:
            for at, (good, _) in list(self._opening.items()):
                self._engine.after(self._delay() * 3, self._opened, at, good)

    def launch(self, place: int, payload: Any, done: Done, lost: Lost) -> None:
        """`place` launches its next operation: `done(payloads by place)`, or `lost(reason)`, or neither for ever."""
        index = self._count.get(place, 0)
        self._count[place] = index + 1
        while len(self._operations) <= index:
            self._operations.append(_Operation())
        operation = self._operations[index]
        operation.launched[place] = payload
        operation.waiting[place] = (done, lost)
        if len(operation.launched) == self.size:
            payloads = tuple(operation.launched[p] for p in range(self.size))
            for at in list(operation.waiting):
                self._engine.after(self._delay(), self._complete, operation, at, payloads)
        elif self._left - set(operation.launched):
            self._tell(place, lost, "a member has left", operation)

    def leave(self, place: int) -> None:
        """`place` dies, abandons or closes: nothing more happens there, and others may notice."""
        if place in self._left:
            return
        self._left.add(place)
        self._opening.pop(place, None)
        for at, (_, lost) in list(self._opening.items()):
            if len(self.names) < self.size:
                self._tell(at, lost, "a member left while it opened")
        for operation in self._operations:
            mine = operation.waiting.pop(place, None)
            complete = len(operation.launched) == self.size
            if (
                mine is not None and complete and self._unkind and self._chance() < 0.3
            ):  # a late write into what it left
                payloads = tuple(operation.launched[p] for p in range(self.size))
                self._engine.after(self._engine.chance("collectives").uniform(0.0, 0.5), mine[0], payloads)
            for at, (_, lost) in list(operation.waiting.items()):
                if not complete and place not in operation.launched:
                    self._tell(at, lost, "connection closed by peer", operation)
                elif self._unkind and self._chance() < 0.3:
                    self._fail(operation, at, lost, "connection closed by peer")

    def _opened(self, place: int, done: Done) -> None:
        if place in self._opening and place not in self._left:
            del self._opening[place]
            done(None)

    def _complete(self, operation: _Operation, place: int, payloads: tuple[Any, ...]) -> None:
        if place not in operation.waiting:
            return
        if any(not self._reachable(self.names[place], other) for other in self.names.values()):
            self._engine.after(0.05, self._complete, operation, place, payloads)  # stuck until the cut is mended
            return
        done, _ = operation.waiting.pop(place)
        done(payloads)

    def _tell(self, place: int, lost: Lost, reason: str, operation: _Operation | None = None) -> None:
        """The member at `place` notices soon, late or never."""
        chance = self._chance()
        if self._unkind and chance < 0.25:
            return
        delay_s = self._engine.chance("collectives").uniform(0.0, 0.3) if chance < 0.5 else self._delay()
        if operation is not None:
            self._engine.after(delay_s, self._fail, operation, place, lost, reason)
        else:
            self._engine.after(delay_s, self._fail_opening, place, lost, reason)

    def _fail(self, operation: _Operation, place: int, lost: Lost, reason: str) -> None:
        if operation.waiting.pop(place, None) is not None:
            lost(reason)

    def _fail_opening(self, place: int, lost: Lost, reason: str) -> None:
        if self._opening.pop(place, None) is not None:
            lost(reason)

    def _chance(self) -> float:
        return self._engine.chance("collectives").random()

    def _delay(self) -> float:
        return self._engine.chance("collectives").uniform(0.0003, 0.003)
