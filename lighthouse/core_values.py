"""What goes into the lighthouse's core and what comes out of it, as immutable values.

The core is five functions over values (`lighthouse/core.py`): `new_run(config)`, `record(state, event, now)`,
`decide(state, now)`, `hold(state, now)`, `wake_at(state, now)`, and `status(state, now)` for people. The shell
(`lighthouse/owner.py`) gives it events and carries out its effects. Both kinds are journalled.

What the shell promises to the core:

- Times are seconds on one monotonic clock, and never decrease from event to event, nor from event to `decide`.
- `Started` is the first event of a run's life in this process.
- `decide` is never called at or after the time that `wake_at` named unless a `Tick` was recorded just before it, and a
  `Tick` is recorded only after every message that had arrived by then. `Tick.late_s` says how late it comes.
- Effects are carried out in order. Everything to be stored is durable before any later effect is carried out. A store
  that refuses ends the process, so the core never hears of it.
- After `CloseStream(conn)`, and after a stream ended by itself, one `StreamEnded(conn)` comes, and nothing after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec

from lighthouse.deadlines import DEFAULTS, Deadlines, Knobs, derive
from lighthouse.values import ROOT, Down, Hello, Member, Message, Up, Value, Version


class Hold(str, Enum):
    """Why no generation is at work. The value is what people read."""

    NONE = ""
    STARTING = "the lighthouse has just started and judges nobody before one lease has passed"
    FORMING = "waits for the first groups"
    REPORTS = "waits for reports of the members"
    PAUSE = "everybody pauses while a joiner loads"
    TOO_FEW = "fewer groups than min_groups stand on the base"
    FENCE = "nobody of a generation that may still be at work has abandoned it"
    COLD_START = "nobody can go on from the history: waits for a cold start"
    POISON = "a slot was in hand at two deaths: waits for a person"
    FINISHED = "the run is finished"
    ENDED = "the run has ended without finishing"


class RunConfig(Value, frozen=True):
    """How one run is to be led.

    min_groups: fewer standing on the base hold the run
    groups_wanted, join_wait_s: the first formation waits for so many groups, or so long after the first hello
    contributors_wanted: groups beyond it are spares; 0 means no limit
    allowed_groups: only so many groups contribute at a time, the others are spares; empty means any number
    lease_s, stall_patience_s, connect_s: `Knobs`, which all members take over; the rest follows from them (`deadlines`)
    hold_patience_s: a hold longer than this saves and stops the run; 0 means never
    cold_start_after_s: a cold start is made by itself after so long, from trained weights only; 0 means only by an
      operator
    skip_poison: a step is committed without a slot that was in hand at two deaths, instead of holding the run
    donors: how many donors a joiner is given at most; from three on, each holds two of as many stripes
    """

    run_id: str
    min_groups: int = 1
    groups_wanted: int = 1
    join_wait_s: float = DEFAULTS.join_wait_s
    contributors_wanted: int = 0
    allowed_groups: tuple[int, ...] = ()
    lease_s: float = DEFAULTS.knobs.lease_s
    stall_patience_s: float = DEFAULTS.knobs.stall_patience_s
    connect_s: float = DEFAULTS.knobs.connect_s
    hold_patience_s: float = DEFAULTS.hold_patience_s
    cold_start_after_s: float = 0.0
    skip_poison: bool = False
    donors: int = 3

    def __post_init__(self) -> None:
        _refuse(self.min_groups < 1, "min_groups must be at least 1")
        _refuse(
            self.groups_wanted < self.min_groups,
            f"groups_wanted ({self.groups_wanted}) is below min_groups ({self.min_groups}): raise groups_wanted",
        )
        _refuse(self.contributors_wanted < 0, "contributors_wanted must be 0 (no limit) or more")
        _refuse(min(self.allowed_groups, default=1) < 1, "allowed_groups must be counts from 1")
        least = min(self.allowed_groups, default=1)
        _refuse(
            0 < self.contributors_wanted < least,
            f"no count in allowed_groups is as small as contributors_wanted ({self.contributors_wanted}): add one, or "
            "raise contributors_wanted",
        )
        _refuse(
            self.min_groups < least,
            f"min_groups ({self.min_groups}) is below the smallest count in allowed_groups ({least}): with fewer the "
            f"run has to hold, so raise min_groups to {least}",
        )
        _refuse(
            0 < self.hold_patience_s < self.lease_s,
            f"hold_patience_s ({self.hold_patience_s}) is below lease_s ({self.lease_s}): raise it, or set 0 for never",
        )
        _refuse(self.join_wait_s < 0 or self.cold_start_after_s < 0, "waits must be 0 or more")
        _refuse(self.donors < 1, "donors must be at least 1")
        derive(self.knobs)

    @property
    def knobs(self) -> Knobs:
        """The three deadlines that the run was given."""
        return Knobs(lease_s=self.lease_s, stall_patience_s=self.stall_patience_s, connect_s=self.connect_s)

    @property
    def deadlines(self) -> Deadlines:
        """All deadlines of the run."""
        return derive(self.knobs)


def _refuse(bad: bool, why: str) -> None:
    if bad:
        raise ValueError(why)


# ---- what the store holds ------------------------------------------------------------------------------------------


class ClaimRecord(Value, frozen=True):
    """Generation `number` was to be formed by `roster`; planned: beside a generation at work."""

    number: int
    roster: tuple[Member, ...]
    planned: bool


class BaseRecord(Value, frozen=True):
    """Generation `number` started from `version`, whose next step begins at slot `cursor` of the run.

    set_aside: slots from there on, counted from 0, which steps are committed without
    """

    number: int
    version: Version
    cursor: int
    set_aside: tuple[int, ...] = ()


class SlotDeath(Value, frozen=True):
    """`group` died by itself with `slot` (in the run's order) in hand, of the step that follows version step `step`."""

    step: int
    slot: int
    group: str


class StoreRecord(Value, frozen=True):
    """What the store holds of a run: an empty one has no number.

    first_number, last_number: the first and the newest number spent; 0 for none
    next_incarnation: the number that the next new incarnation gets; 1: none was given yet
    claims: those of the last base's generation and of later ones, by number; bases: all, by number
    setup: what all groups have in common, empty until it was stored; finished: where the run finished
    deaths: those with a slot in hand, as they were when the last one happened
    """

    first_number: int = 0
    last_number: int = 0
    next_incarnation: int = 1
    claims: tuple[ClaimRecord, ...] = ()
    bases: tuple[BaseRecord, ...] = ()
    setup: dict[str, str] = msgspec.field(default_factory=dict)
    finished: Version | None = None
    deaths: tuple[SlotDeath, ...] = ()


# ---- events --------------------------------------------------------------------------------------------------------


class Started(Message, frozen=True):
    """A lighthouse has begun to lead the run, which stood as `record` in the store; `wall_ms` since 1970."""

    record: StoreRecord
    wall_ms: int


class SaidHello(Message, frozen=True):
    """A new Session stream, numbered `conn` by the shell, began with this hello."""

    conn: int
    message: Hello


class Said(Message, frozen=True):
    """The group said this on stream `conn`, which was welcomed as `incarnation` of `name`."""

    conn: int
    name: str
    incarnation: int
    message: Up


class StreamEnded(Message, frozen=True):
    """Stream `conn` is over: closed by either side, broken, or too slow to read what it was sent."""

    conn: int
    reason: str = ""


class Tick(Message, frozen=True):
    """The time that `wake_at` named has come, and everything that had arrived by now was recorded.

    late_s: how much later than `wake_at` asked. A long one means that this process did not run: messages may have been
    waiting elsewhere as well, so leases are extended by it.
    """

    late_s: float = 0.0


class ColdStartAsked(Message, frozen=True):
    """A person wants the run, which holds, to go on from what is here, whatever else may be at work or in the history.

    Without such a hold it changes nothing.
    """

    by: str = "an operator"


class SkipSlotAsked(Message, frozen=True):
    """A person wants the step committed without the slots that the run holds for. Without such a hold: nothing."""

    by: str = "an operator"


Event = Started | SaidHello | Said | StreamEnded | Tick | ColdStartAsked | SkipSlotAsked


# ---- effects -------------------------------------------------------------------------------------------------------


class StoreNumber(Message, frozen=True):
    """Spend `number`: refused unless it is above every number spent. The first one is the run's first number."""

    number: int


class StoreClaim(Message, frozen=True):
    """Claim `number`, which was spent, for `roster`: refused if a higher number was spent, or it is claimed already."""

    number: int
    roster: tuple[Member, ...]
    planned: bool


class StoreBase(Message, frozen=True):
    """Write the base of `number`: refused if a higher number was spent, or if it has another base.

    reported: members passed through this base of a planned generation; it is history whatever was claimed since, and
    refused only if a higher base exists.
    """

    number: int
    version: Version
    cursor: int
    reported: bool = False
    set_aside: tuple[int, ...] = ()


class StoreIncarnation(Message, frozen=True):
    """The next new incarnation gets number `next`: refused unless that is higher than before."""

    next: int


class StoreSetup(Message, frozen=True):
    """What all groups have in common: refused if the store has another."""

    setup: dict[str, str]


class StoreFinished(Message, frozen=True):
    """The run is finished at `version`: refused if it is finished elsewhere."""

    version: Version


class StoreDeaths(Message, frozen=True):
    """Deaths with a slot in hand, in place of those stored before: never refused."""

    deaths: tuple[SlotDeath, ...]


StoreEffect = StoreNumber | StoreClaim | StoreBase | StoreIncarnation | StoreSetup | StoreFinished | StoreDeaths


class Send(Message, frozen=True):
    """Send `message` on stream `conn`. A stream that is gone takes it silently."""

    conn: int
    message: Down


class CloseStream(Message, frozen=True):
    """Close stream `conn` once what was sent on it is out."""

    conn: int


class Tell(Message, frozen=True):
    """Something happened, for people and tests (Watch); `kind` is one of the names in docs/protocol.md."""

    kind: str
    number: int = 0
    version: Version | None = None
    group: str = ""
    text: str = ""
    fields: dict[str, str] = msgspec.field(default_factory=dict)


class EndRun(Message, frozen=True):
    """The run is over and every stream of it was told: a lighthouse that serves one run may exit."""

    success: bool
    reason: str


Effect = StoreEffect | Send | CloseStream | Tell | EndRun


# ---- for people ----------------------------------------------------------------------------------------------------


class GroupStanding(Value, frozen=True):
    """A group as the lighthouse sees it. state: contributor, spare, newcomer, joiner, lost, starting."""

    name: str
    incarnation: int
    state: str
    version: Version
    last_heard_s: float
    host: str = ""
    detail: str = ""


class RunStatus(Value, frozen=True):
    """The run as the lighthouse sees it; as `StatusReply` on the wire. number: the newest generation with a base.

    hold: why no generation is at work, in words; empty if one is. protocol_s: of step_s, what the protocol itself cost.
    uptime_s is filled in by the shell.
    """

    run_id: str = ""
    number: int = 0
    first_number: int = 0
    version: Version = ROOT
    hold: str = ""
    groups: tuple[GroupStanding, ...] = ()
    loss: float = 0.0
    step_s: float = 0.0
    protocol_s: float = 0.0
    uptime_s: float = 0.0
    finished: bool = False


class Happened(Value, frozen=True):
    """A `Tell` with the wall-clock time at which it was told (seconds since 1970); as `Event` on the wire."""

    time_s: float
    kind: str
    number: int = 0
    version: Version = ROOT
    group: str = ""
    text: str = ""
    fields: dict[str, str] = msgspec.field(default_factory=dict)


# ---- the functions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Core:
    """The functions that lead a run. `state_type` is what `new_run` gives: a msgspec type that journals can keep."""

    state_type: Any
    new_run: Callable[[RunConfig], Any]
    record: Callable[[Any, Event, float], Any]
    decide: Callable[[Any, float], tuple[Any, Sequence[Effect]]]
    hold: Callable[[Any, float], Hold]
    wake_at: Callable[[Any, float], float | None]
    status: Callable[[Any, float], RunStatus]
