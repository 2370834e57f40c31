"""Serves this rank's entries and staged snapshots to joiners and to members one step behind.

One thread accepts, and each connection has a thread of its own: blocking writes straight from staged memory are what
loopback and networks like best, and the interpreter's lock is free while they run. The trainer's thread only ever
takes a lock for a dictionary look-up. Connections are bounded in number, strangers apart from those that have proved
the token, so that strangers can neither hold threads for ever nor keep joiners out: the oldest stranger goes first.
"""

from __future__ import annotations

import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, TypeVar

import msgspec
import torch

from lighthouse.values import Version
from replica.beside import Gate, give_way
from replica.entry import Answer as LogAnswer
from replica.entry import Entry, EntryLog
from replica.manifest import Chunks, Segments, Tensors, pack, packed_bytes
from replica.snapshot import Snapshot
from replica.transfer_landing import Landing
from replica.transfer_limits import TransferLimits
from replica.transfer_link import NEWS, Link, LinkLost, as_source, prove_as_source
from replica.transfer_values import (
    AskEntry,
    AskPassed,
    AskSnapshot,
    Denied,
    HeldRange,
    Holds,
    OfferEntry,
    OfferSnapshot,
)

T = TypeVar("T")
_ENTRY_CHUNK_BYTES = 4 << 20
_PASSED = -1
"""Served on a link, in the place of a heal's number: what this rank itself loads."""
_OVER = 256
"""So many of the heals that were dropped last are remembered: who asks for one is not kept waiting for it."""
_NEWS_S = 0.2
"""Whoever asks which chunks can be passed on is answered by then, though there may be no more of them."""
_REASONS = {
    LogAnswer.NOT_YET: "nothing starts at {} here yet",
    LogAnswer.GONE: "{} is not followed by anything here: the log has gone past it, or stands on another history",
    LogAnswer.BEHIND: "the joiner fell further behind than its log may hold; it stood on {}",
    LogAnswer.CLOSED: "the source is leaving",
}


