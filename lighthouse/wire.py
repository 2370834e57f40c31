"""The lighthouse's protobuf contract for the rest of the code: the only module that imports its generated stubs."""

from __future__ import annotations

from lighthouse.codec import Envelope
from lighthouse.values import ROOT, Beat, Committed, Down, Message, Up
from lighthouse.wire_pb2 import (
    DESCRIPTOR,
    ColdStartReply,
    ColdStartRequest,
    Event,
    GroupMessage,
    GroupStatus,
    LighthouseMessage,
    SkipSlotReply,
    SkipSlotRequest,
    StatusReply,
    StatusRequest,
    WatchRequest,
)
from lighthouse.wire_pb2 import Version as VersionMessage
from lighthouse.wire_pb2_grpc import LighthouseStub


class Steps(Message, frozen=True):
    """Short steps, one after another, told together."""

    committed: tuple[Committed, ...]


UP = Envelope(GroupMessage, Up | Steps)
DOWN = Envelope(LighthouseMessage, Down)
SERVICE: str = DESCRIPTOR.services_by_name["Lighthouse"].full_name

_BEAT = UP.encode(Beat(version=ROOT))[:1]


def unfold(message: Up | Steps) -> tuple[Up, ...]:
    """What a message that came says, in order."""
    return message.committed if isinstance(message, Steps) else (message,)


def is_beat(data: bytes) -> bool:
    """Whether these bytes of a GroupMessage carry a beat."""
    return data[:1] == _BEAT


__all__ = [
    "DOWN",
    "SERVICE",
    "UP",
    "ColdStartReply",
    "ColdStartRequest",
    "Event",
    "GroupMessage",
    "GroupStatus",
    "LighthouseMessage",
    "LighthouseStub",
    "SkipSlotReply",
    "SkipSlotRequest",
    "StatusReply",
    "StatusRequest",
    "Steps",
    "VersionMessage",
    "WatchRequest",
    "is_beat",
    "unfold",
]
