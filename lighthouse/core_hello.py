"""Who may be in the run, and as which incarnation: what a hello changes."""

from __future__ import annotations

from typing import Any

import msgspec

from lighthouse.batch import batch_policy
from lighthouse.core_evidence import gone, learn_start, release, take_report
from lighthouse.core_keep import drop
from lighthouse.core_state import (
    Group,
    RunState,
    change_group,
    drop_group,
    emit,
    is_member,
    lease_clock,
    put_group,
    send,
    shown,
    takes_part,
    tell,
    with_,
)
from lighthouse.core_values import CloseStream, Send, StoreIncarnation
from lighthouse.values import Abandon, Fenced, Hello, Leave, Refused, Welcome


def take_hello(state: RunState, conn: int, hello: Hello, now: float) -> RunState:
    refusal = _refusal(state, hello)
    if refusal:
        state = tell(state, "refused", refusal, hello.name)
        return emit(state, Send(conn=conn, message=Refused(reason=refusal)), CloseStream(conn=conn))
    known = state.groups.get(hello.name)
    newer = max(known.incarnation if known else 0, *(g.members.get(hello.name, 0) for g in state.gens), 0)
    claimed = hello.incarnation
    if hello.previous and _is_elsewhere(state, hello, newer):  # started there since: it was not for a new life here
        claimed = hello.previous
    if claimed and claimed < newer:
        # A number below the first is of a store that was lost: as it is.
        since = state.first_number - 1 if claimed >= state.first_number else 0
        older, by = claimed - since, newer - since
        state = tell(state, "fenced", f"incarnation {older} is older than {by}", hello.name)
        return emit(state, Send(conn=conn, message=Fenced(by=newer)), CloseStream(conn=conn))
    if not state.gens and not len(state.groups):
        state = with_(state, setup=hello.setup)
    incarnation = hello.incarnation
    if not incarnation:
        incarnation = max(state.next_incarnation, newer + 1)
        state = emit(with_(state, next_incarnation=incarnation + 1), StoreIncarnation(next=incarnation + 1))
    elif incarnation >= state.next_incarnation:
        state = emit(with_(state, next_incarnation=incarnation + 1), StoreIncarnation(next=incarnation + 1))
    if incarnation > newer:
        state = _replaced(state, known, incarnation, hello)
    elif known is not None and known.conn:
        state = emit(without_conn(state, known.conn), CloseStream(conn=known.conn))
    return _welcome(state, conn, hello, incarnation, now)


def _is_elsewhere(state: RunState, hello: Hello, incarnation: int) -> bool:
    """Whether the incarnation of that name is on another host."""
    known = state.groups.get(hello.name)
    if known is not None and known.incarnation == incarnation:
        return known.host != hello.host
    rosters = (gen.roster for gen in state.gens if gen.members.get(hello.name) == incarnation)
    return any(m.name == hello.name and m.host != hello.host for roster in rosters for m in roster)


def _refusal(state: RunState, hello: Hello) -> str:
    if hello.run_id != state.config.run_id:
        return f"this run is {state.config.run_id!r}, the group wants {hello.run_id!r}: start it with the same run id"
    try:
        batch_policy(hello.setup)
    except ValueError as wrong:
        return f"group {hello.name} cannot be led: {wrong}"
    if not state.gens and not len(state.groups):
        return ""
    for field in sorted(set(state.setup) | set(hello.setup)):
        ours, theirs = state.setup.get(field, "(not set)"), hello.setup.get(field, "(not set)")
        if ours != theirs:
            return (
                f"{field} differs: the run has {ours}, group {hello.name} has {theirs}; "
                f"start the group with the run's {field}, or start another run"
            )
    return ""


def _replaced(state: RunState, known: Group | None, by: int, hello: Hello) -> RunState:
    """An older incarnation of the name is fenced; its agent's successor on the same host knows that it is dead."""
    if known is not None:
        state = release(state, known)
    if any(keeping.name == hello.name and keeping.incarnation < by for keeping in state.kept):
        state = drop(state, hello.name)
    if known is not None and known.conn:
        state = send(state, known, Fenced(by=by))
        state = emit(without_conn(state, known.conn), CloseStream(conn=known.conn))
    for gen in state.gens:
        old = next((m for m in gen.roster if m.name == hello.name), None) if hello.name in gen.members else None
        if old is not None:
            dead = hello.took_over and hello.host == old.host
            state = gone(state, gen, old.name, dead, f"{old.name} was started again")
    return drop_group(state, hello.name)


