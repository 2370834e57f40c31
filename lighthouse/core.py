"""The lighthouse's decisions: pure functions over the state of one run.

`state = record(state, event, now)` notes what happened; `state, effects = decide(state, now)` acts on it; deciding
twice changes nothing; `wake_at` says when to decide again though nothing happens, so nothing polls. The rules, in
order: whose lease ran out; whether a change must begin (core_change); what joins and drains need (core_plan); who heals
from whom (core_heal); whether the run is over.
"""

from __future__ import annotations

import msgspec

from lighthouse import core_change, core_cold, core_heal, core_pause, core_plan, core_stall
from lighthouse.core_evidence import forget
from lighthouse.core_hello import without_conn
from lighthouse.core_progress import progress_text
from lighthouse.core_record import record
from lighthouse.core_state import (
    Gen,
    Group,
    RunState,
    all_dead,
    change_group,
    emit,
    in_grace,
    is_member,
    lease_clock,
    send,
    send_all,
    takes_part,
    tell,
    with_,
)
from lighthouse.core_values import (
    CloseStream,
    Core,
    Effect,
    EndRun,
    GroupStanding,
    Hold,
    RunConfig,
    RunStatus,
    StoreNumber,
)
from lighthouse.names import natural_key
from lighthouse.values import Leave, Role

__all__ = ["CORE", "RunState", "decide", "hold", "new_run", "record", "status", "wake_at"]


def new_run(config: RunConfig) -> RunState:
    """A run of which nothing is known yet; its first event is `Started`."""
    return RunState(config=config)


def decide(state: RunState, now: float) -> tuple[RunState, tuple[Effect, ...]]:
    """Lets every rule act. Gives the new state and the effects to carry out, in order."""
    state = _judge_leases(state, now)
    if state.finished is None and not state.ended:
        state = _change(state, now)
        if state.change is None:
            state = core_plan.advance(state, now)
        state = core_heal.advance(state, now)
        state = _drain_idle(state) if state.dirty and len(state.odd) else state
        state = _end_if_hopeless(state, now)
    elif state.finished is not None and not state.ended and not len(state.groups):
        state = emit(with_(state, ended="finished"), EndRun(success=True, reason="the run is finished"))
    effects = state.outbox
    return with_(state, outbox=(), dirty=False), effects


def hold(state: RunState, now: float) -> Hold:
    """Why no generation is at work, `Hold.NONE` if one is or is being formed without waiting for anybody."""
    if state.finished is not None:
        return Hold.FINISHED
    if state.ended:
        return Hold.ENDED
    if not state.gens and state.change is None:
        return Hold.FORMING
    return state.hold


def wake_at(state: RunState, now: float) -> float | None:
    """When a deadline passes next (seconds), None if there is none."""
    times = [state.retry_s, state.plan_again_s, core_cold.due_s(state)]
    if len(state.groups) or state.gens:
        times.append(state.check_s + state.paused_s)
    if state.change is not None:
        times += [state.change.until_s, state.started_s + state.config.lease_s + state.paused_s]
        times += [core_pause.until_s(state, now)] if state.hold is Hold.PAUSE else []
    elif state.finished is None and not state.ended:
        times.append(core_stall.due_s(state))
    if state.plan is not None and not state.plan.ready:
        times.append(state.plan.until_s)
    if not state.gens and state.first_hello_s >= 0:
        times.append(state.first_hello_s + state.config.join_wait_s)
    if _is_hopeless(state):
        times.append(_patience_until_s(state))
    if state.hold is not Hold.NONE and state.config.hold_patience_s:
        times.append(state.hold_since_s + state.config.hold_patience_s)
    return min((t for t in times if t > now), default=None)


def status(state: RunState, now: float) -> RunStatus:
    """The run as people see it."""
    current = state.current
    roles = {m.name: Role(m.role).value for m in current.roster} if current else {}
    clock = lease_clock(state, now)
    seen = [
        GroupStanding(
            name=g.name,
            incarnation=g.incarnation,
            state=_state_of(state, g, roles),
            version=g.version,
            last_heard_s=max(0.0, clock - g.heard_s),
            host=g.host,
            detail=_detail(state, g),
        )
        for g in state.groups.values()
    ]
    missing = [m for m in (current.roster if current else ()) if state.groups.get(m.name) is None]
    seen += [
        GroupStanding(name=m.name, incarnation=m.incarnation, state="lost", version=state.newest, last_heard_s=-1.0)
        for m in missing
    ]
    reason = hold(state, now)
    return RunStatus(
        number=current.number if current else 0,
        first_number=state.first_number,
        version=state.newest,
        hold=f"{reason.value}: {state.hold_text}" if reason is state.hold and state.hold_text else reason.value,
        groups=tuple(sorted(seen, key=lambda g: natural_key(g.name))),
        loss=state.loss,
        step_s=state.step_s,
        protocol_s=state.protocol_s,
        finished=state.finished is not None,
    )


def _state_of(state: RunState, group: Group, roles: dict[str, str]) -> str:
    if is_member(state.current, group):
        return roles[group.name]
    return "joiner" if state.gens else "starting"


def _detail(state: RunState, group: Group) -> str:
    if group.draining or group.leaving:
        return "draining"
    if group.caught and not group.way:
        return "caught up"
    if group.progress is not None and group.progress.heal == group.heal:
        return progress_text(state, group.progress)
    return f"heals from {' '.join(group.donors)}" if group.heal else group.way


# ---- rules ---------------------------------------------------------------------------------------------------------


