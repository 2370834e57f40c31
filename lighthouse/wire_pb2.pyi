from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Version(_message.Message):
    __slots__ = ("step", "generation")
    STEP_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    step: int
    generation: int
    def __init__(self, step: _Optional[int] = ..., generation: _Optional[int] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "incarnation", "role", "host")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    role: str
    host: str
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., role: _Optional[str] = ..., host: _Optional[str] = ...) -> None: ...

class RosterChange(_message.Message):
    __slots__ = ("previous", "left", "joined")
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    JOINED_FIELD_NUMBER: _ClassVar[int]
    previous: int
    left: _containers.RepeatedScalarFieldContainer[str]
    joined: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, previous: _Optional[int] = ..., left: _Optional[_Iterable[str]] = ..., joined: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("name", "weights")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    weights: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., weights: _Optional[_Iterable[str]] = ...) -> None: ...

class EntryName(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: Version
    end: Version
    def __init__(self, start: _Optional[_Union[Version, _Mapping]] = ..., end: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("number", "version", "cursor")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    number: int
    version: Version
    cursor: int
    def __init__(self, number: _Optional[int] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., cursor: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("abandoned", "version", "cursor", "generation", "failed", "starts", "answers", "promoted", "entries", "stop", "mark", "reason", "step_slots", "heal", "donors", "stagings")
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STEP_SLOTS_FIELD_NUMBER: _ClassVar[int]
    HEAL_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    STAGINGS_FIELD_NUMBER: _ClassVar[int]
    abandoned: int
    version: Version
    cursor: int
    generation: int
    failed: bool
    starts: _containers.RepeatedCompositeFieldContainer[Start]
    answers: _containers.RepeatedScalarFieldContainer[int]
    promoted: _containers.RepeatedCompositeFieldContainer[Member]
    entries: _containers.RepeatedCompositeFieldContainer[EntryName]
    stop: bool
    mark: int
    reason: str
    step_slots: int
    heal: int
    donors: _containers.RepeatedScalarFieldContainer[str]
    stagings: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, abandoned: _Optional[int] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., cursor: _Optional[int] = ..., generation: _Optional[int] = ..., failed: _Optional[bool] = ..., starts: _Optional[_Iterable[_Union[Start, _Mapping]]] = ..., answers: _Optional[_Iterable[int]] = ..., promoted: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., entries: _Optional[_Iterable[_Union[EntryName, _Mapping]]] = ..., stop: _Optional[bool] = ..., mark: _Optional[int] = ..., reason: _Optional[str] = ..., step_slots: _Optional[int] = ..., heal: _Optional[int] = ..., donors: _Optional[_Iterable[str]] = ..., stagings: _Optional[_Iterable[int]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("run_id", "name", "incarnation", "host", "took_over", "setup", "rendezvous", "weights", "digest", "report", "previous")
    class SetupEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    TOOK_OVER_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    name: str
    incarnation: int
    host: str
    took_over: bool
    setup: _containers.ScalarMap[str, str]
    rendezvous: _containers.RepeatedScalarFieldContainer[str]
    weights: _containers.RepeatedScalarFieldContainer[str]
    digest: int
    report: Report
    previous: int
    def __init__(self, run_id: _Optional[str] = ..., name: _Optional[str] = ..., incarnation: _Optional[int] = ..., host: _Optional[str] = ..., took_over: _Optional[bool] = ..., setup: _Optional[_Mapping[str, str]] = ..., rendezvous: _Optional[_Iterable[str]] = ..., weights: _Optional[_Iterable[str]] = ..., digest: _Optional[int] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., previous: _Optional[int] = ...) -> None: ...

class Beat(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: Version
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("version", "start", "loss", "tokens", "grad_norm", "step_s", "skipped", "promoted", "mismatched", "protocol_s")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_FIELD_NUMBER: _ClassVar[int]
    MISMATCHED_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_S_FIELD_NUMBER: _ClassVar[int]
    version: Version
    start: Start
    loss: float
    tokens: int
    grad_norm: float
    step_s: float
    skipped: bool
    promoted: _containers.RepeatedCompositeFieldContainer[Member]
    mismatched: _containers.RepeatedScalarFieldContainer[str]
    protocol_s: float
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., loss: _Optional[float] = ..., tokens: _Optional[int] = ..., grad_norm: _Optional[float] = ..., step_s: _Optional[float] = ..., skipped: _Optional[bool] = ..., promoted: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., mismatched: _Optional[_Iterable[str]] = ..., protocol_s: _Optional[float] = ...) -> None: ...

class Steps(_message.Message):
    __slots__ = ("committed",)
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    committed: _containers.RepeatedCompositeFieldContainer[Committed]
    def __init__(self, committed: _Optional[_Iterable[_Union[Committed, _Mapping]]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("number", "reason", "named")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NAMED_FIELD_NUMBER: _ClassVar[int]
    number: int
    reason: str
    named: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., reason: _Optional[str] = ..., named: _Optional[_Iterable[str]] = ...) -> None: ...

class Died(_message.Message):
    __slots__ = ("reason", "shard_rank", "slot", "killed")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARD_RANK_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    KILLED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    shard_rank: int
    slot: int
    killed: bool
    def __init__(self, reason: _Optional[str] = ..., shard_rank: _Optional[int] = ..., slot: _Optional[int] = ..., killed: _Optional[bool] = ...) -> None: ...

class Drain(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CaughtUp(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: Version
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("heal", "bytes", "total", "seconds", "rate", "donors", "version")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    heal: int
    bytes: int
    total: int
    seconds: float
    rate: float
    donors: _containers.RepeatedScalarFieldContainer[str]
    version: Version
    def __init__(self, heal: _Optional[int] = ..., bytes: _Optional[int] = ..., total: _Optional[int] = ..., seconds: _Optional[float] = ..., rate: _Optional[float] = ..., donors: _Optional[_Iterable[str]] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class HealFailed(_message.Message):
    __slots__ = ("heal", "reason", "behind")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    heal: int
    reason: str
    behind: bool
    def __init__(self, heal: _Optional[int] = ..., reason: _Optional[str] = ..., behind: _Optional[bool] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: Version
    def __init__(self, version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("incarnation", "lease_s", "contributors_wanted", "first_number", "join", "allowed_groups", "stall_patience_s", "connect_s")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_WANTED_FIELD_NUMBER: _ClassVar[int]
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    JOIN_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    STALL_PATIENCE_S_FIELD_NUMBER: _ClassVar[int]
    CONNECT_S_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    lease_s: float
    contributors_wanted: int
    first_number: int
    join: bool
    allowed_groups: _containers.RepeatedScalarFieldContainer[int]
    stall_patience_s: float
    connect_s: float
    def __init__(self, incarnation: _Optional[int] = ..., lease_s: _Optional[float] = ..., contributors_wanted: _Optional[int] = ..., first_number: _Optional[int] = ..., join: _Optional[bool] = ..., allowed_groups: _Optional[_Iterable[int]] = ..., stall_patience_s: _Optional[float] = ..., connect_s: _Optional[float] = ...) -> None: ...

class Refused(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Fenced(_message.Message):
    __slots__ = ("by",)
    BY_FIELD_NUMBER: _ClassVar[int]
    by: int
    def __init__(self, by: _Optional[int] = ...) -> None: ...

class Abandon(_message.Message):
    __slots__ = ("number", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    reason: str
    def __init__(self, number: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Base(_message.Message):
    __slots__ = ("number", "roster", "version", "cursor", "slots", "rendezvous", "sources", "stop", "step_slots", "set_aside")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STEP_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    number: int
    roster: RosterChange
    version: Version
    cursor: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    rendezvous: _containers.RepeatedScalarFieldContainer[str]
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    stop: bool
    step_slots: int
    set_aside: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., roster: _Optional[_Union[RosterChange, _Mapping]] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., cursor: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., rendezvous: _Optional[_Iterable[str]] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., stop: _Optional[bool] = ..., step_slots: _Optional[int] = ..., set_aside: _Optional[_Iterable[int]] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("number", "roster", "rendezvous", "set_aside")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    number: int
    roster: RosterChange
    rendezvous: _containers.RepeatedScalarFieldContainer[str]
    set_aside: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, number: _Optional[int] = ..., roster: _Optional[_Union[RosterChange, _Mapping]] = ..., rendezvous: _Optional[_Iterable[str]] = ..., set_aside: _Optional[_Iterable[int]] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Stage(_message.Message):
    __slots__ = ("heal", "joiner", "donors", "place", "now", "entries", "version")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    JOINER_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    heal: int
    joiner: str
    donors: int
    place: int
    now: bool
    entries: bool
    version: Version
    def __init__(self, heal: _Optional[int] = ..., joiner: _Optional[str] = ..., donors: _Optional[int] = ..., place: _Optional[int] = ..., now: _Optional[bool] = ..., entries: _Optional[bool] = ..., version: _Optional[_Union[Version, _Mapping]] = ...) -> None: ...

class Heal(_message.Message):
    __slots__ = ("heal", "sources", "entries", "passing")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    PASSING_FIELD_NUMBER: _ClassVar[int]
    heal: int
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    entries: bool
    passing: _containers.RepeatedCompositeFieldContainer[Source]
    def __init__(self, heal: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., entries: _Optional[bool] = ..., passing: _Optional[_Iterable[_Union[Source, _Mapping]]] = ...) -> None: ...

class Release(_message.Message):
    __slots__ = ("heal",)
    HEAL_FIELD_NUMBER: _ClassVar[int]
    heal: int
    def __init__(self, heal: _Optional[int] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason", "success", "after_commit", "restart")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    AFTER_COMMIT_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    reason: str
    success: bool
    after_commit: bool
    restart: bool
    def __init__(self, reason: _Optional[str] = ..., success: _Optional[bool] = ..., after_commit: _Optional[bool] = ..., restart: _Optional[bool] = ...) -> None: ...

class Holding(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("number", "targets")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    number: int
    targets: _containers.RepeatedCompositeFieldContainer[Source]
    def __init__(self, number: _Optional[int] = ..., targets: _Optional[_Iterable[_Union[Source, _Mapping]]] = ...) -> None: ...

class Probed(_message.Message):
    __slots__ = ("number", "unreached")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    UNREACHED_FIELD_NUMBER: _ClassVar[int]
    number: int
    unreached: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., unreached: _Optional[_Iterable[str]] = ...) -> None: ...

class Contributed(_message.Message):
    __slots__ = ("warm", "start_s", "import_s", "build_s", "transfer_s", "replay_s", "switch_s")
    WARM_FIELD_NUMBER: _ClassVar[int]
    START_S_FIELD_NUMBER: _ClassVar[int]
    IMPORT_S_FIELD_NUMBER: _ClassVar[int]
    BUILD_S_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_S_FIELD_NUMBER: _ClassVar[int]
    REPLAY_S_FIELD_NUMBER: _ClassVar[int]
    SWITCH_S_FIELD_NUMBER: _ClassVar[int]
    warm: bool
    start_s: float
    import_s: float
    build_s: float
    transfer_s: float
    replay_s: float
    switch_s: float
    def __init__(self, warm: _Optional[bool] = ..., start_s: _Optional[float] = ..., import_s: _Optional[float] = ..., build_s: _Optional[float] = ..., transfer_s: _Optional[float] = ..., replay_s: _Optional[float] = ..., switch_s: _Optional[float] = ...) -> None: ...

class GroupMessage(_message.Message):
    __slots__ = ("hello", "beat", "report", "opened", "committed", "failure", "died", "drain", "caught_up", "heal_failed", "finished", "goodbye", "progress", "probed", "contributed", "steps")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BEAT_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    DIED_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    HEAL_FAILED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PROBED_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    beat: Beat
    report: Report
    opened: Opened
    committed: Committed
    failure: Failure
    died: Died
    drain: Drain
    caught_up: CaughtUp
    heal_failed: HealFailed
    finished: Finished
    goodbye: Goodbye
    progress: Progress
    probed: Probed
    contributed: Contributed
    steps: Steps
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., beat: _Optional[_Union[Beat, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., died: _Optional[_Union[Died, _Mapping]] = ..., drain: _Optional[_Union[Drain, _Mapping]] = ..., caught_up: _Optional[_Union[CaughtUp, _Mapping]] = ..., heal_failed: _Optional[_Union[HealFailed, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ..., probed: _Optional[_Union[Probed, _Mapping]] = ..., contributed: _Optional[_Union[Contributed, _Mapping]] = ..., steps: _Optional[_Union[Steps, _Mapping]] = ...) -> None: ...

class LighthouseMessage(_message.Message):
    __slots__ = ("welcome", "refused", "fenced", "abandon", "base", "prepare", "ready", "stage", "heal", "release", "leave", "holding", "probe")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    FENCED_FIELD_NUMBER: _ClassVar[int]
    ABANDON_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    HEAL_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    HOLDING_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    refused: Refused
    fenced: Fenced
    abandon: Abandon
    base: Base
    prepare: Prepare
    ready: Ready
    stage: Stage
    heal: Heal
    release: Release
    leave: Leave
    holding: Holding
    probe: Probe
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., refused: _Optional[_Union[Refused, _Mapping]] = ..., fenced: _Optional[_Union[Fenced, _Mapping]] = ..., abandon: _Optional[_Union[Abandon, _Mapping]] = ..., base: _Optional[_Union[Base, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., stage: _Optional[_Union[Stage, _Mapping]] = ..., heal: _Optional[_Union[Heal, _Mapping]] = ..., release: _Optional[_Union[Release, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., holding: _Optional[_Union[Holding, _Mapping]] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("run_id",)
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    def __init__(self, run_id: _Optional[str] = ...) -> None: ...

class ColdStartRequest(_message.Message):
    __slots__ = ("run_id", "by")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    by: str
    def __init__(self, run_id: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class ColdStartReply(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: str
    def __init__(self, refused: _Optional[str] = ...) -> None: ...

class SkipSlotRequest(_message.Message):
    __slots__ = ("run_id", "by")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    by: str
    def __init__(self, run_id: _Optional[str] = ..., by: _Optional[str] = ...) -> None: ...

class SkipSlotReply(_message.Message):
    __slots__ = ("refused",)
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    refused: str
    def __init__(self, refused: _Optional[str] = ...) -> None: ...

class GroupStatus(_message.Message):
    __slots__ = ("name", "incarnation", "state", "version", "last_heard_s", "host", "detail")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARD_S_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: int
    state: str
    version: Version
    last_heard_s: float
    host: str
    detail: str
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[int] = ..., state: _Optional[str] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., last_heard_s: _Optional[float] = ..., host: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class StatusReply(_message.Message):
    __slots__ = ("run_id", "number", "first_number", "version", "hold", "groups", "loss", "step_s", "uptime_s", "finished", "protocol_s")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    STEP_S_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_S_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    number: int
    first_number: int
    version: Version
    hold: str
    groups: _containers.RepeatedCompositeFieldContainer[GroupStatus]
    loss: float
    step_s: float
    uptime_s: float
    finished: bool
    protocol_s: float
    def __init__(self, run_id: _Optional[str] = ..., number: _Optional[int] = ..., first_number: _Optional[int] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., hold: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[GroupStatus, _Mapping]]] = ..., loss: _Optional[float] = ..., step_s: _Optional[float] = ..., uptime_s: _Optional[float] = ..., finished: _Optional[bool] = ..., protocol_s: _Optional[float] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("run_id", "history")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    history: bool
    def __init__(self, run_id: _Optional[str] = ..., history: _Optional[bool] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("time_s", "kind", "number", "version", "group", "text", "fields")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TIME_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    time_s: float
    kind: str
    number: int
    version: Version
    group: str
    text: str
    fields: _containers.ScalarMap[str, str]
    def __init__(self, time_s: _Optional[float] = ..., kind: _Optional[str] = ..., number: _Optional[int] = ..., version: _Optional[_Union[Version, _Mapping]] = ..., group: _Optional[str] = ..., text: _Optional[str] = ..., fields: _Optional[_Mapping[str, str]] = ...) -> None: ...
