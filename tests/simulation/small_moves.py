"""What may happen next in a state of a small world, and what state it leads to.

Everything that is on its way may arrive, in any order over different streams; every collective may complete at a member
once all have launched it, and fail at one once somebody has left; a deadline may pass at any moment at which what it
waits for is dead, or its stream broken. Of a healthy one it may pass too, but that is a fault ("slow").
"""

from __future__ import annotations

from typing import Any

from simulation.small_lighthouse import Waits
from simulation.small_values import NOW
from simulation.small_view import HostView, is_lost, transfers
from simulation.small_world import (
    AGENT_GONE,
    BROKEN,
    LIGHTHOUSE_GONE,
    SEALED,
    State,
    Stream,
    World,
    is_commit,
    is_finished,
    is_harmless,
)

Move = tuple[Any, ...]


def moves(world: World, state: State) -> list[Move]:
    """Everything that may happen next but faults; what only time can bring is offered where nothing else is left."""
    views = [world.view(h) for h in state.hosts]
    streams = _stream_moves(world, state)
    operations, transferred, late = _host_moves(world, state, views)
    no_faults = not (state.faults or state.restarts)
    eager = _eager(state, views, operations, streams if no_faults and not (transferred or late) else [])
    if eager is not None:
        return [eager]
    stale = _stale(world, state) or (_news(world, state, views) if no_faults else None)
    if stale is not None:
        return [stale]
    if no_faults and (world.spec.faults or world.spec.restarts) and _is_calm(world, state, views):
        return (streams + operations + transferred)[:1]
    found = streams + operations + transferred + _deadlines(world, state, views, True)
    return found or late + _last_deadlines(world, state)


def faults(world: World, state: State) -> list[Move]:
    """The faults that may happen now."""
    kinds, found = world.spec.kinds, []
    if state.faults:
        views = [world.view(h) for h in state.hosts]
        for index, host in enumerate(views):
            if not host.alive:
                continue
            if "crash" in kinds:
                found += [("crash", index, s) for s, rank in enumerate(host.ranks) if not rank.rank.gone]
            if "host" in kinds and host.ranks:
                found.append(("kill", index))
        whole = [s for s in state.streams if not s.flags & (BROKEN | AGENT_GONE | LIGHTHOUSE_GONE | SEALED)]
        found += [("break", s.conn) for s in whole if "break" in kinds]
        if "slow" in kinds:
            found += [("slow", *move[1:]) for move in _deadlines(world, state, views, False)]
    if state.restarts:
        found.append(("restart",))
        for stream in state.streams:
            if stream.up and not stream.flags & LIGHTHOUSE_GONE and not world.is_overtaken(state, stream):
                without, key = world.deliver_up(state, stream)
                count = world.effects_of(without, key, stream.owner) if key else 0
                found += [("amid", k, "up", stream.conn) for k in range(1, count)]
        for move in _deadlines(world, state, [world.view(h) for h in state.hosts], True):
            count = world.effects_of(state, move[1:], 0)
            found += [("amid", k, *move) for k in range(1, count)]
    return found


def after(world: World, state: State, move: Move) -> State:
    """The state that `move` leads to."""
    match move:
        case ("up" | "cut" | "down" | "drop" | "break", conn):
            return _stream_move(world, state, move[0], next(s for s in state.streams if s.conn == conn))
        case ("host", index, *event):
            return world.host_event(state, index, _with_value(world, state, index, event))
        case ("time", *key):
            return world.lighthouse_event(state, tuple(key), 0)
        case ("crash", index, shard_rank):
            return world.host_event(state._replace(faults=state.faults - 1), index, ("crash", shard_rank))
        case ("kill", index):
            return world.host_event(state._replace(faults=state.faults - 1), index, ("host",))
        case ("slow", *key):
            return world.lighthouse_event(state._replace(faults=state.faults - 1), tuple(key), 0)
        case ("restart",):
            return world.restarted(state)
        case ("amid", count, "up", conn):
            stream = next(s for s in state.streams if s.conn == conn)
            state, known = world.deliver_up(state, stream)
            assert known is not None
            return world.lighthouse_event(state, known, stream.owner, count)
        case ("amid", count, "time", *key):
            return world.lighthouse_event(state, tuple(key), 0, count)
    raise ValueError(f"not a move: {move}")


