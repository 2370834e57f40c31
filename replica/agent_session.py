"""The agent's side of the Session with the lighthouse: opened, greeted, told, renewed; and opened again when it ends.

Training does not need it. What must not get lost is told by what is true, not by a queue: a new Hello carries the
report, and whatever else the lighthouse has to know is told anew over every session.
"""

from __future__ import annotations

from lighthouse.values import (
    Abandon,
    Beat,
    CaughtUp,
    Drain,
    Fenced,
    Finished,
    HealFailed,
    Hello,
    Opened,
    Probe,
    Probed,
    Refused,
    Report,
    Welcome,
)
from replica.agent_life import CONFIG, FAILED, FENCED
from replica.agent_state import (
    AgentState,
    JoinPhase,
    Session,
    SessionPhase,
    abandoned,
    attached,
    deadlines,
    ending,
    knobs,
    noted,
    put,
    shown,
    version_told,
    welcomed,
)
from replica.agent_values import (
    Effect,
    OpenSession,
    PeersTried,
    SessionClosed,
    SessionOpened,
    ToLighthouse,
    ToRanks,
    TryPeers,
)
from replica.values import Abandoned, Patience

_MASK = (1 << 64) - 1


# ---- record --------------------------------------------------------------------------------------------------------


def opened(state: AgentState, event: SessionOpened, now: float) -> AgentState:
    session = state.session
    if event.session != session.number or session.phase is not SessionPhase.OPENING:
        return state
    return put(state, session=put(session, phase=SessionPhase.OPEN))


def closed(state: AgentState, event: SessionClosed, now: float) -> AgentState:
    session, config = state.session, state.config
    if event.session != session.number or session.phase is SessionPhase.CLOSED:
        return state
    pause = min(config.reconnect_s * 2 ** min(session.tries, 32), deadlines(state).redial_s)
    again = Session(
        number=session.number,
        tries=session.tries + 1,
        retry_at=now + pause,
        reason=event.reason,
        wanted_at=session.wanted_at,
    )
    return put(noted(state, "session_closed", reason=event.reason), session=again)


def welcome(state: AgentState, message: Welcome, now: float) -> AgentState:
    """Told with join: whatever the group was a member of goes on without it, so that is abandoned here too."""
    session = state.session
    if session.phase is not SessionPhase.GREETED:
        return state
    if other := _other_deadline(state, message):
        return ending(state, now, CONFIG, other, kill=True)
    state = put(
        noted(state, "welcome", incarnation=shown(put(state, terms=message), message.incarnation), join=message.join),
        session=put(session, phase=SessionPhase.WELCOMED, tries=0, beat_at=now + message.lease_s / 3),
        terms=message,
        incarnation=message.incarnation,
        previous=0,
        starts=state.starts[session.starts_told :],
    )
    if not message.join:
        return state
    entered = state.seat.generation
    told = state.level.base.number if state.level is not None else 0
    floor = max(entered, told) + 1 if max(entered, told) else 0
    return put(abandoned(state, floor), report_due=state.report_due or floor > state.floor)


def _other_deadline(state: AgentState, message: Welcome) -> str:
    """Which deadline that this group insists on the run has otherwise, and what to change; empty if none."""
    for name in state.config.insists:
        ours, theirs = getattr(state.config.knobs, name), getattr(message, name)
        if ours != theirs:
            flag = "--" + name.replace("_", "-")
            return (
                f"{flag} is {ours:g} here and {theirs:g} in the run: leave {flag} out here, which takes the "
                f"lighthouse's, or start the lighthouse with {flag} {ours:g}"
            )
    return ""


def abandon(state: AgentState, message: Abandon, now: float) -> AgentState:
    """Abandons, and owes a report even if it had abandoned so much already: the lighthouse asks."""
    if message.number > state.floor:
        state = noted(state, "abandoned", below=shown(state, message.number), reason=message.reason)
    state = abandoned(state, message.number)
    # The lighthouse knows of the failures of generations that it ended itself.
    failures = tuple(failure for failure in state.failures if failure.number >= message.number)
    return put(state, failures=failures, report_due=True)


def refused(state: AgentState, message: Refused, now: float) -> AgentState:
    return ending(state, now, CONFIG, f"the lighthouse refused this group: {message.reason}", kill=True, goodbye=False)


def fenced(state: AgentState, message: Fenced, now: float) -> AgentState:
    reason = f"incarnation {shown(state, message.by)} has taken over the name {state.config.name}"
    return ending(state, now, FENCED, reason, kill=True, goodbye=False)


def probe(state: AgentState, message: Probe, now: float) -> AgentState:
    return put(state, probe=message)


def peers_tried(state: AgentState, event: PeersTried, now: float) -> AgentState:
    if event.unreached:
        state = noted(state, "peers_not_reached", names=" ".join(event.unreached))
    return put(state, probed=Probed(number=event.number, unreached=event.unreached))


# ---- rules ---------------------------------------------------------------------------------------------------------


