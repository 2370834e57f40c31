"""Planned changes: joins and drains, over communicators that are opened beside the present one. DESIGN §5.

At most one plan is pending. A newer one replaces it when somebody drains or a planned member is gone; a join waits for
the plan before it. Roles settle in the first commit of a generation, so nothing is planned before that.
"""

from __future__ import annotations

import msgspec

from lighthouse import core_pause
from lighthouse.batch import filled, limited
from lighthouse.core_evidence import held_off_s, release
from lighthouse.core_state import (
    Gen,
    Group,
    Plan,
    RunState,
    change_group,
    emit,
    is_member,
    is_over,
    member_group,
    new_gen,
    roster_change,
    send,
    send_all,
    tell,
    with_,
)
from lighthouse.core_values import StoreClaim, StoreNumber
from lighthouse.names import natural_key
from lighthouse.values import Leave, Member, Prepare, Ready, Role


def advance(state: RunState, now: float) -> RunState:
    """Plans what joins and drains ask for, and lets a plan that everybody opened be entered."""
    plan = state.plan
    if plan is not None and not plan.ready and plan.opened == plan.needed:
        state = _make_ready(state, plan)
    due = plan is not None and not plan.ready and now >= plan.until_s
    if due and plan is not None:
        state = _give_up(state, plan, now)
    due = due or 0 < state.plan_again_s <= now
    if not state.dirty and not due:
        return state
    current = state.current
    if state.plan is None and not len(state.odd):
        return state  # everybody is a member, and wants nothing
    if current is None or not current.committed or is_over(state, state.newest, False):
        return state
    state = _let_leavers_go(state, current)
    return _plan(state, current, now)


def _plan_gen(state: RunState, plan: Plan) -> Gen:
    return next(g for g in state.gens if g.number == plan.number)


def _make_ready(state: RunState, plan: Plan) -> RunState:
    state = with_(state, plan=msgspec.structs.replace(plan, ready=True))
    groups = (member_group(state, member) for member in _concerned(state, _plan_gen(state, plan)))
    return send_all(state, ((group, Ready(number=plan.number)) for group in groups if group is not None))


def _concerned(state: RunState, gen: Gen) -> tuple[Member, ...]:
    """Members of the planned generation, and those of the present one who leave with it: their records name it too."""
    current = state.current.roster if state.current else ()
    return (*gen.roster, *(m for m in current if gen.members.get(m.name) != m.incarnation))


def _give_up(state: RunState, plan: Plan, now: float) -> RunState:
    """Members did not open in time: joiners among them heal anew, the others are tried again with a new number."""
    slow = []
    for member in _plan_gen(state, plan).roster:
        group = member_group(state, member)
        if group is None or group.opened != plan.number:
            slow.append(member.name)
            if group is not None and not is_member(state.current, group):
                failures = group.heal_failures + 1
                retry_s = now + held_off_s(failures)
                state = release(state, group, caught=False, heal_failures=failures, retry_s=retry_s)
    state = with_(state, plan=None, dirty=True)
    return tell(state, "plan_cancelled", "not opened in time by " + ", ".join(slow))


def _let_leavers_go(state: RunState, current: Gen) -> RunState:
    for group in list(state.groups.values()):
        if group.leaving and group.live and not group.told_leave and not is_member(current, group):
            state = tell(state, "drained", "", group.name)
            state = send(state, group, Leave(reason="drained", success=True))
            state = change_group(state, group, told_leave=True)
    return state


def _plan(state: RunState, current: Gen, now: float) -> RunState:
    stays = tuple(m for m in current.roster if _stays(member_group(state, m), m))
    joins = [g for g in state.groups.values() if g.caught and g.live and not g.draining and not is_member(current, g)]
    joins = [] if core_pause.pauses(state) else joins
    drains = [g for m in current.roster if (g := member_group(state, m)) is not None and g.draining]
    if not stays and any(_is_heir(state, group) for group in state.groups.values()):
        stays = current.roster  # they leave once somebody else has the weights, and computes
    elif drains and len(stays) + len(joins) < state.config.min_groups:
        return _leave_unplanned(state, drains)
    wanted = tuple(sorted((*stays, *(_newcomer(g) for g in joins)), key=lambda m: natural_key(m.name)))
    config = state.config
    wanted = limited(wanted, config.contributors_wanted, config.allowed_groups)
    wanted = filled(wanted, config.contributors_wanted, config.allowed_groups)  # nobody may be left to compute else
    if any(member_group(state, m) is None for m in wanted):
        return state  # it may be on its way to a lighthouse that was restarted; else a change is due
    names = {m.name: m.incarnation for m in wanted}
    if state.plan is not None:
        planned = _plan_gen(state, state.plan).members
        vanished = state.plan.broken or any(names.get(name) != inc for name, inc in planned.items())
        if not vanished:
            return state
        if names == current.members and not state.plan.ready:
            return tell(with_(state, plan=None), "plan_cancelled", "it is not needed any more")
    elif names == current.members:
        return state
    if now < state.plan_again_s:
        return state
    return _prepare(with_(state, plan_again_s=0.0), current, wanted, now)


def _stays(group: Group | None, member: Member) -> bool:
    """Whether a member is wanted in the next generation too. One that is lost is the business of a change, not ours."""
    return group is None or not (group.draining or group.mismatched)


def _is_heir(state: RunState, group: Group) -> bool:
    """Whether a group that is no member could get the weights before all members have left."""
    return group.live and not group.draining and not is_member(state.current, group)


def _newcomer(group: Group) -> Member:
    return Member(name=group.name, incarnation=group.incarnation, role=Role.NEWCOMER, host=group.host)


def _leave_unplanned(state: RunState, drains: list[Group]) -> RunState:
    """Too few would stay to commit anything without them: they leave after their step, and the rest holds."""
    for group in drains:
        if not group.told_leave:
            state = send(state, group, Leave(reason="drained", success=True, after_commit=True))
            state = change_group(state, group, told_leave=True)
    return state


def _prepare(state: RunState, current: Gen, wanted: tuple[Member, ...], now: float) -> RunState:
    number = state.last_number + 1
    gen = new_gen(number, wanted, planned=True)
    state = emit(state, StoreNumber(number=number), StoreClaim(number=number, roster=wanted, planned=True))
    plan = Plan(number=number, until_s=now + state.config.deadlines.open_s, needed=len(_concerned(state, gen)))
    state = with_(state, last_number=number, gens=(*state.gens, gen), plan=plan)
    first = member_group(state, wanted[0])
    rendezvous = first.rendezvous if first is not None else ()
    change, whole = roster_change(current, wanted), roster_change(None, wanted)
    aside = tuple(current.cursor + slot for slot in current.set_aside)
    groups = [member_group(state, member) for member in _concerned(state, gen)]
    told = [(group, change if is_member(current, group) else whole) for group in groups if group is not None]
    state = send_all(
        state,
        (
            (group, Prepare(number=number, roster=roster, rendezvous=rendezvous, set_aside=aside))
            for group, roster in told
        ),
    )
    joins = " ".join(m.name for m in wanted if m.name not in current.members)
    leaves = " ".join(name for name in current.members if name not in gen.members)
    return tell(state, "prepare", "", "", joins=joins, leaves=leaves)
