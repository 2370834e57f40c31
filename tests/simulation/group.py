"""A host with one group: the real agent core, its shell's duties, and the ranks' processes.

Faults are asked of this class: a rank dies, the agent dies, the host dies or stands still. A supervisor starts an agent
again; a new agent has its predecessor's lock only once no rank of the predecessor is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lighthouse.deadlines import Knobs
from lighthouse.values import Fenced, Source
from replica.agent_core import decide, new_agent, record, wake_at
from replica.agent_state import AgentState
from replica.agent_values import (
    AgentConfig,
    CloseSession,
    DrainAsked,
    Effect,
    EndRanks,
    Event,
    Exit,
    Ledger,
    LighthouseSaid,
    OpenSession,
    PeersTried,
    RankExited,
    RankSaid,
    Say,
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
from simulation.network import CLOSED, UP, Stream
from simulation.rank import Rank
from simulation.weights import digest

if TYPE_CHECKING:
    from simulation.world import World


class Group:
    """One name. `agent` is the state of the agent's core, None while no agent runs."""

    def __init__(self, world: World, name: str, label: str = "", initial: int = 0) -> None:
        self.world = world
        self.name = name
        self.label = label or name
        self.host = f"host-{self.label}"
        self.initial = initial
        self.agent: AgentState | None = None
        self.ranks: list[Rank] = []
        self.exit_code: int | None = None
        self.never_loads = False
        self.slowness = 1.0
        self.drained = False
        self.born = 0
        self._stream: Stream | None = None
        self._session = 0
        self._alarm = 0
        self.paused_until = 0.0
        self._inbox: list[Event] = []
        self._acting = False
        chance = world.engine.chance("clocks")
        self._rate = 1.0 + world.spec.drift * chance.uniform(-1, 1)
        self._offset = chance.uniform(0, 1000)
        self._last: dict[tuple[bool, int], float] = {}

    # ---- its life --------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """A supervisor starts the agent, if none runs and it may run."""
        if self.agent is not None or self.exit_code == 0:
            return
        self.exit_code = None
        self.born += 1
        self._session = 0
        self._stream = None
        self._inbox.clear()
        config = self.world.agent_config(self)
        self.agent = new_agent(config)
        self.world.watch.note(f"{self.label} agent starts")
        self._take_lock(self.born)

    def _take_lock(self, born: int) -> None:
        if self.agent is None or born != self.born:
            return
        if any(rank.alive for rank in self.ranks):
            for rank in self.ranks:
                rank.end()
            self.world.engine.after(0.01, self._take_lock, born)
            return
        self.event(TookOver())

    def clock(self) -> float:
        """The agent's monotonic clock."""
        return self._offset + self._rate * self.world.engine.now

    def slot_s(self) -> float:
        """How long one slot takes here now."""
        chance = self.world.engine.chance(f"compute {self.name}")
        return self.world.spec.slot_s * self.slowness * chance.uniform(0.9, 1.1)

    @property
    def training(self) -> bool:
        """Whether an agent with all its ranks is there and is not leaving."""
        agent = self.agent
        return agent is not None and agent.ending is None and bool(self.ranks) and all(r.alive for r in self.ranks)

    # ---- events and effects ----------------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        """Something happened to the agent; while it stands still, it waits."""
        if self.agent is None:
            return
        if self.world.engine.now < self.paused_until or self._acting:
            self._inbox.append(event)
            return
        self._act([event])

    def _act(self, events: list[Event]) -> None:
        if self.agent is None:
            return
        self._acting = True
        born = self.born
        events = list(events)
        while True:
            now = self.clock()
            state = self.agent
            for event in events:
                state = record(state, event, now)
            self.agent, effects = decide(state, now)
            self.world.watch.agent_decided(self, events, effects, now)
            for effect in effects:
                self._carry_out(effect)
                if self.agent is None or born != self.born:
                    self._acting = False
                    return
            if not self._inbox:
                break
            events, self._inbox = self._inbox, []
        self._acting = False
        self._set_alarm()

    def _set_alarm(self) -> None:
        self._alarm += 1
        if self.agent is None:
            return
        due = wake_at(self.agent, self.clock())
        if due is not None:
            wait_s = (due - self.clock()) / self._rate
            self.world.engine.after(max(wait_s, 0.0) + 1e-6, self._wake, self._alarm)

    def _wake(self, alarm: int) -> None:
        if alarm == self._alarm and self.agent is not None and self.world.engine.now >= self.paused_until:
            self._act([])

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case ToLighthouse(message=message):
                if self._stream is not None:
                    self._stream.send(UP, message)
            case ToRank(shard_rank=shard_rank, message=message):
                self._to_rank(shard_rank, message)
            case ToRanks(message=message):
                for shard_rank in range(len(self.ranks)):
                    self._to_rank(shard_rank, message)
            case StartRanks(life=life):
                self.ranks = [Rank(self.world, self, life, i) for i in range(self.world.spec.shards)]
                for rank in self.ranks:
                    self.world.engine.after(self._start_s(), self._attach, rank)
            case EndRanks(life=life):
                for rank in self.ranks:
                    if rank.life == life:
                        self.world.engine.after(0.002, self._rank_gone, rank, -9, "")
            case OpenSession(session=session):
                self._session = session
                self.world.engine.after(self.world.network.delay() * 2, self._connect, session, self.born)
            case TryPeers(number=number, targets=targets):
                away = tuple(target.name for target in targets if self._is_cut_from(target))
                self.world.engine.after(2.0 if away else 0.01, self._peers_tried, self.born, number, away)
            case CloseSession():
                if self._stream is not None:
                    self._stream.close(UP)
                self._stream = None
            case Exit(code=code, reason=reason):
                self._exit(code, reason)
            case Ledger() | Say():
                pass

    def _is_cut_from(self, target: Source) -> bool:
        ranks = (self.world.addresses.get(address) for address in target.weights)
        return any(rank and self.world.network.apart(self.label, rank.group.label) for rank in ranks)

    def _peers_tried(self, born: int, number: int, away: tuple[str, ...]) -> None:
        if self.agent is not None and born == self.born:
            self.event(PeersTried(number=number, unreached=away))

    def _start_s(self) -> float:
        return self.world.spec.start_s * self.world.engine.chance("starts").uniform(0.8, 1.2)

    def _exit(self, code: int, reason: str) -> None:
        self.exit_code = code
        self.agent = None
        if self._stream is not None:
            self._stream.close(UP)
        self._stream = None
        self.world.watch.agent_exited(self, code, reason)
        if code != 0:
            self.world.group_failed(self, code)

    # ---- the session -----------------------------------------------------------------------------------------------

    def _connect(self, session: int, born: int) -> None:
        if self.agent is None or born != self.born or session != self._session:
            return
        stream = self.world.connect(self, lambda message: self._from_lighthouse(born, session, message))
        if stream is None:
            self.event(SessionClosed(session=session, reason="no lighthouse answers"))
            return
        self._stream = stream
        self.event(SessionOpened(session=session))

    def _from_lighthouse(self, born: int, session: int, message: Any) -> None:
        if born != self.born or self.agent is None:
            return
        if message is CLOSED:
            if session == self._session:
                self._stream = None
            self.event(SessionClosed(session=session, reason="the stream ended"))
            return
        if isinstance(message, Fenced):
            self.world.watch.fenced(self, message.by)
        self.event(LighthouseSaid(session=session, message=message))

    # ---- ranks -----------------------------------------------------------------------------------------------------

    def _attach(self, rank: Rank) -> None:
        if not rank.alive or rank not in self.ranks:
            return
        attach = Attach(
            shard_rank=rank.shard_rank,
            pid=1,
            setup=self.world.setup(),
            rendezvous=f"{rank.address}/store",
            weights=rank.address,
            digest=digest(self.initial),
        )
        self.rank_says(rank, attach)

    def _to_rank(self, shard_rank: int, message: Any) -> None:
        rank = self.ranks[shard_rank]
        self._in_order((True, id(rank)), lambda: rank.hear(message))

    def rank_says(self, rank: Rank, message: Any) -> None:
        """A rank says something to its agent."""
        event = RankSaid(life=rank.life, shard_rank=rank.shard_rank, message=message)
        born = self.born
        self._in_order((False, id(rank)), lambda: self.event(event) if born == self.born else None)

    def rank_dies(self, rank: Rank, code: int, traceback: str) -> None:
        """The process of a rank ends by itself; the agent reaps it."""
        if rank.alive:
            self.world.watch.died(rank)
            self._rank_gone(rank, code, traceback)

    def _rank_gone(self, rank: Rank, code: int, traceback: str) -> None:
        if not rank.alive:
            return
        rank.end()
        born = self.born
        event = RankExited(life=rank.life, shard_rank=rank.shard_rank, code=code, traceback=traceback)
        self._in_order((False, id(rank)), lambda: self.event(event) if born == self.born else None)

    def _in_order(self, key: tuple[bool, int], act: Any) -> None:
        delay_s = self.world.engine.chance("ipc").uniform(0.00005, 0.0008)
        at = max(self._last.get(key, 0.0), self.world.engine.now + delay_s)
        self._last[key] = at
        self.world.engine.after(at - self.world.engine.now, act)

    # ---- faults ----------------------------------------------------------------------------------------------------

    def kill_agent(self) -> None:
        """The agent's process is killed: its streams end at once, its ranks soon, a supervisor starts another."""
        if self.agent is None:
            return
        self.agent = None
        self.born += 1
        if self._stream is not None:
            self._stream.break_off((0.001, None))
        self._stream = None
        self.world.watch.agent_exited(self, -9, "killed")
        for rank in self.ranks:
            self.world.engine.after(self.world.engine.chance("faults").uniform(0.001, 0.05), rank.end)

    def kill_host(self) -> None:
        """The machine is gone without a word: streams stay half open for as long as nobody looks."""
        self.agent = None
        self.born += 1
        if self._stream is not None:
            self._stream.break_off((8.0, None))
        self._stream = None
        self.world.watch.agent_exited(self, -9, "host lost")
        for rank in self.ranks:
            rank.end()

    def pause_agent(self, seconds: float) -> None:
        """SIGSTOP of the agent alone."""
        self.paused_until = max(self.paused_until, self.world.engine.now + seconds)
        self.world.engine.after(seconds, self._resume)

    def _resume(self) -> None:
        if self.world.engine.now >= self.paused_until and not self._acting:
            events, self._inbox = self._inbox, []
            self._act(events)

    def break_session(self) -> None:
        """The session's stream breaks: both sides hear of it, each in its own time."""
        if self._stream is not None:
            chance = self.world.engine.chance("faults")
            self._stream.break_off((chance.uniform(0.0, 1.5), chance.uniform(0.0, 0.5)))

    def drain(self) -> None:
        """SIGTERM."""
        self.drained = True
        self.event(DrainAsked())


def default_config(world: World, group: Group) -> AgentConfig:
    """An agent's configuration, with waits as short as the simulation's."""
    return AgentConfig(
        run_id="sim",
        name=group.name,
        host=group.host,
        shards=world.spec.shards,
        knobs=Knobs(stall_patience_s=120.0, connect_s=600.0),
        restart_limit=1000,
        restart_backoff_s=0.2,
        restart_backoff_max_s=2.0,
    )
