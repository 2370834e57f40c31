"""Fetches entries and loads snapshots from the weight servers of other groups.

All sources are asked at once, each over a link or two with a thread each. The first offer fixes the manifest; whoever
offers the same works along, taking chunks from one queue, so that a fast source does more and a striped one what it
has. A chunk whose hash is wrong is asked of the same source once more; a source that errs twice, stalls or dies is
given up and its chunks go back to the queue.

Joiners that load the same version pass on what they have: they are asked once a donor has offered it, and again and
again for what has come to them since. A chunk has the donor's hash from them too.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from lighthouse.values import Version
from replica.beside import give_way
from replica.entry import Answer, Entry
from replica.manifest import Chunks, Tensors, TensorSpec, packed_bytes
from replica.plain import loads
from replica.state import StateMismatch, TrainingState, no_collection
from replica.transfer_landing import Landing
from replica.transfer_limits import TransferLimits
from replica.transfer_link import MANIFEST_BYTES, NEWS, Link, LinkLost, connect, of_source, prove_as_joiner
from replica.transfer_values import (
    AskEntry,
    AskPassed,
    AskSnapshot,
    Denied,
    HeldRange,
    Holds,
    OfferEntry,
    OfferSnapshot,
    SourceSays,
)
from replica.transfer_work import FellBehind, TransferFailed, TransferWork, Worker, WrongState

__all__ = ["Cancel", "FellBehind", "LoadedSnapshot", "TransferFailed", "WrongState", "fetch_entry", "load_snapshot"]

_GOLDEN = 0.618034
"""Heals of successive numbers begin this part of the run apart: as far from each other as they can."""
_AHEAD = 2
"""Chunks asked for ahead of the one being received, so that the source never waits for us."""


Ask = AskEntry | AskSnapshot | AskPassed


@dataclass(frozen=True, kw_only=True)
class LoadedSnapshot:
    """A snapshot that was loaded and verified: the state is at `version`, its next step starts at `cursor`.

    seconds: since a source offered it
    """

    version: Version
    cursor: int
    stop: bool
    bytes: int
    seconds: float


def fetch_entry(
    sources: Sequence[str],
    version: Version,
    token: bytes,
    wait_s: float,
    like: Sequence[torch.Tensor],
    *,
    heal: int = 0,
    buffers: Callable[[], Sequence[torch.Tensor]] | None = None,
    shy: set[str] | None = None,
    limits: TransferLimits | None = None,
    lock: AbstractContextManager[Any] | None = None,
) -> Entry | None:
    """The entry that starts at `version`, verified; None if no source has anything newer within `wait_s` seconds.

    sources: "host:port" of weight servers of the same shard rank
    like: the bucket layout (dtypes and shapes; meta tensors will do); heal: this joiner's heal, 0 for a member
    buffers: gives tensors of that layout to receive into (`log.reuse() or new ones`); default: new ones like `like`
    shy: sources that did not answer in time, asked again only if there are no others; those of this time are added
    Raises TransferFailed, FellBehind, WrongState. Blocks; call it from a thread of its own.
    """
    received: list[torch.Tensor] = []

    def land(offer: OfferEntry) -> Landing:
        if offer.name.start != version or offer.merged.start != version or offer.merged.end != offer.name.end:
            raise WrongState(
                f"the entry offered goes from {offer.name.start} to {offer.name.end}, asked from {version}"
            )
        specs = _specs(offer.tensors, offer.chunks)
        theirs = [(spec.dtype, spec.shape) for spec in specs]
        ours = [(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in like]
        if theirs and theirs != ours:
            raise WrongState(f"the bucket layout of the source is {theirs}, here {ours}")
        if theirs:
            received.extend(buffers() if buffers else (torch.empty(t.shape, dtype=t.dtype) for t in like))
        return Landing(specs, offer.chunks, {spec.name: t for spec, t in zip(specs, received, strict=True)})

    limits = limits or TransferLimits()
    shy = shy if shy is not None else set()
    asked = [source for source in sources if source not in shy] or list(sources)
    work: TransferWork[OfferEntry] = TransferWork(len(asked), land, _differing, None, limits.hurry_s)
    gather = _Gather(work, token, limits, lock or nullcontext())
    ask = AskEntry(heal=heal, version=version, wait_s=wait_s)
    done = gather.run(asked, 1, ask, wait_s + limits.stall_s)
    shy |= gather.lost
    if not done:
        if work.unfit:
            raise WrongState(gather.why())
        if Answer.NOT_YET.value in gather.kinds:  # another that is further will not be waited for, but this one
            return None
        if gather.kinds & {Answer.GONE.value, Answer.BEHIND.value}:
            raise FellBehind(f"no source has the entry that starts at {version}: {gather.why()}")
        raise TransferFailed(f"no source gave the entry that starts at {version}: {gather.why()}")
    offer = work.offer
    assert offer is not None
    presence = tuple(bool(bit) for bit in offer.presence)
    return Entry(name=offer.name, merged=offer.merged, presence=presence, buckets=tuple(received))


def load_snapshot(
    sources: Sequence[str],
    heal: int,
    state: TrainingState,
    token: bytes,
    *,
    wait_s: float = 600.0,
    progress: Callable[[int, int, str], None] | None = None,
    limits: TransferLimits | None = None,
    lock: AbstractContextManager[Any] | None = None,
    cancel: Cancel | None = None,
    passing: Sequence[str] = (),
    pass_on: Callable[[OfferSnapshot, Landing], None] | None = None,
) -> LoadedSnapshot:
    """Loads snapshot `heal` straight into `state`'s tensors from all sources at once, waiting up to `wait_s` for it.

    cancel: ends the load from outside: it has failed then
    progress: called with (bytes verified so far, bytes in all, source), from any thread, at most once a chunk
    passing: servers of other joiners, which may load the same version
    pass_on: is given what is loaded, and what has landed of it, to be served to others (`WeightServer.pass_on`)
    Raises TransferFailed (or WrongState); then `state.usable` is False unless nothing was written yet: start over.
    """
    limits = limits or TransferLimits()
    patience_s = limits.stall_s

    def land(offer: OfferSnapshot) -> Landing:
        rest.enter_context(no_collection())
        landing = _landing(offer, heal, state)
        if pass_on is not None:
            pass_on(offer, landing)
        gather.also(passing, AskPassed(heal=heal, version=offer.version, wait_s=patience_s), 2 * patience_s)
        return landing

    links = len(sources) * limits.links
    begin_at = heal * _GOLDEN % 1.0
    work: TransferWork[OfferSnapshot] = TransferWork(links, land, _differing, progress, limits.hurry_s, begin_at)
    gather = _Gather(work, token, limits, lock or nullcontext())
    if cancel is not None:
        cancel.then(gather.cut)
    with ExitStack() as rest:
        if not gather.run(sources, limits.links, AskSnapshot(heal=heal, wait_s=wait_s), wait_s + limits.stall_s):
            error_type = WrongState if work.unfit else TransferFailed
            raise error_type(f"snapshot of heal {heal} was not loaded: {gather.why()}")
        offer = work.offer
        assert offer is not None
        try:
            state.finish()
        except (ValueError, KeyError, TypeError, RuntimeError) as error:
            raise WrongState(f"the snapshot of heal {heal} was refused by the training state: {error}") from error
    return LoadedSnapshot(
        version=offer.version,
        cursor=offer.cursor,
        stop=offer.stop,
        bytes=offer.chunks.total,
        seconds=time.monotonic() - work.began_s,
    )


def _landing(offer: OfferSnapshot, heal: int, state: TrainingState) -> Landing:
    """Where the snapshot is to be written. Raises WrongState."""
    if offer.heal != heal:
        raise WrongState(f"the snapshot offered is of heal {offer.heal}, asked for {heal}")
    specs = _specs(offer.tensors, offer.chunks)
    try:
        return Landing(specs, offer.chunks, state.prepare(specs, loads(offer.scalars)))
    except (StateMismatch, ValueError, KeyError, TypeError) as error:
        raise WrongState(f"the snapshot of heal {heal} does not fit: {error}") from error


class Cancel:
    """Ends something that another thread has under way, now or as soon as it begins."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._act: Callable[[], None] | None = None

    def then(self, act: Callable[[], None]) -> None:
        """What is to be done when it is cancelled; at once if it was."""
        with self._lock:
            self._act = act
            cancelled = self._cancelled
        if cancelled:
            act()

    def cancel(self) -> None:
        """Any thread, any number of times."""
        with self._lock:
            self._cancelled, act = True, self._act
        if act is not None:
            act()


