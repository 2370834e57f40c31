"""The loop that owns a run: it alone replaces the run's state. Everybody else posts events to it.

One *turn* records what has arrived, decides once, keeps the turn in the journal and carries out the effects in order.
A turn is taken when something arrives or when `wake_at` says so; nothing polls. Beats, which are most of what arrives
and press least, wait a little for each other, so that a thousand sessions do not cost a thousand turns a second.

When the loop wakes late (the process was stopped, the disk hung), messages may be waiting in sockets: it lets them come
in before it records the `Tick` on which leases are judged, and tells the core how late it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lighthouse.core_values import (
    CloseStream,
    ColdStartAsked,
    Core,
    Effect,
    EndRun,
    Event,
    Happened,
    Hold,
    RunConfig,
    RunStatus,
    Said,
    SaidHello,
    Send,
    SkipSlotAsked,
    Started,
    StoreEffect,
    StreamEnded,
    Tell,
    Tick,
)
from lighthouse.events import Events
from lighthouse.journal import Journal
from lighthouse.store import Store
from lighthouse.streams import Stream
from lighthouse.values import ROOT, Beat, Hello, Up

BEATS_S = 0.05
"""How long a beat may wait for others."""
SETTLE_S = 0.05
"""After a late wake-up (`late_s`), which may mean that messages wait outside since the process did not run, the inbox
counts as drained when so long nothing came in."""
BACKLOG = 50_000
"""Events waiting beyond which sessions are not read for a while."""
REST_S = 0.002
"""At least so long between two ticks, whatever `wake_at` says."""

log = logging.getLogger("lighthouse.run")


class RunOwner:
    """Leads one run, in one event loop; `run` raises what ends the lighthouse (StoreError, Superseded, a defect)."""

    def __init__(
        self,
        config: RunConfig,
        *,
        core: Core,
        store: Store,
        journal: Journal,
        events: Events,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.ended: asyncio.Future[EndRun] = asyncio.get_running_loop().create_future()
        """Done when the core has ended the run."""
        self._core = core
        self._store = store
        self._journal = journal
        self._events = events
        self._clock = clock
        self._begun_s = clock()
        self._streams: dict[int, Stream] = {}
        self._inbox: list[tuple[float, Event]] = []
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._beats: asyncio.TimerHandle | None = None
        self._state: Any = core.new_run(config)
        self._due: float | None = None

    # ---- what sessions do ------------------------------------------------------------------------------------------

    def open_stream(self, stream: Stream, hello: Hello) -> None:
        """A new stream began with this hello."""
        self._streams[stream.conn] = stream
        self._post(SaidHello(conn=stream.conn, message=hello))

    def said(self, stream: Stream, message: Up) -> None:
        """The group said something on a stream that was welcomed."""
        event = Said(conn=stream.conn, name=stream.name, incarnation=stream.incarnation, message=message)
        self._post(event, patient=isinstance(message, Beat))

    def cold_start(self, by: str) -> str:
        """Has the run go on from what is here, if it holds for that; otherwise says why nothing was done."""
        reason = self._core.hold(self._state, self._clock())
        if reason not in (Hold.FENCE, Hold.COLD_START):
            return f"the run does not wait for a cold start: {reason.value or 'a generation is at work'}"
        self._post(ColdStartAsked(by=by))
        return ""

    def skip_slot(self, by: str) -> str:
        """Has the step committed without the slots that the run holds for; otherwise says why nothing was done."""
        reason = self._core.hold(self._state, self._clock())
        if reason is not Hold.POISON:
            return f"the run does not hold for a slot: {reason.value or 'a generation is at work'}"
        self._post(SkipSlotAsked(by=by))
        return ""

    def end_stream(self, stream: Stream, reason: str) -> None:
        """The stream is over; nothing more is said on it."""
        stream.end()
        if self._streams.pop(stream.conn, None) is not None:
            self._post(StreamEnded(conn=stream.conn, reason=reason))

    def status(self) -> RunStatus:
        """How the run stands."""
        now = self._clock()
        core_status = self._core.status(self._state, now)
        return msgspec.structs.replace(core_status, run_id=self.config.run_id, uptime_s=now - self._begun_s)

    async def room(self) -> None:
        """Waits while too many events wait to be recorded: a session must not be read faster than that."""
        while len(self._inbox) > BACKLOG:
            self._room.clear()
            await self._room.wait()

    def close_streams(self) -> None:
        """Ends all streams: the lighthouse stops, the groups go on."""
        for stream in self._streams.values():
            stream.end()

    def _post(self, event: Event, *, patient: bool = False) -> None:
        self._inbox.append((self._clock(), event))
        if not patient:
            self._wake.set()
        elif self._beats is None:
            self._beats = asyncio.get_running_loop().call_later(BEATS_S, self._wake.set)

    # ---- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Leads the run until cancelled, also beyond its end (for whoever asks how it went)."""
        self._inbox.insert(0, (self._begun_s, self._started()))
        while True:
            await self._take_turn()
            await self._wait()

    def _started(self) -> Started:
        return Started(record=self._store.read(self.config.run_id), wall_ms=time.time_ns() // 1_000_000)

    async def _wait(self) -> None:
        timer = None
        if self._due is not None:
            delay_s = max(REST_S, self._due - self._clock())
            timer = asyncio.get_running_loop().call_later(delay_s, self._wake.set)
        await self._wake.wait()
        if timer is not None:
            timer.cancel()
        if self._due is not None and self._clock() - self._due > self.config.deadlines.late_s:
            await self._settle()

    async def _settle(self) -> None:
        limit = self._clock() + self.config.deadlines.settle_s
        seen = -1
        while seen != len(self._inbox) and self._clock() < limit:
            seen = len(self._inbox)
            await asyncio.sleep(SETTLE_S)

    async def _take_turn(self) -> None:
        self._wake.clear()
        if self._beats is not None:
            self._beats.cancel()
            self._beats = None
        now = self._clock()
        events, self._inbox = self._inbox, []
        self._room.set()
        if self._due is not None and now >= self._due:
            events.append((now, Tick(late_s=now - self._due)))
        if not events:
            return
        state = self._state
        try:
            for at_s, event in events:
                state = self._core.record(state, event, at_s)
            state, effects = self._core.decide(state, now)
        except Exception as error:
            self._journal.put(self.config, events, now, (), self._state, raised=repr(error))
            raise
        self._state = state
        self._due = self._core.wake_at(state, now)
        self._journal.put(self.config, events, now, effects, state)
        if effects:
            await self._carry_out(effects)

    async def _carry_out(self, effects: Sequence[Effect]) -> None:
        facts: list[StoreEffect] = []
        for effect in effects:
            if isinstance(effect, StoreEffect):
                facts.append(effect)
                continue
            if facts:
                await self._write(facts)
                facts = []
            self._act(effect)
        if facts:
            await self._write(facts)

    async def _write(self, facts: list[StoreEffect]) -> None:
        await asyncio.to_thread(self._store.write, self.config.run_id, facts)

    def _act(self, effect: Send | CloseStream | Tell | EndRun) -> None:
        match effect:
            case Send(conn=conn, message=message):
                stream = self._streams.get(conn)
                if stream is not None:
                    stream.send(message)
            case CloseStream(conn=conn):
                stream = self._streams.get(conn)
                if stream is not None:
                    stream.end()
            case Tell():
                self._tell(effect)
            case EndRun():
                log.info("run %s has ended: success=%s %s", self.config.run_id, effect.success, effect.reason)
                if not self.ended.done():
                    self.ended.set_result(effect)

    def _tell(self, tell: Tell) -> None:
        happened = Happened(
            time_s=time.time(),
            kind=tell.kind,
            number=tell.number,
            version=tell.version or ROOT,
            group=tell.group,
            text=tell.text,
            fields=tell.fields,
        )
        self._events.tell(self.config.run_id, happened)
        self._journal.tell(self.config.run_id, happened)
        log.info("%s run=%s %s", tell.kind, self.config.run_id, tell)
