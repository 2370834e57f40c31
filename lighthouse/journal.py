"""Everything the lighthouse's core was told and answered, with times, so that an incident can be decided again.

A *turn* is what the owner of a run does at once: record some events, decide, carry out the effects. Turns are kept in
*segments*: compressed rows of an SQLite file beside the store, written about once a second by a thread of their own, so
that neither the disk nor the compression holds up the loop. Now and then a segment begins with an *anchor*, the whole
state at that moment; everything before the oldest anchors is dropped when the file has grown to its limit, and the rest
can still be decided again. The journal serves people: when it cannot be written the lighthouse goes on, says so once,
drops what it has, and begins with a new anchor when it can again.

What happened, as told by `Watch`, lies in the same file, so that a restarted lighthouse still knows it.
"""

from __future__ import annotations

import hashlib
import logging
import sqlite3
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from lighthouse.core_values import Core, Effect, Event, Happened, RunConfig, Started
from lighthouse.store import StoreError, failures, open_database, transaction
from lighthouse.values import Value

APPLICATION_ID = 0x42524C4A
SEGMENT_S = 1.0
"""How long turns are gathered before they are written."""
ANCHOR_EVENTS = 50_000
"""How many events may lie between two anchors."""
EFFECTS_BYTES = 65_536
"""Effects of a turn beyond this are kept as a digest only (rosters of a thousand members, told to a thousand)."""
WAITING_TURNS = 20_000
"""How many turns may wait for the disk before they are dropped."""

log = logging.getLogger("lighthouse.journal")

_LAYOUT = """
CREATE TABLE segments (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, anchored INTEGER NOT NULL, wall_s REAL NOT NULL,
    bytes BLOB NOT NULL
);
CREATE TABLE happened (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, bytes BLOB NOT NULL);
CREATE INDEX happened_run ON happened (run_id, id)
"""


class Turn(Value, frozen=True):
    """Events with the times they were recorded at, the time of the decision, and the effects it had.

    effects: None where they are too large to keep; digest: of their bytes, empty if there were none
    raised: the error of a core with a defect, which ended the lighthouse
    """

    events: tuple[tuple[float, Event], ...]
    decided_s: float
    effects: tuple[Effect, ...] | None = ()
    digest: bytes = b""
    raised: str = ""


class Segment(Value, frozen=True):
    """Turns that follow each other. anchor: the state before them (bytes); None: they go on from the segment before.

    gap: turns are missing before this segment, so that its anchor follows from nothing that is kept.
    A segment whose first event is `Started` begins anew from `config`.
    """

    config: RunConfig
    anchor: bytes | None
    turns: tuple[Turn, ...]
    gap: bool = False


class Difference(Value, frozen=True):
    """A turn that is decided otherwise now than it was: effects, then and now; or an anchor that does not agree."""

    run_id: str
    segment: int
    turn: int
    decided_s: float
    was: str
    now: str


class _Item(Value, frozen=True):
    """One thing for the writing thread: a turn with its place and the state after it, or something that happened."""

    run_id: str
    place: int = 0
    config: RunConfig | None = None
    events: tuple[tuple[float, Event], ...] = ()
    decided_s: float = 0.0
    effects: tuple[Effect, ...] = ()
    state: Any = None
    raised: str = ""
    happened: Happened | None = None


class _Flush(threading.Event):
    """Set by the writing thread once everything put before it was written."""


