"""The lives of a group's ranks: started, attached, lost as one, started again; and the agent's own way out.

A group is lost as a whole: as soon as one rank has raised or is gone, all are ended, the lighthouse is told, and after
a pause all are started anew, as a new incarnation. Identical failures in a row are counted and end the agent.
"""

from __future__ import annotations

import re

from lighthouse.batch import batch_policy
from lighthouse.values import Beat, Died, Goodbye, Leave
from replica.agent_state import (
    AgentState,
    Cause,
    Ending,
    Life,
    LifePhase,
    Seat,
    Session,
    SessionPhase,
    Stand,
    attached,
    deadlines,
    ending,
    fresh_step,
    knobs,
    ledgered,
    live,
    noted,
    put,
    set_at,
    version_told,
    welcomed,
)
from replica.agent_values import (
    CloseSession,
    DrainAsked,
    Effect,
    EndRanks,
    Exit,
    RankExited,
    StartRanks,
    ToLighthouse,
    TookOver,
    ToRanks,
)
from replica.values import Abandoned, Attach, Mark, MarkKind, Quit, Raised

_NO_LIMIT = 1 << 62
"""Steps of a run that ends with its data, or when it is asked to."""

DONE, FAILED, CONFIG, FENCED = 0, 1, 2, 3
"""Exit codes: left with success; gave up, may be tried again; to be configured otherwise; another has the name."""

_FROM_OUTSIDE = (-1, -2, -9, -15)
"""SIGHUP, SIGINT, SIGKILL, SIGTERM: what a person, a scheduler or the kernel's memory keeper ends a process with."""

_BY_A_PERSON = (-1, -2, -15)
"""Of those, the ones that the memory keeper does not use: the slot in hand did nothing."""


# ---- record --------------------------------------------------------------------------------------------------------


def took_over(state: AgentState, event: TookOver, now: float) -> AgentState:
    return put(state, locked=True)


def drain_asked(state: AgentState, event: DrainAsked, now: float) -> AgentState:
    if state.drain_since is not None:
        return state
    return put(noted(state, "drain_asked"), drain_since=now)


def attach(state: AgentState, shard_rank: int, message: Attach, now: float) -> AgentState:
    life = state.life
    if life.attached[shard_rank] is not None:
        return state
    state = put(state, life=put(life, attached=set_at(life.attached, shard_rank, message)))
    return _agreed(state, now) if attached(state) else state


def mark(state: AgentState, shard_rank: int, message: Mark, now: float) -> AgentState:
    """Notes progress. Of a step that is not in work any more only the ledger hears."""
    life, here = state.life, message.step == state.stand.version.step
    slot = state.stand.cursor + message.slot if here and message.slot >= 0 else -1
    begins, ends = message.kind is MarkKind.SLOT_BEGUN, message.kind is MarkKind.SLOT_DONE
    if begins or ends:
        state = ledgered(
            state,
            {
                "event": "slot",
                "mark": "begun" if begins else "done",
                "shard_rank": shard_rank,
                "step": message.step,
                "slot": message.slot,
                "cursor": slot,
                "generation": state.seat.generation,
            },
        )
        life = put(life, hands=set_at(life.hands, shard_rank, slot if begins else -1))
    if here:
        far = life.marks[shard_rank] + 1 if begins or ends else _FAR[message.kind]
        life = put(life, marks=set_at(life.marks, shard_rank, max(far, life.marks[shard_rank])))
    return put(state, life=life)


VOTED = 1_000_001
"""Mark of a rank that is in the roll call of its step, or has sent what it gathered there."""

_FAR = {MarkKind.GRADIENTS: 1_000_000, MarkKind.ROLL_CALL: VOTED}


def raised(state: AgentState, shard_rank: int, message: Raised, now: float) -> AgentState:
    reason, key = _failure(1, message.traceback)
    slot = -1 if key.startswith("KeyboardInterrupt") else state.life.hands[shard_rank]
    return lost(state, shard_rank, reason, key, slot=slot)


def exited(state: AgentState, event: RankExited, now: float) -> AgentState:
    life = state.life
    if event.life != life.number or event.shard_rank in life.gone or life.phase is LifePhase.DOWN:
        return state
    life = put(life, gone=life.gone | {event.shard_rank})
    if state.ending is not None:
        state = _left(state, event)
    elif life.phase is LifePhase.UP and life.cause is None:
        killed = event.code in _FROM_OUTSIDE and not event.traceback
        misused = event.code == CONFIG  # as programs say that they were started wrongly
        reason, key = _failure(event.code, event.traceback)
        slot = -1 if killed and event.code in _BY_A_PERSON else life.hands[event.shard_rank]
        state = lost(state, event.shard_rank, reason, key, slot=slot, killed=killed, misused=misused)
        life = put(life, cause=state.life.cause)
    if len(life.gone) == state.config.shards and (life.phase is LifePhase.ENDING or state.ending is not None):
        life = put(life, phase=LifePhase.DOWN)
    return put(state, life=life)


