"""Fetches entries and loads snapshots from the weight servers of other groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from lighthouse.values import Version
from replica.entry import Entry
from replica.state import TrainingState
from replica.transfer_limits import TransferLimits


class TransferFailed(Exception):
    """No source could give what was asked; the text has the reason of each. Another source or a newer heal may help."""


class FellBehind(TransferFailed):
    """The sources have gone past what was asked, or stand on another history: a newer snapshot is needed."""


class WrongState(TransferFailed):
    """What the source offers does not fit this model; the text names the field and both values."""


@dataclass(frozen=True, kw_only=True)
class LoadedSnapshot:
    """A snapshot that was loaded and verified: the state is at `version`, its next step starts at `cursor`."""

    version: Version
    cursor: int
    stop: bool
    bytes: int
    seconds: float


def fetch_entry(
    sources: Sequence[str],
    version: Version,
    token: bytes,
    wait_s: float,
    like: Sequence[torch.Tensor],
    *,
    heal: int = 0,
    buffers: Callable[[], Sequence[torch.Tensor]] | None = None,
    limits: TransferLimits | None = None,
    lock: AbstractContextManager[Any] | None = None,
) -> Entry | None:
    """The entry that starts at `version`, verified; None if no source has anything newer within `wait_s` seconds.

    sources: "host:port" of weight servers of the same shard rank
    like: the bucket layout (dtypes and shapes; meta tensors will do); heal: this joiner's heal, 0 for a member
    buffers: gives tensors of that layout to receive into (`log.reuse() or new ones`); default: new ones like `like`
    Raises TransferFailed, FellBehind, WrongState. Blocks; call it from a thread of its own.
    """
    raise NotImplementedError


def load_snapshot(
    sources: Sequence[str],
    heal: int,
    state: TrainingState,
    token: bytes,
    *,
    wait_s: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
    limits: TransferLimits | None = None,
    lock: AbstractContextManager[Any] | None = None,
) -> LoadedSnapshot:
    """Loads snapshot `heal` straight into `state`'s tensors from all sources at once, waiting up to `wait_s` for it.

    progress: called with (bytes verified so far, bytes in all), from any thread, at most once a chunk
    Raises TransferFailed (or WrongState); then `state.usable` is False unless nothing was written yet: start over.
    """
    raise NotImplementedError