class WeightServer:
    """One TCP listener; a thread per connection, bounded; never blocks the trainer.

    bind: host to listen on (any free port); token: the run's secret; lock: held while a descriptor is made
    (`replica.communicator.socket_lock`); gate: where snapshots stop, for what is more urgent
    """

    address: str
    """host:port"""

    def __init__(
        self,
        bind: str,
        token: bytes,
        log: EntryLog,
        *,
        limits: TransferLimits | None = None,
        lock: AbstractContextManager[Any] | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._token = token
        self._gate = gate or Gate()
        self._log = log
        self._limits = limits or TransferLimits()
        self._lock = lock or nullcontext()
        self._changed = threading.Condition()
        self._staged: dict[int, Snapshot | Denied] = {}
        self._framing = threading.Lock()
        self._frames: dict[int, bytes] = {}
        self._over: deque[int] = deque(maxlen=_OVER)
        self._passing: tuple[OfferSnapshot, Landing] | None = None
        self._strangers: dict[Link, None] = {}
        self._known: dict[Link, int] = {}
        self._leaving: set[Link] = set()
        self._closed = False
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        with self._lock:
            self._listener = socket.create_server((bind, 0), family=family, backlog=128)
        self._listener.setblocking(False)
        port = self._listener.getsockname()[1]
        self.address = f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"
        self._thread = threading.Thread(target=self._accept, name="weights", daemon=True)
        self._thread.start()

    def heed(self, limits: TransferLimits) -> None:
        """Connections from now on have these limits."""
        self._limits = limits

    def stage(self, heal: int, snapshot: Snapshot) -> None:
        """From now on `snapshot` is served to whoever asks for `heal`. Let the log owe the heal its entries before."""
        with self._changed:
            if not self._closed:
                self._staged[heal] = snapshot
                self._changed.notify_all()

    def refuse(self, heal: int, reason: str) -> None:
        """Whoever asks for `heal` is told that there will be no snapshot of it here."""
        with self._changed:
            self._staged[heal] = Denied(kind="unknown", reason=reason)
            self._changed.notify_all()

    def drop(self, heal: int) -> Snapshot | None:
        """Serves it no longer; readers in the middle of it are cut. Idempotent. (`log.release(heal)` is apart.)

        The snapshot, if it is served to nobody any more.
        """
        with self._changed:
            snapshot = self._staged.pop(heal, None)
            self._frames.pop(heal, None)
            self._over.append(heal)  # who asks for it only now need not wait
            self._changed.notify_all()
            self._cut(heal)
            shared = any(other is snapshot for other in self._staged.values())
            return snapshot if isinstance(snapshot, Snapshot) and not shared else None

    def pass_on(self, offer: OfferSnapshot, landing: Landing) -> None:
        """From now on what lands is passed on to joiners that load the same version, until `pass_no_more`."""
        with self._changed:
            self._passing = (offer, landing)
            self._changed.notify_all()

    def pass_no_more(self) -> None:
        """What was loaded is about to be written over. Idempotent."""
        with self._changed:
            if self._passing is not None:
                self._passing[1].close()
                self._passing = None
                self._cut(_PASSED)

    def close(self) -> None:
        """Ends all threads and sockets. Idempotent."""
        self.pass_no_more()
        with self._changed:
            self._closed = True
            self._staged.clear()
            for link in (*self._strangers, *self._known):
                link.cut()
            self._changed.notify_all()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=5.0)
        with self._changed:
            self._changed.wait_for(lambda: not (self._strangers or self._known or self._leaving), timeout=5.0)

    @property
    def connections(self) -> int:
        """Connections held just now, strangers included."""
        with self._changed:
            return len(self._strangers) + len(self._known) + len(self._leaving)

    def _cut(self, what: int) -> None:
        for link, serves in self._known.items():
            if serves == what:
                link.cut()

    # ---- threads ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        with self._listener:
            while not self._closed:
                poll.poll()
                try:
                    with self._lock:
                        sock, _ = self._listener.accept()
                except BlockingIOError:
                    continue
                except OSError:
                    with self._changed:  # no descriptor is free; somebody will close one
                        self._changed.wait_for(lambda: self._closed, timeout=0.1)
                    continue
                self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        try:
            link = Link(sock, self._limits.handshake_s)
        except OSError:
            sock.close()
            return
        with self._changed:
            if self._closed:
                link.close()
                return
            if len(self._strangers) >= self._limits.connections:
                oldest = next(iter(self._strangers))
                oldest.cut()
                del self._strangers[oldest]
                self._leaving.add(oldest)
            self._strangers[link] = None
        threading.Thread(target=self._serve, args=(link,), name="weights-link", daemon=True).start()

    def _serve(self, link: Link) -> None:
        try:
            if not prove_as_source(link, self._token):
                link.say_as_source(Denied(kind="token", reason="the run's token was not proved"))
                return
            if self._known_now(link):
                self._answer(link)
            else:
                link.say_as_source(Denied(kind="busy", reason="the source serves as many as it may"))
        except LinkLost:
            pass
        finally:
            with self._changed:
                self._strangers.pop(link, None)
                self._known.pop(link, None)
                self._leaving.discard(link)
                link.close()
                self._changed.notify_all()

    def _known_now(self, link: Link) -> bool:
        """Whether there is room; the link is a stranger no longer."""
        with self._changed:
            if self._closed or link not in self._strangers or len(self._known) >= self._limits.connections:
                return False
            del self._strangers[link]
            self._known[link] = 0
        link.patience(self._limits.stall_s, self._limits.idle_s)
        return True

    def _answer(self, link: Link) -> None:
        ask = link.hear_joiner()
        if isinstance(ask, AskEntry):
            self._answer_entry(link, ask)
        elif isinstance(ask, AskSnapshot):
            self._answer_snapshot(link, ask)
        elif isinstance(ask, AskPassed):
            self._answer_passed(link, ask)

    def _answer_entry(self, link: Link, ask: AskEntry) -> None:
        if ask.heal:
            self._log.fetched(ask.heal, ask.version)
        wait_s = min(ask.wait_s, self._limits.wait_limit_s)
        with self._log.reading(ask.version, ask.heal, wait_s, link.ended) as found:
            if isinstance(found, LogAnswer):
                link.say_as_source(Denied(kind=found.value, reason=_REASONS[found].format(ask.version)))
                return
            buckets = _on_host(found)
            specs = pack(((f"bucket {i}", bucket) for i, bucket in enumerate(buckets)), frozenset(), frozenset())
            chunks = Chunks(total=packed_bytes(specs), size=_ENTRY_CHUNK_BYTES)
            presence = bytes(found.presence)
            link.say_as_source(
                OfferEntry(
                    name=found.name, merged=found.merged, presence=presence, tensors=Tensors.of(specs), chunks=chunks
                )
            )
            segments = Segments((spec.offset, bucket) for spec, bucket in zip(specs, buckets, strict=True))
            _send_wanted(link, chunks, segments)

    def _answer_snapshot(self, link: Link, ask: AskSnapshot) -> None:
        snapshot = self._await(link, ask.heal, ask.wait_s, lambda: self._staged.get(ask.heal, self._dropped(ask.heal)))
        if not isinstance(snapshot, Snapshot):
            none = Denied(kind="unknown", reason=f"no snapshot is staged here for heal {ask.heal}")
            link.say_as_source(snapshot if isinstance(snapshot, Denied) else none)
            return
        give_way()  # whoever waits for an entry may hold others up; whoever loads does not
        snapshot.wait()
        with self._framing:  # once for all links: it takes long where there are many tensors
            frame = self._frames.get(ask.heal) or as_source(_offer_snapshot(ask.heal, snapshot))
            with self._changed:
                if ask.heal in self._staged:  # or it was dropped meanwhile, for good
                    self._frames[ask.heal] = frame
        link.say_as_source(frame)
        _send_wanted(link, snapshot.chunks, snapshot.segments(), self._gate.passed)

    def _dropped(self, heal: int) -> Denied | None:
        return Denied(kind="unknown", reason=f"heal {heal} is over here") if heal in self._over else None

    def _answer_passed(self, link: Link, ask: AskPassed) -> None:
        found = self._await(link, _PASSED, ask.wait_s, lambda: self._loading(ask.version))
        if found is None:
            link.say_as_source(Denied(kind="unknown", reason=f"no load of {ask.version} is under way here"))
            return
        give_way()
        offer, landing = found
        link.say_as_source(msgspec.structs.replace(offer, heal=ask.heal, held=()))
        told = 0
        while (chunk := link.wanted()) is not None:
            if chunk == NEWS:
                held = landing.readable(told, _NEWS_S)
                told = sum(end - first for first, end in held)
                link.say_as_source(Holds(held=tuple(HeldRange(first=first, end=end) for first, end in held)))
                continue
            try:
                views, hash_ = landing.read(chunk)
            except LookupError:
                raise LinkLost(f"chunk {chunk} was asked for and is not here") from None
            link.send_chunk(chunk, views, hash_)

    def _loading(self, version: Version) -> tuple[OfferSnapshot, Landing] | None:
        return self._passing if self._passing is not None and self._passing[0].version == version else None

    def _await(self, link: Link, serves: int, wait_s: float, look: Callable[[], T | None]) -> T | None:
        """What `look` finds, waiting for it as long as somebody listens; the link serves that from now on."""
        left_s = min(wait_s, self._limits.wait_limit_s)
        with self._changed:
            self._known[link] = serves
            while (found := look()) is None and left_s > 0 and not self._closed and not link.ended():
                step_s = min(left_s, 1.0)
                self._changed.wait_for(lambda: self._closed or look() is not None, timeout=step_s)
                left_s -= step_s
            return found


def _offer_snapshot(heal: int, snapshot: Snapshot) -> OfferSnapshot:
    return OfferSnapshot(
        heal=heal,
        version=snapshot.version,
        cursor=snapshot.cursor,
        stop=snapshot.stop,
        scalars=snapshot.scalars,
        tensors=Tensors.of(snapshot.specs),
        chunks=snapshot.chunks,
        held=tuple(HeldRange(first=first, end=end) for first, end in snapshot.held),
    )


def _on_host(entry: Entry) -> list[torch.Tensor]:
    """The buckets themselves where they lie on the host, else copies of them that live as long as the answer."""
    return [bucket.cpu().contiguous() for bucket in entry.buckets]


def _send_wanted(link: Link, chunks: Chunks, segments: Segments, wait: Callable[[], None] = lambda: None) -> None:
    while (chunk := link.wanted()) is not None:
        wait()
        start, end = chunks.span(chunk)
        if chunk >= chunks.count:
            raise LinkLost(f"chunk {chunk} of {chunks.count} was asked for")
        try:
            views = segments.views(start, end)
        except LookupError as error:
            raise LinkLost(str(error)) from error
        link.send_chunk(chunk, views)
