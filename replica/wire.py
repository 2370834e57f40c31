"""The agent's protobuf contract for the rest of the package: the only module that imports its generated stubs."""

from __future__ import annotations

from lighthouse.codec import Envelope
from replica.values import RankDown, RankUp
from replica.wire_pb2 import AgentMessage, RankMessage

RANK_UP = Envelope(RankMessage, RankUp)
RANK_DOWN = Envelope(AgentMessage, RankDown)

__all__ = ["RANK_DOWN", "RANK_UP", "AgentMessage", "RankMessage"]
