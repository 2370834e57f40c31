"""Values of the small worlds: one host with its agent and ranks, and a table that gives every value a number.

Everything is immutable. Equal values have equal bytes (sets and dicts sorted), and those bytes name them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lighthouse.values import EntryName, Value, Version
from replica.agent_state import AgentState
from replica.values import Fetch, Load, Merged, RankDown
from replica.work import Book

Weights = tuple[int, ...]
"""Weights are known by the generations that committed their steps, oldest first: each reduction has bits of its own."""

Sum = tuple[tuple[Weights, int], ...]
"""A multiset of contributions, sorted: (weights on which it was computed, slot counted in the run's order)."""

Members = tuple[tuple[str, int], ...]
"""Names and incarnations of those who are in a generation, by place."""

NOW = 1000.0
"""Time stands still. A deadline that passes is moved to before now."""


class Entry(Value, frozen=True):
    """A step's reduced gradients with its merged roll call."""

    name: EntryName
    merged: Merged
    total: Sum


class Snapshot(Value, frozen=True):
    """What was staged for a heal."""

    heal: int
    version: Version
    cursor: int
    stop: bool
    weights: Weights


class Comm(Value, frozen=True):
    """A communicator that a rank is in, or is opening."""

    number: int
    place: int
    size: int


class Rank(Value, frozen=True):
    """A rank process: the real `Book`, and what its thread, its communicators and its weight server hold.

    sums: the local sum; total: what the reduction gave, None before; waiting: in a collective; entered: its record is
    in the roll call; floor: communicators below are left; opened, lost: planned ones that opened here, or failed to
    """

    address: str
    book: Book = Book()
    weights: Weights = ()
    sums: Sum = ()
    total: Sum | None = None
    waiting: bool = False
    entered: bool = False
    floor: int = 0
    comms: tuple[Comm, ...] = ()
    opened: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    log: tuple[Entry, ...] = ()
    owed: tuple[tuple[int, Version], ...] = ()
    staged: tuple[Snapshot, ...] = ()
    held: tuple[Entry, ...] = ()
    fetch: Fetch | None = None
    fetch_told: bool = False
    load: Load | None = None
    inbox: tuple[RankDown, ...] = ()
    stop: bool = False
    gone: bool = False


class Host(Value, frozen=True):
    """A machine with one group. agent: None once it has exited with `code`, or if the machine is gone for good.

    born: how often the agent was started; made: how many streams it opened; conn: the present one, 0 for none
    returns: what is lost comes back; had: the newest incarnation that it was
    """

    name: str
    index: int
    returns: bool
    born: int = 0
    made: int = 0
    conn: int = 0
    had: int = 0
    agent: AgentState | None = None
    code: int | None = None
    ranks: tuple[Rank, ...] = ()


class Numbers:
    """Gives every value a small number, equal ones the same."""

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder(order="deterministic")
        self._numbers: dict[bytes, int] = {}
        self.values: list[Any] = []

    def of(self, value: Any) -> int:
        """The number of `value`."""
        data = self._encoder.encode((type(value).__name__, value))
        number = self._numbers.get(data)
        if number is None:
            number = self._numbers[data] = len(self.values)
            self.values.append(value)
        return number