def _stream_move(world: World, state: State, kind: str, stream: Stream) -> State:
    if kind == "down":
        return world.deliver_down(state, stream)
    if kind == "drop":
        return world.drop(state, stream)
    if kind == "break":
        broken = stream._replace(flags=stream.flags | BROKEN)
        streams = tuple(broken if s.conn == stream.conn else s for s in state.streams)
        return state._replace(streams=streams, faults=state.faults - 1)
    if kind == "cut":
        state, key = world.deliver_up(state, stream._replace(up=(0,)))
    else:
        state, key = world.deliver_up(state, stream)
    return world.lighthouse_event(state, key, stream.owner) if key is not None else state


# ---- streams and hosts ---------------------------------------------------------------------------------------------


def _stream_moves(world: World, state: State) -> list[Move]:
    found: list[Move] = []
    for stream in state.streams:
        broken = stream.flags & BROKEN
        if not stream.flags & LIGHTHOUSE_GONE:
            if stream.up and not world.is_overtaken(state, stream):
                found.append(("up", stream.conn))
            if broken:
                found.append(("cut", stream.conn))
        if not stream.flags & AGENT_GONE:
            if stream.down:
                found.append(("down", stream.conn))
            if broken:
                found.append(("drop", stream.conn))
    return found


def _host_moves(world: World, state: State, views: list[HostView]) -> tuple[list[Move], list[Move], list[Move]]:
    """What collectives, and what transfers can come to; and transfers that only a deadline ends."""
    operations = dict(state.operations)
    found: list[Move] = []
    transferred: list[Move] = []
    late: list[Move] = []
    for index, host in enumerate(views):
        for shard, rank in enumerate(host.ranks):
            if rank.waiting is not None:
                number, step = rank.waiting
                places = operations[number, step, shard]
                if rank.entered:
                    if all(said != -1 for _, said in places):
                        found.append(("host", index, "gathered", shard))
                elif all(launched != -1 for launched, _ in places):
                    found.append(("host", index, "reduced", shard))
                if any(is_lost(views, m, number) for m in host.members.get(number, ())):
                    found.append(("host", index, "collective_lost", shard))
            for number in rank.opening:
                members = host.members[number]
                if all(_opens(views, m, shard, number) for m in members):
                    found.append(("host", index, "plan_opened", shard, number))
                if any(is_lost(views, m, number) for m in members):
                    found.append(("host", index, "plan_lost", shard, number))
            for event, _ in transfers(views, rank.rank, shard):
                (late if event == "late" else transferred).append(("host", index, event, shard))
    return found, transferred, late


def _with_value(world: World, state: State, index: int, event: list[Any]) -> tuple[Any, ...]:
    """The event of a host with the number of what it brings there."""
    kind, shard, *rest = event
    views = [world.view(h) for h in state.hosts]
    rank = views[index].ranks[shard]
    if kind in ("reduced", "gathered"):
        assert rank.waiting is not None
        places = dict(state.operations)[(*rank.waiting, shard)]
        if kind == "gathered":
            return kind, shard, tuple(said for _, said in places)
        total = sorted(c for launched, _ in places for c in world.things.values[launched])
        return kind, shard, world.things.of(tuple(total))
    if kind == "late":
        return "loaded", shard, -1
    if kind in ("loaded", "lost", "fetched"):
        value = next(value for event, value in transfers(views, rank.rank, shard) if event == kind)
        return ("fetched" if kind == "fetched" else "loaded"), shard, -1 if value is None else world.things.of(value)
    return kind, shard, *rest


def _opens(views: list[HostView], member: tuple[str, int], shard: int, number: int) -> bool:
    host = next((h for h in views if h.name == member[0]), None)
    if host is None or host.incarnation != member[1] or shard >= len(host.ranks):
        return False
    return number in host.ranks[shard].numbers


