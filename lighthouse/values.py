"""The words of the protocol, as immutable values.

Everything that the pure cores decide from, and everything that crosses the Session stream between a group's agent and
the lighthouse, is one of these. Each message here has a message of the same name and fields in
`proto/lighthouse/wire.proto`; `lighthouse/wire.py` carries one into the other. Journals store the same values.
A *number* is spent for each generation that the lighthouse ever plans; a generation is named by its number.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Value(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Base of all values: immutable, compared by content. None is in a cycle of references: none is looked for."""


class Message(Value, tag=True, frozen=True, kw_only=True):
    """Base of values that are journalled or sent: tagged by their class name."""


class Version(msgspec.Struct, frozen=True, order=True, gc=False):
    """(committed steps, generation that committed the last of them). Equal versions mean bit-equal training state."""

    step: int
    generation: int

    def __str__(self) -> str:
        return f"({self.step}, {self.generation})"


ROOT = Version(0, 0)
"""The version before any step: initial weights."""


class Role(str, Enum):
    """What a member does in a step. A newcomer is a spare whose digest has not been seen equal yet."""

    CONTRIBUTOR = "contributor"
    SPARE = "spare"
    NEWCOMER = "newcomer"


class Member(Value, frozen=True):
    """One group in a roster. `replica_rank` order is the roster's order: natural by name."""

    name: str
    incarnation: int
    role: Role
    host: str = ""


class RosterChange(Value, frozen=True):
    """A roster told as a difference, so that a change costs each member O(changes) bytes.

    previous: the generation whose roster, roles as the receiver has them, it starts from; 0: `joined` is the whole.
    """

    previous: int
    left: tuple[str, ...] = ()
    joined: tuple[Member, ...] = ()


class Source(Value, frozen=True):
    """A group whose ranks serve entries or a snapshot: `weights[shard_rank]` is "host:port" of each rank's server."""

    name: str
    weights: tuple[str, ...]


class EntryName(Value, frozen=True):
    """An entry is named by the version it applies to and the version it makes."""

    start: Version
    end: Version


class Start(Value, frozen=True):
    """The base of a generation as an agent passed through it: generation `number` started from `version`.

    cursor: first slot, in the run's order, of the step that follows `version`
    """

    number: int
    version: Version
    cursor: int = 0


class Report(Message, frozen=True):
    """What a group stands for, said in Hello, after Abandon, and whenever its generation cannot go on.

    abandoned: the group has abandoned every generation below this number, and votes for none of them any more
    version, cursor: what its weights are, and the first slot of the step in work in the run's order
    generation: the generation entered last (0: none yet); `failed`: it cannot go on in that one
    starts: bases it passed through since the last Base or Welcome (planned generations only the members know of)
    answers: slots of the step in work that it was dealt and sums, or will sum
    step_slots: how many slots that step has over all groups; 0 if it does not know
    promoted: members whose role grew in `generation`, as `Member`s with their present role
    entries: entries that it can serve
    stop: a committed roll call asked for the end of the run; what follows is the farewell
    mark: how far its slowest rank is in the step in work (larger is farther)
    heal, donors: the heal that it is in (0: none) and from whom; stagings: heals that it is a donor of
    """

    abandoned: int
    version: Version
    cursor: int
    generation: int = 0
    failed: bool = False
    starts: tuple[Start, ...] = ()
    answers: tuple[int, ...] = ()
    promoted: tuple[Member, ...] = ()
    entries: tuple[EntryName, ...] = ()
    stop: bool = False
    mark: int = 0
    reason: str = ""
    heal: int = 0
    donors: tuple[str, ...] = ()
    stagings: tuple[int, ...] = ()
    step_slots: int = 0


