"""A small world: which events can happen in a state of it, and what state each leads to.

A state is a tuple of small numbers: of the lighthouse, its store and the hosts (each a whole value with a number), of
the messages in each stream, and of what was launched in each collective operation. What one event makes of one part is
computed by the real cores once and remembered, since the same part meets the same event in very many states.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from lighthouse.core_values import StoreBase, StoreRecord
from lighthouse.values import CaughtUp, Committed, Finished, Hello, Opened, Welcome
from simulation.small_checks import broken_by_base, broken_by_commit, broken_in
from simulation.small_host import Machine, Spec
from simulation.small_lighthouse import Waits, first_state, turn, waits
from simulation.small_values import Host, Numbers
from simulation.small_view import HostView, view
from simulation.store import Superseded, written

AGENT_GONE, LIGHTHOUSE_GONE, BROKEN, SEALED = 1, 2, 4, 8
"""Of a stream: an end is gone; its tail may be lost; nothing more is put into its way up."""

CLOSED = 0
"""The number of the message that ends a way."""


class Stream(NamedTuple):
    """incarnation: the one welcomed on it, 0 for none yet; up, down: numbers of messages in order."""

    conn: int
    owner: int
    incarnation: int
    up: tuple[int, ...]
    down: tuple[int, ...]
    flags: int


Operation = tuple[tuple[int, int, int], tuple[tuple[int, int], ...]]
"""((generation, step, shard), by place (number of what was launched, number of the record)), -1 for nothing."""


class State(NamedTuple):
    """following: by host, the incarnation that its next life gets; faults, restarts: how many may still happen."""

    lighthouse: int
    store: int
    hosts: tuple[int, ...]
    streams: tuple[Stream, ...]
    operations: tuple[Operation, ...]
    following: tuple[int, ...]
    faults: int
    restarts: int


class World:
    """All that is known of one spec's world. `wrong` collects the promises that the last step broke."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.things = Numbers()
        self.hosts = Numbers()
        self.lighthouses = Numbers()
        self.stores = Numbers()
        self.wrong: list[str] = []
        self._views: dict[int, HostView] = {}
        self._waits: dict[int, Waits] = {}
        self._host_turns: dict[Any, Any] = {}
        self._turns: dict[Any, Any] = {}
        self._writes: dict[tuple[int, int], int] = {}
        assert self.things.of("closed") == CLOSED

    def view(self, host: int) -> HostView:
        """What is seen of the host with this number."""
        found = self._views.get(host)
        if found is None:
            found = self._views[host] = view(self.hosts.values[host])
        return found

    def waits(self, lighthouse: int) -> Waits:
        """What the deadlines of the lighthouse with this number wait for."""
        found = self._waits.get(lighthouse)
        if found is None:
            found = self._waits[lighthouse] = waits(self.lighthouses.values[lighthouse])
        return found

    def first(self) -> State:
        """All hosts have just started, and their hellos are on their way."""
        spec = self.spec
        store = self.stores.of(StoreRecord())
        lighthouse = self.lighthouses.of(first_state(spec, StoreRecord(), 0))
        hosts = [Host(name=f"g{i + 1}", index=i, returns=spec.returns) for i in range(spec.groups)]
        state = State(
            lighthouse,
            store,
            tuple(self.hosts.of(h) for h in hosts),
            (),
            (),
            (1,) * spec.groups,
            spec.faults,
            spec.restarts,
        )
        for index in range(spec.groups):
            state = self.host_event(state, index, ("start",))
        return state

    # ---- one host --------------------------------------------------------------------------------------------------

    def host_event(self, state: State, index: int, event: tuple[Any, ...]) -> State:
        """The state after `event`, whose values are told by number, at a host."""
        before = state.hosts[index]
        after, outs, broken = self._host_turn(before, event)
        self.wrong += broken
        conn = self.view(before).conn
        streams = {s.conn: s for s in state.streams}
        operations = dict(state.operations)
        for out in outs:
            kind = out[0]
            if kind == "open":
                conn = out[1]
                streams[conn] = Stream(conn, index, 0, (), (), 0)
            elif kind == "lost":
                for stream in [s for s in streams.values() if s.owner == index]:
                    streams[stream.conn] = stream._replace(flags=stream.flags | AGENT_GONE | BROKEN, down=())
            elif kind == "commit":
                self.wrong += broken_by_commit(self.stores.values[state.store], out[1])
            elif kind in ("launch", "record"):
                self._launched(operations, kind, out[1], out[2])
            elif conn in streams:
                streams[conn] = _said(streams[conn], kind, out)
        hosts = (*state.hosts[:index], after, *state.hosts[index + 1 :])
        return state._replace(hosts=hosts, streams=_kept(streams), operations=tuple(sorted(operations.items())))

    def _host_turn(self, host: int, event: tuple[Any, ...]) -> tuple[int, tuple[Any, ...], tuple[str, ...]]:
        key = (host, event)
        known = self._host_turns.get(key)
        if known is not None:
            return known  # type: ignore[no-any-return]
        machine = Machine(self.spec, self.hosts.values[host])
        kind, *args = event
        if kind in ("down", "reduced", "gathered", "loaded", "fetched"):
            at = 0 if kind == "down" else 1
            value = args[at]
            args[at] = tuple(self.things.values[v] for v in value) if kind == "gathered" else self._thing(value)
        try:
            after = self.hosts.of(machine.act((kind, *args)))
        except Exception as error:
            self._host_turns[key] = (host, (), (f"{machine.host.name}: {type(error).__name__}: {error}",))
            return self._host_turns[key]  # type: ignore[no-any-return]
        outs = tuple(
            (*out[:-1], self.things.of(out[-1])) if out[0] in ("up", "launch", "record") else out
            for out in machine.outs
        )
        result = (after, outs, tuple(machine.broken))
        self._host_turns[key] = result
        return result

    def _thing(self, number: int) -> Any:
        return None if number < 0 else self.things.values[number]

    def _launched(self, operations: dict[Any, Any], kind: str, where: tuple[int, ...], what: int) -> None:
        generation, step, shard_rank, place, size = where
        places = operations.get((generation, step, shard_rank), ((-1, -1),) * size)
        if len(places) != size:
            self.wrong.append(f"generation {generation} has {len(places)} members for some, {size} for others")
            return
        launched, said = places[place]
        if (launched if kind == "launch" else said) != -1:
            self.wrong.append(f"place {place} of generation {generation} launches step {step} twice")
        new = (what, said) if kind == "launch" else (launched, what)
        operations[generation, step, shard_rank] = (*places[:place], new, *places[place + 1 :])

    # ---- the lighthouse --------------------------------------------------------------------------------------------

    def lighthouse_event(self, state: State, key: tuple[Any, ...], owner: int, crash_after: int = -1) -> State:
        """The state after an event at the lighthouse; it may crash after so many of its effects."""
        if key[0] == "hello":
            key = (*key, state.following[owner])
        known = self._turns.get((state.lighthouse, key))
        if known is None:
            known = self._turns[state.lighthouse, key] = self._turn(state.lighthouse, key)
        after, effects, wrong = known
        self.wrong += wrong
        if crash_after >= 0:
            effects = effects[:crash_after]
        streams = {s.conn: s for s in state.streams}
        store, following = state.store, state.following
        for kind, *args in effects:
            if kind == "send":
                stream = streams.get(args[0])
                if stream is not None:
                    streams[stream.conn] = self._sent(stream, args[1])
            elif kind == "close":
                stream = streams.get(args[0])
                if stream is not None:
                    streams[stream.conn] = _closed(stream)
            elif kind == "next":
                following = (*following[:owner], args[0], *following[owner + 1 :])
            else:
                store = self._write(state, store, args[0])
        state = state._replace(lighthouse=after, store=store, following=following, streams=_kept(streams))
        return self.restarted(state) if crash_after >= 0 else state

    def effects_of(self, state: State, key: tuple[Any, ...], owner: int) -> int:
        """How many effects an event at the lighthouse has."""
        self.lighthouse_event(state, key, owner)
        if key[0] == "hello":
            key = (*key, state.following[owner])
        return len(self._turns[state.lighthouse, key][1])

    def _turn(self, lighthouse: int, key: tuple[Any, ...]) -> tuple[int, list[Any], list[str]]:
        try:
            after, effects, wrong = turn(self.lighthouses.values[lighthouse], key, self.things)
        except Exception as error:
            return lighthouse, [], [f"the lighthouse: {type(error).__name__}: {error}"]
        return self.lighthouses.of(after), effects, wrong

    def _sent(self, stream: Stream, message: int) -> Stream:
        value = self.things.values[message]
        if isinstance(value, Welcome):
            stream = stream._replace(incarnation=value.incarnation)
        if stream.flags & (AGENT_GONE | LIGHTHOUSE_GONE):
            return stream
        return stream._replace(down=(*stream.down, message))

    def _write(self, state: State, store: int, effect: int) -> int:
        value = self.things.values[effect]
        if isinstance(value, StoreBase):
            self.wrong += broken_by_base(value, [self.view(h) for h in state.hosts])
        known = self._writes.get((store, effect))
        if known is None:
            try:
                record = msgspec.structs.replace(written(self.stores.values[store], value), next_incarnation=1)
                known = self.stores.of(record)
            except Superseded as why:
                self.wrong.append(f"the store refuses what the only lighthouse writes: {why}")
                return store
            self._writes[store, effect] = known
        return known

    def restarted(self, state: State) -> State:
        """The lighthouse crashed, and another leads; those who talked to it do not know yet."""
        left = state.restarts - 1
        record = self.stores.values[state.store]
        lighthouse = self.lighthouses.of(first_state(self.spec, record, self.spec.restarts - left))
        streams = {s.conn: s._replace(up=(), flags=s.flags | LIGHTHOUSE_GONE | BROKEN | SEALED) for s in state.streams}
        return state._replace(lighthouse=lighthouse, streams=_kept(streams), restarts=left)

    # ---- streams ---------------------------------------------------------------------------------------------------

    def is_overtaken(self, state: State, stream: Stream) -> bool:
        """Whether an older stream of the same host still carries its hello: hellos of one host keep their order."""
        if not isinstance(self.things.values[stream.up[0]], Hello):
            return False
        older = [s for s in state.streams if s.owner == stream.owner and s.conn < stream.conn and s.up]
        return any(isinstance(self.things.values[s.up[0]], Hello) for s in older)

    def deliver_up(self, state: State, stream: Stream) -> tuple[State, tuple[Any, ...] | None]:
        """Takes the first message on its way up: the state without it, and the lighthouse's event, if it makes one."""
        message, rest = stream.up[0], stream.up[1:]
        if message == CLOSED:
            gone = stream._replace(up=(), flags=stream.flags | LIGHTHOUSE_GONE)
            return self._with(state, gone), ("ended", stream.conn)
        state = self._with(state, stream._replace(up=rest))
        if isinstance(self.things.values[message], Hello):
            return state, ("hello", stream.conn, message)
        if not stream.incarnation:
            return state, None
        name = self.view(state.hosts[stream.owner]).name
        return state, ("said", stream.conn, name, stream.incarnation, message)

    def deliver_down(self, state: State, stream: Stream) -> State:
        """The agent hears the first message on its way down, or that the stream is over."""
        if not stream.down or stream.down[0] == CLOSED:
            return self.drop(state, stream)
        state = self._with(state, stream._replace(down=stream.down[1:]))
        return self.host_event(state, stream.owner, ("down", stream.down[0]))

    def drop(self, state: State, stream: Stream) -> State:
        """The agent hears that the stream is over."""
        ended = stream._replace(down=(), flags=stream.flags | AGENT_GONE)
        if not ended.flags & SEALED:
            ended = ended._replace(up=(*ended.up, CLOSED), flags=ended.flags | SEALED)
        return self.host_event(self._with(state, ended), stream.owner, ("ended",))

    def _with(self, state: State, stream: Stream) -> State:
        conn, gone = stream.conn, stream.flags & 3 == 3
        streams = tuple([stream if s.conn == conn else s for s in state.streams if s.conn != conn or not gone])
        return state._replace(streams=streams)

    def checked(self, before: State, state: State) -> list[str]:
        """The promises that `state` breaks, and those that the last step broke."""
        wrong, self.wrong = self.wrong, []
        if state.hosts != before.hosts:
            wrong = wrong + broken_in([self.view(h) for h in state.hosts], self.stores.values[state.store])
        return wrong