def lost(
    state: AgentState,
    shard_rank: int,
    reason: str,
    key: str,
    *,
    slot: int = -1,
    killed: bool = False,
    counts: bool = True,
    misused: bool = False,
) -> AgentState:
    """With the present life to be ended, if that is not so already. The first cause is kept.

    slot: in hand, in the run's order, if the rank died by itself; -1 for none
    """
    life = state.life
    if life.cause is not None or life.phase is not LifePhase.UP or state.ending is not None:
        return state
    cause = Cause(
        shard_rank=shard_rank, reason=reason, key=key, slot=slot, killed=killed, counts=counts, misused=misused
    )
    return put(state, life=put(life, cause=cause))


def leave(state: AgentState, message: Leave, now: float) -> AgentState:
    """The lighthouse lets the group go, or wants it to start anew. One that said Finished was heard, then."""
    if state.finished is not None:
        return put(state, finish_heard=True)
    if message.restart:
        return lost(state, 0, message.reason, "", killed=True, counts=False)
    if message.after_commit and live(state):
        return put(state, leave_after=message)
    return ending(state, now, DONE if message.success else FAILED, message.reason, success=message.success)


def _left(state: AgentState, event: RankExited) -> AgentState:
    """A rank that was told to leave is gone; the agent's success needs that of all its ranks."""
    way = state.ending
    assert way is not None
    if way.code != DONE or event.code == 0 or way.kill:
        return state
    reason, _ = _failure(event.code, event.traceback)
    return put(state, ending=put(way, code=FAILED, reason=f"rank {event.shard_rank}, told to leave: {reason}"))


def _agreed(state: AgentState, now: float) -> AgentState:
    """All ranks are there: they must be set up alike, and say how many slots and steps there are."""
    attaches = [a for a in state.life.attached if a is not None]
    first = attaches[0].setup
    for other in attaches[1:]:
        for field in sorted({*first, *other.setup}):
            ours, theirs = first.get(field, "nothing"), other.setup.get(field, "nothing")
            if ours != theirs:
                reason = f"ranks of one group are set up differently: {field} is {ours} in shard 0 and {theirs} in "
                return ending(state, now, CONFIG, f"{reason}shard {other.shard_rank}; make them equal", kill=True)
    try:
        batch = batch_policy(first)
        steps = int(first.get("steps", _NO_LIMIT))
    except ValueError as wrong:
        return ending(state, now, CONFIG, f"the ranks are set up wrongly: {wrong}", kill=True)
    state = put(state, batch=batch, steps=steps)
    return noted(state, "ranks_attached", life=state.life.number)


def _failure(code: int, traceback: str) -> tuple[str, str]:
    """What happened, for people; and a key that is equal for identical failures (numbers in it do not count)."""
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    if lines:
        return lines[-1], re.sub("[0-9]+", "#", lines[-1])
    if code == 0:
        return "it left though nobody told it to", "exit code 0"
    what = f"signal {-code}" if code < 0 else f"exit code {code}"
    return what, what


# ---- rules ---------------------------------------------------------------------------------------------------------


