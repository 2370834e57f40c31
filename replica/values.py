"""Messages between an agent and its ranks, as immutable values.

Each has a message of the same name and fields in `proto/replica/wire.proto`. Ranks decide nothing about membership or
commits: they send what they saw and act on the agent's verdicts (`Go`, `Commit`, `Apply`, `Leave`), in order, none
skipped.
"""

from __future__ import annotations

from enum import Enum

from lighthouse.values import EntryName, Message, Source, Value, Version


class MarkKind(str, Enum):
    """How far a rank is in a step, in order."""

    SLOT_BEGUN = "slot_begun"
    SLOT_DONE = "slot_done"
    GRADIENTS = "gradients"
    ROLL_CALL = "roll_call"


class HealCount(Value, frozen=True):
    """How many records of a roll call named this heal."""

    heal: int
    records: int


class Merged(Value, frozen=True):
    """The merged roll call of a step: the same value in every group that commits it.

    start: version that the step started from; generation: the one that commits it
    switch: number of the planned generation entered after this step, 0 for none
    stop, save, skip: asked by any; skip also if the reduced gradient is not finite
    heals: each heal named by any record
    loss_sum, tokens: sums over all members and shards; grad_norm: 2-norm of the mean gradient (per token)
    mismatched: places in the roster whose digest differs from the reference; digested: digests were compared
    compute_s: by place, the slowest shard's seconds of forward and backward
    protocol_s: the most that the protocol itself cost any rank in its step before
    set_aside: slots of the step that nobody summed, since they had killed two groups; `slots` counts them too
    """

    start: Version
    generation: int
    slots: int
    switch: int = 0
    stop: bool = False
    save: bool = False
    skip: bool = False
    heals: tuple[HealCount, ...] = ()
    loss_sum: float = 0.0
    tokens: int = 0
    grad_norm: float = 0.0
    digested: bool = False
    mismatched: tuple[int, ...] = ()
    compute_s: tuple[float, ...] = ()
    protocol_s: float = 0.0
    set_aside: tuple[int, ...] = ()

    @property
    def end(self) -> Version:
        """The version that committing this makes."""
        return Version(self.start.step + 1, self.generation)


class Work(Value, frozen=True):
    """What a rank has to do in a step: told by `Go` and `Commit`.

    generation, place, size: the communicator to use, this group's place in its roster, how many members
    version, cursor: where the step starts; slots: those this group answers for (empty: spare, or farewell)
    step_slots: slots of the step over all groups, at least 1; last: the data is through after it, so its record asks to
    stop
    digest: put the digest of `version` into the roll call
    farewell: a step without slots that ends the run
    set_aside: slots of the step that nobody sums
    """

    generation: int
    place: int
    size: int
    version: Version
    cursor: int
    slots: tuple[int, ...]
    step_slots: int
    digest: bool = False
    farewell: bool = False
    last: bool = False
    set_aside: tuple[int, ...] = ()


# ---- rank to agent -------------------------------------------------------------------------------------------------


class Attach(Message, frozen=True):
    """First message of a rank: it has built its model and serves entries; setup as in Hello.

    begun_s, imported_s: when its program began to run, and had imported this library, in seconds of the host's
    monotonic clock; 0.0 where that is not known. warm: it began in a standby
    """

    shard_rank: int
    pid: int
    setup: dict[str, str]
    rendezvous: str
    weights: str
    digest: int
    begun_s: float = 0.0
    imported_s: float = 0.0
    warm: bool = False


class Mark(Message, frozen=True):
    """The rank reached a point of step `step`; slot is -1 where none is meant."""

    kind: MarkKind
    step: int
    slot: int = -1


class RollCall(Message, frozen=True):
    """The records gathered on this shard's communicator: `size` records of equal length, in roster order."""

    generation: int
    step: int
    records: bytes


class RankOpened(Message, frozen=True):
    """This rank's communicator of `number` is open."""

    number: int


class RankFailed(Message, frozen=True):
    """A collective of `number` failed or it could not be opened; the rank waits for a verdict."""

    number: int
    reason: str


class Held(Message, frozen=True):
    """A fetched entry lies verified in this rank's memory."""

    name: EntryName
    merged: Merged