def _welcome(state: RunState, conn: int, hello: Hello, incarnation: int, now: float) -> RunState:
    for start in sorted(hello.report.starts, key=lambda s: s.number):
        state = learn_start(state, start)  # stored before the welcome, after which nobody tells of it again
    known = state.groups.get(hello.name)
    same = known if known is not None and known.incarnation == incarnation else None
    fields: dict[str, Any] = {
        "conn": conn,
        "host": hello.host,
        "heard_s": lease_clock(state, now),
        "rendezvous": hello.rendezvous,
        "weights": hello.weights,
        "version": hello.report.version,
        "loading": False,
        "told_leave": False,
    }
    group = (
        msgspec.structs.replace(same, **fields)
        if same
        else Group(name=hello.name, incarnation=incarnation, digest=hello.digest, report=hello.report, **fields)
    )
    state = put_group(with_(state, conns=state.conns.set(str(conn), hello.name)), group)
    if state.first_hello_s < 0:
        state = with_(state, first_hello_s=now)
    member = any(is_member(g, group) for g in state.gens)
    welcome = Welcome(
        incarnation=incarnation,
        lease_s=state.config.lease_s,
        stall_patience_s=state.config.stall_patience_s,
        connect_s=state.config.connect_s,
        contributors_wanted=state.config.contributors_wanted,
        allowed_groups=state.config.allowed_groups,
        first_number=state.first_number,
        join=bool(state.gens) and not member,
    )
    state = tell(send(state, group, welcome), "hello", "", group.name, incarnation=shown(state, incarnation))
    if state.finished is not None or state.ended:
        reason = state.ended or "the run is finished"
        return send(state, group, Leave(reason=reason, success=state.finished is not None))
    change = state.change
    if change is not None:
        if member and not change.again and now >= change.until_s:
            until_s = now + state.config.lease_s
            state = with_(state, change=msgspec.structs.replace(change, again=True, until_s=until_s))
        state = send(state, group, Abandon(number=change.number, reason=change.reason))
    elif state.gens and not member:
        state = send(state, group, Abandon(number=state.gens[0].number, reason="the run went on without it"))
    state = take_report(state, group, hello.report)
    welcomed = state.groups.get(group.name)
    return _resume(state, welcomed) if welcomed is not None else state


def _resume(state: RunState, group: Group) -> RunState:
    """What was sent on a stream that broke may be lost: whatever the group still waits for is begun anew."""
    current, plan, report = state.current, state.plan, group.report
    if is_member(current, group) and current is not None and report.generation < current.number <= report.abandoned:
        state = with_(state, trouble=state.trouble or f"{group.name} did not hear of its base")
    if plan is not None and takes_part(state, group):  # who leaves with it has to have heard of it, too
        state = with_(state, plan=msgspec.structs.replace(plan, broken=True))
    entered = is_member(current, group) and current is not None and report.generation >= current.number
    if report.heal and not group.heal and not entered:  # an earlier lighthouse began it
        state = _take_over_heal(state, group)
    elif group.heal and not group.caught and not is_member(current, group):
        state = _resume_heal(state, group)
    return _resume_donor(state, group)


def _take_over_heal(state: RunState, group: Group) -> RunState:
    """A joiner goes on with the heal that it is in, unless one of its donors was not told of it: none stages then."""
    heal, donors = group.report.heal, dict.fromkeys(group.report.donors, 0)
    taken = msgspec.structs.replace(group, heal=heal, donors=donors)
    here = [donor for name in donors if (donor := state.groups.get(name)) is not None]
    if taken.moving or all(heal in donor.report.stagings for donor in here):
        return put_group(state, taken)
    return release(state, taken)


def _resume_heal(state: RunState, group: Group) -> RunState:
    """A joiner is back. It goes on with the heal that it is in; if it never heard of that one, it is begun anew."""
    if group.report.heal == group.heal:
        return state
    if any(keeping.heal == group.heal for keeping in state.kept):
        return change_group(state, group, heal=0, donors={}, progress=None)
    return release(state, group)


def _resume_donor(state: RunState, group: Group) -> RunState:
    """A donor is back. Heals that it never heard of are begun anew: it would not be staged for."""
    for name in list(state.odd):  # who heals is odd
        other = state.groups.get(name)
        waits = other is not None and group.name in other.donors and other.heal not in group.report.stagings
        if other is not None and waits and not other.moving:
            state = release(state, other)
    return state


def without_conn(state: RunState, conn: int) -> RunState:
    """`state` without stream `conn`."""
    return with_(state, conns=state.conns.without(str(conn)))
