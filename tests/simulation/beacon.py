"""A lighthouse process: the real core, and its shell's duties towards store, streams and clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lighthouse.core import decide, new_run, record, wake_at
from lighthouse.core_values import (
    CloseStream,
    ColdStartAsked,
    Effect,
    EndRun,
    Event,
    RunConfig,
    Said,
    SaidHello,
    Send,
    SkipSlotAsked,
    Started,
    StoreBase,
    StoreClaim,
    StoreDeaths,
    StoreFinished,
    StoreIncarnation,
    StoreNumber,
    StoreSetup,
    StreamEnded,
    Tell,
    Tick,
)
from lighthouse.values import Hello, Welcome
from simulation.network import CLOSED, DOWN, Stream
from simulation.store import Store, Superseded

if TYPE_CHECKING:
    from simulation.world import World

_STORED = (StoreNumber, StoreClaim, StoreBase, StoreIncarnation, StoreSetup, StoreFinished, StoreDeaths)


class Turn(NamedTuple):
    """Events that were recorded together, the decision on them, and the error of a core with a defect."""

    events: tuple[tuple[float, Event], ...]
    decided_s: float
    effects: tuple[Effect, ...] = ()
    raised: str = ""


class Beacon:
    """One process that leads the run, from its start to its crash."""

    def __init__(self, world: World, store: Store, config: RunConfig) -> None:
        self.world = world
        self.store = store
        self.alive = True
        self.ended: EndRun | None = None
        self.turns: list[Turn] = []
        self.crash_after: int | None = None
        self._term = store.lead()
        self._streams: dict[int, Stream] = {}
        self._names: dict[int, tuple[str, int]] = {}
        self._next_conn = 1
        self._wake: float | None = None
        self._alarm = 0
        self._paused_until = 0.0
        self._inbox: list[Event] = []
        chance = world.engine.chance("clocks")
        self._rate = 1.0 + world.spec.drift * chance.uniform(-1, 1)
        self._offset = chance.uniform(0, 1000)
        self.state = new_run(config)
        wall_ms = world.spec.wall_ms + int(world.engine.now * 1000)
        self._act([Started(record=store.record, wall_ms=wall_ms)])

    def clock(self) -> float:
        """Its monotonic clock."""
        return self._offset + self._rate * self.world.engine.now

    # ---- streams ---------------------------------------------------------------------------------------------------

    def accept(self, group: str, to_agent: Any) -> Stream:
        """A new Session stream."""
        conn = self._next_conn
        self._next_conn += 1
        stream = self.world.network.open(group, lambda message: self._arrived(conn, message), to_agent)
        self._streams[conn] = stream
        return stream

    def _arrived(self, conn: int, message: Any) -> None:
        if not self.alive:
            return
        if message is CLOSED:
            self._streams.pop(conn, None)
            self.event(StreamEnded(conn=conn))
        elif isinstance(message, Hello):
            self.event(SaidHello(conn=conn, message=message))
        else:
            self.event(_Raw(conn, message))

    # ---- events and effects ----------------------------------------------------------------------------------------

    def event(self, event: Any) -> None:
        """Something arrived; while the process stands still, it waits."""
        if not self.alive:
            return
        if self.world.engine.now < self._paused_until:
            self._inbox.append(event)
        else:
            self._act([event])

    def _act(self, events: list[Any]) -> None:
        now = self.clock()
        late = self._wake is not None and now >= self._wake
        known = [event for event in (self._named(event) for event in events) if event is not None]
        if late and self._wake is not None:
            known.append(Tick(late_s=now - self._wake))
        effects = self._decide(known, now)
        self.world.watch.lighthouse_decided(self, effects, now)
        for effect in effects:
            if self.crash_after is not None:
                self.crash_after -= 1
                if self.crash_after < 0:
                    self.crash()
            if not self.alive:
                return
            self._carry_out(effect)
        if self.alive:
            self._set_alarm(now)

    def _decide(self, events: list[Event], now: float) -> tuple[Effect, ...]:
        told = tuple((now, event) for event in events)
        try:
            for event in events:
                self.state = record(self.state, event, now)
            self.state, effects = decide(self.state, now)
        except Exception as error:
            self.turns.append(Turn(told, now, raised=repr(error)))
            raise
        self.turns.append(Turn(told, now, effects))
        return effects

    def _named(self, event: Any) -> Event | None:
        """What the shell knows of a stream: who was welcomed on it. Nothing is heard of a stream before that."""
        if isinstance(event, StreamEnded):
            self._names.pop(event.conn, None)
        if not isinstance(event, _Raw):
            return event  # type: ignore[no-any-return]
        known = self._names.get(event.conn)
        if known is None:
            return None
        return Said(conn=event.conn, name=known[0], incarnation=known[1], message=event.message)

    def _set_alarm(self, now: float) -> None:
        self._wake = wake_at(self.state, now)
        self._alarm += 1
        if self._wake is not None:
            if self._wake <= now:
                self.world.watch.broken(f"the lighthouse wants to wake at {self._wake}, and it is {now} already")
            self.world.engine.after((self._wake - now) / self._rate + 1e-7, self._ring, self._alarm)

    def _ring(self, alarm: int) -> None:
        if alarm == self._alarm and self.alive and self.world.engine.now >= self._paused_until:
            self._act([])

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send(conn=conn, message=message):
                stream = self._streams.get(conn)
                if isinstance(message, Welcome) and stream is not None:
                    name = self.state.conns.get(str(conn))
                    if name is not None:
                        self._names[conn] = (name, message.incarnation)
                if stream is not None:
                    stream.send(DOWN, message)
            case CloseStream(conn=conn):
                stream = self._streams.get(conn)
                if stream is not None:
                    stream.close(DOWN)
            case EndRun():
                self.ended = effect
                self.world.watch.run_ended(self, effect)
            case Tell():
                self.world.watch.told(effect)
            case _:
                assert isinstance(effect, _STORED)
                try:
                    self.store.write(self._term, effect)
                    self.world.watch.stored(self.store, effect)
                except Superseded as why:
                    self.world.watch.note(f"a lighthouse is superseded: {why}")
                    self.crash()

    def cold_start(self) -> None:
        """An operator has the run go on from what is here."""
        self.event(ColdStartAsked(by="an operator"))

    def skip_slot(self) -> None:
        """An operator has the step committed without the slots that the run holds for."""
        self.event(SkipSlotAsked(by="an operator"))

    # ---- faults ----------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """The process is gone; agents hear of it when their streams end."""
        if not self.alive:
            return
        self.alive = False
        chance = self.world.engine.chance("faults")
        for stream in list(self._streams.values()):
            stream.break_off((None, chance.uniform(0.0, 0.3)))
        self.world.lighthouse_gone(self)

    def pause(self, seconds: float) -> None:
        """SIGSTOP, or a machine that stood still."""
        self._paused_until = max(self._paused_until, self.world.engine.now + seconds)
        self.world.engine.after(seconds, self._resume)

    def _resume(self) -> None:
        if self.alive and self.world.engine.now >= self._paused_until:
            events, self._inbox = self._inbox, []
            self._act(events)


class _Raw(msgspec.Struct, frozen=True):
    """A message as it came on a stream, before it is known whose stream that is."""

    conn: int
    message: Any
