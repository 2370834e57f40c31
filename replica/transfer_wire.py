"""The weight servers' protobuf contract for the rest of the package: the only module that imports its stubs."""

from __future__ import annotations

from lighthouse.codec import Envelope
from replica.transfer_pb2 import JoinerMessage, SourceMessage
from replica.transfer_values import JoinerSays, SourceSays

SOURCE = Envelope(SourceMessage, SourceSays)
JOINER = Envelope(JoinerMessage, JoinerSays)

__all__ = ["JOINER", "SOURCE", "JoinerMessage", "SourceMessage"]