# ---- group to lighthouse -------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """First message of a Session.

    incarnation: a reconnecting agent's own; 0 asks for a new one. previous: then, that of its life before, if any
    host: a name of the machine; took_over: it holds the name's lock there, and has ended any predecessor's ranks
    setup: what must be equal in all groups, field by field (model, slots, slot_size, seed, shards, steps, data, ...)
    rendezvous, weights: by shard_rank, "host:port" of each rank's TCPStore and of its weight server
    digest: digest of the state that the group starts with (all shards)
    """

    run_id: str
    name: str
    incarnation: int
    host: str
    took_over: bool
    setup: dict[str, str]
    rendezvous: tuple[str, ...]
    weights: tuple[str, ...]
    digest: int
    report: Report
    previous: int = 0


class Beat(Message, frozen=True):
    """Renews the lease; also tells the version, so that nothing else has to be sent when nothing happens."""

    version: Version


class Opened(Message, frozen=True):
    """All ranks of the group have opened the communicator of prepared generation `number`."""

    number: int


class Committed(Message, frozen=True):
    """A step was committed. Sent by the first member for every step, by all for the first step of a generation.

    version: what the commit made; start: the generation the group is in after it, with its base
    promoted: members whose role changed by this roll call; mismatched: names whose digest differed
    step_s: seconds of this step here; protocol_s: the most that the protocol cost any rank in its step before
    """

    version: Version
    start: Start
    loss: float
    tokens: int
    grad_norm: float
    step_s: float
    skipped: bool = False
    promoted: tuple[Member, ...] = ()
    mismatched: tuple[str, ...] = ()
    protocol_s: float = 0.0


class Failure(Message, frozen=True):
    """Generation `number` does not go on here: a collective failed, or its communicator did not open."""

    number: int
    reason: str
    named: tuple[str, ...] = ()


class Died(Message, frozen=True):
    """All ranks of this incarnation are gone. The agent says so itself; nothing of it will ever commit again.

    slot: the slot in hand, -1 if none; killed: ended by a person or a host's loss, so that the slot is not to blame
    """

    reason: str
    shard_rank: int
    slot: int = -1
    killed: bool = False


class Drain(Message, frozen=True):
    """The group wants to leave after a step."""


class CaughtUp(Message, frozen=True):
    """A joiner has loaded and replayed everything that there is, up to `version`, and has rehearsed."""

    version: Version


class Progress(Message, frozen=True):
    """How far a joiner is, told about twice a second as long as it gets on.

    bytes, total: of the snapshot, verified so far and in all, over all shards; seconds: how long it has been loading
    rate, donors: bytes a second just now, and from whom; version: what it stands on, below zero while it loads
    """

    heal: int
    bytes: int
    total: int
    seconds: float
    rate: float
    donors: tuple[str, ...]
    version: Version


class HealFailed(Message, frozen=True):
    """A joiner could not load from its donors, or not follow. behind: their logs do not reach back to it any more."""

    heal: int
    reason: str
    behind: bool = False


class Finished(Message, frozen=True):
    """The farewell completed at this group: the run is finished at `version`."""

    version: Version


class Goodbye(Message, frozen=True):
    """The group leaves for good; its ranks are gone or have abandoned everything."""

    reason: str


class Probed(Message, frozen=True):
    """Answer to `Probe(number)`: whose ranks were not reached."""

    number: int
    unreached: tuple[str, ...] = ()


class Contributed(Message, frozen=True):
    """The group contributes for the first time since its ranks were started: seconds since then, by the parts of
    `replica/agent_split.py`; warm: all ranks began in standbys."""

    warm: bool
    start_s: float
    import_s: float
    build_s: float
    transfer_s: float
    replay_s: float
    switch_s: float


_Joining = CaughtUp | Progress | HealFailed | Contributed
Up = Hello | Beat | Report | Opened | Committed | Failure | Probed | _Joining | Died | Drain | Finished | Goodbye


# ---- lighthouse to group -------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """Answer to Hello: the group's incarnation, and whether it must wait to be healed.

    lease_s (to be renewed), stall_patience_s, connect_s: all deadlines follow from them (`lighthouse/deadlines.py`)
    contributors_wanted, allowed_groups: how many members contribute, as `lighthouse.batch.contributors_of` has it
    """

    incarnation: int
    lease_s: float
    contributors_wanted: int
    first_number: int
    join: bool
    allowed_groups: tuple[int, ...] = ()
    stall_patience_s: float = 60.0
    connect_s: float = 60.0


class Refused(Message, frozen=True):
    """The group cannot be in this run; `reason` names the field and both values, and says what to change."""

    reason: str


class Fenced(Message, frozen=True):
    """A newer incarnation of the same name has taken over; this one must end its ranks and exit."""

    by: int


class Abandon(Message, frozen=True):
    """Every generation below `number` is over. Answered by a Report at once."""

    number: int
    reason: str = ""


class Base(Message, frozen=True):
    """Generation `number` starts from `version`; the receiver is a member and answers for `slots` of the next step.

    step_slots: slots of that step over all groups; set_aside: slots from `cursor` on, of later steps too, nobody sums
    rendezvous: by shard_rank, the TCPStore of the first member
    sources: who holds the entry that leads to `version`; empty when the receiver stands on it
    """

    number: int
    roster: RosterChange
    version: Version
    cursor: int
    slots: tuple[int, ...]
    step_slots: int
    rendezvous: tuple[str, ...]
    sources: tuple[Source, ...] = ()
    stop: bool = False
    set_aside: tuple[int, ...] = ()


class Prepare(Message, frozen=True):
    """Open the communicator of plan `number` beside the present one. A newer replaces it. set_aside: in the run."""

    number: int
    roster: RosterChange
    rendezvous: tuple[str, ...]
    set_aside: tuple[int, ...] = ()


class Ready(Message, frozen=True):
    """All members of `number` have opened it: the roll call may name it."""

    number: int


class Stage(Message, frozen=True):
    """Stage stripes `place` and the next one, of `donors`, for a joiner, once all have named `heal` in one roll call.

    now: the run holds; stage at `version` without a roll call, and nothing if this group stands elsewhere by now
    entries: no snapshot: keep the log for the joiner, from the entry that led to the present version on
    """

    heal: int
    joiner: str
    donors: int
    place: int
    now: bool = False
    version: Version = ROOT
    entries: bool = False


class Heal(Message, frozen=True):
    """Load from these donors, and joiners if they pass on the same; then replay entries. entries: load nothing."""

    heal: int
    sources: tuple[Source, ...]
    entries: bool = False
    passing: tuple[Source, ...] = ()


class Release(Message, frozen=True):
    """Heal `heal` is over: drop its snapshot and its log."""

    heal: int


class Leave(Message, frozen=True):
    """Leave. after_commit: only after the next committed step. restart: the agent starts its ranks anew."""

    reason: str
    success: bool
    after_commit: bool = False
    restart: bool = False


class Holding(Message, frozen=True):
    """No generation forms at the moment, and this is what it waits for. For people; changes nothing."""

    reason: str


class Probe(Message, frozen=True):
    """Try whether the ranks of these groups can be reached, for change `number`; answered by Probed soon."""

    number: int
    targets: tuple[Source, ...] = ()


Down = Welcome | Refused | Fenced | Abandon | Base | Prepare | Ready | Stage | Heal | Release | Leave | Holding | Probe