def _eager(state: State, views: list[HostView], operations: list[Move], streams: list[Move]) -> Move | None:
    """A move that may go first without hiding anything, or None; see the first paragraph of `small`."""
    together = {h.generation for h in views}
    if len(together) == 1 and all(h.live and not h.joining for h in views):
        for move in operations:
            if move[2] == "reduced":
                return move
    for kind, conn in streams:
        stream = next(s for s in state.streams if s.conn == conn)
        if kind == "down" and not stream.flags & BROKEN and not views[stream.owner].busy:
            return kind, conn
    return None


def _stale(world: World, state: State) -> Move | None:
    """The end of a stream that the lighthouse has replaced, or a word of an incarnation that it has: it is no news."""
    groups = {name: (incarnation, conn) for name, incarnation, conn in world.waits(state.lighthouse).groups}
    for stream in state.streams:
        if not stream.up or stream.flags & LIGHTHOUSE_GONE or not stream.incarnation:
            continue
        incarnation, conn = groups.get(world.view(state.hosts[stream.owner]).name, (0, 0))
        ended = stream.up[0] == 0 and conn != stream.conn
        past = stream.incarnation < incarnation and not is_finished(world, stream.up[0])
        if ended or past:
            return "up", stream.conn
    return None


def _news(world: World, state: State, views: list[HostView]) -> Move | None:
    """A commit to tell of, while nothing is on its way, or will be, that makes the lighthouse ask how far it is."""
    waits = world.waits(state.lighthouse)
    lost = any(is_lost(views, m, h.generation) for h in views for m in h.members.get(h.generation, ()))
    if waits.changing or waits.troubled or lost or any(s.flags for s in state.streams):
        return None
    if not all(is_harmless(world, message) for s in state.streams for message in s.up):
        return None
    heads = ((s.conn, s.up[0]) for s in state.streams if s.up)
    return next((("up", conn) for conn, message in heads if is_commit(world, message)), None)


def _is_calm(world: World, state: State, views: list[HostView]) -> bool:
    """Whether all are at work in the generation that the lighthouse leads, and no harm is left to be done."""
    waits = world.waits(state.lighthouse)
    if waits.finished:
        return True
    if not waits.settled or waits.ended or len(state.streams) != len(views):
        return False
    at_work = all(h.live and not h.joining and h.welcomed and h.generation == waits.number for h in views)
    return at_work and not any(s.flags for s in state.streams)


# ---- deadlines of the lighthouse -----------------------------------------------------------------------------------


def _deadlines(world: World, state: State, views: list[HostView], dead: bool) -> list[Move]:
    """Deadlines that may pass: of those that are dead or out of reach, or of the healthy."""
    waits = world.waits(state.lighthouse)
    if waits.finished or waits.ended:
        return []
    found: list[Move] = []
    deaf = {name: _is_deaf(state, conn) for name, _, conn in waits.groups}
    if not waits.grace:
        found += [("time", "lease", name) for name, _, _ in waits.groups if deaf[name] is dead]
    if waits.reports and all(deaf.get(name, _is_out(views, name)) for name in waits.reports) is dead:
        found.append(("time", "reports"))
    if waits.grace and _may_judge(waits, views) is dead:
        found.append(("time", "grace"))
    if dead:
        found += [("time", kind) for kind in ("check", "again", "retry") if getattr(waits, kind)]
        if waits.plan and any(_is_out(views, name) for name in waits.plan):
            found.append(("time", "plan"))
    return found


def _last_deadlines(world: World, state: State) -> list[Move]:
    waits = world.waits(state.lighthouse)
    if waits.finished or waits.ended:
        return []
    if waits.plan:
        return [("time", "plan")]
    if waits.reports:
        return [("time", "reports")]
    return [("time", "grace")] if waits.grace else []


def _is_deaf(state: State, conn: int) -> bool:
    """Whether the lighthouse cannot hear the group on the stream that it has of it."""
    stream = next((s for s in state.streams if s.conn == conn), None)
    return stream is None or bool(stream.flags & BROKEN)


def _is_out(views: list[HostView], name: str) -> bool:
    return not any(h.name == name and h.alive and h.ranks for h in views)


def _may_judge(waits: Waits, views: list[HostView]) -> bool:
    """Whether somebody whom the first lease of a lighthouse waits for will never come."""
    return any(_is_out(views, name) for name in waits.missing)


__all__ = ["NOW", "Move", "after", "faults", "moves"]
