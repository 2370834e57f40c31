"""What may happen next, part by part.

Everything that is on its way may arrive, in any order over different streams; every collective may complete at a member
once all have launched it, and fail at one once somebody has left; a deadline may pass at any moment at which what it
waits for is dead, or its stream broken. Of a healthy one it may pass too, but that is a fault ("slow").
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lighthouse.values import Abandon, Base, Heal, Leave, Release, Stage, Welcome
from simulation.small_lighthouse import Waits
from simulation.small_tables import Names
from simulation.small_view import HostView, is_known, is_lost, opens, transfers
from simulation.small_world import (
    AGENT_GONE,
    BROKEN,
    CLOSED,
    FINISHED,
    LIGHTHOUSE_GONE,
    REPORT,
    SEALED,
    Site,
    Stream,
    Turn,
    World,
    forsaken,
    hellos_of,
    host_after,
    is_overtaken,
    kinds,
)

Move = tuple[Any, ...]

ORDINARY, LAST, FAULT = 0, 1, 2
"""Kinds of moves. A last one is what only time can bring: it is made where nothing else can happen."""

_OPERATION, _TRANSFER, _DEADLINE = 10**7, 2 * 10**7, 3 * 10**7
"""Where moves of a state stand in their order, after those of its streams."""


class Local(NamedTuple):
    """A move at one site that concerns nobody else."""

    move: int
    order: int
    kind: int
    turn: Turn


class Heard(NamedTuple):
    """A move that takes something from a site to the lighthouse, for which it is `event`, or nothing if -1. message: it
    is one that was said there, not the end of a stream that broke."""

    move: int
    order: int
    kind: int
    site: int
    event: int
    message: int
    alone: int


class Shared(NamedTuple):
    """A move at a site that others make possible."""

    move: int
    order: int
    kind: int
    index: int
    event: int


class Due(NamedTuple):
    """A deadline of the lighthouse."""

    move: int
    order: int
    kind: int
    event: int


class SiteView(NamedTuple):
    """What the rules ask of a site.

    host: its place in `Moves.hosts`; reach: number of what its deadlines see; past: of what `stale` does
    closed: all is there that streams can bring it; hidden: and nobody else sees a difference when it comes
    content: it asks nothing of others, but to complete collectives; heals: the move in which it is told to, -1 for none
    forsaken: the site after a lighthouse's crash
    conn: the newest stream that nothing has happened to, -2 for none; and for `small_soon`: greets: a hello may come
    yet; out: its ranks are gone; ends: there is a farewell or a report on a stream that something has happened to;
    still: it is in no step; incarnation: of the host
    """

    host: int
    reach: int
    past: int
    closed: int
    hidden: int
    content: int
    heals: int
    forsaken: int
    conn: int
    greets: int
    out: int
    ends: int
    still: int
    incarnation: int


class Moves:
    """The moves of a world, by part; they and the hosts' events have numbers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.moves = Names()
        self.host_events = Names()
        self.reaches = Names()
        self.pasts = Names(())
        self.waits = Names()
        self.hosts = [Names() for _ in range(world.spec.groups)]  # numbers of each group's hosts, which are fewer

    # ---- one site --------------------------------------------------------------------------------------------------

    def local(self, site: int) -> list[Local]:
        """What may happen at a site by itself, and the faults there."""
        world, found = self.world, []
        now: Site = world.sites.values[site]
        for stream in now.streams:
            if stream.flags & AGENT_GONE:
                continue
            if stream.down:
                found.append(self._at(stream.conn, "down", 2, world.heard_down(site, stream)))
            if stream.flags & BROKEN:
                found.append(self._at(stream.conn, "drop", 3, world.dropped(site, stream)))
        return found + self._faults(site, now)

    def _at(self, conn: int, kind: str, place: int, turn: Turn) -> Local:
        return Local(self.moves.of((kind, conn)), 4 * conn + place, ORDINARY, turn)

    def _faults(self, site: int, now: Site) -> list[Local]:
        world, kinds = self.world, self.world.spec.kinds
        host = world.view(now.host)
        index = world.hosts.values[now.host].index
        found: list[tuple[Move, Turn]] = []
        if host.alive and "crash" in kinds:
            for shard, rank in enumerate(host.ranks):
                if not rank.rank.gone:
                    found.append((("crash", index, shard), world.host_event(site, ("crash", shard))))
        if host.alive and "host" in kinds and host.ranks:
            found.append((("kill", index), world.host_event(site, ("host",))))
        whole = [s for s in now.streams if not s.flags & (BROKEN | AGENT_GONE | LIGHTHOUSE_GONE | SEALED)]
        if "break" in kinds:
            found += [(("break", s.conn), Turn(world.broken(site, s), 0, 0, 0)) for s in whole]
        return [Local(self.moves.of(move), 0, FAULT, turn) for move, turn in found]

    def heard(self, site: int) -> list[Heard]:
        """What the lighthouse may hear from a site next."""
        world, found = self.world, []
        streams = [s for s in world.sites.values[site].streams if not s.flags & LIGHTHOUSE_GONE]
        speaking = [s for s in streams if s.up]
        host = world.view(world.sites.values[site].host)
        quiet = not (host.alive and host.ranks) and not hellos_of(world, site)
        for stream in streams:
            order = 4 * stream.conn
            if stream.up and not is_overtaken(world, site, stream):
                site_after, event = world.heard_up(site, stream)
                move = self.moves.of(("up", stream.conn))
                alone = speaking[:1] == [stream] and not stream.flags & (BROKEN if quiet else ~0)
                found.append(Heard(move, order, ORDINARY, site_after, event, 1, alone))
            if stream.flags & BROKEN:
                site_after, event = world.heard_up(site, stream._replace(up=(CLOSED,)))
                move = self.moves.of(("cut", stream.conn))
                found.append(Heard(move, order + 1, ORDINARY, site_after, event, 0, 0))
        return found

    def site(self, site: int) -> SiteView:
        """What the rules ask of a site."""
        world = self.world
        now: Site = world.sites.values[site]
        host = world.view(now.host)
        whole = tuple(s.conn for s in now.streams if not s.flags & BROKEN)
        hellos = {hello.incarnation for hello in hellos_of(world, site)}
        past = tuple(
            (
                s.conn,
                s.incarnation,
                s.up[0] == CLOSED,
                kinds(world, s.up[:1])[0] is FINISHED,
                s.incarnation not in hellos | {host.incarnation},
            )
            for s in now.streams
            if s.up and s.incarnation and not s.flags & LIGHTHOUSE_GONE
        )
        out = not (host.alive and host.ranks)
        return SiteView(
            host=self.hosts[world.hosts.values[now.host].index].of(now.host),
            reach=self.reaches.of((host.name, whole, out)),
            past=self.pasts.of((host.name, past) if past else ()),
            closed=self._is_closed(now),
            hidden=self._is_hidden(site),
            content=self._is_content(now),
            heals=next((self.moves.of(("down", s.conn)) for s in now.streams if self._heals(host, s)), -1),
            forsaken=forsaken(world, site),
            conn=max((s.conn for s in now.streams if not s.flags), default=-2),
            greets=not out or bool(hellos),
            out=out,
            ends=any(s.flags and not {FINISHED, REPORT}.isdisjoint(kinds(world, s.up)) for s in now.streams),
            still=self._is_still(now),
            incarnation=host.incarnation,
        )

    def _is_still(self, site: Site) -> bool:
        """Whether nothing of a step or a farewell comes from a site before the lighthouse has formed a generation."""
        host = self.world.view(site.host)
        said = [kind for s in site.streams for kind in kinds(self.world, (*s.up, *s.down))]
        return not (host.live or host.finished or FINISHED in said or Base in said)

    def _is_closed(self, site: Site) -> bool:
        """Whether nothing can come to a site by its streams before what is on its way."""
        streams, ended = [s for s in site.streams if not s.flags & AGENT_GONE], LIGHTHOUSE_GONE | BROKEN
        return bool(streams) and all(s.down or s.flags & ended == ended for s in streams)

    def _is_hidden(self, site: int) -> bool:
        """Whether nobody else sees a difference, whatever a site hears next."""
        world, now = self.world, self.world.sites.values[site]
        streams = [s for s in now.streams if not s.flags & AGENT_GONE]
        turns = [world.heard_down(site, s) for s in streams if s.down]
        turns += [world.dropped(site, s) for s in streams if s.flags & BROKEN]
        return all(self._is_private(now.host, world.sites.values[turn.site].host) for turn in turns)

    def _is_content(self, site: Site) -> bool:
        """Whether a site loads, fetches and opens nothing, and is on its way to hear of nothing that would make it."""
        said = {kind for s in site.streams for kind in kinds(self.world, s.down)}
        ranks = self.world.view(site.host).ranks
        asks = any(rank.opening or rank.rank.load or rank.rank.fetch for rank in ranks)
        return said <= {Welcome, Leave, Release, Abandon, Stage, str} and not asks

    def _heals(self, host: HostView, stream: Stream) -> bool:
        """Whether the next that comes on a stream is that a host that is in nothing shall heal."""
        idle = not host.busy and not any(rank.opening for rank in host.ranks)
        return idle and not stream.flags & (AGENT_GONE | BROKEN) and kinds(self.world, stream.down[:1]) == [Heal]

    def is_settled(self, operations: int, hosts: list[int]) -> list[int]:
        """For each host whether all is there that collectives and transfers can bring it (0: no), and nobody else sees
        a difference when it comes (2): a host that is in none, or in collectives that have failed somewhere and
        completed, or cannot any more."""
        views = [self.world.view(host) for host in hosts]
        launched = {key: places for key, _, places in self.world.operations.values[operations]}
        shared, found = self.shared(operations, hosts), []
        for index, host in enumerate(hosts):
            events = [self.host_events.values[move.event] for move in shared if move.index == index]
            good = all(is_known(views, views[index], launched, shard) for shard in range(len(views[index].ranks)))
            hidden = all(self._is_private(host, host_after(self.world, host, event)) for event in events)
            found.append(int(good) + int(good and hidden))
        return found

    def _is_private(self, this: int, other: int) -> bool:
        """Whether nobody else can see that a host has become another: it tells nobody who it is (others ask for that),
        takes away nothing that a promise is about, and changes nothing that others load, fetch or open."""
        before, after = self.world.view(this), self.world.view(other)
        was = after.incarnation in (before.incarnation, *(() if before.incarnation else (after.had,)))
        stays = before.generation == 0 or after.generation >= before.generation
        left = [old.numbers - new.numbers for old, new in zip(before.ranks, after.ranks, strict=False)]
        joins = all(numbers <= {before.generation} for numbers in left)  # that one was opened everywhere
        return was and stays and joins and _public(before) == _public(after)

    def stale(self, waits: int, past: int) -> list[int]:
        """Moves that take the end of a stream that the lighthouse has replaced, or a word of an incarnation that it
        has replaced, or forgotten so that it will not come back: they are no news."""
        if not past:
            return []
        name, heads = self.pasts.values[past]
        groups = {group: (incarnation, conn) for group, incarnation, conn in self.waits.values[waits].groups}
        new, at = groups.get(name, (0, 0))
        return [
            self.moves.of(("up", conn))
            for conn, incarnation, closed, finished, gone in heads
            if (closed and at != conn) or (not finished and (incarnation < new or (gone and not new)))
        ]

    # ---- collectives and transfers ---------------------------------------------------------------------------------

    def shared(self, operations: int, hosts: list[int]) -> list[Shared]:
        """What collectives, and what transfers can come to."""
        views = [self.world.view(host) for host in hosts]
        launched = {key: places for key, _, places in self.world.operations.values[operations]}
        found: list[Shared] = []
        for index, host in enumerate(views):
            for shard, rank in enumerate(host.ranks):
                if rank.waiting is not None:
                    found += self._collective(views, index, shard, launched.get((*rank.waiting, shard), ()))
                for number in rank.opening:
                    members = host.members[number]
                    if all(opens(views, m, shard, number) for m in members):
                        found.append(self._shared(index, ("plan_opened", shard, number)))
                    if any(is_lost(views, m, number) for m in members):
                        found.append(self._shared(index, ("plan_lost", shard, number)))
        for index, host in enumerate(views):
            for shard, rank in enumerate(host.ranks):
                found += [self._transfer(index, shard, *what) for what in transfers(views, rank.rank, shard)]
        return [s._replace(order=s.order + place) for place, s in enumerate(found)]

    def _collective(self, views: list[HostView], index: int, shard: int, places: Any) -> list[Shared]:
        host, things = views[index], self.world.things
        rank = host.ranks[shard]
        assert rank.waiting is not None
        found = []
        if places and rank.entered and all(said != -1 for _, said in places):
            found.append(self._shared(index, ("gathered", shard), (tuple(said for _, said in places),)))
        elif places and not rank.entered and all(launched != -1 for launched, _ in places):
            total = sorted(c for launched, _ in places for c in things.values[launched])
            found.append(self._shared(index, ("reduced", shard), (things.of(tuple(total)),)))
        if any(is_lost(views, m, rank.waiting[0]) for m in host.members.get(rank.waiting[0], ())):
            found.append(self._shared(index, ("collective_lost", shard)))
        return found

    def _shared(self, index: int, event: tuple[Any, ...], value: tuple[Any, ...] = ()) -> Shared:
        move = self.moves.of(("host", index, *event))
        return Shared(move, _OPERATION, ORDINARY, index, self.host_events.of((*event, *value)))

    def _transfer(self, index: int, shard: int, kind: str, value: Any) -> Shared:
        move = self.moves.of(("host", index, kind, shard))
        event: tuple[Any, ...] = (kind, shard)
        if kind in ("loaded", "lost", "late", "fetched"):
            event = ("fetched" if kind == "fetched" else "loaded", shard)
            event = (*event, -1 if value is None else self.world.things.of(value))
        return Shared(move, _TRANSFER, LAST if kind == "late" else ORDINARY, index, self.host_events.of(event))

    # ---- deadlines of the lighthouse -------------------------------------------------------------------------------

    def due(self, waits: int, reaches: list[int]) -> list[Due]:
        """Deadlines that may pass: of those that are dead or out of reach; late ones; and, a fault, of the healthy."""
        now: Waits = self.waits.values[waits]
        if now.finished or now.ended:
            return []
        seen = {name: (whole, out) for name, whole, out in (self.reaches.values[reach] for reach in reaches)}
        found = [self._due(ORDINARY, key) for key in _deadlines(now, seen, True, self.world.spec.hasty)]
        late = "plan" if now.plan else "reports" if now.reports else "grace" if now.grace else ""
        found += [self._due(LAST, (late,))] if late else []
        if "slow" in self.world.spec.kinds:
            found += [self._due(FAULT, key) for key in _deadlines(now, seen, False, self.world.spec.hasty)]
        return found

    def amid(self, move: int, crash: int) -> int:
        """The move of a lighthouse that crashes after `crash` - 1 effects of what it hears by `move`."""
        return self.moves.of(("amid", crash - 1, *self.moves.values[move]))

    def _due(self, kind: int, key: tuple[Any, ...]) -> Due:
        move = self.moves.of(("slow" if kind == FAULT else "time", *key))
        return Due(move, _DEADLINE, kind, self.world.events.of(key))