class UpToDate(Message, frozen=True):
    """The source asked has nothing newer than `version` yet; the rank goes on asking."""

    version: Version


class FetchFailed(Message, frozen=True):
    """No source could give the entry that starts at `version`; behind: they have gone past it."""

    version: Version
    reason: str
    behind: bool = False


class Moved(Message, frozen=True):
    """How much of a snapshot has been verified here, told about twice a second while it moves.

    rate: bytes a second since the last time; sources: groups that chunks came from since then
    """

    heal: int
    bytes: int
    total: int
    seconds: float
    rate: float
    sources: tuple[str, ...]


class Loaded(Message, frozen=True):
    """A snapshot was loaded and verified: this rank's state is at `version`."""

    heal: int
    version: Version
    cursor: int
    stop: bool
    bytes: int
    seconds: float


class LoadFailed(Message, frozen=True):
    """The snapshot could not be loaded; the state of this rank is not to be used."""

    heal: int
    reason: str


class Raised(Message, frozen=True):
    """User code raised. The rank is about to exit; `traceback` is text."""

    traceback: str


RankUp = (
    Attach
    | Mark
    | RollCall
    | RankOpened
    | RankFailed
    | Held
    | UpToDate
    | FetchFailed
    | Moved
    | Loaded
    | LoadFailed
    | Raised
)


# ---- agent to rank -------------------------------------------------------------------------------------------------


class Go(Message, frozen=True):
    """Verdict: go on in `work.generation`, from `work.version`, answering for `work.slots`; open it at `rendezvous`.

    A rank that has sums of `work.version` keeps those of slots that it still answers for.
    """

    work: Work
    rendezvous: str


class Commit(Message, frozen=True):
    """Verdict: the step that `merged` tells of is committed: apply it; the next step is `next`.

    stage: heal ids to stage a snapshot for right after applying
    leave: leave after applying (drain, farewell); success and reason as in Leave
    """

    merged: Merged
    next: Work
    stage: tuple[int, ...] = ()
    leave: bool = False
    success: bool = True
    reason: str = ""


class Apply(Message, frozen=True):
    """Verdict: apply the held entry `name`, and drop the sums of the step in work. What comes next is told later.

    stage: heal ids to stage a snapshot for right after applying: the others did so after committing that step
    """

    name: EntryName
    cursor: int
    stage: tuple[int, ...] = ()


class Quit(Message, frozen=True):
    """Verdict: leave now, applying nothing more."""

    success: bool
    reason: str


class Abandoned(Message, frozen=True):
    """Generations below `number` are over: leave their collectives and wait for the verdict."""

    number: int


class Open(Message, frozen=True):
    """Open the communicator of a planned generation in the background."""

    number: int
    place: int
    size: int
    rendezvous: str


class ReadyFor(Message, frozen=True):
    """The roll call may name `number` as the newest generation opened."""

    number: int


class Fetch(Message, frozen=True):
    """Fetch the entry that starts at `version` from one of `sources`, waiting for it if it is not there yet.

    heal: under which number they keep it for this group; 0 if they keep it for nobody
    """

    version: Version
    sources: tuple[Source, ...]
    heal: int = 0


class Load(Message, frozen=True):
    """Rehearse once if that has not been done, then load snapshot `heal` from `sources`."""

    heal: int
    sources: tuple[Source, ...]


class StageFor(Message, frozen=True):
    """Name `heal` in the roll call; or `now`: stage at the present version while waiting for a verdict.

    What is staged are stripes `place` and the next one, of as many as there are `donors`.
    entries: no snapshot, only the log, from the entry that led to the present version on
    """

    heal: int
    now: bool
    place: int
    donors: int
    entries: bool = False


class Drop(Message, frozen=True):
    """Drop the snapshot and the log of `heal`."""

    heal: int


class Patience(Message, frozen=True):
    """The run's deadlines, if they are not those that this rank was started with; all others follow from them."""

    lease_s: float
    stall_patience_s: float
    connect_s: float


RankDown = Go | Commit | Apply | Quit | Abandoned | Open | ReadyFor | Fetch | Load | StageFor | Drop | Patience
