"""Everything an agent's core was told, with times, so that an incident can be decided again.

A journal is a file of lines. `{"anchor": STATE}` is the whole state at that moment; `[NOW, EVENTS, DIGEST]` follows for
each time at which the core was asked to decide, with what was recorded before, which may be nothing. DIGEST is that of
the effects it had, null if the core failed. A journal begins with an anchor, and so does every new file after one has
grown to its limit, and every further agent that appends to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from zlib import crc32

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
    """What happened at `now` (seconds of the agent's monotonic clock), and what the core answers to it today.

    same: it is what it answered then; raised: the error that the core fails with today, empty if it does not
    """

    now: float
    events: tuple[Event, ...]
    state: AgentState
    effects: tuple[Effect, ...]
    same: bool
    raised: str = ""


_Line = tuple[float, tuple[Event, ...], int | None]


class Journal:
    """Writes a journal to `path`, from a thread of its own."""

    def __init__(self, path: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._file = Appender(path)
        self._limit_bytes = limit_bytes
        self._size: int | None = None

    def note(
        self, before: AgentState, now: float, events: tuple[Event, ...], effects: tuple[Effect, ...] | None = None
    ) -> None:
        """Notes events that came to the state `before`, and the effects that they had together.

        effects: None if the core failed. Returns at once.
        """
        if self._size is not None and self._size > self._limit_bytes:
            self._file.rotate()
            self._size = None
        if self._size is None:
            self._size = 0
            self._append(Anchor(anchor=before))
        self._append((now, events, None if effects is None else digest(effects)))

    def close(self, timeout_s: float) -> None:
        """Writes what waits, for `timeout_s` at most. Idempotent."""
        self._file.close(timeout_s)

    def _append(self, line: Anchor | _Line) -> None:
        data = msgspec.json.encode(line)
        self._size = (self._size or 0) + len(data)
        self._file.append(data)


def digest(effects: tuple[Effect, ...]) -> int:
    """Equal for equal effects."""
    return crc32(msgspec.msgpack.encode(effects)) if effects else 0


def replay(lines: Iterable[bytes]) -> Iterator[Turn]:
    """Decides again what a journal's lines tell, from anchor to anchor. Raises ValueError for what is no journal.

    A last line that is torn, as a killed agent or a full disk leaves it, is passed over; so are lines before the first
    anchor, and lines between one with which the core fails and the next anchor.
    """
    read_line = msgspec.json.Decoder(_Line)
    read_anchor = msgspec.json.Decoder(Anchor)
    state: AgentState | None = None
    for line in lines:
        if not line.endswith(b"\n"):
            return
        try:
            if line.startswith(b"{"):
                state = read_anchor.decode(line).anchor
                continue
            now, events, then = read_line.decode(line)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a journal of an agent of this version: {error}") from error
        if state is not None:
            turn = _again(state, now, events, then)
            state = None if turn.raised else turn.state
            yield turn


def _again(state: AgentState, now: float, events: tuple[Event, ...], then: int | None) -> Turn:
    try:
        after = state
        for event in events:
            after = record(after, event, now)
        after, effects = decide(after, now)
    except Exception as error:  # noqa: BLE001 whatever a core with a defect raises is a finding
        return Turn(now=now, events=events, state=state, effects=(), same=then is None, raised=repr(error))
    return Turn(now=now, events=events, state=after, effects=effects, same=then == digest(effects))
