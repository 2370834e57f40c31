"""The lighthouse's protobuf contract for the rest of the code: the only module that imports its generated stubs."""

from __future__ import annotations

from lighthouse.codec import Envelope
from lighthouse.values import Down, Up
from lighthouse.wire_pb2 import (
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
from lighthouse.wire_pb2_grpc import LighthouseServicer, LighthouseStub, add_LighthouseServicer_to_server

UP = Envelope(GroupMessage, Up)
DOWN = Envelope(LighthouseMessage, Down)

__all__ = [
    "DOWN",
    "UP",
    "ColdStartReply",
    "ColdStartRequest",
    "Event",
    "GroupMessage",
    "GroupStatus",
    "LighthouseMessage",
    "LighthouseServicer",
    "LighthouseStub",
    "SkipSlotReply",
    "SkipSlotRequest",
    "StatusReply",
    "StatusRequest",
    "VersionMessage",
    "WatchRequest",
    "add_LighthouseServicer_to_server",
]
