"""What is known of generations and of those who were in them: reports, bases that only members know of, and deaths.

A generation that may be at work counts as *left* once somebody of it is known to have abandoned it for good, and at
which step: a report that says so, or a death notice or goodbye of its own agent, which tell the last version just
before. That somebody is dead is known as well from a newer incarnation whose agent holds its predecessor's lock on the
same host and has ended its ranks; but not how far it came, so that counts only if all members are dead.
"""

from __future__ import annotations

import msgspec

from lighthouse.core_keep import drop
from lighthouse.core_poison import ahead
from lighthouse.core_state import (
    Gen,
    Group,
    RunState,
    change_group,
    drop_group,
    emit,
    is_member,
    left_by,
    member_group,
    replace_gen,
    send,
    settled,
    tell,
    with_,
    with_roles,
)
from lighthouse.core_values import StoreBase
from lighthouse.values import Member, Release, Report, Role, Start, Version


def release(state: RunState, group: Group, **fields: object) -> RunState:
    """`group` is in no heal any more, and its donors are told so; with other fields of it replaced."""
    if any(keeping.heal == group.heal for keeping in state.kept):
        state = drop(state, group.name)
    else:
        for name in group.donors if group.heal else ():
            donor = state.groups.get(name)
            state = send(state, donor, Release(heal=group.heal)) if donor is not None else state
    return change_group(state, group, heal=0, donors={}, progress=None, **fields)


def held_off_s(failures: int) -> float:
    """How long a joiner waits before it heals again, after so many failures: 1 s, doubled each time, up to 60 s."""
    return min(2.0 ** (failures - 1), 60.0)


def take_report(state: RunState, group: Group, report: Report) -> RunState:
    """Notes what `group` stands for, the bases it brings, and whether its generation is over for it."""
    for start in sorted(report.starts, key=lambda s: s.number):
        state = learn_start(state, start)
    group = state.groups.get(group.name) or group  # what was just learned may concern the reporter itself
    if report.abandoned < group.report.abandoned:
        return state
    stands = report.version.step >= 0
    told = {"report": report, "version": report.version, "loading": group.loading and stands}
    if _has_left_heal(group, report):
        state = release(state, group, caught=False, **told)
    else:
        state = change_group(state, group, caught=group.caught and stands, **told)
    for gen in state.gens:
        if not is_member(gen, group):
            continue
        if report.abandoned > gen.number:
            state = replace_gen(state, left_by(gen, group.name, report.version))
        overtaken = report.abandoned > max(gen.number, state.change.number if state.change else 0)
        failed = report.failed and report.generation == gen.number >= report.abandoned
        outside = gen.planned and gen is state.gens[0] and report.generation < gen.number and _missed(gen, report)
        if failed or overtaken or outside:
            known = "a change had begun" if overtaken else "its generation failed" if failed else "it missed the switch"
            why = report.reason or known
            state = with_(state, trouble=state.trouble or f"{group.name}: {why}")
    current = state.current
    if current and report.generation == current.number and report.promoted not in ((), current.grown):
        state = replace_gen(state, with_roles(current, report.promoted))
    return state


def _missed(gen: Gen, report: Report) -> bool:
    """Whether the reporter, which is in another generation or in none, will never enter `gen` by itself.

    It saw the old generation fail where others saw the switch; or it has loaded what the switch led to, or loads anew.
    """
    return report.failed or not 0 <= report.version.step < gen.version.step


def _has_left_heal(group: Group, report: Report) -> bool:
    """Whether the joiner is out of that heal: a base or a switch ended it, whatever came of that.

    It names the heal from when it has heard of it. What abandons more than all that came before, it says after that.
    """
    return group.heal != 0 and report.heal != group.heal and report.abandoned > group.first


def learn_start(state: RunState, start: Start) -> RunState:
    """A planned generation was entered: its base is history, and what was before it is over."""
    gen = next((g for g in state.gens[1:] if g.number == start.number), None)
    if gen is None or not state.history.contains(start.version):
        return state
    old = state.gens[0]
    aside = ahead(old, start.cursor)
    gen = msgspec.structs.replace(gen, version=start.version, cursor=start.cursor, set_aside=aside)
    later = tuple(g for g in state.gens if g.number > start.number)
    state = with_(
        state,
        gens=(gen, *later),
        history=state.history.extended(start.number, start.version),
        plan=None if state.plan and state.plan.number <= start.number else state.plan,
        plan_failures=0,
        dirty=True,
    )
    store = StoreBase(number=start.number, version=start.version, cursor=start.cursor, set_aside=aside, reported=True)
    state = settled(emit(state, store))
    for member in old.roster:
        group = state.groups.get(member.name)
        if group is not None and member.name not in gen.members:
            state = release(state, group, leaving=group.draining, caught=False, mismatched=False)
    cannot = [m.name for m in gen.roster if m.name in gen.gone or _is_stuck(state, gen, m)]
    if cannot:
        state = with_(state, trouble=state.trouble or f"{', '.join(cannot)} cannot enter")
    return tell(state, "switched", "", "", members=len(gen.roster))


def _is_stuck(state: RunState, gen: Gen, member: Member) -> bool:
    """Whether a joiner fell out of its heal before it could enter: the others would wait for it for ever."""
    group = member_group(state, member)
    if member.role is not Role.NEWCOMER or group is None:
        return False
    return group.report.generation < gen.number and (not group.caught or _missed(gen, group.report))


def may_have_more(state: RunState, step: int) -> bool:
    """Whether somebody may have steps above `step` who has not said where it stands since everything was abandoned, or
    is apart: a member that is not known to be dead, or whoever told of such a step before."""
    number = state.change.number if state.change else 0
    live = [g for g in state.groups.values() if g.live]
    heard = {(g.name, g.incarnation) for g in live if g.report.abandoned >= number and not g.apart}
    ahead = {(g.name, g.incarnation) for g in live if g.version.step > step}
    members = {(m.name, m.incarnation) for gen in state.gens for m in gen.roster if m.name not in gen.gone}
    return not (members | ahead) <= heard


def forget(state: RunState, group: Group, dead: bool, reason: str, last: Version | None = None) -> RunState:
    """`group` leaves the table; dead: by its own agent's word, so that it will never commit again.

    last: the version that it stood on then, if it is known; it bounds what others may have made without us.
    """
    if dead:
        state = drop(state, group.name)
    state = release(state, group)
    for gen in state.gens:
        if is_member(gen, group):
            state = gone(state, left_by(gen, group.name, last) if last is not None else gen, group.name, dead, reason)
    return drop_group(state, group.name)


def gone(state: RunState, gen: Gen, name: str, dead: bool, reason: str) -> RunState:
    """Notes that a member of `gen` takes no part in it any more."""
    if dead:
        state = replace_gen(state, msgspec.structs.replace(gen, gone=gen.gone | {name}))
    if gen.number == state.gens[0].number:
        return with_(state, trouble=state.trouble or reason)
    return state