def _judge_leases(state: RunState, now: float) -> RunState:
    """Forgets groups whose lease ran out, and notes members that never came back after a restart of the lighthouse."""
    clock, lease_s = lease_clock(state, now), state.config.lease_s
    # Compared as `wake_at` computes it: otherwise rounding could let a deadline pass unseen.
    if now < state.check_s + state.paused_s or in_grace(state, now):
        return state
    for group in list(state.groups.values()):
        if now >= group.heard_s + lease_s + state.paused_s:
            state = tell(state, "lost", f"not heard of for {lease_s:g} s", group.name)
            if group.conn:  # what comes on it is not heard any more: the group has to say hello again
                state = emit(without_conn(state, group.conn), CloseStream(conn=group.conn))
            state = with_(forget(state, group, False, f"{group.name} was not heard of for {lease_s:g} s"), dirty=True)
    if state.current is not None and state.change is None and not state.trouble:
        state = _note_missing(state, state.current)
    if state.change is not None:  # whoever was forgotten here may have been the last that was awaited
        state = with_(state, change=msgspec.structs.replace(state.change, looked=None))
    first = min((g.heard_s for g in state.groups.values()), default=clock)
    return with_(state, check_s=first + lease_s)


def _note_missing(state: RunState, current: Gen) -> RunState:
    missing = [m.name for m in current.roster if state.groups.get(m.name) is None]
    return with_(state, trouble=", ".join(missing[:8]) + " did not come back") if missing else state


def _change(state: RunState, now: float) -> RunState:
    if state.change is not None:
        return core_change.advance(core_cold.advance(with_(state, trouble=""), now), now)
    if not state.trouble and core_stall.is_stalled(state, now):
        text = f"no step was committed for {core_stall.patience_s(state):.1f} s"
        state = with_(state, trouble=text)
    joiners = "" if state.trouble else core_pause.wanted(state, now)
    if joiners:
        state = with_(state, trouble=f"a pause: {joiners} is to load")
    if state.trouble:
        return core_change.advance(core_change.begin(state, state.trouble, now), now)
    if not state.gens and _may_form(state, now):
        return core_change.advance(core_change.begin(state, "first formation", now), now)
    if not state.gens and len(state.groups):
        config = state.config
        wanted = f"{config.groups_wanted} (and for --min-groups {config.min_groups} after {config.join_wait_s:g} s)"
        text = f"more groups: {len(state.groups)} of --groups-wanted {wanted} are here"
        return core_change.held(state, Hold.FORMING, text, now)
    return state


def _may_form(state: RunState, now: float) -> bool:
    count, config = len(state.groups), state.config
    if count >= config.groups_wanted:
        return True
    return count >= config.min_groups and now >= state.first_hello_s + config.join_wait_s


def _drain_idle(state: RunState) -> RunState:
    """Who drains and takes part in nothing, or is held up, leaves at once; not if others heal from it alone."""
    held = state.change is not None and state.hold not in (Hold.NONE, Hold.REPORTS, Hold.PAUSE)
    waiting = [g for g in state.groups.values() if g.draining and g.live and not g.told_leave and not g.leaving]
    idle = [group for group in waiting if held or not takes_part(state, group)]
    last = core_heal.last_donors(state) if idle else frozenset()
    for group in idle:
        if group.name not in last:
            state = send(state, group, Leave(reason="drained", success=True))
            state = change_group(state, group, told_leave=True)
    return state


def _end_if_hopeless(state: RunState, now: float) -> RunState:
    """Ends a run that nobody can go on with, or that has held for longer than its patience."""
    if _is_hopeless(state) != (state.hopeless_since_s >= 0):
        state = with_(state, hopeless_since_s=now if _is_hopeless(state) else -1.0)
    if _is_hopeless(state) and now >= _patience_until_s(state) and not _reports_due(state, now):
        known = f"step {state.newest.step}" + " or later" * any(gen.recalled for gen in state.gens)
        return _end(state, f"all live weights are gone (the run stood at {known}): restore is needed")
    patience_s = state.config.hold_patience_s
    if state.hold is not Hold.NONE and patience_s and now >= state.hold_since_s + patience_s:
        return _end(state, f"held for {patience_s:g} s, waiting for {state.hold_text}")
    return state


def _is_hopeless(state: RunState) -> bool:
    return state.hold is Hold.COLD_START and all_dead(state)


def _patience_until_s(state: RunState) -> float:
    """Until when somebody with live weights, a joiner say, may still be on its way back to us. Not from the hold on:
    as long as a member may live, nobody else is waited for."""
    return state.hopeless_since_s + state.config.deadlines.last_weights_s


def _reports_due(state: RunState, now: float) -> bool:
    """Whether somebody may still say that it stands in the history. A load may end well though its donor is gone."""
    change = state.change
    if change is None or now >= change.until_s:
        return False
    loads = any(g.loads for g in state.groups.values())
    return loads or any(g.live and g.report.abandoned < change.number for g in state.groups.values())


def _end(state: RunState, reason: str) -> RunState:
    """Ends the run for good. A number is spent for it: the store refuses that to one that does not lead any more."""
    number = state.last_number + 1
    state = emit(with_(state, ended=reason, last_number=number), StoreNumber(number=number))
    state = tell(state, "ended", reason)
    leave = Leave(reason=reason, success=False)
    state = send_all(state, ((group, leave) for group in state.groups.values()))
    return emit(state, EndRun(success=False, reason=reason))


CORE = Core(
    state_type=RunState, new_run=new_run, record=record, decide=decide, hold=hold, wake_at=wake_at, status=status
)
"""These functions as one value: what a service leads its runs with, and what journals are decided again with."""
