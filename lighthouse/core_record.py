"""What an event changes in the lighthouse's state. Nothing is decided here but who may be in the run at all."""

from __future__ import annotations

import msgspec

from lighthouse import core_cold, core_poison, core_progress
from lighthouse.core_evidence import forget, held_off_s, learn_start, release, take_report
from lighthouse.core_hello import take_hello, without_conn
from lighthouse.core_state import (
    Group,
    Plan,
    RunState,
    change_group,
    emit,
    is_member,
    lease_clock,
    new_gen,
    put_group,
    replace_gen,
    send,
    send_all,
    settled,
    tell,
    with_,
    with_roles,
)
from lighthouse.core_values import (
    ColdStartAsked,
    Event,
    Said,
    SaidHello,
    SkipSlotAsked,
    Started,
    StoreFinished,
    StreamEnded,
    Tick,
)
from lighthouse.values import (
    ROOT,
    Abandon,
    Beat,
    CaughtUp,
    Committed,
    Contributed,
    Died,
    Drain,
    Failure,
    Finished,
    Goodbye,
    HealFailed,
    Leave,
    Opened,
    Probed,
    Progress,
    Report,
    Up,
    Version,
)

STARTS_OVER = 3
"""A joiner that fell behind so often in a row is held off, as after other failures."""


def record(state: RunState, event: Event, now: float) -> RunState:
    """The state after `event`, which happened at `now` (seconds, monotonic)."""
    if not _routine(event):
        change = state.change
        heard = change and msgspec.structs.replace(change, heard=change.heard + 1)
        state = with_(state, dirty=True, change=heard)
    match event:
        case Started():
            return _started(state, event, now)
        case SaidHello():
            return take_hello(state, event.conn, event.message, now)
        case Said():
            return _said(state, event, now)
        case StreamEnded():
            return _stream_ended(state, event.conn)
        case ColdStartAsked():
            return core_cold.asked(state, event.by)
        case SkipSlotAsked():
            return core_poison.asked(state, event.by)
        case Tick():
            return with_(state, paused_s=state.paused_s + event.late_s) if event.late_s else state
    raise TypeError(f"not an event: {event!r}")


def _routine(event: Event) -> bool:
    """Whether `event` changes nothing that plans and heals depend on: so that a step costs the lighthouse little."""
    if isinstance(event, Said):
        return isinstance(event.message, _ROUTINE)
    return isinstance(event, Tick)


_ROUTINE = (Beat, Committed, Contributed, Opened, Progress)


def _started(state: RunState, event: Started, now: float) -> RunState:
    stored = event.record
    state = with_(
        state,
        started_s=now,
        check_s=now + state.config.lease_s,
        first_number=stored.first_number or event.wall_ms,
        last_number=stored.last_number or event.wall_ms - 1,
        next_incarnation=stored.next_incarnation if stored.next_incarnation > 1 else event.wall_ms,  # or one returns
        next_heal=event.wall_ms,
        setup=stored.setup,
        finished=stored.finished,
        deaths=stored.deaths,
    )
    bases = {b.number: b for b in stored.bases}
    for base in sorted(stored.bases, key=lambda b: b.number):
        state = with_(state, history=state.history.begun(base.number, base.version))
    last = max(bases, default=0)
    gens = []
    for claim in sorted(stored.claims, key=lambda c: c.number):
        if claim.number == last:
            gen = new_gen(claim.number, claim.roster, claim.planned)
            base = bases[claim.number]
            fields = {"version": base.version, "cursor": base.cursor, "set_aside": base.set_aside}
            gens.append(msgspec.structs.replace(gen, recalled=True, **fields))
        elif claim.number > last and claim.planned:
            gens.append(msgspec.structs.replace(new_gen(claim.number, claim.roster, True), recalled=True))
    newest = bases[last].version if last else state.newest
    formed = tuple(gens) if last else ()
    return settled(with_(state, gens=formed, newest=newest, progress_s=lease_clock(state, now)))


# ---- what a group says ---------------------------------------------------------------------------------------------


def _said(state: RunState, said: Said, now: float) -> RunState:
    group = state.groups.get(said.name)
    if group is None or group.incarnation != said.incarnation:
        return _from_lost(state, said)
    if group.conn != said.conn:
        # Late, from a stream that a newer one has replaced: only what cannot become untrue counts.
        if not isinstance(said.message, _FOR_GOOD):
            return state
        return _message(state, group, said.message, now, late=True)
    if isinstance(said.message, Beat):
        return _beat(state, group, said.message.version, now)
    group = msgspec.structs.replace(group, heard_s=max(lease_clock(state, now), group.heard_s))
    state = put_group(state, group)
    return _message(state, group, said.message, now)


