"""The whole state of an agent as one immutable value, and the few questions that all its rules ask.

Each part has one module that changes it: `Life` and `Ending` agent_life, `Session` agent_session, `Seat` agent_step,
`Plan` agent_plan, `Joining`, `Level` and `Staging` agent_heal. Everywhere *record* functions note what is true, and
*rules* act on what is true: a rule that has nothing to do returns the state it was given, the very object.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, TypeVar

import msgspec

from lighthouse.batch import BatchPolicy
from lighthouse.deadlines import Deadlines, Knobs, derive
from lighthouse.values import (
    ROOT,
    Base,
    EntryName,
    Failure,
    Leave,
    Member,
    Probe,
    Probed,
    Progress,
    RosterChange,
    Source,
    Start,
    Value,
    Version,
    Welcome,
)
from replica.agent_values import AgentConfig, Effect, Ledger, LedgerLine, Say
from replica.roster import Roster
from replica.values import Attach, Fetch, Held, Loaded, Moved, Work

UNUSABLE = Version(-1, 0)
"""What a group reports as its version while a load is under way or has failed: it stands nowhere."""


class LifePhase(str, Enum):
    DOWN = "no rank is there"
    UP = "ranks were started"
    ENDING = "ranks are being ended"


class SessionPhase(str, Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    GREETED = "hello was said"
    WELCOMED = "welcomed"


class JoinPhase(str, Enum):
    ASKED = "told to heal"
    LOADING = "ranks load"
    FOLLOWING = "ranks fetch and apply entries"
    FAILED = "wants to be told another way"


class Cause(Value, frozen=True):
    """Why a life ends: the first thing that went wrong in it.

    key: equal for identical failures; slot: in hand, counted in the run's order, -1 if none
    misused: the rank was started wrongly: to start it again would not help
    """

    shard_rank: int
    reason: str
    key: str
    slot: int = -1
    killed: bool = False
    counts: bool = True
    misused: bool = False


class Moments(Value, frozen=True):
    """When the ranks of a life were how far, in seconds of the clock; 0.0: they are not."""

    attached: float = 0.0
    loaded: float = 0.0
    caught_up: float = 0.0
    contributed: float = 0.0
    told: bool = False


class Life(Value, frozen=True):
    """One start of the ranks. Tuples are by shard_rank.

    hands: slot in hand, counted in the run's order, -1 if none; marks: progress in the step in work
    contributes: a step with slots of its own was committed
    last_key, alike, resume_at: the last life's failure, how often in a row, and when ranks may be started again
    knobs: what its ranks take their deadlines from
    """

    number: int = 0
    phase: LifePhase = LifePhase.DOWN
    began_at: float = 0.0
    attached: tuple[Attach | None, ...] = ()
    gone: frozenset[int] = frozenset()
    hands: tuple[int, ...] = ()
    marks: tuple[int, ...] = ()
    commits: int = 0
    contributes: bool = False
    moments: Moments = Moments()
    cause: Cause | None = None
    last_key: str = ""
    alike: int = 0
    resume_at: float = 0.0
    knobs: Knobs = Knobs()


class Ending(Value, frozen=True):
    """The agent leaves. told: its ranks know; until: after this time they are ended and nothing is waited for."""

    code: int
    reason: str
    until: float
    success: bool = False
    kill: bool = False
    goodbye: bool = True
    told: bool = False


class Session(Value, frozen=True):
    """The stream to the lighthouse, and what it has been told over this one."""

    number: int = 0
    phase: SessionPhase = SessionPhase.CLOSED
    tries: int = 0
    retry_at: float = 0.0
    reason: str = ""
    wanted_at: float | None = None
    beat_at: float = 0.0
    starts_told: int = 0
    opened_told: int = 0
    drain_told: bool = False
    finished_told: bool = False


class Stand(Value, frozen=True):
    """What the weights are. answers: slots of the step that follows which this group sums, or will sum.

    step_slots: slots of that step over all groups; 0 while nobody has told or dealt it
    loaded: they came from others, so that the digest of the initial weights says nothing of them
    """

    version: Version = ROOT
    cursor: int = 0
    stop: bool = False
    usable: bool = True
    entries: tuple[EntryName, ...] = ()
    answers: tuple[int, ...] = ()
    step_slots: int = 0
    loaded: bool = False


class Seat(Value, frozen=True):
    """The place in the generation entered last. work is None for a group that has no part in its steps.

    votes: by shard_rank, the records gathered for the step in work; fresh: nothing was committed in it yet
    promoted: members whose role grew in it; since: when the step in work began
    set_aside: slots, in the run's order, that nobody sums in it
    """

    generation: int = 0
    roster: Roster = ()
    place: int = -1
    start: Start = Start(number=0, version=ROOT)
    work: Work | None = None
    votes: tuple[bytes | None, ...] = ()
    failed: str = ""
    fresh: bool = True
    promoted: tuple[Member, ...] = ()
    since: float = 0.0
    set_aside: tuple[int, ...] = ()


class Plan(Value, frozen=True):
    """A generation that was prepared. roster, place: as far as known when it was told; place -1: not a member."""

    number: int
    change: RosterChange
    roster: Roster
    place: int
    rendezvous: tuple[str, ...]
    set_aside: tuple[int, ...] = ()
    asked: bool = False
    opened: frozenset[int] = frozenset()
    ready: bool = False
    ready_told: bool = False
    failed: bool = False


class Level(Value, frozen=True):
    """A base that was told and is not entered yet. roster: as far as known when it was told."""

    base: Base
    roster: Roster | None


class Joining(Value, frozen=True):
    """A heal of this group.

    passing: other joiners that it may load from
    up_to_date, moved: by shard_rank, the version that its sources had nothing newer than, and how much it has loaded
    told_in: session in which the lighthouse was told that it has caught up, or that it failed
    progress: told last, the next time at `progress_at` or later
    """

    heal: int
    sources: tuple[Source, ...]
    passing: tuple[Source, ...] = ()
    phase: JoinPhase = JoinPhase.ASKED
    loaded: tuple[Loaded | None, ...] = ()
    up_to_date: tuple[Version | None, ...] = ()
    caught_up: bool = False
    told_in: int = 0
    reason: str = ""
    behind: bool = False
    moved: tuple[Moved | None, ...] = ()
    progress: Progress | None = None
    progress_at: float = 0.0


class Staging(Value, frozen=True):
    """A heal that this group is a donor of."""

    heal: int
    donors: int
    place: int
    now: bool
    version: Version
    entries: bool = False
    told: bool = False
    staged: bool = False


class AgentState(Value, frozen=True):
    """Everything. floor: every generation below this number is abandoned; floor_told: the ranks know of this one.

    previous: incarnation of the life before, until this one is welcomed
    held: by shard_rank, the entry from `stand.version` that lies verified in its memory; fetching: what ranks were told
    finished: the farewell completed at this version; finish_heard: the lighthouse has answered to that
    probe, probed: whether peers are reached, asked and not tried yet; tried and not told yet
    failures: not told to the lighthouse yet; notes: ledger lines and log events not given out yet
    """

    config: AgentConfig
    life: Life = Life()
    session: Session = Session()
    stand: Stand = Stand()
    seat: Seat = Seat()
    locked: bool = False
    over: bool = False
    batch: BatchPolicy = BatchPolicy(slots=1)
    steps: int = 0
    incarnation: int = 0
    previous: int = 0
    terms: Welcome | None = None
    floor: int = 0
    floor_told: int = 0
    starts: tuple[Start, ...] = ()
    plans: tuple[Plan, ...] = ()
    level: Level | None = None
    joining: Joining | None = None
    stagings: tuple[Staging, ...] = ()
    drops: tuple[int, ...] = ()
    held: tuple[Held | None, ...] = ()
    fetching: Fetch | None = None
    failures: tuple[Failure, ...] = ()
    report_due: bool = False
    drain_since: float | None = None
    leave_after: Leave | None = None
    finished: Version | None = None
    finish_heard: bool = False
    ending: Ending | None = None
    probe: Probe | None = None
    probed: Probed | None = None
    notes: tuple[Ledger | Say, ...] = ()


Rule = Callable[[AgentState, float, list[Effect]], AgentState]
"""Acts on what is true: appends effects, returns the state in which they are done."""

T = TypeVar("T")
put = msgspec.structs.replace


def set_at(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    """`items` with `item` at `index`."""
    return (*items[:index], item, *items[index + 1 :])


def attached(state: AgentState) -> bool:
    """Whether all ranks of the present life are there and nothing has gone wrong with them."""
    life = state.life
    return life.phase is LifePhase.UP and life.cause is None and not life.gone and None not in life.attached


def live(state: AgentState) -> bool:
    """Whether a step is in work that this group may still commit. A generation that failed here is abandoned too."""
    seat = state.seat
    return seat.work is not None and seat.generation >= state.floor and state.ending is None and attached(state)


def well(state: AgentState) -> bool:
    """Whether the group commits steps and has no heal on its hands, its own or another's."""
    return live(state) and state.life.commits > 0 and not state.stagings


