"""The chunks still to be fetched, shared by all links of a transfer: one queue that every source takes work from."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from replica.manifest import Chunks
from replica.transfer_landing import Landing

Offer = TypeVar("Offer")
Held = tuple[tuple[int, int], ...]


class TransferFailed(Exception):
    """No source could give what was asked; the text has the reason of each. Another source or a newer heal may help."""


class FellBehind(TransferFailed):
    """The sources have gone past what was asked, or stand on another history: a newer snapshot is needed."""


class WrongState(TransferFailed):
    """What the source offers does not fit this model; the text names the field and both values."""


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One link of a transfer: which source it is to, which chunks lie there, and how to end it from outside.

    passes: the source is a joiner itself, and will have more
    """

    source: str
    held: Held
    cut: Callable[[], None]
    passes: bool = False

    def has(self, chunk: int) -> bool:
        """Whether the source holds the chunk."""
        return any(first <= chunk < end for first, end in self.held)


class TransferWork(Generic[Offer]):
    """State of one transfer, for any number of link threads and the one that waits for the outcome.

    The first offer that fits fixes what is transferred: `land(offer)` gives its landing or raises WrongState; others
    must be the same, and `differs(first, other)` says in words how they are not.
    hurry_s: a chunk that a source is busy with for longer than this is asked of another that has nothing else to do
    begin_at: where in the run the first chunk lies, from 0 to 1: joiners that begin elsewhere have something to pass on
    """

    def __init__(
        self,
        links: int,
        land: Callable[[Offer], Landing],
        differs: Callable[[Offer, Offer], str],
        progress: Callable[[int, int, str], None] | None,
        hurry_s: float,
        begin_at: float = 0.0,
    ) -> None:
        self._land = land
        self._differs = differs
        self._progress = progress
        self._hurry_s = hurry_s
        self._begin_at = begin_at
        self._changed = threading.Condition()
        self._links = links
        self._todo: deque[int] = deque()
        self._flying: dict[int, tuple[Worker, float]] = {}
        self._moved = 0
        self.offer: Offer | None = None
        self.landing: Landing | None = None
        self.began_s = 0.0
        self.unfit = False
        self.failure: BaseException | None = None
        self.reasons: list[str] = []

    def agree(self, offer: Offer, chunks: Chunks) -> str:
        """Takes the first offer that fits; else the words in which this one does not fit, or differs from it.

        What else `land` raises ends the transfer for all and is raised here too.
        """
        with self._changed:
            if self.offer is not None:
                return self._differs(self.offer, offer)
            if self.failure is not None:
                return "the transfer is over"
            try:
                self.landing = self._land(offer)
            except WrongState as error:
                self.unfit = True
                return str(error)
            except BaseException as error:
                self.failure = error
                self._changed.notify_all()
                raise
            self.offer, self.began_s = offer, time.monotonic()
            first = int(self._begin_at * chunks.count)
            self._todo.extend((*range(first, chunks.count), *range(first)))
            self._changed.notify_all()
            return ""

    def take(self, worker: Worker, wait: bool) -> int | None:
        """A chunk for this worker; None if nothing will come to it any more, or just now: without `wait`, and for one
        whose source passes on what it gets."""
        with self._changed:
            while self.failure is None:
                for place, chunk in enumerate(self._todo):
                    if worker.has(chunk):
                        del self._todo[place]
                        self._flying[chunk] = (worker, time.monotonic())
                        return chunk
                busy = [(since, other) for chunk, (other, since) in self._flying.items() if worker.has(chunk)]
                if not wait or worker.passes or not busy:
                    return None
                self._changed.wait(self._hurry(worker, busy))
            return None

    def give_back(self, chunks: list[int]) -> None:
        """They were taken and are not verified: somebody else may take them."""
        with self._changed:
            for chunk in chunks:
                del self._flying[chunk]
            self._todo.extendleft(reversed(chunks))
            self._changed.notify_all()

    def verified(self, chunk: int, hash_: int) -> None:
        """The chunk's bytes are right, and this is their hash: they go where they belong."""
        assert self.landing is not None
        self.landing.landed(chunk, hash_)
        start, end = self.landing.chunks.span(chunk)
        with self._changed:
            del self._flying[chunk]
            self._moved += end - start
            if not self._todo:
                self._changed.notify_all()

    def report(self, source: str) -> None:
        """Tells whoever wants to know how much has landed, and which source gave the last of it."""
        if self._progress is not None and self.landing is not None:
            self._progress(self._moved, self.landing.chunks.total, source)

    def more_links(self, count: int) -> None:
        """So many links will end beside those that were counted at first."""
        with self._changed:
            self._links += count

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do."""
        with self._changed:
            return self.failure is not None or self._done()

    def ended(self, reason: str) -> None:
        """A link has ended; `reason` is empty if there was nothing left for it to do."""
        with self._changed:
            self._links -= 1
            if reason:
                self.reasons.append(reason)
            self._changed.notify_all()

    def outcome(self) -> bool:
        """Waits for the end; whether everything has landed. Raises what `land` raised."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or not self._links or self._done())
            if self.failure is not None:
                raise self.failure
            return self._done()

    def _done(self) -> bool:
        return self.offer is not None and not self._todo and not self._flying

    def _hurry(self, worker: Worker, busy: list[tuple[float, Worker]]) -> float | None:
        """Ends links to other sources that are slow with what `worker` could do; seconds until that is due, if ever."""
        now = time.monotonic()
        others = [(since, other) for since, other in busy if other.source != worker.source]
        for since, other in others:
            if now - since >= self._hurry_s:
                other.cut()
        return max(0.05, min(since for since, _ in others) + self._hurry_s - now) if others else None
