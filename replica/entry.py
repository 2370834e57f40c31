"""Entries in memory: what a committed step did, kept until nobody can need it any more.

An entry is immutable, and so are its buffers from the moment it is kept. Three kinds of holders keep one alive: the
step after it (until `release_before`), every joiner it is owed to (until the joiner has it, is released, or has fallen
behind its byte limit), and readers that are sending it just now. When the last one lets go, its buckets lie ready for
`reuse`: they are never copied and never handed out while somebody reads them.

Buckets on a GPU are the exception: what is owed to a joiner is copied to the host beside the next step, is served from
there, and takes no memory of the GPU once the step after it is through.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

import torch

from lighthouse.values import EntryName, Version
from replica.beside import Beside, give_way
from replica.values import Merged

Buckets = tuple[torch.Tensor, ...]

log = logging.getLogger("replica.entry")


@dataclass(frozen=True, eq=False, kw_only=True)
class Entry:
    """A committed step: whoever stands exactly on `name.start` may apply it, and stands on `name.end` then.

    presence: by parameter, whether any group had a gradient for it
    buckets: reduced gradients before clipping, raw sums, in the run's static bucket layout; may be empty for a step
    whose update is skipped
    """

    name: EntryName
    merged: Merged
    presence: tuple[bool, ...]
    buckets: tuple[torch.Tensor, ...]

    def __post_init__(self) -> None:
        if self.merged.start != self.name.start or self.merged.end != self.name.end:
            raise ValueError(f"entry {self.name.start} to {self.name.end} carries the roll call of another step")

    @property
    def bytes(self) -> int:
        """Bytes of all buckets."""
        return sum(b.numel() * b.element_size() for b in self.buckets)


class Answer(str, Enum):
    """What a log says to somebody who asks for an entry that it does not hold."""

    NOT_YET = "not_yet"
    """The step that starts there has not been committed here yet: ask again."""
    GONE = "gone"
    """The log has gone past it, or stands on another history: start over from a newer snapshot."""
    BEHIND = "behind"
    """The asking joiner fell further behind than its log may hold: start over from a newer snapshot."""
    CLOSED = "closed"
    """The log is closed: its rank is leaving."""


CURRENT = 0
"""Holder "the step after it"; heals are numbered from 1."""


def to_host(buckets: Buckets) -> Beside[Buckets] | None:
    """Begins to copy buckets on a GPU to pinned memory, on a stream of its own; None if they lie on the host anyway."""
    devices = {bucket.device for bucket in buckets if bucket.device.type == "cuda"}
    if not devices:
        return None
    device = devices.pop()
    written = torch.cuda.current_stream(device).record_event()

    def copy() -> Buckets:
        give_way()
        side = torch.cuda.Stream(device)
        side.wait_event(written)
        try:
            copies = [torch.empty(bucket.shape, dtype=bucket.dtype, pin_memory=True) for bucket in buckets]
        except RuntimeError as error:
            log.warning("entry_stays_on_gpu reason=%s", json.dumps(str(error)))
            return buckets
        with torch.cuda.stream(side):
            for bucket, copied in zip(buckets, copies, strict=True):
                copied.copy_(bucket, non_blocking=True)
        side.synchronize()
        return tuple(copies)

    return Beside(copy, "entry")


@dataclass(eq=False)
class _Kept:
    """host: the copy for joiners, from the moment that it is begun; moved: it has taken the place of the buckets."""

    entry: Entry
    holders: set[int]
    readers: int = 0
    host: Beside[Buckets] | None = None
    moved: bool = False

    def for_joiners(self) -> Entry:
        """The entry with its buckets on the host, once they are there."""
        return self.entry if self.host is None or self.moved else replace(self.entry, buckets=self.host.result())


@dataclass(eq=False)
class _Owed:
    since: Version
    limit_bytes: int
    held_bytes: int = 0
    behind: bool = False
    starts: set[Version] = field(default_factory=set)


class EntryLog:
    """The entries that this rank holds, by the version they start from. All methods may be called from any thread.

    reuse_sets: how many released sets of buckets are kept for `reuse`; more than that go back to the allocator
    aside: begins the copy of what is owed to a joiner to where it is to lie; None: it lies there
    """

    def __init__(self, reuse_sets: int = 2, aside: Callable[[Buckets], Beside[Buckets] | None] = to_host) -> None:
        self._aside = aside
        self._changed = threading.Condition()
        self._kept: dict[Version, _Kept] = {}
        self._owed: dict[int, _Owed] = {}
        self._newest: Version | None = None
        self._reuse_sets = reuse_sets
        self._reusable: list[tuple[torch.Tensor, ...]] = []
        self._closed = False

    @property
    def newest(self) -> Version | None:
        """The version that the newest entry makes (whether it is still held or not); None before the first."""
        with self._changed:
            return self._newest

    def names(self) -> tuple[EntryName, ...]:
        """Names of the entries that can be served now, oldest first."""
        with self._changed:
            return tuple(self._kept[start].entry.name for start in sorted(self._kept))

    def keep(self, entry: Entry) -> None:
        """Keeps a committed or fetched entry, for the step after it and for every joiner it is owed to.

        An entry of the same start that was committed by another generation is replaced: its history was cut off.
        """
        start = entry.name.start
        with self._changed:
            old = self._kept.get(start)
            if old is not None and old.entry is entry:
                return
            if old is not None:
                for holder in tuple(old.holders):
                    self._let_go(start, holder)
            self._kept[start] = _Kept(entry, {CURRENT})
            for heal, owed in self._owed.items():
                if start.step >= owed.since.step and not owed.behind:
                    self._owe_one(heal, owed, start)
            self._newest = entry.name.end
            self._move_aside()
            self._changed.notify_all()

    def owe(self, heal: int, since: Version, limit_bytes: int) -> None:
        """From now on entries that start at `since` or later are held for joiner `heal` until it has fetched them.

        When more than `limit_bytes` would lie there for it, they are let go and it is told that it fell behind.
        """
        with self._changed:
            if heal <= CURRENT:
                raise ValueError(f"heal {heal}: heals are numbered from 1")
            owed = self._owed[heal] = _Owed(since, limit_bytes)
            for start in sorted(self._kept):
                if start.step >= since.step and not owed.behind:
                    self._owe_one(heal, owed, start)

    def fetched(self, heal: int, version: Version) -> None:
        """Joiner `heal` asks for what follows `version`: what leads there is not held for it any longer."""
        with self._changed:
            owed = self._owed.get(heal)
            for start in sorted(owed.starts) if owed else ():
                if start.step < version.step:
                    self._let_go(start, heal)

    def release(self, heal: int) -> None:
        """The heal is over: nothing is owed to it any more. Unknown heals are fine."""
        with self._changed:
            owed = self._owed.get(heal)
            for start in sorted(owed.starts) if owed else ():
                self._let_go(start, heal)
            self._owed.pop(heal, None)
            self._changed.notify_all()

    def release_before(self, version: Version) -> None:
        """Every member has committed the step that led to `version`: entries before it are kept only for joiners."""
        with self._changed:
            for start in sorted(self._kept):
                if start.step < version.step:
                    self._let_go(start, CURRENT)
            self._move_aside()

    def stand_on(self, version: Version) -> None:
        """The rank stands on `version` without an entry (loaded, restored, rolled back): everything kept is let go.

        Joiners that were owed something are told that they fell behind.
        """
        with self._changed:
            for start, kept in sorted(self._kept.items()):
                for holder in tuple(kept.holders):
                    self._let_go(start, holder)
            for owed in self._owed.values():
                owed.behind = True
            self._newest = version
            self._changed.notify_all()

    def get(self, version: Version) -> Entry | None:
        """The entry that starts at `version`, for the thread that also calls the release methods; None if not held."""
        with self._changed:
            kept = self._kept.get(version)
            return kept.entry if kept else None

    @contextmanager
    def reading(
        self, version: Version, heal: int = CURRENT, wait_s: float = 0.0, gone: Callable[[], bool] | None = None
    ) -> Iterator[Entry | Answer]:
        """The entry that starts at `version`, held while the block runs; waits up to `wait_s` seconds for it.

        If there is none by then, the reason. `gone` is asked about once a second: True ends the wait (nobody listens).
        """
        with self._changed:
            kept = self._wait(version, heal, wait_s, gone)
            if isinstance(kept, _Kept):
                kept.readers += 1
        try:
            if isinstance(kept, _Kept):
                yield kept.for_joiners() if heal != CURRENT else kept.entry
            else:
                yield kept
        finally:
            if isinstance(kept, _Kept):
                with self._changed:
                    kept.readers -= 1
                    self._settle(kept)

    def reuse(self) -> tuple[torch.Tensor, ...] | None:
        """The buckets of an entry that nobody holds any more, to be overwritten by the caller; None if there are none.

        The caller owns them from here on.
        """
        with self._changed:
            return self._reusable.pop() if self._reusable else None

    def close(self) -> None:
        """Lets everything go and ends all waits. Idempotent."""
        with self._changed:
            self._closed = True
            self._kept.clear()
            self._owed.clear()
            self._reusable.clear()
            self._changed.notify_all()

    # ---- with the lock held ----------------------------------------------------------------------------------------

    def _wait(self, version: Version, heal: int, wait_s: float, gone: Callable[[], bool] | None) -> _Kept | Answer:
        until = time.monotonic() + wait_s
        while True:
            found = self._look(version, heal)
            left_s = until - time.monotonic()
            if found is not Answer.NOT_YET or left_s <= 0:
                return found
            if not self._changed.wait(min(left_s, 1.0)) and gone is not None and gone():
                return found

    def _look(self, version: Version, heal: int) -> _Kept | Answer:
        if self._closed:
            return Answer.CLOSED
        kept = self._kept.get(version)
        if kept is not None:
            return kept
        owed = self._owed.get(heal)
        if owed is not None and owed.behind:
            return Answer.BEHIND
        newest = self._newest
        if newest is None or newest == version or newest.step < version.step:
            return Answer.NOT_YET
        return Answer.GONE

    def _owe_one(self, heal: int, owed: _Owed, start: Version) -> None:
        kept = self._kept[start]
        if kept.host is None:
            kept.host = self._aside(kept.entry.buckets)
        kept.holders.add(heal)
        owed.starts.add(start)
        owed.held_bytes += kept.entry.bytes
        if owed.held_bytes > owed.limit_bytes:
            owed.behind = True
            for each in sorted(owed.starts):
                self._let_go(each, heal)

    def _let_go(self, start: Version, holder: int) -> None:
        kept = self._kept.get(start)
        owed = self._owed.get(holder)
        if owed is not None and start in owed.starts:
            owed.starts.discard(start)
            owed.held_bytes -= kept.entry.bytes if kept else 0
        if kept is not None:
            kept.holders.discard(holder)
            if not kept.holders:
                del self._kept[start]
                self._settle(kept)

    def _move_aside(self) -> None:
        """What is kept for joiners alone lies aside from now on, if the copy is complete."""
        for kept in self._kept.values():
            if kept.host is not None and not kept.moved and kept.host.done and CURRENT not in kept.holders:
                kept.entry, kept.moved = kept.for_joiners(), True

    def _settle(self, kept: _Kept) -> None:
        if self._closed or kept.holders or kept.readers or not kept.entry.buckets or kept.moved:
            return
        if len(self._reusable) < self._reuse_sets:
            self._reusable.append(kept.entry.buckets)