def _from_lost(state: RunState, said: Said) -> RunState:
    """What a group says that is not in the table any more: only that the farewell completed, which is true for ever."""
    member = any(gen.members.get(said.name) == said.incarnation for gen in state.gens)
    return finish(state, said.message.version) if member and isinstance(said.message, Finished) else state


APART_TRIES = 6
"""So often, a little later each time, a group that is apart may try to come back by entries: about a minute."""

_FOR_GOOD = Committed | Died | Drain | Finished | Goodbye


def _message(state: RunState, group: Group, message: Up, now: float, late: bool = False) -> RunState:
    last = None if late else group.version
    match message:
        case Probed():
            return change_group(state, group, tried=message.number, unreached=message.unreached)
        case Report():
            return take_report(state, group, message)
        case Committed():
            return _committed(state if late else change_group(state, group, version=message.version), message, now)
        case Opened():
            return _opened(state, group, message.number)
        case Failure():
            return _failure(state, group, message, now)
        case Died():
            state = tell(state, "died", message.reason, group.name, shard_rank=message.shard_rank)
            state = core_poison.died(state, group, message.slot)
            return forget(state, group, True, f"{group.name} died: {message.reason}", last)
        case Goodbye():
            state = tell(state, "left", message.reason, group.name)
            return forget(state, group, True, f"{group.name} left: {message.reason}", last)
        case Contributed():
            return _contributed(state, group, message)
        case Drain():
            state = tell(state, "drain", "", group.name) if not group.draining else state
            return change_group(state, group, draining=True)
        case CaughtUp():
            return _caught_up(state, group, message.version)
        case Progress():
            return core_progress.note(state, group, message, now)
        case HealFailed():
            return _heal_failed(state, group, message, now)
        case Finished():
            return finish(state, message.version)
    return state


def _beat(state: RunState, group: Group, version: Version, now: float) -> RunState:
    """It lives, and stands on `version`. (Most of what is ever recorded is this.)"""
    heard = lease_clock(state, now)
    moved = group.version != version
    goes_on = moved and is_member(state.current, group)
    beating = msgspec.structs.replace(group, heard_s=max(heard, group.heard_s), version=version)
    state = with_(
        state, groups=state.groups.set(group.name, beating), progress_s=heard if goes_on else state.progress_s
    )
    if moved and not goes_on and state.change is not None:
        # A joiner has moved on since it reported: it is asked again.
        state = send(state, group, Abandon(number=state.change.number, reason=state.change.reason))
    return state


def _caught_up(state: RunState, group: Group, version: Version) -> RunState:
    if not group.heal or group.report.heal != group.heal:
        return state  # in a heal that is over: nothing leads it on
    if version == ROOT and group.donors_digest is None:  # who has its weights, is not known: it begins anew
        return release(state, group)
    if not group.caught:
        state = tell(state, "caught_up", "", group.name, step=version.step)
    digest = group.digest if group.donors_digest is None else group.donors_digest
    fields = {"version": version, "digest": digest, "heal_failures": 0, "behind": 0}
    return change_group(state, group, caught=True, loading=False, apart=False, **fields)


def _opened(state: RunState, group: Group, number: int) -> RunState:
    plan = state.plan
    if plan is None or plan.number != number or group.opened == number:
        return state
    state = with_(state, plan=msgspec.structs.replace(plan, opened=plan.opened + 1))
    return change_group(state, group, opened=number)


def _failure(state: RunState, group: Group, failure: Failure, now: float) -> RunState:
    if not state.gens:
        return state
    if failure.number == state.gens[0].number:
        state = _cannot_level(tell(state, "failure", failure.reason, group.name), group)
        return with_(state, trouble=state.trouble or f"{group.name}: {failure.reason}")
    if state.plan is not None and failure.number == state.plan.number and not state.plan.broken:
        return _plan_failed(state, state.plan, group, failure, now)
    return state


def _cannot_level(state: RunState, group: Group) -> RunState:
    """Notes that a member which had to level to its base, or to the switch, did not get there."""
    base, here = state.gens[0].version, group.report.version
    behind = is_member(state.gens[0], group) and group.report.generation < state.gens[0].number and here != base
    return change_group(state, group, unlevelled=here) if behind else state


def _plan_failed(state: RunState, plan: Plan, group: Group, failure: Failure, now: float) -> RunState:
    """A planned generation did not open: the present one is untouched by that, and it is tried again a little later."""
    failures = state.plan_failures + 1
    again_s = now + min(0.1 * 2.0**failures, 10.0)
    state = tell(state, "plan_failed", failure.reason, group.name, failures=failures)
    plan = msgspec.structs.replace(plan, broken=True)
    state = with_(state, plan=plan, plan_failures=failures, plan_again_s=again_s)
    if is_member(state.current, group):
        return state
    failures = group.heal_failures + 1
    return release(state, group, caught=False, heal_failures=failures, retry_s=now + held_off_s(failures))