def _deadlines(
    now: Waits, seen: dict[str, tuple[tuple[int, ...], bool]], dead: bool, hasty: bool
) -> list[tuple[Any, ...]]:
    """Deadlines that may pass: of those that are dead or out of reach, or of the healthy."""
    found: list[tuple[Any, ...]] = []
    deaf = {name: conn not in seen[name][0] for name, _, conn in now.groups}
    if not now.grace:
        found += [("lease", name) for name, _, _ in now.groups if deaf[name] is dead]
    if now.reports and all(deaf.get(name, seen[name][1]) for name in now.reports) is dead:
        found.append(("reports",))
    out = [seen[name][1] for name in now.missing]
    if now.grace and (any(out) and (hasty or all(out))) is dead:
        found.append(("grace",))
    if dead:
        found += [(kind,) for kind in ("check", "again", "retry") if getattr(now, kind)]
        if now.plan and any(seen[name][1] for name in now.plan):
            found.append(("plan",))
    return found


def _public(host: HostView) -> tuple[Any, ...]:
    """What promises are about, and what others load, fetch or open."""
    ranks = [rank.rank for rank in host.ranks]
    given = [(r.address, r.gone, r.staged, r.log, r.book.usable, r.book.version) for r in ranks]
    return host.alive, host.stands, host.version, given