def welcomed(state: AgentState) -> bool:
    """Whether the lighthouse can be told something now."""
    return state.session.phase is SessionPhase.WELCOMED


def knobs(state: AgentState) -> Knobs:
    """What all deadlines follow from: the lighthouse's, once it has welcomed the group."""
    terms = state.terms
    if terms is None:
        return state.config.knobs
    return _knobs(terms.lease_s, terms.stall_patience_s, terms.connect_s)


@cache
def _knobs(lease_s: float, stall_patience_s: float, connect_s: float) -> Knobs:
    return Knobs(lease_s=lease_s, stall_patience_s=stall_patience_s, connect_s=connect_s)


def deadlines(state: AgentState) -> Deadlines:
    """The deadlines in force."""
    return derive(knobs(state))


def version_told(state: AgentState) -> Version:
    """What the lighthouse is told of the weights; below zero where there are none to speak of."""
    return state.stand.version if state.stand.usable else UNUSABLE


def shown(state: AgentState, number: int) -> str:
    """The number of a generation or an incarnation as people see it: counted from the run's first."""
    first = state.terms.first_number if state.terms else 0
    return str(number - first + 1 if number >= first > 0 else number)


def noted(state: AgentState, event: str, **fields: object) -> AgentState:
    """With an event to log."""
    say = Say(event=event, fields={name: str(value) for name, value in fields.items()})
    return put(state, notes=(*state.notes, say))