def _said(stream: Stream, kind: str, out: tuple[Any, ...]) -> Stream:
    """The stream after its agent said something on it, or closed it."""
    if kind == "close":
        up = stream.up if stream.flags & SEALED else (*stream.up, CLOSED)
        return stream._replace(up=up, down=(), flags=stream.flags | AGENT_GONE | SEALED)
    if kind == "up" and not stream.flags & (SEALED | AGENT_GONE):
        return stream._replace(up=(*stream.up, out[1]))
    return stream


def _closed(stream: Stream) -> Stream:
    """The stream after the lighthouse closed it: both hear of it, after what was sent before."""
    down = stream.down if stream.flags & AGENT_GONE else (*stream.down, CLOSED)
    if not stream.flags & SEALED:
        stream = stream._replace(up=(*stream.up, CLOSED), flags=stream.flags | SEALED)
    return stream._replace(down=down)


def _kept(streams: dict[int, Stream]) -> tuple[Stream, ...]:
    """Streams of which somebody may still hear something, by number."""
    return tuple([streams[conn] for conn in sorted(streams) if streams[conn].flags & 3 != 3])


def is_commit(world: World, message: int) -> bool:
    """Whether it tells of a committed step."""
    return isinstance(world.things.values[message], Committed)


def is_finished(world: World, message: int) -> bool:
    """Whether it tells that the farewell completed, which is believed of everybody."""
    return isinstance(world.things.values[message], Finished)


def is_harmless(world: World, message: int) -> bool:
    """Whether it cannot make the lighthouse begin a change."""
    return isinstance(world.things.values[message], Committed | Opened | CaughtUp)
