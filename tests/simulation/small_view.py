"""What can be seen of one host of a small world: computed once for each state of a host, and asked for often."""

from __future__ import annotations

from typing import Any, NamedTuple

from lighthouse.values import Version
from replica.agent_core import hold as agent_hold
from replica.agent_state import live
from replica.agent_values import AgentHold
from simulation.small_values import Entry, Host, Members, Rank, Snapshot, Weights


class RankView(NamedTuple):
    """waiting: (generation, step) of the operation it waits in, None if in none; opening: planned generations."""

    rank: Rank
    waiting: tuple[int, int] | None
    entered: bool
    numbers: frozenset[int]
    opening: tuple[int, ...]


class HostView(NamedTuple):
    """born: how often its ranks or agent were started; had: the newest incarnation that it was; members: of the
    generations it knows, by number; stands: (version, weights) of all that it holds."""

    name: str
    born: int
    alive: bool
    code: int | None
    conn: int
    incarnation: int
    had: int
    floor: int
    generation: int
    start: Version
    live: bool
    finished: bool
    busy: bool
    members: dict[int, Members]
    ranks: tuple[RankView, ...]
    stands: tuple[tuple[Version, Weights], ...]
    version: Version | None
    hold: str


def view(host: Host) -> HostView:
    """What others see of `host`."""
    agent = host.agent
    if agent is None:
        return HostView(
            host.name,
            host.born,
            False,
            host.code,
            0,
            -1,
            host.had,
            0,
            0,
            Version(0, 0),
            False,
            False,
            False,
            {},
            (),
            (),
            None,
            "",
        )
    members: dict[int, Members] = {p.number: tuple((m.name, m.incarnation) for m in p.roster) for p in agent.plans}
    seat = agent.seat
    if seat.generation and seat.work is not None:
        members[seat.generation] = tuple((m.name, m.incarnation) for m in seat.roster)
    plans = {plan.number for plan in agent.plans}
    ranks = tuple(_rank_view(rank, plans) for rank in host.ranks)
    busy = any(r.waiting is not None or r.rank.load is not None or r.rank.fetch is not None for r in ranks)
    stands: list[tuple[Version, Weights]] = []
    for rank in host.ranks:
        if rank.book.usable and not rank.gone:
            stands.append((rank.book.version, rank.weights))
        stands += [(s.version, s.weights) for s in rank.staged]
    usable = bool(host.ranks) and all(r.book.usable and not r.gone for r in host.ranks)
    return HostView(
        name=host.name,
        born=host.born + agent.life.number - 1,
        alive=True,
        code=None,
        conn=host.conn,
        incarnation=agent.incarnation,
        had=host.had,
        floor=agent.floor,
        generation=seat.generation,
        start=seat.start.version,
        live=live(agent),
        finished=agent.finished is not None,
        busy=busy,
        members=members,
        ranks=ranks,
        stands=tuple(stands),
        version=host.ranks[0].book.version if usable else None,
        hold=AgentHold(agent_hold(agent, 1000.0)).name,
    )


def _rank_view(rank: Rank, plans: set[int]) -> RankView:
    work = rank.book.work
    waiting = (work.generation, work.version.step) if rank.waiting and work is not None else None
    numbers = frozenset(comm.number for comm in rank.comms)
    opening = tuple(n for n in sorted(numbers & plans) if n not in rank.opened and n not in rank.lost)
    return RankView(rank, waiting, rank.entered, numbers, opening)


def is_lost(views: list[HostView], member: tuple[str, int], number: int) -> bool:
    """Whether `member` will take part in collectives of generation `number` no more."""
    name, incarnation = member
    for host in views:
        if host.name == name:
            was = host.incarnation != incarnation <= host.had  # who has not heard its incarnation yet will be it
            return not host.alive or was or host.floor > number or host.generation > number
    return True


def source_of(views: list[HostView], addresses: list[str]) -> Rank | None:
    """The first rank that answers at one of these addresses."""
    for host in views:
        for rank in host.ranks:
            if rank.rank.address in addresses and not rank.rank.gone:
                return rank.rank
    return None


def transfers(views: list[HostView], rank: Rank, shard_rank: int) -> list[tuple[str, Snapshot | Entry | None]]:
    """What a load or a fetch of `rank` can come to now, with what it brings. "lost": no donor answers; "late": the
    donor has not staged it, and only a deadline ends the waiting."""
    if rank.load is not None:
        source = source_of(views, [s.weights[shard_rank] for s in rank.load.sources])
        if source is None:
            return [("lost", None)]
        heal = rank.load.heal
        staged = next((s for s in source.staged if s.heal == heal), None)
        return [("late", None)] if staged is None else [("loaded", staged)]
    if rank.fetch is None:
        return []
    version = rank.fetch.version
    source = source_of(views, [s.weights[shard_rank] for s in rank.fetch.sources])
    entry = next((e for e in source.log if e.name.start == version), None) if source else None
    if entry is not None:
        return [("fetched", entry)]
    if source is None or not (source.book.usable and source.book.version == version):
        return [("fetch_failed", None)]
    return [] if rank.fetch_told else [("up_to_date", None)]


def opens(views: list[HostView], member: tuple[str, int], shard: int, number: int) -> bool:
    """Whether `member` opens, or has opened, the communicator of generation `number`."""
    host = next((h for h in views if h.name == member[0]), None)
    if host is None or host.incarnation != member[1] or shard >= len(host.ranks):
        return False
    return number in host.ranks[shard].numbers


def is_known(views: list[HostView], host: HostView, launched: dict[Any, Any], shard: int) -> bool:
    """Whether all is there that collectives and transfers can bring a rank: it is in none, or in a collective that has
    failed somewhere, and completed or cannot any more, or in a transfer or an opening that can only fail.

    launched: by (generation, step, shard), what was launched at each place
    """
    rank = host.ranks[shard]
    asks = rank.rank.load is not None or rank.rank.fetch is not None
    if asks and {kind for kind, _ in transfers(views, rank.rank, shard)} not in ({"lost"}, {"fetch_failed"}):
        return False
    for opening in rank.opening:
        gone = [m for m in host.members[opening] if is_lost(views, m, opening)]
        if all(opens(views, m, shard, opening) for m in gone):
            return False
    if rank.waiting is None:
        return True
    number, members = rank.waiting[0], host.members.get(rank.waiting[0], ())
    lost = [is_lost(views, member, number) for member in members]
    there = [place[int(rank.entered)] != -1 for place in launched.get((*rank.waiting, shard), ((-1, -1),) * len(lost))]
    own = [name == host.name for name, _ in members]
    gone = any(not here and (lost or own) for here, lost, own in zip(there, lost, own, strict=True))
    return any(lost) and (gone or all(there))
