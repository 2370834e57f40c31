"""The lighthouse of the small worlds: what one event makes of it and of its store, and which of its deadlines wait.

Incarnations are counted for each name by itself: the core compares them only so, and the order in which different
groups say hello would otherwise tell apart states that are the same.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lighthouse.core import decide, hold, new_run, record, wake_at
from lighthouse.core_change import _awaited
from lighthouse.core_state import Group, RunState, in_grace, new_gen, with_
from lighthouse.core_values import (
    CloseStream,
    EndRun,
    Event,
    Hold,
    RunConfig,
    Said,
    SaidHello,
    Send,
    Started,
    StoreIncarnation,
    StoreRecord,
    StreamEnded,
    Tell,
    Tick,
)
from lighthouse.table import Table
from lighthouse.values import ROOT, Abandon, Finished, Holding, Leave, Progress, Report, Value, Version
from simulation.small_host import Spec
from simulation.small_values import NOW, Numbers

PAST = NOW - 100.0
RETRIES = 2
"""A joiner that failed so often is not told to try again: the pauses between tries have no end."""


class Waits(Value, frozen=True):
    """What the lighthouse's deadlines wait for.

    groups: (name, incarnation, stream) of all whose leases run; members: of the generation at work
    reports: names awaited until a change's deadline, also those that may come back; missing: in the first lease;
    check: a member is gone without a word; plan: names that have to open one; again, retry: pauses run
    """

    groups: tuple[tuple[str, int, int], ...]
    members: tuple[tuple[str, int], ...]
    reports: tuple[str, ...]
    missing: tuple[str, ...]
    grace: bool
    check: bool
    plan: tuple[str, ...]
    again: bool
    retry: bool
    number: int
    finished: bool
    ended: str
    hold: str


def first_state(spec: Spec, stored: StoreRecord, restarts: int) -> RunState:
    """A lighthouse that has just read its store."""
    # With one donor: which of several dies first makes many more worlds, and no other kind of them.
    config = RunConfig(
        run_id="small", min_groups=spec.min_groups, groups_wanted=spec.groups, hold_patience_s=0.0, donors=1
    )
    started = Started(record=stored, wall_ms=1 + 100 * restarts)
    state = with_(record(new_run(config), started, NOW), next_incarnation=0)
    if restarts == 0:  # nobody was there before, so nobody is waited for
        state = with_(state, started_s=PAST)
    return state if spec.raw else plain(state)


def turn(
    state: RunState, key: tuple[Any, ...], numbers: Numbers, raw: bool = False
) -> tuple[RunState, list[Any], list[str]]:
    """The state after the event that `key` names, its effects, and the promises that were broken."""
    wrong: list[str] = []
    now, (state, event) = state, _event(state, key, numbers)
    after = record(state, event, NOW)
    if isinstance(event, Said):
        known = state.groups.get(event.name)
        if known is None or known.incarnation != event.incarnation:
            wrong += broken_by_the_past(state, after, event)
    after, effects = decide(after, NOW)
    wrong += _overlooked(now, state, event, effects)
    again, more = decide(after, NOW)
    if more or again != after:
        wrong.append("the lighthouse: deciding twice changes something")
    due = wake_at(after, NOW)
    if due is not None and due <= NOW:
        wrong.append("the lighthouse wants to wake in the past")
    if after.last_number < state.last_number:
        wrong.append("numbers shrink")
    return after if raw else plain(after), _told(effects, numbers), wrong


def _overlooked(now: RunState, then: RunState, event: Event, effects: tuple[Any, ...]) -> list[str]:
    """Whether the lighthouse would do otherwise if it had looked at who is awaited `now`, just before `event`: then it
    looks again only once so many have been heard that nobody may be. then: when the event happens."""
    change = now.change
    if change is None or change.looked is not None or then.change is None:
        return []
    awaited = (len(_awaited(now, change, NOW)) + 1) // 2
    looked = (change.until_s <= NOW, in_grace(now, NOW), False, tuple(gen.number for gen in now.gens))
    before = with_(then, change=msgspec.structs.replace(then.change, looked=looked, awaited=awaited, heard=0))
    done = decide(record(before, event, NOW), NOW)[1]
    if [e for e in done if not isinstance(e, Tell)] != [e for e in effects if not isinstance(e, Tell)]:
        return ["the lighthouse does not look at who is awaited"]
    return []


def broken_by_the_past(before: RunState, after: RunState, said: Said) -> list[str]:
    """An incarnation that was lost or replaced changes nothing, but for what it knows to be true for ever.

    That is one thing: that the farewell completed, said by a member of a generation that may still be at work. Then all
    members stood at that version, where nothing is left to commit, so nobody can make a step that contradicts it.
    """
    same = with_(
        after, dirty=before.dirty, change=before.change
    )  # events are counted, and looked at, whatever they say
    member = any(gen.members.get(said.name) == said.incarnation for gen in before.gens)
    if isinstance(said.message, Finished) and member and before.finished is None:
        version = said.message.version
        same = with_(same, finished=None, newest=before.newest, outbox=before.outbox)
        if after.finished != version or after.newest != max(before.newest, version):
            return [f"{said.name} has finished at {version}, and the lighthouse does not believe it"]
    if same != before:
        return [f"{said.name} changed something as incarnation {said.incarnation}, which is over"]
    return []


def _event(state: RunState, key: tuple[Any, ...], numbers: Numbers) -> tuple[RunState, Event]:
    """The event, and the state in which it happens: for a deadline, one in which time has passed for that alone."""
    match key:
        case ("hello", conn, message, following):
            return with_(state, next_incarnation=following), SaidHello(conn=conn, message=numbers.values[message])
        case ("said", conn, name, incarnation, message):
            said = Said(conn=conn, name=name, incarnation=incarnation, message=numbers.values[message])
            return state, said
        case ("ended", conn):
            return state, StreamEnded(conn=conn)
        case ("lease", name):
            group = state.groups.get(name)
            assert group is not None
            silent = msgspec.structs.replace(group, heard_s=PAST)
            return with_(state, groups=state.groups.set(name, silent), check_s=PAST), Tick()
        case ("reports",):
            assert state.change is not None
            return with_(state, change=msgspec.structs.replace(state.change, until_s=NOW)), Tick()
        case ("grace",):
            return with_(state, started_s=PAST, check_s=PAST), Tick()
        case ("check",):
            return with_(state, check_s=PAST), Tick()
        case ("plan",):
            assert state.plan is not None
            return with_(state, plan=msgspec.structs.replace(state.plan, until_s=NOW)), Tick()
        case ("again",):
            return with_(state, plan_again_s=NOW), Tick()
        case ("retry",):
            for group in state.groups.values():
                if group.retry_s:
                    ready = msgspec.structs.replace(group, retry_s=PAST)
                    state = with_(state, groups=state.groups.set(group.name, ready))
            return with_(state, retry_s=NOW), Tick()
    raise ValueError(f"not an event: {key}")


def plain(state: RunState) -> RunState:
    """Without what differs where nothing else does: words that say why, what a joiner told of its progress (but that it
    did), the next incarnation (kept by name), and since when it holds or a joiner has moved (no patience ends here)."""
    over = state.finished is not None or bool(state.ended)
    if over:
        gens = tuple(new_gen(gen.number, gen.roster, gen.planned) for gen in state.gens)
        nothing = {"change": None, "plan": None, "hold": Hold.NONE, "hold_text": "", "trouble": ""}
        state = with_(state, retry_s=0.0, plan_again_s=0.0, plan_failures=0, started_s=PAST, gens=gens, **nothing)
        state = with_(state, newest=state.finished or ROOT, next_heal=0, kept=(), odd=Table())
    if state.finished is not None:  # nobody is told anything any more but who says hello
        state = with_(state, ended="", deaths=(), groups=Table(), conns=Table())
    for group in state.groups.values():
        bare = _plain_group(state, group, over)
        if bare != group:
            state = with_(state, groups=state.groups.set(group.name, bare))
    change = state.change
    if change is not None:
        change = msgspec.structs.replace(change, reason="", heard=0)
        if change.awaited:  # `turn` sees to it that when it looked last makes no difference
            change = msgspec.structs.replace(change, looked=None, awaited=0)
            state = with_(state, hold_text="reports")
        state = with_(state, change=change)
    return with_(state, next_incarnation=0, hold_since_s=0.0, moved_s=0.0)


def _plain_group(state: RunState, group: Group, over: bool) -> Group:
    """A group without what was noted for people, or has had its effect when it came. over: where it stands matters to
    nobody any more."""
    if over:
        report = Report(abandoned=0, version=ROOT, cursor=0)
        who = {"name": group.name, "incarnation": group.incarnation, "conn": group.conn, "host": group.host}
        return Group(**who, heard_s=NOW, rendezvous=(), weights=(), digest=0, report=report, version=ROOT)
    return msgspec.structs.replace(
        group,
        report=_plain_report(state, group),
        held=group.held and state.change is not None and state.change.number == group.first,
        first=group.first if group.heal else 0,
        progress=group.progress and _plain_progress(group.progress),
        opened=group.opened if state.plan is not None and state.plan.number == group.opened else 0,
        retry_s=group.retry_s if group.retry_s > NOW else 0.0,
        way="",
        loading=group.loading and (group.heal == 0 or group.report.version.step >= 0),
    )


def _plain_report(state: RunState, group: Group) -> Report:
    """What a group stands for, if it has reported for the change; else it reports again before anybody asks for more
    than for where it stood, whether it was in the generation at work, and whether it has heard of its heal."""
    change, report = state.change, group.report
    if change is None or report.abandoned < change.number:
        return Report(
            abandoned=0,
            version=report.version,
            cursor=0,
            generation=report.generation if state.gens and report.generation >= state.gens[0].number else 0,
            stagings=report.stagings,
            heal=report.heal if report.heal == group.heal else 0,
        )
    return msgspec.structs.replace(report, abandoned=change.number, failed=False, starts=(), reason="")


def _plain_progress(progress: Progress) -> Progress:
    """How far a joiner is, as far as anything depends on it: whether it has loaded."""
    version = ROOT if progress.version.step >= 0 else Version(-1, 0)
    return Progress(heal=0, bytes=1, total=1, seconds=1.0, rate=1.0, donors=(), version=version)


def _told(effects: tuple[Any, ...], numbers: Numbers) -> list[Any]:
    """Effects as (kind, …), without what people are told."""
    told: list[Any] = []
    for effect in effects:
        match effect:
            case Tell() | Send(message=Holding()):
                pass
            case Send(conn=conn, message=message):
                if isinstance(message, Abandon):
                    message = Abandon(number=message.number)
                if isinstance(message, Leave):
                    message = msgspec.structs.replace(message, reason="leave")
                told.append(("send", conn, numbers.of(message)))
            case CloseStream(conn=conn):
                told.append(("close", conn))
            case EndRun():
                pass
            case StoreIncarnation(next=following):
                told.append(("next", following))
            case _:
                told.append(("store", numbers.of(effect)))
    return told


def waits(state: RunState) -> Waits:
    """What the deadlines of `state` wait for."""
    grace = in_grace(state, NOW)
    current, change, plan = state.current, state.change, state.plan
    over = state.finished is not None or bool(state.ended)
    awaited: tuple[str, ...] = ()
    if change is not None and change.until_s > NOW:
        names = _awaited(state, change, NOW)
        awaited = tuple(n for n in names if change.again or (g := state.groups.get(n)) is not None and g.live)
    missing = tuple(m.name for m in (current.roster if current else ()) if state.groups.get(m.name) is None)
    planned: tuple[str, ...] = ()
    if plan is not None and not plan.ready:
        roster = next(g.roster for g in state.gens if g.number == plan.number)
        planned = tuple(m.name for m in roster)
    tired = any(g.heal_failures > RETRIES for g in state.groups.values())
    return Waits(
        groups=tuple((g.name, g.incarnation, g.conn) for g in state.groups.values()),
        members=tuple(sorted(current.members.items())) if current else (),
        reports=awaited,
        missing=missing,
        grace=grace,
        check=not grace and bool(missing) and change is None and not over,
        plan=planned,
        again=state.plan_again_s > NOW and not over and state.plan_failures <= RETRIES,
        retry=state.retry_s > NOW and not over and not tired,
        number=current.number if current else 0,
        finished=state.finished is not None,
        ended=state.ended,
        hold=hold(state, NOW).name if hold(state, NOW) is not Hold.NONE else "",
    )
