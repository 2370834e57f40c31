"""The lighthouse's protobuf contract for the rest of the code: the only module that imports its generated stubs."""

from __future__ import annotations

from lighthouse.codec import Envelope
from lighthouse.values import ROOT, Beat, Down, Up
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

UP = Envelope(GroupMessage, Up)
DOWN = Envelope(LighthouseMessage, Down)
SERVICE: str = DESCRIPTOR.services_by_name["Lighthouse"].full_name

_BEAT = UP.encode(Beat(version=ROOT))[:1]


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
    "VersionMessage",
    "WatchRequest",
    "is_beat",
]