def ledgered(state: AgentState, line: LedgerLine) -> AgentState:
    """With a line for the ledger."""
    return put(state, notes=(*state.notes, Ledger(line={**line, "life": state.life.number})))


def fresh_step(state: AgentState, now: float, **seat: Any) -> AgentState:
    """With no votes and no marks: a step begins, or the one in work ends."""
    none = (None,) * state.config.shards
    return put(
        state,
        seat=put(state.seat, votes=none, since=now, **seat),
        life=put(state.life, marks=(0,) * state.config.shards),
        held=none,
        fetching=None,
    )


def abandoned(state: AgentState, number: int) -> AgentState:
    """With every generation below `number` abandoned for ever: entered, prepared and told alike."""
    if number <= state.floor:
        return state
    keeps_level = state.level is not None and state.level.base.number >= number
    return put(
        state,
        floor=number,
        plans=tuple(plan for plan in state.plans if plan.number >= number),
        level=state.level if keeps_level else None,
    )


def failed(state: AgentState, number: int, reason: str, named: tuple[str, ...] = ()) -> AgentState:
    """With generation `number` given up here: it is abandoned, and the lighthouse is to be told."""
    state = noted(state, "generation_failed", generation=shown(state, number), reason=reason)
    failures = (*state.failures, Failure(number=number, reason=reason, named=named))
    state = put(abandoned(state, number + 1), failures=failures, report_due=True)
    return put(state, seat=put(state.seat, failed=reason))


def ending(state: AgentState, now: float, code: int, reason: str, **more: Any) -> AgentState:
    """With the agent on its way out, unless it is already."""
    if state.ending is not None:
        return state
    state = noted(state, "leaving", code=code, reason=reason)
    until = now + deadlines(state).quit_s
    return put(state, ending=Ending(code=code, reason=reason, until=until, **more), report_due=True)
