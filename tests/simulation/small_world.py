"""The parts of a small world, and what one event makes of each.

The parts: the lighthouse with its store; each site, that is a host with its streams; and what was launched in each
collective operation. Every value of a part has a number, and a state is a row of such numbers. What one event makes of
one part is computed by the real cores, once, since the same part meets the same event in very many states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from lighthouse.core_values import StoreBase, StoreRecord
from lighthouse.values import Finished, Hello, Report, Welcome
from simulation.small_host import Machine, Spec
from simulation.small_lighthouse import Waits, first_state, turn, waits
from simulation.small_operations import launched, settled
from simulation.small_soon import soon
from simulation.small_tables import Names
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
    incarnation: int
    up: tuple[int, ...]
    down: tuple[int, ...]
    flags: int


class Site(NamedTuple):
    """A host by number, its streams by age, and the incarnation that its next life gets."""

    host: int
    streams: tuple[Stream, ...]
    following: int


class Turn(NamedTuple):
    """What an event makes of a site. launched: numbers of what it puts into operations; commits: of the entries that it
    commits; wrong: of the promises it breaks. 0 stands for nothing."""

    site: int
    launched: int
    commits: int
    wrong: int


class World:
    """All that is known of one spec's world."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.things = Numbers()
        self.hosts = Numbers()
        self.lighthouses = Numbers()
        self.stores = Numbers()
        self.leaders = Names()  # (lighthouse, store)
        self.sites = Names()
        self.operations = Names(())
        self.events = Names()
        self.launches = Names(())
        self.commits = Names(())
        self.orders = Names(())  # what the lighthouse does to one site
        self.wrongs = Names(())
        self._views: dict[int, HostView] = {}
        self._waits: dict[int, Waits] = {}
        self._host_turns: dict[Any, Any] = {}
        self._turns: dict[Any, Any] = {}
        self._writes: dict[tuple[int, int], tuple[int, str]] = {}
        assert self.things.of("closed") == CLOSED

    def view(self, host: int) -> HostView:
        """What is seen of the host with this number."""
        found = self._views.get(host)
        if found is None:
            found = self._views[host] = view(self.hosts.values[host])
        return found

    def waits(self, leader: int) -> Waits:
        """What the deadlines of the lighthouse with this number wait for."""
        lighthouse = self.leaders.values[leader][0]
        found = self._waits.get(lighthouse)
        if found is None:
            found = self._waits[lighthouse] = waits(self.lighthouses.values[lighthouse])
        return found

    def first(self) -> tuple[int, list[int]]:
        """The lighthouse, and the sites: all hosts have just started, and their hellos are on their way."""
        spec = self.spec
        store = self.stores.of(StoreRecord())
        leader = self.leaders.of((self.lighthouses.of(first_state(spec, StoreRecord(), 0)), store))
        hosts = [Host(name=f"g{i + 1}", index=i, returns=spec.returns) for i in range(spec.groups)]
        sites = [self.sites.of(Site(self.hosts.of(host), (), 1)) for host in hosts]
        return leader, [self.host_event(site, ("start",)).site for site in sites]

    # ---- one site --------------------------------------------------------------------------------------------------

    def host_event(self, site: int, event: tuple[Any, ...]) -> Turn:
        """What `event`, whose values are told by number, makes of a site."""
        now: Site = self.sites.values[site]
        after, outs, wrong = self._host_turn(now.host, event)
        conn = self.view(now.host).conn
        streams = {s.conn: s for s in now.streams}
        for kind, *what in outs:
            if kind == "open":
                conn = what[0]
                streams[conn] = Stream(conn, 0, (), (), 0)
            elif kind == "lost":
                streams = {c: s._replace(flags=s.flags | AGENT_GONE | BROKEN, down=()) for c, s in streams.items()}
            elif kind in ("up", "close") and conn in streams:
                streams[conn] = self._said(streams[conn], kind, what)
        launched = tuple(out for out in outs if out[0] in ("launch", "record"))
        commits = tuple(out[1] for out in outs if out[0] == "commit")
        return Turn(
            self.sites.of(Site(after, _kept(streams), now.following)),
            self.launches.of(launched),
            self.commits.of(commits),
            self.wrongs.of(wrong),
        )

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

    def _said(self, stream: Stream, kind: str, what: Sequence[Any]) -> Stream:
        """The stream after its agent said something on it, or closed it."""
        if kind == "close":
            up = stream.up if stream.flags & SEALED else (*stream.up, CLOSED)
            return stream._replace(up=up, down=(), flags=stream.flags | AGENT_GONE | SEALED)
        if stream.flags & (SEALED | AGENT_GONE):
            return stream
        up = (*stream.up, what[0])
        return stream._replace(up=up if self.spec.raw else heeded(self, up))

    def _thing(self, number: int) -> Any:
        return None if number < 0 else self.things.values[number]

    def heard_down(self, site: int, stream: Stream) -> Turn:
        """The agent hears the first message on its way down, or that the stream is over."""
        if not stream.down or stream.down[0] == CLOSED:
            return self.dropped(site, stream)
        return self.host_event(self._with(site, stream._replace(down=stream.down[1:])), ("down", stream.down[0]))

    def dropped(self, site: int, stream: Stream) -> Turn:
        """The agent hears that the stream is over."""
        ended = stream._replace(down=(), flags=stream.flags | AGENT_GONE)
        if not ended.flags & SEALED:
            ended = ended._replace(up=(*ended.up, CLOSED), flags=ended.flags | SEALED)
        return self.host_event(self._with(site, ended), ("ended",))

    def broken(self, site: int, stream: Stream) -> int:
        """The site with a stream that may lose its tails."""
        return self._with(site, stream._replace(flags=stream.flags | BROKEN))

    def heard_up(self, site: int, stream: Stream) -> tuple[int, int]:
        """Takes the first message on its way up: the site without it, and the lighthouse's event, -1 for none."""
        message, rest = stream.up[0], stream.up[1:]
        if message == CLOSED:
            gone = stream._replace(up=(), flags=stream.flags | LIGHTHOUSE_GONE)
            return self._with(site, gone), self.events.of(("ended", stream.conn))
        following = self.sites.values[site].following
        site = self._with(site, stream._replace(up=rest))
        if isinstance(self.things.values[message], Hello):
            return site, self.events.of(("hello", stream.conn, message, following))
        if not stream.incarnation:
            return site, -1
        name = self.hosts.values[self.sites.values[site].host].name
        return site, self.events.of(("said", stream.conn, name, stream.incarnation, message))

    def _with(self, site: int, stream: Stream) -> int:
        now: Site = self.sites.values[site]
        streams = {s.conn: stream if s.conn == stream.conn else s for s in now.streams}
        return self.sites.of(now._replace(streams=_kept(streams)))

    # ---- the lighthouse --------------------------------------------------------------------------------------------

    def lighthouse_event(self, leader: int, event: int, crash_after: int) -> tuple[int, list[int], int, int, int]:
        """What an event makes of the lighthouse, which crashes after so many of its effects, never if below zero:
        (lighthouse, what it does to each site, base that it writes or -1, wrong, how many effects there are)."""
        lighthouse, store = self.leaders.values[leader]
        key = self.events.values[event]
        known = self._turns.get((lighthouse, event))
        if known is None:
            known = self._turns[lighthouse, event] = self._turn(lighthouse, key)
        after, effects, wrong = known
        orders: list[list[Any]] = [[] for _ in range(self.spec.groups)]
        base, wrong = -1, list(wrong)
        for kind, what, *more in effects if crash_after < 0 else effects[:crash_after]:
            if kind in ("send", "close"):
                orders[what // 1000 - 1].append((kind, what, *more))
            elif kind == "next":
                orders[key[1] // 1000 - 1].append((kind, what))
            else:
                base = what if isinstance(self.things.values[what], StoreBase) else base
                store, refused = self._write(store, what)
                wrong += [refused] if refused else []
        number = self.leaders.of((after, store))
        return number, [self.orders.of(tuple(o)) for o in orders], base, self.wrongs.of(tuple(wrong)), len(effects)

    def _turn(self, lighthouse: int, key: tuple[Any, ...]) -> tuple[int, list[Any], list[str]]:
        try:
            after, effects, wrong = turn(self.lighthouses.values[lighthouse], key, self.things, self.spec.raw)
        except Exception as error:
            return lighthouse, [], [f"the lighthouse: {type(error).__name__}: {error}"]
        return self.lighthouses.of(after), effects, wrong

    def _write(self, store: int, effect: int) -> tuple[int, str]:
        known = self._writes.get((store, effect))
        if known is None:
            try:
                record = written(self.stores.values[store], self.things.values[effect])
                last = record.last_number if record.finished is None else 0  # no other is spent then
                record = msgspec.structs.replace(record, next_incarnation=1, last_number=last)
                known = self.stores.of(record), ""
            except Superseded as why:
                known = store, f"the store refuses what the only lighthouse writes: {why}"
            self._writes[store, effect] = known
        return known

    def ordered(self, site: int, order: int) -> int:
        """The site after what the lighthouse does to it."""
        now: Site = self.sites.values[site]
        streams, following = {s.conn: s for s in now.streams}, now.following
        for kind, what, *more in self.orders.values[order]:
            if kind == "next":
                following = what
            elif what in streams:
                stream = streams[what]
                streams[what] = _closed(stream) if kind == "close" else self._sent(stream, more[0])
        return self.sites.of(Site(now.host, _kept(streams), following))

    def _sent(self, stream: Stream, message: int) -> Stream:
        value = self.things.values[message]
        if isinstance(value, Welcome):
            stream = stream._replace(incarnation=value.incarnation)
        if stream.flags & (AGENT_GONE | LIGHTHOUSE_GONE):
            return stream
        return stream._replace(down=(*stream.down, message))

    # ---- collective operations -------------------------------------------------------------------------------------

    def launched(self, operations: int, launches: int) -> tuple[int, int]:
        """(the operations after something was launched in them, what is wrong)."""
        after, wrong = launched(self.operations.values[operations], self.launches.values[launches])
        return self.operations.of(after), self.wrongs.of(tuple(wrong))

    def settled(self, operations: int, hosts: list[int]) -> int:
        """The operations without what nobody can come to hear of."""
        return self.operations.of(settled(self.operations.values[operations], [self.view(h) for h in hosts]))


def store_of(world: World, leader: int) -> StoreRecord:
    """What the store of the lighthouse with this number knows."""
    return world.stores.values[world.leaders.values[leader][1]]  # type: ignore[no-any-return]


def host_after(world: World, host: int, event: tuple[Any, ...]) -> int:
    """The number of the host after `event`."""
    return world._host_turn(host, event)[0]


def how_soon(world: World, leader: int, event: int) -> tuple[int, ...]:
    """Whether the lighthouse may hear `event` before all else (see `Soon`); groups as bits."""
    before, key = world.lighthouses.values[world.leaders.values[leader][0]], world.events.values[event]
    after, *_, effects = world.lighthouse_event(leader, event, -1)
    after = world.lighthouses.values[world.leaders.values[after][0]]
    how, *groups = soon(before, key, after, not effects, world.things, world.spec.hasty)
    return how, *(sum(1 << (int(name[1:]) - 1) for name in names) for names in groups)


def is_overtaken(world: World, site: int, stream: Stream) -> bool:
    """Whether an older stream of the same host still carries its hello: hellos of one host keep their order."""
    if not isinstance(world.things.values[stream.up[0]], Hello):
        return False
    older = [s for s in world.sites.values[site].streams if s.conn < stream.conn and s.up]
    return any(isinstance(world.things.values[s.up[0]], Hello) for s in older)


def hellos_of(world: World, site: int) -> list[Hello]:
    """What a site has said to begin a stream and the lighthouse has not heard yet."""
    messages = (world.things.values[m] for stream in world.sites.values[site].streams for m in stream.up)
    return [message for message in messages if isinstance(message, Hello)]


def restarted(world: World, leader: int, restarts: int) -> int:
    """Another lighthouse, after so many crashes; those who talked to it do not know yet."""
    store = world.leaders.values[leader][1]
    after = first_state(world.spec, world.stores.values[store], restarts)
    return world.leaders.of((world.lighthouses.of(after), store))


def forsaken(world: World, site: int) -> int:
    """The site after the lighthouse crashed."""
    now: Site = world.sites.values[site]
    flags = LIGHTHOUSE_GONE | BROKEN | SEALED
    return world.sites.of(
        now._replace(streams=_kept({s.conn: s._replace(up=(), flags=s.flags | flags) for s in now.streams}))
    )


def over(world: World, site: int) -> int:
    """The site once the run is finished: nothing matters to the lighthouse any more but hellos."""
    now: Site = world.sites.values[site]
    streams = {}
    for stream in now.streams:
        up = tuple(m for m in stream.up if isinstance(world.things.values[m], Hello) or m == CLOSED)
        if CLOSED in up[:1] or not (up or stream.flags & (AGENT_GONE | LIGHTHOUSE_GONE) == 0):
            stream = stream._replace(flags=stream.flags | LIGHTHOUSE_GONE, up=())
        else:
            stream = stream._replace(up=up)
        streams[stream.conn] = stream
    return world.sites.of(now._replace(streams=_kept(streams)))


def heeded(world: World, up: tuple[int, ...]) -> tuple[int, ...]:
    """What of a stream's way up is heard: after a farewell nothing more but its end."""
    if FINISHED not in (said := kinds(world, up)):
        return up
    last = said.index(FINISHED) + 1
    return (*up[:last], *(message for message in up[last:] if message == CLOSED))


def kinds(world: World, messages: Sequence[int]) -> list[type]:
    """Of which kind these messages are."""
    return [type(world.things.values[message]) for message in messages]


def _closed(stream: Stream) -> Stream:
    """The stream after the lighthouse closed it: both hear of it, after what was sent before."""
    down = stream.down if stream.flags & AGENT_GONE else (*stream.down, CLOSED)
    if not stream.flags & SEALED:
        stream = stream._replace(up=(*stream.up, CLOSED), flags=stream.flags | SEALED)
    return stream._replace(down=down)


def _kept(streams: dict[int, Stream]) -> tuple[Stream, ...]:
    """Streams of which somebody may still hear something, by number."""
    return tuple([streams[conn] for conn in sorted(streams) if streams[conn].flags & 3 != 3])


FINISHED, REPORT = Finished, Report
"""What tells that the farewell completed, which is believed of everybody; and where a group stands."""
