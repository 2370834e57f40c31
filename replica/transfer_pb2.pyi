from lighthouse import wire_pb2 as _wire_pb2
from replica import wire_pb2 as _wire_pb2_1
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Challenge(_message.Message):
    __slots__ = ("protocol", "nonce")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    nonce: bytes
    def __init__(self, protocol: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("nonce", "proof")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    proof: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    def __init__(self, proof: _Optional[bytes] = ...) -> None: ...

class Denied(_message.Message):
    __slots__ = ("kind", "reason")
    KIND_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    kind: str
    reason: str
    def __init__(self, kind: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class AskEntry(_message.Message):
    __slots__ = ("heal", "version", "wait_s")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    heal: int
    version: _wire_pb2.Version
    wait_s: float
    def __init__(self, heal: _Optional[int] = ..., version: _Optional[_Union[_wire_pb2.Version, _Mapping]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class AskSnapshot(_message.Message):
    __slots__ = ("heal", "wait_s")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    heal: int
    wait_s: float
    def __init__(self, heal: _Optional[int] = ..., wait_s: _Optional[float] = ...) -> None: ...

class AskPassed(_message.Message):
    __slots__ = ("heal", "version", "wait_s")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    heal: int
    version: _wire_pb2.Version
    wait_s: float
    def __init__(self, heal: _Optional[int] = ..., version: _Optional[_Union[_wire_pb2.Version, _Mapping]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class Tensors(_message.Message):
    __slots__ = ("names", "dtypes", "dims", "extents", "sharded", "on_host")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    DTYPES_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    SHARDED_FIELD_NUMBER: _ClassVar[int]
    ON_HOST_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    dtypes: _containers.RepeatedScalarFieldContainer[str]
    dims: _containers.RepeatedScalarFieldContainer[int]
    extents: _containers.RepeatedScalarFieldContainer[int]
    sharded: bytes
    on_host: bytes
    def __init__(self, names: _Optional[_Iterable[str]] = ..., dtypes: _Optional[_Iterable[str]] = ..., dims: _Optional[_Iterable[int]] = ..., extents: _Optional[_Iterable[int]] = ..., sharded: _Optional[bytes] = ..., on_host: _Optional[bytes] = ...) -> None: ...

class Chunks(_message.Message):
    __slots__ = ("total", "size")
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    total: int
    size: int
    def __init__(self, total: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class HeldRange(_message.Message):
    __slots__ = ("first", "end")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    first: int
    end: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class OfferEntry(_message.Message):
    __slots__ = ("name", "merged", "presence", "tensors", "chunks")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MERGED_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    name: _wire_pb2.EntryName
    merged: _wire_pb2_1.Merged
    presence: bytes
    tensors: Tensors
    chunks: Chunks
    def __init__(self, name: _Optional[_Union[_wire_pb2.EntryName, _Mapping]] = ..., merged: _Optional[_Union[_wire_pb2_1.Merged, _Mapping]] = ..., presence: _Optional[bytes] = ..., tensors: _Optional[_Union[Tensors, _Mapping]] = ..., chunks: _Optional[_Union[Chunks, _Mapping]] = ...) -> None: ...

class OfferSnapshot(_message.Message):
    __slots__ = ("heal", "version", "cursor", "stop", "scalars", "tensors", "chunks", "held")
    HEAL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SCALARS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    heal: int
    version: _wire_pb2.Version
    cursor: int
    stop: bool
    scalars: bytes
    tensors: Tensors
    chunks: Chunks
    held: _containers.RepeatedCompositeFieldContainer[HeldRange]
    def __init__(self, heal: _Optional[int] = ..., version: _Optional[_Union[_wire_pb2.Version, _Mapping]] = ..., cursor: _Optional[int] = ..., stop: _Optional[bool] = ..., scalars: _Optional[bytes] = ..., tensors: _Optional[_Union[Tensors, _Mapping]] = ..., chunks: _Optional[_Union[Chunks, _Mapping]] = ..., held: _Optional[_Iterable[_Union[HeldRange, _Mapping]]] = ...) -> None: ...

class Holds(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedCompositeFieldContainer[HeldRange]
    def __init__(self, held: _Optional[_Iterable[_Union[HeldRange, _Mapping]]] = ...) -> None: ...

class SourceMessage(_message.Message):
    __slots__ = ("challenge", "accepted", "denied", "offer_entry", "offer_snapshot", "holds")
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DENIED_FIELD_NUMBER: _ClassVar[int]
    OFFER_ENTRY_FIELD_NUMBER: _ClassVar[int]
    OFFER_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    challenge: Challenge
    accepted: Accepted
    denied: Denied
    offer_entry: OfferEntry
    offer_snapshot: OfferSnapshot
    holds: Holds
    def __init__(self, challenge: _Optional[_Union[Challenge, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ..., denied: _Optional[_Union[Denied, _Mapping]] = ..., offer_entry: _Optional[_Union[OfferEntry, _Mapping]] = ..., offer_snapshot: _Optional[_Union[OfferSnapshot, _Mapping]] = ..., holds: _Optional[_Union[Holds, _Mapping]] = ...) -> None: ...

class JoinerMessage(_message.Message):
    __slots__ = ("answer", "ask_entry", "ask_snapshot", "ask_passed")
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    ASK_ENTRY_FIELD_NUMBER: _ClassVar[int]
    ASK_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    ASK_PASSED_FIELD_NUMBER: _ClassVar[int]
    answer: Answer
    ask_entry: AskEntry
    ask_snapshot: AskSnapshot
    ask_passed: AskPassed
    def __init__(self, answer: _Optional[_Union[Answer, _Mapping]] = ..., ask_entry: _Optional[_Union[AskEntry, _Mapping]] = ..., ask_snapshot: _Optional[_Union[AskSnapshot, _Mapping]] = ..., ask_passed: _Optional[_Union[AskPassed, _Mapping]] = ...) -> None: ...