def start(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Starts ranks when there are none, and gives up those that do not attach."""
    life, shards = state.life, state.config.shards
    if life.phase is LifePhase.UP and not attached(state) and now >= life.began_at + deadlines(state).attach_s:
        missing = [i for i, a in enumerate(life.attached) if a is None]
        if missing:
            return lost(state, missing[0], "it did not attach in time", "start deadline")
    if not state.locked or state.ending is not None or life.phase is not LifePhase.DOWN or now < life.resume_at:
        return state
    effects.append(StartRanks(life=life.number + 1))
    none = (None,) * shards
    life = Life(
        number=life.number + 1,
        phase=LifePhase.UP,
        began_at=now,
        attached=none,
        hands=(-1,) * shards,
        marks=(0,) * shards,
        last_key=life.last_key,
        alike=life.alike,
        knobs=knobs(state),
    )
    state = put(state, life=life, floor_told=state.floor)
    return fresh_step(state, now)


def bury(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Ends a life that has a cause to end: all ranks, and the session of this incarnation."""
    life, cause = state.life, state.life.cause
    if cause is None or life.phase is not LifePhase.UP or state.ending is not None:
        return state
    effects.append(EndRanks(life=life.number))
    reason = f"rank {cause.shard_rank}: {cause.reason}"
    if welcomed(state):
        effects.append(ToLighthouse(message=Beat(version=version_told(state))))  # how far it came bounds the others
        died = Died(reason=reason, shard_rank=cause.shard_rank, slot=cause.slot, killed=cause.killed)
        effects.append(ToLighthouse(message=died))
    if state.session.phase is not SessionPhase.CLOSED:
        effects.append(CloseSession(session=state.session.number))
    alike = _counted(state, cause)
    config = state.config
    hasty = cause.counts and not _forgiven(state, cause)  # who made steps is to be back at once
    pause = min(config.restart_backoff_s * 2 ** (min(alike, 32) - 1), config.restart_backoff_max_s) if hasty else 0.0
    gone = len(life.gone) == config.shards
    state = noted(state, "group_lost", reason=reason, alike=alike, pause_s=pause, life=life.number)
    state = put(
        _stripped(state, now),
        life=put(
            life,
            phase=LifePhase.DOWN if gone else LifePhase.ENDING,
            last_key=cause.key if cause.counts else life.last_key,
            alike=alike if cause.counts else life.alike,
            resume_at=now + pause,
        ),
    )
    if cause.misused:
        reason = f"{reason}: its command or configuration is wrong, as it says above; mend that, then start again"
        return ending(state, now, CONFIG, reason, kill=True, told=True)
    if cause.counts and alike >= config.restart_limit:
        reason = f"the same failure ended {alike} lives in a row ({reason}); find its reason before starting again"
        return ending(state, now, FAILED, reason, kill=True, told=True)
    return state


def _counted(state: AgentState, cause: Cause) -> int:
    """How many lives in a row ended like this one, 0 if it does not count."""
    life = state.life
    if not cause.counts:
        return 0
    return life.alike + 1 if cause.key == life.last_key and not _forgiven(state, cause) else 1


def _forgiven(state: AgentState, cause: Cause) -> bool:
    """Whether the life that ends did enough for its end not to be held against the next one."""
    return state.life.commits >= (1 if cause.killed else state.config.restart_forgive_steps)


def _stripped(state: AgentState, now: float) -> AgentState:
    """Without anything that the ranks stood for. What they might have voted for is abandoned."""
    told = [state.seat.generation, *(plan.number for plan in state.plans)]
    if state.level is not None:
        told.append(state.level.base.number)
    floor = max(state.floor, *(number + 1 for number in told if number), 0)
    wanted_at = state.session.wanted_at
    state = put(
        state,
        stand=Stand(),
        seat=Seat(),
        session=Session(number=state.session.number, wanted_at=wanted_at),
        incarnation=0,
        previous=state.incarnation or state.previous,
        floor=floor,
        floor_told=floor,
        starts=(),
        plans=(),
        level=None,
        joining=None,
        stagings=(),
        drops=(),
        failures=(),
        report_due=False,
        leave_after=None,
    )
    return fresh_step(state, now)


def drain(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Leaves by itself where nobody can let the group go: at once, or when the deadline has passed."""
    if state.drain_since is None or state.ending is not None:
        return state
    if not attached(state) or not (welcomed(state) or live(state)):
        return ending(state, now, DONE, "drained; it was in no step", success=True, kill=not attached(state))
    due = state.drain_since + deadlines(state).drain_s
    if now < due:
        return state
    if now >= due + deadlines(state).quit_s or not live(state):
        return ending(state, now, DONE, "drained; nobody let it go in time", success=True)
    if state.leave_after is None:
        return put(state, leave_after=Leave(reason="drained; nobody let it go in time", success=True))
    return state


def quit_ranks(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Sees an agent that leaves through: ranks told, then gone, then the lighthouse told, then the end."""
    way, life = state.ending, state.life
    if way is None or state.over:
        return state
    if life.phase is LifePhase.DOWN:
        return _over(state, now, effects, way)
    if life.phase is LifePhase.ENDING or (way.told and now < way.until):
        return state
    if way.told or way.kill or None in life.attached:
        effects.append(EndRanks(life=life.number))
        return put(state, life=put(life, phase=LifePhase.ENDING), ending=put(way, told=True))
    # A rank may be in a collective that never ends: it has to come out of it to hear anything.
    if 0 < state.seat.generation >= state.floor:
        effects.append(ToRanks(message=Abandoned(number=state.seat.generation + 1)))
    effects.append(ToRanks(message=Quit(success=way.success, reason=way.reason)))
    return put(state, ending=put(way, told=True))


def _over(state: AgentState, now: float, effects: list[Effect], way: Ending) -> AgentState:
    if state.finished is not None and not state.finish_heard and now < way.until:
        return state  # what was sent to a lighthouse that crashed is lost: another has to be told
    if welcomed(state) and way.goodbye:
        effects.append(ToLighthouse(message=Beat(version=version_told(state))))
        effects.append(ToLighthouse(message=Goodbye(reason=way.reason)))
    if state.session.phase is not SessionPhase.CLOSED:
        effects.append(CloseSession(session=state.session.number))
    effects.append(Exit(code=way.code, reason=way.reason))
    return put(state, over=True, session=put(state.session, phase=SessionPhase.CLOSED))