def _heal_failed(state: RunState, group: Group, failed: HealFailed, now: float) -> RunState:
    if group.heal != failed.heal:
        return state
    reason, behind = failed.reason, group.behind + failed.behind
    if failed.behind and behind < STARTS_OVER and not is_member(state.current, group):
        state = tell(state, "fell_behind", f"it starts over: {reason}", group.name, times=behind)
        return release(state, group, caught=False, behind=behind)
    failures = group.heal_failures + 1
    wait_s = held_off_s(failures)
    if failed.behind:
        reason = _cannot_catch_up(state, group, behind)
    state = tell(state, "heal_failed", reason, group.name, failures=failures, held_off_s=f"{wait_s:g}")
    if is_member(state.current, group):  # the others wait for it in a generation that it cannot enter
        state = with_(state, trouble=state.trouble or f"{group.name} cannot enter: {failed.reason}")
    fields = {"heal_failures": failures, "behind": behind, "retry_s": now + wait_s, "caught": False}
    # Who is apart cannot have got there: that says nothing of what is kept for it.
    if group.apart and failures <= APART_TRIES and any(k.heal == group.heal for k in state.kept):
        return change_group(state, group, heal=0, donors={}, progress=None, **fields)
    return release(state, group, **fields)


def _cannot_catch_up(state: RunState, group: Group, times: int) -> str:
    """Why a joiner falls behind again and again: how fast it loads, against how fast the others go on."""
    progress = group.progress
    loads = "it was never seen to load"
    if progress is not None:
        per_s = progress.bytes / progress.seconds if progress.seconds > 0 else 0.0
        loads = f"{progress.bytes / 1e6:.1f} MB came in {progress.seconds:.1f} s, at {per_s / 1e6:.1f} MB/s"
    return (
        f"it cannot catch up, and fell behind {times} times: {loads}, and the others make a step in "
        f"{state.step_s:.3f} s; give it more bandwidth, or the donors a larger log (heal_log_bytes)"
    )


def _contributed(state: RunState, group: Group, message: Contributed) -> RunState:
    parts = {name: getattr(message, name) for name in message.__struct_fields__ if name != "warm"}
    words = ", ".join(f"{name.removesuffix('_s')} {seconds:.1f}" for name, seconds in parts.items())
    text = f"{sum(parts.values()):.1f} s after its {'warm' if message.warm else 'cold'} start"
    told = {name: f"{seconds:.3f}" for name, seconds in parts.items()}
    state = tell(state, "contributes", text, group.name, warm="yes" if message.warm else "no", **told)
    return change_group(state, group, way=f"contributed {text}: {words}")


def _committed(state: RunState, done: Committed, now: float) -> RunState:
    state = learn_start(state, done.start)
    current = state.current
    if current is None or done.start.number != current.number or not state.history.contains(done.version):
        return state
    if done.version.generation == current.number:
        if not current.committed or done.promoted not in ((), current.grown):
            state = replace_gen(state, msgspec.structs.replace(with_roles(current, done.promoted), committed=True))
            state = with_(state, dirty=True)
        for name in done.mismatched:
            state = _mismatched(state, name)
    if done.version.step > state.newest.step:
        state = with_(
            state,
            newest=done.version,
            loss=done.loss,
            step_s=done.step_s,
            protocol_s=done.protocol_s,
            progress_s=lease_clock(state, now),
        )
        state = core_poison.moved_on(state)
        words = {"loss": f"{done.loss:.4f}", "tokens": done.tokens, "step_s": f"{done.step_s:.3f}"}
        if done.protocol_s:
            words["protocol_s"] = f"{done.protocol_s:.4f}"
        state = tell(state, "step", "skipped" if done.skipped else "", "", **words)
    return state


def _mismatched(state: RunState, name: str) -> RunState:
    group = state.groups.get(name)
    if group is None or group.mismatched:
        return state
    state = tell(state, "mismatch", "its digest differs: it heals again", name)
    return with_(release(state, group, caught=False, mismatched=True), dirty=True)


def finish(state: RunState, version: Version) -> RunState:
    """The run is finished at `version`: everybody left leaves with success."""
    if state.finished is not None:
        return state
    state = with_(emit(state, StoreFinished(version=version)), finished=version, newest=max(state.newest, version))
    state = tell(state, "finished", "", "", step=version.step)
    leave = Leave(reason=f"the run is finished at step {version.step}", success=True)
    return send_all(state, ((group, leave) for group in state.groups.values()))


def _stream_ended(state: RunState, conn: int) -> RunState:
    name = state.conns.get(str(conn))
    state = without_conn(state, conn)
    group = state.groups.get(name) if name is not None else None
    if group is None or group.conn != conn:
        return state
    return change_group(state, group, conn=0)
