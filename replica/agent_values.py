"""What goes into the agent's core and what comes out of it, as immutable values.

The shell calls `record(state, event, now)` for each event in the order in which they happened, then
`decide(state, now)`, and carries the effects out in the order given. It journals every (now, event), so that the
journal of an incident is its regression test. `now` is in seconds of one monotonic clock.

Two counters fence what is late. A *life* is one start of the group's ranks: what a rank of an earlier life says or
does is dropped. A *session* is one attempt to reach the lighthouse: what came over an earlier one is dropped. The
core counts both up and tells them in its effects; the shell stamps its events with them.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from lighthouse.deadlines import Knobs
from lighthouse.values import Down, Message, Source, Up, Value
from replica.values import RankDown, RankUp

LedgerLine = dict[str, str | int | float | list[int]]


class AgentConfig(Value, frozen=True):
    """What an agent is told once, at its start."""

    run_id: str
    """The run that the group belongs to."""
    name: str
    """The group's name; names are ordered naturally, so "g2" comes before "g10"."""
    host: str
    """A name of this machine."""
    shards: int
    """Ranks in the group."""
    knobs: Knobs = Knobs()
    """From these all deadlines follow, until a lighthouse has welcomed the group: then from the run's."""
    insists: tuple[str, ...] = ()
    """Fields of `knobs` that a person gave: the group leaves a run that has others, saying so."""
    reconnect_s: float = 0.25
    """Pause before a Session is tried again; doubled with each failure, up to the deadline `redial_s`."""
    restart_limit: int = 3
    """So many lives in a row may end by the same failure (last line of the traceback, or exit code); then the agent
    ends, saying why."""
    restart_forgive_steps: int = 10
    """A life that committed so many steps (one, if it was killed from outside) starts that count afresh."""
    restart_backoff_s: float = 1.0
    """Pause before ranks are started again; doubled with each identical failure, up to `restart_backoff_max_s`. None
    after a life whose steps start the count afresh."""
    restart_backoff_max_s: float = 60.0
    """Longest pause before ranks are started again."""

    def __post_init__(self) -> None:
        for field in ("shards", "restart_limit", "restart_forgive_steps"):
            if getattr(self, field) < 1:
                raise ValueError(f"{field} is {getattr(self, field)}; it must be at least 1")
        for field in (f.name for f in msgspec.structs.fields(type(self))):
            if field.endswith("_s") and getattr(self, field) < 0:
                raise ValueError(f"{field} is {getattr(self, field)}; seconds cannot be negative")
        if not self.name or not self.run_id:
            raise ValueError("name and run_id must not be empty")


# ---- events: shell to core -----------------------------------------------------------------------------------------


class TookOver(Message, frozen=True):
    """The lock of this name on this host is held, and no rank of a predecessor is left."""


class SessionOpened(Message, frozen=True):
    """The Session stream asked for by `OpenSession(session)` is open; nothing has been sent on it."""

    session: int


class SessionClosed(Message, frozen=True):
    """The stream of `session` ended, or could not be opened. Not said after `CloseSession(session)` was carried out
    (harmless if it is)."""

    session: int
    reason: str


class LighthouseSaid(Message, frozen=True):
    """A message came over `session`."""

    session: int
    message: Down


class RankSaid(Message, frozen=True):
    """A rank of `life` said something on its Attach stream; the first thing is its Attach."""

    life: int
    shard_rank: int
    message: RankUp


class RankExited(Message, frozen=True):
    """A rank's process is gone (reaped), whatever ended it; said once for every rank of every life.

    code: exit code, or minus the number of the signal that ended it; a rank that could not be started, or whose Attach
    ended and that had then to be ended by the shell, counts as exited with code 1 and a reason in `traceback`
    traceback: text of the exception where the rank told one, else ""
    """

    life: int
    shard_rank: int
    code: int
    traceback: str = ""


class DrainAsked(Message, frozen=True):
    """A person or a scheduler asked the group to leave (SIGTERM)."""


class PeersTried(Message, frozen=True):
    """What came of `TryPeers(number)`: whose ranks were not reached."""

    number: int
    unreached: tuple[str, ...] = ()


Event = TookOver | SessionOpened | SessionClosed | LighthouseSaid | RankSaid | RankExited | DrainAsked | PeersTried


# ---- effects: core to shell ----------------------------------------------------------------------------------------


class ToLighthouse(Message, frozen=True):
    """Send on the open Session; if that is just gone, drop it: the next Hello says what matters."""

    message: Up


class ToRank(Message, frozen=True):
    """Send to one rank of the present life; dropped if it is gone."""

    shard_rank: int
    message: RankDown


class ToRanks(Message, frozen=True):
    """Send to all ranks of the present life, in shard order; dropped for those that are gone."""

    message: RankDown


class StartRanks(Message, frozen=True):
    """Start all ranks; they, and what they say, belong to `life`."""

    life: int


class EndRanks(Message, frozen=True):
    """End what is left of the ranks of `life`, with SIGKILL to their process groups. `RankExited` follows for each."""

    life: int


class OpenSession(Message, frozen=True):
    """Try to open a Session to the lighthouse: `SessionOpened` or `SessionClosed` follows."""

    session: int


class TryPeers(Message, frozen=True):
    """Try to reach the ranks of these groups: `PeersTried` follows."""

    number: int
    targets: tuple[Source, ...] = ()


class CloseSession(Message, frozen=True):
    """Send what is queued on `session`, then close it."""

    session: int


class Ledger(Message, frozen=True):
    """Append one line to the group's ledger. Lines are what tests and people count from:

    event "slot": `slot` of the step after `step` begun or done (`mark`) by `shard_rank`, in `generation`; `cursor`: the
    slot's place in the run's order, -1 if the group is past that step
    event "commit": a step was committed here: it made (`step`, `generation`) from (`from_step`, `from_generation`);
    `cursor`: its first slot in the run's order; `slots` that this group summed; `loss` (sum over the step), `tokens`,
    `skipped` (0 or 1); `protocol_s`: the most that the protocol cost any rank in its step before
    event "apply": the same for an entry that was applied (no `slots`)
    event "load": the group stands on (`step`, `generation`) and `cursor` by heal `heal`
    event "enter": `generation` entered from (`step`, `from_generation`), with `slots` to sum first
    each with `life`
    """

    line: LedgerLine


class Say(Message, frozen=True):
    """Log an event with its fields, for people."""

    event: str
    fields: dict[str, str]


class Exit(Message, frozen=True):
    """The agent is over: send what is queued (bounded), close everything, and end with `code`. No rank is left."""

    code: int
    reason: str


Effect = (
    ToLighthouse
    | ToRank
    | ToRanks
    | StartRanks
    | EndRanks
    | OpenSession
    | TryPeers
    | CloseSession
    | Ledger
    | Say
    | Exit
)


class AgentHold(str, Enum):
    """What an agent waits for, when its ranks are in no step."""

    NOTHING = "nothing: a step is in work"
    LOCK = "the lock of this name on this host"
    RANKS = "its ranks to attach"
    RESTART = "the pause before its ranks are started again"
    LIGHTHOUSE = "the lighthouse to welcome it"
    BASE = "a base, or to be healed"
    LEVEL = "the entry that leads to the base"
    HEAL = "a snapshot to be loaded"
    CATCH_UP = "the switch to a generation that it is in"
    VERDICT = "the lighthouse, after its generation was abandoned or failed"
    LEAVING = "its ranks to leave"
    OVER = "nothing: it has left"
