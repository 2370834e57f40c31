"""The agent's core: the only place where a group decides.

`record` notes an event, `decide` acts on what is noted, until nothing is left to do: deciding twice changes nothing.
What makes a group atomic is here: votes of all its shards are merged into one verdict, abandonment is ordered against
verdicts by the order of the calls, and after it has abandoned a generation it refuses every vote of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from lighthouse.values import (
    Abandon,
    Base,
    Fenced,
    Heal,
    Holding,
    Leave,
    Prepare,
    Probe,
    Ready,
    Refused,
    Release,
    Stage,
    Welcome,
)
from replica import agent_heal, agent_life, agent_plan, agent_progress, agent_session, agent_split, agent_step
from replica.agent_state import (
    AgentState,
    JoinPhase,
    LifePhase,
    Rule,
    SessionPhase,
    attached,
    deadlines,
    live,
    noted,
    put,
    welcomed,
)
from replica.agent_values import (
    AgentConfig,
    AgentHold,
    DrainAsked,
    Effect,
    Event,
    LighthouseSaid,
    PeersTried,
    RankExited,
    RankSaid,
    SessionClosed,
    SessionOpened,
    TookOver,
)
from replica.values import (
    Attach,
    FetchFailed,
    Held,
    Loaded,
    LoadFailed,
    Mark,
    Moved,
    Raised,
    RankFailed,
    RankOpened,
    RollCall,
    UpToDate,
)


def new_agent(config: AgentConfig) -> AgentState:
    """An agent that has not done anything: it waits for the lock of its name."""
    return AgentState(config=config)


def record(state: AgentState, event: Event, now: float) -> AgentState:
    """The state after `event`, which came at `now`. What comes too late for its life or session changes nothing."""
    if state.over:
        return state
    if isinstance(event, LighthouseSaid):
        # Where a life has ended that is not buried yet, this is not for the one that comes.
        current = event.session == state.session.number and state.life.cause is None
        if not current or state.session.phase not in (SessionPhase.GREETED, SessionPhase.WELCOMED):
            return state
        return _LIGHTHOUSE[type(event.message)](state, event.message, now)
    if isinstance(event, RankSaid):
        if not _speaks(state, event):
            return state
        return _RANK[type(event.message)](state, event.shard_rank, event.message, now)
    return _SHELL[type(event)](state, event, now)


def decide(state: AgentState, now: float) -> tuple[AgentState, tuple[Effect, ...]]:
    """What is to be done at `now`, in order, and the state in which it is done."""
    effects: list[Effect] = []
    while True:
        before = state
        for rule in _RULES:
            state = rule(state, now, effects)
        if state is before:
            return state, tuple(effects)


def wake_at(state: AgentState, now: float) -> float | None:
    """When to decide again if nothing happens; None if only an event can change anything."""
    if state.over:
        return None
    life, session = state.life, state.session
    times: list[float] = []
    if state.ending is not None:
        if life.phase is not LifePhase.ENDING:
            times.append(state.ending.until)
    elif life.phase is LifePhase.DOWN and state.locked:
        times.append(life.resume_at)
    elif life.phase is LifePhase.UP and None in life.attached:
        times.append(life.began_at + deadlines(state).attach_s)
    if state.drain_since is not None and state.ending is None:
        due = state.drain_since + deadlines(state).drain_s
        times.append(due if now < due else due + deadlines(state).quit_s)
    if welcomed(state):
        times.append(session.beat_at)
        times.append(agent_progress.due_s(state))
    elif session.phase is SessionPhase.CLOSED and agent_session.wanted(state):
        times.append(session.retry_at)
    if state.terms is None and session.wanted_at is not None and attached(state) and state.ending is None:
        times.append(session.wanted_at + deadlines(state).welcome_s)
    soonest = min(times, default=math.inf)
    return max(now, soonest) if math.isfinite(soonest) else None


def hold(state: AgentState, now: float) -> AgentHold:
    """What the agent waits for."""
    life, joining = state.life, state.joining
    if state.over or state.ending is not None:
        return AgentHold.OVER if state.over else AgentHold.LEAVING
    if not state.locked:
        return AgentHold.LOCK
    if not attached(state):
        return AgentHold.RANKS if life.phase is LifePhase.UP and life.cause is None else AgentHold.RESTART
    if live(state):
        return AgentHold.NOTHING
    if state.level is not None:
        return AgentHold.LEVEL
    if joining is not None and joining.phase is not JoinPhase.FAILED:
        return AgentHold.CATCH_UP if joining.phase is JoinPhase.FOLLOWING else AgentHold.HEAL
    if not welcomed(state):
        return AgentHold.LIGHTHOUSE
    return AgentHold.VERDICT if state.seat.generation else AgentHold.BASE


def _speaks(state: AgentState, event: RankSaid) -> bool:
    """Whether this rank is one of the present life, not lost, and has attached before it says anything else."""
    life, shard_rank = state.life, event.shard_rank
    if event.life != life.number or life.phase is not LifePhase.UP or life.cause is not None:
        return False
    if not 0 <= shard_rank < state.config.shards or shard_rank in life.gone:
        return False
    return life.attached[shard_rank] is not None or isinstance(event.message, Attach | Raised)


def _give_notes(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    if not state.notes:
        return state
    effects.extend(state.notes)
    return put(state, notes=())


def _holding(state: AgentState, message: Holding, now: float) -> AgentState:
    return noted(state, "run_holds", reason=message.reason)


_RULES: tuple[Rule, ...] = (
    agent_life.start,
    agent_life.bury,
    agent_session.tell_ranks,
    agent_step.commit,
    agent_heal.load,
    agent_heal.apply,
    agent_heal.enter,
    agent_heal.fetch,
    agent_plan.open_plans,
    agent_heal.stage_for,
    agent_life.drain,
    agent_life.quit_ranks,
    agent_session.try_peers,
    agent_session.connect,
    agent_session.greet,
    agent_session.tell,
    agent_progress.tell,
    agent_split.note,
    _give_notes,
)
"""In this order: what was abandoned is said to ranks before any verdict, and reports go out after all verdicts."""

_SHELL: dict[type[Any], Callable[[AgentState, Any, float], AgentState]] = {
    TookOver: agent_life.took_over,
    DrainAsked: agent_life.drain_asked,
    RankExited: agent_life.exited,
    SessionOpened: agent_session.opened,
    PeersTried: agent_session.peers_tried,
    SessionClosed: agent_session.closed,
}

_LIGHTHOUSE: dict[type[Any], Callable[[AgentState, Any, float], AgentState]] = {
    Welcome: agent_session.welcome,
    Refused: agent_session.refused,
    Fenced: agent_session.fenced,
    Abandon: agent_session.abandon,
    Probe: agent_session.probe,
    Base: agent_heal.base,
    Prepare: agent_plan.prepare,
    Ready: agent_plan.ready,
    Stage: agent_heal.stage,
    Heal: agent_heal.heal,
    Release: agent_heal.release,
    Leave: agent_life.leave,
    Holding: _holding,
}

_RANK: dict[type[Any], Callable[[AgentState, int, Any, float], AgentState]] = {
    Attach: agent_life.attach,
    Mark: agent_life.mark,
    Raised: agent_life.raised,
    RollCall: agent_step.vote,
    RankFailed: agent_step.rank_failed,
    RankOpened: agent_plan.opened,
    Held: agent_heal.held,
    UpToDate: agent_heal.up_to_date,
    FetchFailed: agent_heal.fetch_failed,
    Moved: agent_progress.moved,
    Loaded: agent_heal.loaded,
    LoadFailed: agent_heal.load_failed,
}
