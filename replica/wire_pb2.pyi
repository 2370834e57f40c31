from lighthouse import wire_pb2 as _wire_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HealCount(_message.Message):
    __slots__ = ("heal", "records")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    heal: int
    records: int
    def __init__(self, heal: _Optional[int] = ..., records: _Optional[int] = ...) -> None: ...

class Merged(_message.Message):
    __slots__ = ("start", "generation", "slots", "switch", "stop", "save", "skip", "heals", "loss_sum", "tokens", "grad_norm", "digested", "mismatched", "compute_s", "protocol_s", "set_aside")
    START_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SWITCH_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    HEALS_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GRAD_NORM_FIELD_NUMBER: _ClassVar[int]
    DIGESTED_FIELD_NUMBER: _ClassVar[int]
    MISMATCHED_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_S_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    start: _wire_pb2.Version
    generation: int
    slots: int
    switch: int
    stop: bool
    save: bool
    skip: bool
    heals: _containers.RepeatedCompositeFieldContainer[HealCount]
    loss_sum: float
    tokens: int
    grad_norm: float
    digested: bool
    mismatched: _containers.RepeatedScalarFieldContainer[int]
    compute_s: _containers.RepeatedScalarFieldContainer[float]
    protocol_s: float
    set_aside: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start: _Optional[_Union[_wire_pb2.Version, _Mapping]] = ..., generation: _Optional[int] = ..., slots: _Optional[int] = ..., switch: _Optional[int] = ..., stop: _Optional[bool] = ..., save: _Optional[bool] = ..., skip: _Optional[bool] = ..., heals: _Optional[_Iterable[_Union[HealCount, _Mapping]]] = ..., loss_sum: _Optional[float] = ..., tokens: _Optional[int] = ..., grad_norm: _Optional[float] = ..., digested: _Optional[bool] = ..., mismatched: _Optional[_Iterable[int]] = ..., compute_s: _Optional[_Iterable[float]] = ..., protocol_s: _Optional[float] = ..., set_aside: _Optional[_Iterable[int]] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("generation", "place", "size", "version", "cursor", "slots", "digest", "farewell", "step_slots", "last", "set_aside")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FAREWELL_FIELD_NUMBER: _ClassVar[int]
    STEP_SLOTS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    SET_ASIDE_FIELD_NUMBER: _ClassVar[int]
    generation: int
    place: int
    size: int
    version: _wire_pb2.Version
    cursor: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    digest: bool
    farewell: bool
    step_slots: int
    last: bool
    set_aside: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, generation: _Optional[int] = ..., place: _Optional[int] = ..., size: _Optional[int] = ..., version: _Optional[_Union[_wire_pb2.Version, _Mapping]] = ..., cursor: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., digest: _Optional[bool] = ..., farewell: _Optional[bool] = ..., step_slots: _Optional[int] = ..., last: _Optional[bool] = ..., set_aside: _Optional[_Iterable[int]] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("shard_rank", "pid", "setup", "rendezvous", "weights", "digest", "begun_s", "imported_s", "warm")
    class SetupEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SHARD_RANK_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    SETUP_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BEGUN_S_FIELD_NUMBER: _ClassVar[int]
    IMPORTED_S_FIELD_NUMBER: _ClassVar[int]
    WARM_FIELD_NUMBER: _ClassVar[int]
    shard_rank: int
    pid: int
    setup: _containers.ScalarMap[str, str]
    rendezvous: str
    weights: str
    digest: int
    begun_s: float
    imported_s: float
    warm: bool
    def __init__(self, shard_rank: _Optional[int] = ..., pid: _Optional[int] = ..., setup: _Optional[_Mapping[str, str]] = ..., rendezvous: _Optional[str] = ..., weights: _Optional[str] = ..., digest: _Optional[int] = ..., begun_s: _Optional[float] = ..., imported_s: _Optional[float] = ..., warm: _Optional[bool] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("kind", "step", "slot")
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    step: int
    slot: int
    def __init__(self, kind: _Optional[str] = ..., step: _Optional[int] = ..., slot: _Optional[int] = ...) -> None: ...

class RollCall(_message.Message):
    __slots__ = ("generation", "step", "records")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    generation: int
    step: int
    records: bytes
    def __init__(self, generation: _Optional[int] = ..., step: _Optional[int] = ..., records: _Optional[bytes] = ...) -> None: ...

class RankOpened(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class RankFailed(_message.Message):
    __slots__ = ("number", "reason")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    number: int
    reason: str
    def __init__(self, number: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Held(_message.Message):
    __slots__ = ("name", "merged")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    name: _wire_pb2.EntryName
    merged: Merged
    def __init__(self, name: _Optional[_Union[_wire_pb2.EntryName, _Mapping]] = ..., merged: _Optional[_Union[Merged, _Mapping]] = ...) -> None: ...

class UpToDate(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: _wire_pb2.Version
    def __init__(self, version: _Optional[_Union[_wire_pb2.Version, _Mapping]] = ...) -> None: ...

class FetchFailed(_message.Message):
    __slots__ = ("version", "reason", "behind")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    version: _wire_pb2.Version
    reason: str
    behind: bool
    def __init__(self, version: _Optional[_Union[_wire_pb2.Version, _Mapping]] = ..., reason: _Optional[str] = ..., behind: _Optional[bool] = ...) -> None: ...

class Moved(_message.Message):
    __slots__ = ("heal", "bytes", "total", "seconds", "rate", "sources")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    heal: int
    bytes: int
    total: int
    seconds: float
    rate: float
    sources: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, heal: _Optional[int] = ..., bytes: _Optional[int] = ..., total: _Optional[int] = ..., seconds: _Optional[float] = ..., rate: _Optional[float] = ..., sources: _Optional[_Iterable[str]] = ...) -> None: ...

class Loaded(_message.Message):
    __slots__ = ("heal", "version", "cursor", "stop", "bytes", "seconds")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    heal: int
    version: _wire_pb2.Version
    cursor: int
    stop: bool
    bytes: int
    seconds: float
    def __init__(self, heal: _Optional[int] = ..., version: _Optional[_Union[_wire_pb2.Version, _Mapping]] = ..., cursor: _Optional[int] = ..., stop: _Optional[bool] = ..., bytes: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class LoadFailed(_message.Message):
    __slots__ = ("heal", "reason")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    heal: int
    reason: str
    def __init__(self, heal: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Raised(_message.Message):
    __slots__ = ("traceback",)
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    traceback: str
    def __init__(self, traceback: _Optional[str] = ...) -> None: ...

class Go(_message.Message):
    __slots__ = ("work", "rendezvous")
    WORK_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    work: Work
    rendezvous: str
    def __init__(self, work: _Optional[_Union[Work, _Mapping]] = ..., rendezvous: _Optional[str] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("merged", "next", "stage", "leave", "success", "reason")
    MERGED_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    merged: Merged
    next: Work
    stage: _containers.RepeatedScalarFieldContainer[int]
    leave: bool
    success: bool
    reason: str
    def __init__(self, merged: _Optional[_Union[Merged, _Mapping]] = ..., next: _Optional[_Union[Work, _Mapping]] = ..., stage: _Optional[_Iterable[int]] = ..., leave: _Optional[bool] = ..., success: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class Apply(_message.Message):
    __slots__ = ("name", "cursor", "stage")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    name: _wire_pb2.EntryName
    cursor: int
    stage: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[_Union[_wire_pb2.EntryName, _Mapping]] = ..., cursor: _Optional[int] = ..., stage: _Optional[_Iterable[int]] = ...) -> None: ...

class Quit(_message.Message):
    __slots__ = ("success", "reason")
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    success: bool
    reason: str
    def __init__(self, success: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class Abandoned(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("number", "place", "size", "rendezvous")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    number: int
    place: int
    size: int
    rendezvous: str
    def __init__(self, number: _Optional[int] = ..., place: _Optional[int] = ..., size: _Optional[int] = ..., rendezvous: _Optional[str] = ...) -> None: ...

class ReadyFor(_message.Message):
    __slots__ = ("number",)
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    number: int
    def __init__(self, number: _Optional[int] = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("version", "sources", "heal")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    HEAL_FIELD_NUMBER: _ClassVar[int]
    version: _wire_pb2.Version
    sources: _containers.RepeatedCompositeFieldContainer[_wire_pb2.Source]
    heal: int
    def __init__(self, version: _Optional[_Union[_wire_pb2.Version, _Mapping]] = ..., sources: _Optional[_Iterable[_Union[_wire_pb2.Source, _Mapping]]] = ..., heal: _Optional[int] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("heal", "sources")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    heal: int
    sources: _containers.RepeatedCompositeFieldContainer[_wire_pb2.Source]
    def __init__(self, heal: _Optional[int] = ..., sources: _Optional[_Iterable[_Union[_wire_pb2.Source, _Mapping]]] = ...) -> None: ...

class StageFor(_message.Message):
    __slots__ = ("heal", "now", "place", "donors", "entries")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    heal: int
    now: bool
    place: int
    donors: int
    entries: bool
    def __init__(self, heal: _Optional[int] = ..., now: _Optional[bool] = ..., place: _Optional[int] = ..., donors: _Optional[int] = ..., entries: _Optional[bool] = ...) -> None: ...

class Patience(_message.Message):
    __slots__ = ("lease_s", "stall_patience_s", "connect_s")
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    STALL_PATIENCE_S_FIELD_NUMBER: _ClassVar[int]
    CONNECT_S_FIELD_NUMBER: _ClassVar[int]
    lease_s: float
    stall_patience_s: float
    connect_s: float
    def __init__(self, lease_s: _Optional[float] = ..., stall_patience_s: _Optional[float] = ..., connect_s: _Optional[float] = ...) -> None: ...

class Drop(_message.Message):
    __slots__ = ("heal",)
    HEAL_FIELD_NUMBER: _ClassVar[int]
    heal: int
    def __init__(self, heal: _Optional[int] = ...) -> None: ...

class RankMessage(_message.Message):
    __slots__ = ("attach", "mark", "roll_call", "rank_opened", "rank_failed", "held", "up_to_date", "fetch_failed", "loaded", "load_failed", "raised", "moved")
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    ROLL_CALL_FIELD_NUMBER: _ClassVar[int]
    RANK_OPENED_FIELD_NUMBER: _ClassVar[int]
    RANK_FAILED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    UP_TO_DATE_FIELD_NUMBER: _ClassVar[int]
    FETCH_FAILED_FIELD_NUMBER: _ClassVar[int]
    LOADED_FIELD_NUMBER: _ClassVar[int]
    LOAD_FAILED_FIELD_NUMBER: _ClassVar[int]
    RAISED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    attach: Attach
    mark: Mark
    roll_call: RollCall
    rank_opened: RankOpened
    rank_failed: RankFailed
    held: Held
    up_to_date: UpToDate
    fetch_failed: FetchFailed
    loaded: Loaded
    load_failed: LoadFailed
    raised: Raised
    moved: Moved
    def __init__(self, attach: _Optional[_Union[Attach, _Mapping]] = ..., mark: _Optional[_Union[Mark, _Mapping]] = ..., roll_call: _Optional[_Union[RollCall, _Mapping]] = ..., rank_opened: _Optional[_Union[RankOpened, _Mapping]] = ..., rank_failed: _Optional[_Union[RankFailed, _Mapping]] = ..., held: _Optional[_Union[Held, _Mapping]] = ..., up_to_date: _Optional[_Union[UpToDate, _Mapping]] = ..., fetch_failed: _Optional[_Union[FetchFailed, _Mapping]] = ..., loaded: _Optional[_Union[Loaded, _Mapping]] = ..., load_failed: _Optional[_Union[LoadFailed, _Mapping]] = ..., raised: _Optional[_Union[Raised, _Mapping]] = ..., moved: _Optional[_Union[Moved, _Mapping]] = ...) -> None: ...

class AgentMessage(_message.Message):
    __slots__ = ("go", "commit", "apply", "quit", "abandoned", "open", "ready_for", "fetch", "load", "stage_for", "drop", "patience")
    GO_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    APPLY_FIELD_NUMBER: _ClassVar[int]
    QUIT_FIELD_NUMBER: _ClassVar[int]
    ABANDONED_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    READY_FOR_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    STAGE_FOR_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    go: Go
    commit: Commit
    apply: Apply
    quit: Quit
    abandoned: Abandoned
    open: Open
    ready_for: ReadyFor
    fetch: Fetch
    load: Load
    stage_for: StageFor
    drop: Drop
    patience: Patience
    def __init__(self, go: _Optional[_Union[Go, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ..., apply: _Optional[_Union[Apply, _Mapping]] = ..., quit: _Optional[_Union[Quit, _Mapping]] = ..., abandoned: _Optional[_Union[Abandoned, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., ready_for: _Optional[_Union[ReadyFor, _Mapping]] = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., stage_for: _Optional[_Union[StageFor, _Mapping]] = ..., drop: _Optional[_Union[Drop, _Mapping]] = ..., patience: _Optional[_Union[Patience, _Mapping]] = ...) -> None: ...
