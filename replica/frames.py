"""How messages lie on the stream socket between an agent and its ranks.

A frame is the length of its body (4 bytes, big-endian), its kind (1 byte), and the body. The first frame of a rank is
the run's token, in plain text as in a call's metadata; then come messages of the protobuf contract, both ways. Whoever
is not let in, or says what is not understood, is told why in one last frame. It is a socket of ours and no gRPC stream
since every step waits for one message each way here: `docs/benchmarks.md` says what a gRPC stream would add.
"""

from __future__ import annotations

import struct
from enum import IntEnum

_HEAD = struct.Struct(">IB")

MESSAGE_BYTES = 64 << 20
"""Largest body either way: a roll call of thousands of members."""
STRANGER_BYTES = 4096
"""Largest body of who has not shown the token."""


class Kind(IntEnum):
    """What the body of a frame is: the token; a protobuf message; text that says why the stream is ended."""

    TOKEN = 0
    MESSAGE = 1
    REFUSAL = 2


def frame(kind: Kind, body: bytes) -> bytes:
    """The bytes of one frame."""
    return _HEAD.pack(len(body), kind) + body


class Frames:
    """Cuts frames out of what comes in. `limit_bytes` may be changed at any time."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """More has come."""
        self._buffer += data

    def next(self) -> tuple[Kind, bytes] | None:
        """The next whole frame, if it is there. Raises ValueError if it is none, or larger than the limit."""
        if len(self._buffer) < _HEAD.size:
            return None
        length, kind = _HEAD.unpack_from(self._buffer)
        if length > self.limit_bytes:
            raise ValueError(f"a frame of {length} bytes, where {self.limit_bytes} are allowed")
        end = _HEAD.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_HEAD.size : end])
        del self._buffer[:end]
        return Kind(kind), body
