"""What a weight server and a joiner say to each other, as immutable values.

Each has a message of the same name and fields in `proto/replica/transfer.proto`.
"""

from __future__ import annotations

from lighthouse.values import EntryName, Message, Value, Version
from replica.manifest import Chunks, Tensors
from replica.values import Merged

PROTOCOL = 2
"""Grows when the two sides could misunderstand each other."""


class Challenge(Message, frozen=True):
    """Source to whoever connects: prove that you know the run's token."""

    protocol: int
    nonce: bytes


class Answer(Message, frozen=True):
    """The proof, and a challenge in return."""

    nonce: bytes
    proof: bytes


class Accepted(Message, frozen=True):
    """The source's proof: the connection is good."""

    proof: bytes


class Denied(Message, frozen=True):
    """Nothing comes; the connection ends. kind: an `Answer` of the log, "unknown", "busy" or "token"."""

    kind: str
    reason: str


class AskEntry(Message, frozen=True):
    """The entry that starts at `version`, waiting up to wait_s for it; heal: the joiner's, 0 for a member."""

    heal: int
    version: Version
    wait_s: float


class AskSnapshot(Message, frozen=True):
    """The snapshot staged for `heal`, waiting up to wait_s for it."""

    heal: int
    wait_s: float


class AskPassed(Message, frozen=True):
    """To a joiner: the snapshot of `version` that it loads itself, waiting up to wait_s for it to begin.

    heal: the asking joiner's, which the offer will name.
    """

    heal: int
    version: Version
    wait_s: float


class HeldRange(Value, frozen=True):
    """Chunks [first, end) lie at the source."""

    first: int
    end: int


class OfferEntry(Message, frozen=True):
    """The manifest of an entry. presence: one byte, 0 or 1, by parameter."""

    name: EntryName
    merged: Merged
    presence: bytes
    tensors: Tensors
    chunks: Chunks


class OfferSnapshot(Message, frozen=True):
    """The manifest of a snapshot. scalars: JSON text; held: the chunks that this source has."""

    heal: int
    version: Version
    cursor: int
    stop: bool
    scalars: bytes
    tensors: Tensors
    chunks: Chunks
    held: tuple[HeldRange, ...]


class Holds(Message, frozen=True):
    """A joiner's answer to `NEWS` in the place of a chunk's number: the chunks that it can pass on by now."""

    held: tuple[HeldRange, ...]


SourceSays = Challenge | Accepted | Denied | OfferEntry | OfferSnapshot | Holds
JoinerSays = Answer | AskEntry | AskSnapshot | AskPassed
