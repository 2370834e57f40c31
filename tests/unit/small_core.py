"""A small core, real enough for the shell: welcomes, one generation, leases, an end. Values only."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lighthouse.core_values import (
    CloseStream,
    Core,
    Effect,
    EndRun,
    Event,
    GroupStanding,
    Hold,
    RunConfig,
    RunStatus,
    Said,
    SaidHello,
    Send,
    Started,
    StoreBase,
    StoreClaim,
    StoreFinished,
    StoreIncarnation,
    StoreNumber,
    StoreRecord,
    StreamEnded,
    Tell,
    Tick,
)
from lighthouse.values import (
    ROOT,
    Base,
    Committed,
    Drain,
    Finished,
    Leave,
    Member,
    Role,
    RosterChange,
    Value,
    Version,
    Welcome,
)


class Group(Value, frozen=True):
    name: str
    conn: int
    incarnation: int
    lease_until_s: float
    version: Version = ROOT
    lost: bool = False
    welcomed: bool = False


class SmallState(Value, frozen=True):
    config: RunConfig
    record: StoreRecord = StoreRecord()
    wall_ms: int = 0
    groups: dict[str, Group] = msgspec.field(default_factory=dict)
    number: int = 0
    next_incarnation: int = 1
    finished: Version | None = None
    ended: bool = False
    leaving: tuple[int, ...] = ()
    told: tuple[Tell, ...] = ()
    ticks: tuple[float, ...] = ()


def new_run(config: RunConfig) -> SmallState:
    return SmallState(config=config)


def record(state: SmallState, event: Event, now: float) -> SmallState:
    change = msgspec.structs.replace
    lease_s = state.config.lease_s
    match event:
        case Started():
            return change(
                state, record=event.record, wall_ms=event.wall_ms, next_incarnation=event.record.next_incarnation
            )
        case SaidHello(conn=conn, message=hello):
            group = Group(
                name=hello.name,
                conn=conn,
                incarnation=hello.incarnation or state.next_incarnation,
                lease_until_s=now + lease_s,
            )
            following = max(state.next_incarnation, group.incarnation + 1)
            return change(state, groups={**state.groups, hello.name: group}, next_incarnation=following)
        case Said(name=name, message=message) if name in state.groups:
            group = change(state.groups[name], lease_until_s=now + lease_s)
            if isinstance(message, Committed):
                group = change(group, version=message.version)
            state = change(state, groups={**state.groups, name: group})
            if isinstance(message, Finished):
                return change(state, finished=message.version)
            if isinstance(message, Drain):
                return change(state, leaving=(*state.leaving, event.conn))
            return state
        case StreamEnded(conn=conn):
            return change(state, told=(*state.told, Tell(kind="stream_ended", text=event.reason, number=conn)))
        case Tick(late_s=late_s):
            later = {n: change(g, lease_until_s=g.lease_until_s + late_s) for n, g in state.groups.items()}
            return change(state, groups=later, ticks=(*state.ticks, late_s)[-100:])
    return state


def decide(state: SmallState, now: float) -> tuple[SmallState, Sequence[Effect]]:
    change = msgspec.structs.replace
    effects: list[Effect] = list(state.told)
    groups = dict(state.groups)
    if state.next_incarnation > state.record.next_incarnation:
        effects.append(StoreIncarnation(next=state.next_incarnation))
        state = change(state, record=change(state.record, next_incarnation=state.next_incarnation))
    for name, group in state.groups.items():
        if not group.welcomed:
            welcome = Welcome(
                incarnation=group.incarnation,
                lease_s=state.config.lease_s,
                contributors_wanted=0,
                first_number=state.record.first_number,
                join=False,
            )
            effects.append(Send(conn=group.conn, message=welcome))
            groups[name] = group = change(group, welcomed=True)
        if not group.lost and now > group.lease_until_s:
            groups[name] = change(group, lost=True)
            effects += [Tell(kind="lost", group=name), CloseStream(conn=group.conn)]
    state = change(state, groups=groups, told=())
    if state.number == 0 and len(groups) >= state.config.groups_wanted:
        state, formed = _form(state)
        effects += formed
    for conn in state.leaving:
        effects += [Send(conn=conn, message=Leave(reason="drained", success=True)), CloseStream(conn=conn)]
    if state.finished is not None and not state.ended:
        effects.append(StoreFinished(version=state.finished))
        for group in groups.values():
            effects += [
                Send(conn=group.conn, message=Leave(reason="finished", success=True)),
                CloseStream(conn=group.conn),
            ]
        effects.append(EndRun(success=True, reason="finished"))
        state = change(state, ended=True)
    return change(state, leaving=()), effects


def _form(state: SmallState) -> tuple[SmallState, list[Effect]]:
    number = max(state.record.last_number + 1, state.wall_ms)
    roster = tuple(Member(name=g.name, incarnation=g.incarnation, role=Role.CONTRIBUTOR) for g in state.groups.values())
    change = RosterChange(previous=0, joined=roster)
    effects: list[Effect] = [
        StoreNumber(number=number),
        StoreClaim(number=number, roster=roster, planned=False),
        StoreBase(number=number, version=ROOT, cursor=0),
        Tell(kind="formed", number=number, version=ROOT, fields={"members": str(len(roster))}),
    ]
    base = Base(
        number=number, roster=change, version=ROOT, cursor=0, slots=(), step_slots=1, rendezvous=("127.0.0.1:1",)
    )
    effects += [Send(conn=group.conn, message=base) for group in state.groups.values()]
    return msgspec.structs.replace(state, number=number), effects


def hold(state: SmallState, now: float) -> Hold:
    return Hold.NONE if state.number else Hold.FORMING


def wake_at(state: SmallState, now: float) -> float | None:
    return min((g.lease_until_s + 0.001 for g in state.groups.values() if not g.lost), default=None)


def status(state: SmallState, now: float) -> RunStatus:
    groups = tuple(
        GroupStanding(
            name=g.name,
            incarnation=g.incarnation,
            state="lost" if g.lost else "contributor",
            version=g.version,
            last_heard_s=now - g.lease_until_s + state.config.lease_s,
        )
        for g in state.groups.values()
    )
    return RunStatus(number=state.number, hold=hold(state, now).value, groups=groups, finished=state.ended)


CORE = Core(
    state_type=SmallState,
    new_run=new_run,
    record=record,
    decide=decide,
    hold=hold,
    wake_at=wake_at,
    status=status,
)