class _Reel:
    """What the writing thread knows of one run: the turns not written yet, and whether an anchor is due."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.turns: list[Turn] = []
        self.anchor: bytes | None = None
        self.state: Any = None
        self.events_since_anchor = 0
        self.bytes_since_anchor = 0
        self.broken = False
        self.gap = False
        self.place = 0


class Journal:
    """Takes turns and happenings of any run, and writes them behind the loop's back.

    `limit_bytes` bounds the segments; `keep` the happenings of a run. Opening raises StoreError; later failures are
    logged once and waited out.
    """

    def __init__(
        self,
        path: Path,
        *,
        limit_bytes: int,
        keep: int = 10_000,
        anchor_events: int = ANCHOR_EVENTS,
        waiting_turns: int = WAITING_TURNS,
    ) -> None:
        self._path = path
        self._anchor_events = anchor_events
        self._waiting_turns = waiting_turns
        self._limit = limit_bytes
        self._keep = keep
        self._db = open_database(path, APPLICATION_ID, _LAYOUT, durable=False)
        with failures(path):
            self._size = int(self._db.execute("SELECT total(length(bytes)) FROM segments").fetchone()[0])
        self._queue: deque[_Item | _Flush | None] = deque()
        self._some = threading.Event()
        self._hurry = threading.Event()
        self._reels: dict[str, _Reel] = {}
        self._places: dict[str, int] = {}
        self._sick = False
        self._thread = threading.Thread(target=self._write_all, name="journal", daemon=True)
        self._thread.start()

    def put(
        self,
        config: RunConfig,
        events: Sequence[tuple[float, Event]],
        decided_s: float,
        effects: Sequence[Effect],
        state: Any,
        raised: str = "",
    ) -> None:
        """Keeps a turn; `state` is what it led to. raised: the core failed in it. Never waits."""
        place = self._places[config.run_id] = self._places.get(config.run_id, -1) + 1
        if len(self._queue) > self._waiting_turns:
            return
        self._put(
            _Item(
                run_id=config.run_id,
                place=place,
                config=config,
                events=tuple(events),
                decided_s=decided_s,
                effects=tuple(effects),
                state=state,
                raised=raised,
            )
        )

    def tell(self, run_id: str, happened: Happened) -> None:
        """Keeps something that happened. Never waits."""
        if len(self._queue) <= self._waiting_turns:
            self._put(_Item(run_id=run_id, happened=happened))

    def history(self, run_id: str) -> tuple[Happened, ...]:
        """What happened in earlier lives of the lighthouse, oldest first. Call it before the run's first turn."""
        with failures(self._path), closing(sqlite3.connect(self._path)) as db:
            rows = db.execute(
                "SELECT bytes FROM happened WHERE run_id = ? ORDER BY id DESC LIMIT ?", (run_id, self._keep)
            ).fetchall()
        return tuple(msgspec.msgpack.decode(row[0], type=Happened) for row in reversed(rows))

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Waits until everything put so far was written, or given up; False if that takes longer."""
        done = _Flush()
        self._put(done)
        self._hurry.set()
        return done.wait(timeout_s)

    def close(self) -> None:
        """Writes what is left and closes the file. Idempotent."""
        if self._thread.is_alive():
            self._put(None)
            self._hurry.set()
            self._thread.join(timeout=10.0)
            self._db.close()

    def _put(self, item: _Item | _Flush | None) -> None:
        """The thread is woken for the first of what it gathers, not for each: it shares a core with the loop."""
        self._queue.append(item)
        if not self._some.is_set():
            self._some.set()

    # ---- the writing thread ----------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        after: _Flush | None = _Flush()
        while after is not None:
            items, after = self._gather()
            told = [item for item in items if item.happened is not None]
            try:
                for item in items:
                    if item.config is not None:
                        self._take(item, item.config)
                self._write(told)
                self._sick = False
            except (StoreError, TypeError, ValueError) as error:
                for reel in self._reels.values():
                    reel.turns, reel.broken = [], True
                if not self._sick:
                    log.error("the journal is not being written for now; the run goes on: %s", error)
                self._sick = True
            if after is not None:
                after.set()

    def _gather(self) -> tuple[list[_Item], _Flush | None]:
        """What to write next, and what to set afterwards; None for that at the end."""
        self._some.wait()
        self._hurry.wait(SEGMENT_S)
        self._some.clear()
        self._hurry.clear()
        items: list[_Item] = []
        while self._queue:
            item = self._queue.popleft()
            if not isinstance(item, _Item):
                if self._queue:
                    self._some.set()
                return items, item
            items.append(item)
        return items, _Flush()

    def _take(self, item: _Item, config: RunConfig) -> None:
        reel = self._reels.setdefault(item.run_id, _Reel(config))
        fresh = bool(item.events) and isinstance(item.events[0][1], Started)
        missed, reel.place = reel.broken or item.place != reel.place, item.place + 1
        if missed:
            # Turns are missing before this one: begin again behind it, from the state that it led to.
            reel.state, reel.events_since_anchor, reel.broken = item.state, self._anchor_events, False
            reel.turns, reel.anchor, reel.gap = [], None, True
            return
        due = reel.events_since_anchor >= self._anchor_events or reel.bytes_since_anchor > self._limit // 4
        if due and not reel.turns and not fresh:
            reel.anchor = msgspec.msgpack.encode(reel.state)
            reel.events_since_anchor = reel.bytes_since_anchor = 0
        reel.turns.append(_turn(item))
        reel.state = item.state
        reel.events_since_anchor += len(item.events)

    def _write(self, told: list[_Item]) -> None:
        with failures(self._path), transaction(self._db) as db:
            for run_id, reel in self._reels.items():
                if reel.turns:
                    segment = Segment(config=reel.config, anchor=reel.anchor, turns=tuple(reel.turns), gap=reel.gap)
                    blob = zlib.compress(msgspec.msgpack.encode(segment), 1)
                    anchored = reel.anchor is not None or _is_fresh(segment)
                    db.execute(
                        "INSERT INTO segments (run_id, anchored, wall_s, bytes) VALUES (?, ?, ?, ?)",
                        (run_id, int(anchored), time.time(), blob),
                    )
                    self._size += len(blob)
                    reel.bytes_since_anchor += len(blob)
                    reel.turns, reel.anchor, reel.gap = [], None, False
            for item in told:
                blob = msgspec.msgpack.encode(item.happened)
                db.execute("INSERT INTO happened (run_id, bytes) VALUES (?, ?)", (item.run_id, blob))
            for run_id in {item.run_id for item in told}:
                db.execute(
                    "DELETE FROM happened WHERE run_id = ?1 AND id <= (SELECT id FROM happened WHERE run_id = ?1"
                    " ORDER BY id DESC LIMIT 1 OFFSET ?2)",
                    (run_id, self._keep),
                )
            if self._size > self._limit:
                self._trim(db)

    def _trim(self, db: sqlite3.Connection) -> None:
        """Drops the oldest stretches, each from an anchor to the next of its run; the newest of a run stays."""
        while self._size > self._limit:
            oldest = db.execute("SELECT run_id, min(id) FROM segments GROUP BY run_id ORDER BY min(id)").fetchall()
            later = ((run_id, self._next_anchor(db, run_id, first)) for run_id, first in oldest)
            row = next((pair for pair in later if pair[1] is not None), None)
            if row is None:
                return
            db.execute("DELETE FROM segments WHERE run_id = ? AND id < ?", row)
            self._size = int(db.execute("SELECT total(length(bytes)) FROM segments").fetchone()[0])

    def _next_anchor(self, db: sqlite3.Connection, run_id: str, after: int) -> int | None:
        query = "SELECT min(id) FROM segments WHERE run_id = ? AND id > ? AND anchored"
        found: int | None = db.execute(query, (run_id, after)).fetchone()[0]
        return found


def _turn(item: _Item) -> Turn:
    if not item.effects:
        return Turn(events=item.events, decided_s=item.decided_s, raised=item.raised)
    digest, size = _digest(item.effects)
    effects = item.effects if size <= EFFECTS_BYTES else None
    return Turn(events=item.events, decided_s=item.decided_s, effects=effects, digest=digest)


def _digest(effects: Sequence[Effect]) -> tuple[bytes, int]:
    blob = msgspec.msgpack.encode(tuple(effects))
    return hashlib.blake2b(blob, digest_size=16).digest(), len(blob)


def _is_fresh(segment: Segment) -> bool:
    turns = segment.turns
    return bool(turns and turns[0].events) and isinstance(turns[0].events[0][1], Started)


# ---- deciding again ------------------------------------------------------------------------------------------------


def segments(path: Path, run_id: str | None = None) -> Iterator[tuple[int, str, float, Segment]]:
    """(id, run id, wall-clock seconds, segment) of a journal, oldest first. Raises StoreError if it is unreadable."""
    if not path.exists():
        raise StoreError(f"{path}: there is no journal")
    db = open_database(path, APPLICATION_ID, None, durable=False)
    try:
        with failures(path):
            for row in db.execute("SELECT id, run_id, wall_s, bytes FROM segments ORDER BY id"):
                if run_id in (None, row[1]):
                    segment = msgspec.msgpack.decode(zlib.decompress(row[3]), type=Segment)
                    yield row[0], row[1], row[2], segment
    except (msgspec.DecodeError, zlib.error) as error:
        raise StoreError(f"{path}: a segment is damaged, or of another version of Bellrock: {error}") from error
    finally:
        db.close()


def replay(path: Path, core: Core, run_id: str | None = None) -> tuple[Difference, ...]:
    """Decides every turn of a journal again. Returns where effects or anchors differ from what was journalled.

    Turns before the first anchor of a run are passed over. Raises StoreError if the journal is unreadable.
    """
    states: dict[str, Any] = {}
    found: list[Difference] = []
    for number, run, _, segment in segments(path, run_id):
        if segment.anchor is not None:
            anchor = msgspec.msgpack.decode(segment.anchor, type=core.state_type)
            if run in states and not segment.gap and states[run] != anchor:
                found.append(_difference(run, number, -1, segment.turns[0], "the anchor", "another state"))
            states[run] = anchor
        elif _is_fresh(segment):
            states[run] = core.new_run(segment.config)
        for place, turn in enumerate(segment.turns):
            if run in states:
                states[run], now = _again(core, states[run], turn)
                was = turn.raised or ("too large to keep" if turn.effects is None else repr(turn.effects))
                if now is not None:
                    found.append(_difference(run, number, place, turn, was, now))
                if states[run] is None:
                    del states[run]
    return tuple(found)


def _again(core: Core, state: Any, turn: Turn) -> tuple[Any, str | None]:
    """The state after the turn, None if the core failed in it; and what it does otherwise than it was journalled."""
    try:
        for at_s, event in turn.events:
            state = core.record(state, event, at_s)
        state, effects = core.decide(state, turn.decided_s)
    except Exception as error:  # whatever a core with a defect raises is a finding
        return None, None if repr(error) == turn.raised else repr(error)
    same = not turn.raised and (_digest(effects)[0] if effects else b"") == turn.digest
    return state, None if same else repr(tuple(effects))


def _difference(run_id: str, segment: int, place: int, turn: Turn, was: str, now: str) -> Difference:
    return Difference(run_id=run_id, segment=segment, turn=place, decided_s=turn.decided_s, was=was, now=now)