def tell_ranks(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Ranks in a collective of an abandoned generation leave it; and they learn the run's deadlines."""
    if attached(state) and (said := knobs(state)) != state.life.knobs:
        effects.append(
            ToRanks(
                message=Patience(lease_s=said.lease_s, stall_patience_s=said.stall_patience_s, connect_s=said.connect_s)
            )
        )
        state = put(state, life=put(state.life, knobs=said))
    if state.floor <= state.floor_told or not attached(state):
        return state
    effects.append(ToRanks(message=Abandoned(number=state.floor)))
    return put(state, floor_told=state.floor)


def try_peers(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Tries what the lighthouse asks about: it can see nobody's cables but its own."""
    if state.probe is None:
        return state
    effects.append(TryPeers(number=state.probe.number, targets=state.probe.targets))
    return put(state, probe=None)


def connect(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Opens a session once all ranks are there, and again when it has ended; gives up only before the first welcome."""
    session = state.session
    if not wanted(state):
        return state
    if session.wanted_at is None:
        session = put(session, wanted_at=now)
        state = put(state, session=session)
    patience_s = deadlines(state).welcome_s
    if state.terms is None and session.wanted_at is not None and now >= session.wanted_at + patience_s:
        reason = f"no lighthouse has welcomed this group in {patience_s:g} s: {session.reason or 'it did not answer'}"
        return ending(state, now, FAILED, reason)
    if session.phase is not SessionPhase.CLOSED or now < session.retry_at:
        return state
    effects.append(OpenSession(session=session.number + 1))
    return put(state, session=put(session, number=session.number + 1, phase=SessionPhase.OPENING))


def wanted(state: AgentState) -> bool:
    """Whether there is something to say: the ranks are there and stay, or the run is finished and nobody may know."""
    if state.ending is not None:
        return _has_to_finish(state) and not state.over
    return attached(state)


def _has_to_finish(state: AgentState) -> bool:
    return state.finished is not None and not state.finish_heard


def greet(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Says hello on an open session: it carries the report, and so everything that the lighthouse missed."""
    config, life = state.config, state.life
    if state.session.phase is not SessionPhase.OPEN or state.over:
        return state
    attaches = [attach for attach in life.attached if attach is not None]
    digest = 0
    for attach in attaches:
        digest = (digest * 0x9E3779B97F4A7C15 + attach.digest) & _MASK
    if state.stand.loaded:  # whatever the ranks began with is gone: equal to nobody's
        digest = (digest ^ (state.incarnation * 0x9E3779B97F4A7C15)) & _MASK
    hello = Hello(
        run_id=config.run_id,
        name=config.name,
        incarnation=state.incarnation,
        previous=state.previous,
        host=config.host,
        took_over=state.locked,
        setup=attaches[0].setup,
        rendezvous=tuple(attach.rendezvous for attach in attaches),
        weights=tuple(attach.weights for attach in attaches),
        digest=digest,
        report=report(state),
    )
    effects.append(ToLighthouse(message=hello))
    session = put(state.session, phase=SessionPhase.GREETED, starts_told=len(state.starts))
    return put(state, session=session, report_due=False)


def tell(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Tells what is true and was not told over this session, the report last; renews the lease."""
    session = state.session
    if not welcomed(state) or state.over:
        return state
    said: list[Effect] = [ToLighthouse(message=failure) for failure in state.failures]
    joining = state.joining
    if joining is not None and joining.phase is JoinPhase.FAILED and joining.told_in != session.number:
        said.append(ToLighthouse(message=HealFailed(heal=joining.heal, reason=joining.reason, behind=joining.behind)))
        joining = put(joining, told_in=session.number)
    plan = state.plans[-1] if state.plans else None
    if plan is not None and len(plan.opened) == state.config.shards and plan.number > session.opened_told:
        said.append(ToLighthouse(message=Opened(number=plan.number)))
        session = put(session, opened_told=plan.number)
    if joining is not None and joining.caught_up and joining.told_in != session.number:
        said.append(ToLighthouse(message=report(state)))  # the cursor too: it may have to lead a generation alone
        said.append(ToLighthouse(message=CaughtUp(version=state.stand.version)))
        joining = put(joining, told_in=session.number)
    if state.drain_since is not None and not session.drain_told and state.ending is None:
        said.append(ToLighthouse(message=Drain()))
        session = put(session, drain_told=True)
    if state.finished is not None and not (state.finish_heard or session.finished_told):
        said.append(ToLighthouse(message=Finished(version=state.finished)))
        session = put(session, finished_told=True)
    if state.probed is not None:
        said.append(ToLighthouse(message=state.probed))
    if state.report_due:
        said.append(ToLighthouse(message=report(state)))
    if now >= session.beat_at and state.terms is not None:
        said.append(ToLighthouse(message=Beat(version=version_told(state))))
        session = put(session, beat_at=now + deadlines(state).beat_s)
    if not said:
        return state
    effects.extend(said)
    return put(state, session=session, joining=joining, failures=(), probed=None, report_due=False)


def report(state: AgentState) -> Report:
    """What the group stands for at this moment."""
    stand, seat, joining = state.stand, state.seat, state.joining
    reason = seat.failed or (state.ending.reason if state.ending else "")
    return Report(
        abandoned=state.floor,
        version=version_told(state),
        cursor=stand.cursor,
        generation=seat.generation,
        failed=bool(reason),
        starts=state.starts,
        answers=stand.answers if stand.usable else (),
        step_slots=stand.step_slots if stand.usable else 0,
        promoted=seat.promoted,
        entries=stand.entries if stand.usable else (),
        stop=stand.stop,
        mark=min(state.life.marks, default=0),
        reason=reason,
        heal=joining.heal if joining is not None else 0,
        donors=tuple(source.name for source in joining.sources) if joining is not None else (),
        stagings=tuple(staging.heal for staging in state.stagings),
    )