class _Denied(LinkLost):
    """The source answered that nothing comes."""

    def __init__(self, answer: Denied) -> None:
        super().__init__(answer.reason)
        self.kind = answer.kind


class _Gather:
    """The threads of one transfer."""

    def __init__(
        self, work: TransferWork[Any], token: bytes, limits: TransferLimits, lock: AbstractContextManager[Any]
    ) -> None:
        self.limits = limits
        self.kinds: set[str] = set()
        self.lost: set[str] = set()
        """Sources that could not be reached, or did not keep to the protocol."""
        self._work = work
        self._token = token
        self._lock = lock
        self._guard = threading.Lock()
        self._reading = threading.Lock()
        self._last: tuple[bytes, SourceSays] | None = None
        self._open: set[Link] = set()
        self._over = False

    def run(self, sources: Sequence[str], links: int, ask: Ask, patience_s: float) -> bool:
        """Whether everything asked for has landed. No thread of it touches the landing any more afterwards."""
        for source in sources:
            for _ in range(links):
                self._begin(source, ask, patience_s)
        try:
            return self._work.outcome()
        finally:
            self.cut()

    def also(self, sources: Sequence[str], ask: AskPassed, patience_s: float) -> None:
        """Asks these too, from now on, on a link each."""
        self._work.more_links(len(sources))
        for source in sources:
            self._begin(source, ask, patience_s)

    def _begin(self, source: str, ask: Ask, patience_s: float) -> None:
        threading.Thread(target=self._link, args=(source, ask, patience_s), name="fetch", daemon=True).start()

    def cut(self) -> None:
        """Ends all links, those that are still being opened too. Any thread."""
        with self._guard:
            self._over = True
            for link in self._open:
                link.cut()

    def why(self) -> str:
        """The reasons of all links, each once."""
        return "; ".join(dict.fromkeys(self._work.reasons)) or "there are no sources"

    def _link(self, source: str, ask: Ask, patience_s: float) -> None:
        reason = f"{source}: the thread of this link failed"
        link = None
        try:
            link = connect(source, self.limits.connect_s, self.limits.handshake_s, self._lock)
            with self._guard:
                if self._over:
                    link.cut()
                self._open.add(link)
            prove_as_joiner(link, self._token)
            self._ask(link, source, ask, patience_s)
            reason = ""
        except _Denied as error:
            self.kinds.add(error.kind)
            reason = f"{source}: {error}"
        except LinkLost as error:
            reason = f"{source}: {error}"
            with self._guard:
                if not self._over:
                    self.lost.add(source)
        finally:
            if link is not None:
                with self._guard:
                    self._open.discard(link)
                    link.close()
            self._work.ended(reason)

    def _ask(self, link: Link, source: str, ask: Ask, patience_s: float) -> None:
        if not isinstance(ask, AskEntry):  # nobody waits for a load, and others may train on this host
            give_way()
        link.patience(patience_s, patience_s)
        link.say_as_joiner(ask)
        offer = link.hear_source(MANIFEST_BYTES, self._read)
        link.patience(self.limits.stall_s, self.limits.stall_s)
        if isinstance(offer, Denied):
            raise _Denied(offer)
        if not isinstance(offer, OfferEntry | OfferSnapshot) or isinstance(offer, OfferEntry) is not isinstance(
            ask, AskEntry
        ):
            raise LinkLost(f"the source answered with {type(offer).__name__}")
        difference = self._work.agree(offer, offer.chunks)
        if difference:
            raise LinkLost(difference)
        held = offer.held if isinstance(offer, OfferSnapshot) else (HeldRange(first=0, end=offer.chunks.count),)
        worker = Worker(source=source, held=_ranges(held), cut=link.cut, passes=isinstance(ask, AskPassed))
        while True:
            self._fetch(link, worker)
            if not worker.passes or self._work.over:
                return
            link.want(NEWS)
            news = link.hear_source(MANIFEST_BYTES)
            if not isinstance(news, Holds):
                raise LinkLost(f"the source answered with {type(news).__name__}")
            worker = replace(worker, held=_ranges(news.held))

    def _read(self, frame: bytes) -> SourceSays:
        """What a frame says; read once where several links have the same. Raises LinkLost."""
        with self._reading:
            if self._last is None or self._last[0] != frame:
                self._last = (frame, of_source(frame))
            return self._last[1]

    def _fetch(self, link: Link, worker: Worker) -> None:
        work, landing = self._work, self._work.landing
        assert landing is not None
        asked: deque[int] = deque()
        wrong: set[int] = set()
        if not worker.passes:
            work.report(worker.source)
        try:
            while True:
                while len(asked) <= _AHEAD and (chunk := work.take(worker, wait=not asked)) is not None:
                    asked.append(chunk)
                    link.want(chunk)
                if not asked:
                    return
                chunk = asked[0]
                if (hash_ := link.receive_chunk(chunk, landing.views(chunk))) is not None:
                    work.verified(chunk, hash_)
                    asked.popleft()
                    work.report(worker.source)
                elif chunk in wrong:
                    raise LinkLost(f"chunk {chunk} came twice with a wrong hash")
                else:
                    wrong.add(chunk)
                    asked.rotate(-1)
                    link.want(chunk)
        finally:
            work.give_back(list(asked))


def _ranges(held: Sequence[HeldRange]) -> tuple[tuple[int, int], ...]:
    return tuple((each.first, each.end) for each in held)


def _specs(tensors: Tensors, chunks: Chunks) -> tuple[TensorSpec, ...]:
    try:
        specs = tensors.specs()
    except (ValueError, AttributeError) as error:
        raise WrongState(f"the manifest cannot be used: {error}") from error
    total = packed_bytes(specs)
    if total != chunks.total or not 0 < chunks.size < 1 << 31:
        raise WrongState(f"the manifest's chunks {chunks} do not make its {total} bytes")
    return specs


def _differing(first: Any, other: Any) -> str:
    """The first field in which two offers of what should be the same thing differ."""
    if first is other:
        return ""
    for field in first.__struct_fields__:
        ours, theirs = getattr(first, field), getattr(other, field)
        if field != "held" and ours != theirs:
            shown = (repr(theirs)[:100], repr(ours)[:100])
            return f"its {field} is {shown[0]}, another source's {shown[1]}"
    return ""
