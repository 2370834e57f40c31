"""What happened, for people and tests: kept for each run, and given to whoever watches.

A watcher has its own bounded queue; one that does not read is dropped rather than waited for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from lighthouse.core_values import Happened

KEPT = 10_000
"""Happenings kept of a run, in memory and in the journal."""
WAITING = 2_000
"""Live happenings that may wait for one watcher."""


class TooSlow(Exception):
    """The watcher did not read for too long and was dropped; it may watch again, with history."""


class Watcher:
    """One watcher's queue. `next` gives its happenings in order; `close` ends it."""

    def __init__(self, run_id: str, past: Iterable[Happened]) -> None:
        self.run_id = run_id
        self._waiting = deque(past)
        self._limit = len(self._waiting) + WAITING
        self._arrived = asyncio.Event()
        self._over = False
        self._overflowed = False

    def give(self, happened: Happened) -> None:
        """Adds one. Never waits."""
        if len(self._waiting) >= self._limit:
            self._overflowed = True
        else:
            self._waiting.append(happened)
        self._arrived.set()

    def close(self) -> None:
        """No more will come; what waits is still given."""
        self._over = True
        self._arrived.set()

    async def next(self) -> Happened | None:
        """The next one, waiting for it; None after the last. Raises TooSlow if some had to be left out."""
        while not self._waiting:
            if self._overflowed:
                raise TooSlow(f"more than {WAITING} events waited to be read")
            if self._over:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()


class Events:
    """The happenings of all runs, and their watchers."""

    def __init__(self) -> None:
        self._kept: dict[str, deque[Happened]] = {}
        self._watchers: set[Watcher] = set()

    def begin(self, run_id: str, past: Iterable[Happened]) -> None:
        """A run begins, with what is known from before."""
        self._kept[run_id] = deque(past, maxlen=KEPT)

    def tell(self, run_id: str, happened: Happened) -> None:
        """Keeps one and gives it to those who watch."""
        self._kept[run_id].append(happened)
        for watcher in self._watchers:
            if watcher.run_id in ("", run_id):
                watcher.give(happened)

    def watch(self, run_id: str, history: bool) -> Watcher:
        """A new watcher of a run, which need not have begun; "" watches all. history: begin with what was kept."""
        kept = [h for run, past in self._kept.items() if run_id in ("", run) for h in past] if history else []
        watcher = Watcher(run_id, sorted(kept, key=lambda h: h.time_s) if run_id == "" else kept)
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """Forgets a watcher."""
        self._watchers.discard(watcher)

    def close(self) -> None:
        """Ends all watchers."""
        for watcher in self._watchers:
            watcher.close()
