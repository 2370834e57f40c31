"""Everything an agent's core was told, with times, so that an incident can be decided again.

A journal is a file of lines. `{"anchor": STATE}` is the whole state at that moment; `[NOW, EVENT]` follows for each
event that was recorded, and `[NOW, null]` for each time at which the core was only asked to decide. It begins with an
anchor, and so does every new file after one has grown to its limit, and every further agent that appends to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from lighthouse.values import Value
from replica.agent_core import decide, record
from replica.agent_files import Appender
from replica.agent_state import AgentState
from replica.agent_values import Effect, Event

LIMIT_BYTES = 64 << 20
"""How large a file may grow; it and the one before it are kept."""


class Anchor(Value, frozen=True):
    """The state before the events that follow."""

    anchor: AgentState


class Turn(Value, frozen=True):
    """What happened at `now` (seconds of the agent's monotonic clock), and what the core answered."""

    now: float
    event: Event | None
    state: AgentState
    effects: tuple[Effect, ...]


class Journal:
    """Writes a journal to `path`, from a thread of its own."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._file = Appender(path)
        self._limit_bytes = limit_bytes
        self._size: int | None = None

    def note(self, before: AgentState, now: float, event: Event | None) -> None:
        """Notes an event (None: only a decision) that comes to the state `before`. Returns at once."""
        if self._size is not None and self._size > self._limit_bytes:
            self._file.rotate()
            self._size = None
        if self._size is None:
            self._size = 0
            self._append(Anchor(anchor=before))
        self._append((now, event))

    def close(self, timeout_s: float) -> None:
        """Writes what waits, for `timeout_s` at most. Idempotent."""
        self._file.close(timeout_s)

    def _append(self, line: Anchor | tuple[float, Event | None]) -> None:
        data = msgspec.json.encode(line)
        self._size = (self._size or 0) + len(data)
        self._file.append(data)


def replay(lines: Iterable[bytes]) -> Iterator[Turn]:
    """Decides again what a journal's lines tell, from anchor to anchor. Raises ValueError for what is no journal.

    A last line that is torn, as a killed agent or a full disk leaves it, is passed over; so are lines before the first
    anchor.
    """
    read_turn = msgspec.json.Decoder(tuple[float, Event | None])
    read_anchor = msgspec.json.Decoder(Anchor)
    state: AgentState | None = None
    for line in lines:
        if not line.endswith(b"\n"):
            return
        try:
            if line.startswith(b"{"):
                state = read_anchor.decode(line).anchor
                continue
            now, event = read_turn.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a journal of an agent of this version: {error}") from error
        if state is not None:
            if event is not None:
                state = record(state, event, now)
            state, effects = decide(state, now)
            yield Turn(now=now, event=event, state=state, effects=effects)
