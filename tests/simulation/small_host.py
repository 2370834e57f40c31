"""A host of the small worlds: what one event makes of its agent and ranks, and what others see of it.

The agent and its ranks speak without delay. That loses nothing: a message that a rank gets late looks to everybody else
like one that the agent got late, or like a collective that completed early, and both are explored.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lighthouse.values import ROOT, Committed, Died, EntryName, Failure, Fenced, HealFailed, Report, Up, Value
from replica.agent_core import decide, new_agent, record, wake_at
from replica.agent_state import AgentState, Joining, JoinPhase, Moments, SessionPhase, attached
from replica.agent_values import (
    AgentConfig,
    CloseSession,
    Effect,
    EndRanks,
    Event,
    Exit,
    LighthouseSaid,
    OpenSession,
    PeersTried,
    RankExited,
    RankSaid,
    SessionClosed,
    SessionOpened,
    StartRanks,
    ToLighthouse,
    TookOver,
    ToRank,
    ToRanks,
    TryPeers,
)
from replica.values import Attach
from simulation.small_rank import Thread
from simulation.small_values import NOW, Host, Rank


class Spec(Value, frozen=True):
    """What a small world is like.

    faults: how many of `kinds` may happen; restarts: how often the lighthouse may crash, also amid its effects
    returns: ranks and hosts that are lost come back; formed: the story begins with the first base on its way
    hasty: the first lease of a lighthouse may pass without the healthy where somebody else is dead; else that is "slow"
    delays: how often something may be made to wait for all else that can happen; below zero: any order
    raw: what makes no difference is not left out of what a state is
    """

    name: str
    groups: int = 3
    shards: int = 1
    slots: int = 3
    steps: int = 2
    min_groups: int = 1
    faults: int = 0
    restarts: int = 0
    kinds: tuple[str, ...] = ("crash", "host", "break")
    returns: bool = True
    formed: bool = True
    hasty: bool = True
    delays: int = -1
    raw: bool = False


Out = tuple[Any, ...]
"""Something that others see: ("up", message), ("open", conn), ("close",), ("lost",), ("launch" or "record", operation,
payload)."""


class Machine:
    """One event at one host. `outs` is what it does to the world, `broken` which promises it broke."""

    def __init__(self, spec: Spec, host: Host) -> None:
        self.spec = spec
        self.before = host
        self.host = host
        self.outs: list[Out] = []
        self.broken: list[str] = []
        self.threads = [Thread(self, i, rank) for i, rank in enumerate(host.ranks)]
        self._queue: list[Event] = []

    def wrong(self, what: str) -> None:
        """Notes a broken promise."""
        self.broken.append(f"{self.host.name}: {what}")

    def out(self, *what: Any) -> None:
        """Others see this."""
        self.outs.append(what)

    def _put(self, **fields: Any) -> None:
        self.host = msgspec.structs.replace(self.host, **fields)

    # ---- events ----------------------------------------------------------------------------------------------------

    def act(self, event: tuple[Any, ...]) -> Host:
        """The host after `event`."""
        kind, *args = event
        if kind == "host":
            self._host_lost()
        elif kind == "start":
            self._start()
        elif kind == "crash":
            self._exits(self.threads[args[0]], -9)
        elif kind == "down":
            assert self.host.agent is not None
            self._queue.append(LighthouseSaid(session=self.host.agent.session.number, message=args[0]))
        elif kind == "ended":
            assert self.host.agent is not None
            self._put(conn=0)
            self._queue.append(SessionClosed(session=self.host.agent.session.number, reason=""))
        else:
            shard_rank, *more = args
            getattr(self.threads[shard_rank], kind)(*more)
        self._run()
        self._put(ranks=tuple(thread.now for thread in self.threads))
        if self.host.agent is not None:
            self._put(had=max(self.host.had, self.host.agent.incarnation))
        if not self.spec.raw:
            self.host = plain_host(self.host)
        self._check()
        return self.host

    def _host_lost(self) -> None:
        self.threads.clear()
        self._put(agent=None, conn=0)
        self.out("lost")
        if self.host.returns:
            self._start()

    def _start(self) -> None:
        spec, host = self.spec, self.host
        config = AgentConfig(
            run_id="small",
            name=host.name,
            host=f"host-{host.name}",
            shards=spec.shards,
            reconnect_s=0.0,
            restart_limit=1000,
            restart_backoff_s=0.0,
            restart_backoff_max_s=0.0,
        )
        self._put(agent=new_agent(config), born=host.born + 1)
        self._queue.append(TookOver())

    def _run(self) -> None:
        while self.host.agent is not None:
            state = self.host.agent
            events, self._queue = self._queue, []
            for event in events:
                state = record(state, event, NOW)
            state, effects = decide(state, NOW)
            self._put(agent=state)
            for effect in effects:
                self._carry_out(effect)
            if not self._queue:
                return

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case ToLighthouse(message=message):
                self.out("up", bare(message))
            case ToRank(shard_rank=shard_rank, message=message):
                if shard_rank < len(self.threads):
                    self.threads[shard_rank].hear(message)
            case ToRanks(message=message):
                for thread in list(self.threads):
                    thread.hear(message)
            case StartRanks(life=life):
                self._start_ranks(life)
            case EndRanks():
                for thread in self.threads:
                    self._exits(thread, -9)
            case OpenSession(session=session):
                made = self.host.made + 1
                self._put(made=made, conn=1000 * (self.host.index + 1) + made)
                self.out("open", self.host.conn)
                self._queue.append(SessionOpened(session=session))
            case TryPeers(number=number):  # no cable is ever cut here
                self._queue.append(PeersTried(number=number))
            case CloseSession():
                self._put(conn=0)
                self.out("close")
            case Exit(code=code):
                self.out("close")
                self._put(agent=None, code=code, conn=0)

    def _start_ranks(self, life: int) -> None:
        born, shards = self.host.born, self.spec.shards
        self.threads.clear()
        if not self.host.returns and (born, life) != (1, 1):
            return
        addresses = [f"{self.host.name}/{born}/{life}/{i}" for i in range(shards)]
        self.threads = [Thread(self, i, Rank(address=address)) for i, address in enumerate(addresses)]
        setup = {"slots": str(self.spec.slots), "steps": str(self.spec.steps)}
        for thread in self.threads:
            address = thread.now.address
            attach = Attach(
                shard_rank=thread.shard_rank, pid=1, setup=setup, rendezvous=address, weights=address, digest=1
            )
            self.rank_says(thread, attach)

    # ---- ranks -----------------------------------------------------------------------------------------------------

    def rank_says(self, thread: Thread, message: Any) -> None:
        """A rank says something to the agent."""
        if self.host.agent is not None:
            life = self.host.agent.life.number
            self._queue.append(RankSaid(life=life, shard_rank=thread.shard_rank, message=message))

    def rank_leaves(self, thread: Thread) -> None:
        """A rank ends because it was told to."""
        self._exits(thread, 0)

    def _exits(self, thread: Thread, code: int) -> None:
        if thread.now.gone or self.host.agent is None:
            return
        thread.end()
        life = self.host.agent.life.number
        self._queue.append(RankExited(life=life, shard_rank=thread.shard_rank, code=code))

    # ---- promises that one host can break --------------------------------------------------------------------------

    def commits(self, name: EntryName) -> None:
        """A step was committed here."""
        self.out("commit", name)

    def _check(self) -> None:
        before, after = self.before.agent, self.host.agent
        if after is None:
            return
        if decide(after, NOW)[1]:
            self.wrong("deciding twice changes something")
        due = wake_at(after, NOW)
        if due is not None and due < NOW:
            self.wrong("it wants to wake in the past")
        if before is None or self.before.born != self.host.born:
            return
        if after.floor < before.floor:
            self.wrong("it takes back what it abandoned")
        if 0 < after.seat.generation < before.seat.generation:
            self.wrong(f"it goes back to generation {after.seat.generation}")
        ended = before.ending is not None
        if ended and any(o[0] == "commit" for o in self.outs):
            self.wrong("it commits though it is leaving")


def bare(message: Up) -> Up:
    """Without what only people are told: words that say why, losses, norms and seconds."""
    if isinstance(message, Report | Failure | Died | HealFailed):
        return msgspec.structs.replace(message, reason="")
    if isinstance(message, Committed):
        return msgspec.structs.replace(message, loss=0.0, tokens=0, grad_norm=0.0, step_s=0.0, protocol_s=0.0)
    return message


def plain_host(host: Host) -> Host:
    """Without what differs where nothing else does."""
    agent = host.agent
    least = max(agent.floor, agent.seat.generation) if agent is not None else 0  # no rank enters one below any more
    joining = agent.joining if agent is not None else None
    following = joining is not None and joining.phase is JoinPhase.FOLLOWING and not joining.caught_up
    ranks = tuple(_plain_rank(rank, least, following) for rank in host.ranks)
    return msgspec.structs.replace(host, agent=None if agent is None else _plain(agent), ranks=ranks)


def _plain(state: AgentState) -> AgentState:
    """Without what differs where nothing else does: words that say why; when a life was how far (so that nobody is told
    how long it took: a word for people); how many failures were alike, and after how many commits (no world has as
    many as would end the agent); when to connect, if it has; and what ranks were told of stagings, if they are gone."""
    replace = msgspec.structs.replace
    seat, joining, life, session = state.seat, state.joining, state.life, state.session
    if seat.failed:
        state = replace(state, seat=replace(seat, failed="failed"))
    if joining is not None:
        state = replace(state, joining=_plain_joining(joining, session.number))
    life = replace(life, moments=Moments(told=True), last_key="", alike=0, commits=min(1, life.commits))
    retry_at = session.retry_at if session.phase is SessionPhase.CLOSED else 0.0
    session = replace(session, reason="", tries=0, retry_at=retry_at)
    state = replace(state, life=life, session=session)
    if attached(state):
        return state
    untold = tuple(replace(staging, told=False, staged=False) for staging in state.stagings)
    return replace(state, drops=(), stagings=untold)


def _plain_joining(joining: Joining, session: int) -> Joining:
    """Without what has had its effect: what the ranks said on the way to a phase that is over, and earlier sessions."""
    none = (None,) * len(joining.up_to_date)
    following = joining.phase is JoinPhase.FOLLOWING
    return msgspec.structs.replace(
        joining,
        reason="failed" if joining.reason else "",
        up_to_date=joining.up_to_date if following and not joining.caught_up else none,
        told_in=session if joining.told_in == session else 0,
    )


def _plain_rank(rank: Rank, least: int, following: bool) -> Rank:
    """Without what it knows of generations that it enters no more: those before the one in work, or below `least`; what
    a rank that is gone knew, and what one that loads stood on; and, where no joiner asks, whether its fetch was
    answered already. Which log it owes is in `owed`, not in its book."""
    replace = msgspec.structs.replace
    book, work = rank.book, rank.book.work
    if rank.gone:
        return Rank(address="", gone=True)
    if not book.usable:
        book, rank = replace(book, version=ROOT, cursor=0), replace(rank, weights=())
    number = work.generation if work is not None else least
    book = replace(
        book,
        over=max(book.over, number),
        opened=book.opened if book.opened > number else 0,
        ready=book.ready if book.ready > number else 0,
    )
    return replace(
        rank,
        book=replace(book, owed=()),
        fetch_told=rank.fetch_told if following else rank.fetch is not None,
        floor=max(rank.floor, number),
        opened=tuple(n for n in rank.opened if n > number),
        lost=tuple(n for n in rank.lost if n >= number),
    )


__all__ = ["Fenced", "Machine", "Out", "Spec", "bare"]
