"""Serves this rank's entries and staged snapshots to joiners and to members one step behind."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from replica.entry import EntryLog
from replica.snapshot import Snapshot
from replica.transfer_limits import TransferLimits


class WeightServer:
    """One TCP listener; a thread per connection, bounded; never blocks the trainer.

    bind: host to listen on (any free port); token: the run's secret; lock: held while a descriptor is made
    (`replica.communicator.socket_lock`)
    """

    address: str
    """host:port"""

    def __init__(
        self,
        bind: str,
        token: bytes,
        log: EntryLog,
        *,
        limits: TransferLimits | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        raise NotImplementedError

    def stage(self, heal: int, snapshot: Snapshot) -> None:
        """From now on `snapshot` is served to whoever asks for `heal`. Call `log.owe(heal, snapshot.version, ...)` first."""
        raise NotImplementedError

    def drop(self, heal: int) -> None:
        """Serves it no longer; readers in the middle of it are cut. Idempotent. (`log.release(heal)` is apart.)"""
        raise NotImplementedError

    def close(self) -> None:
        """Ends all threads and sockets. Idempotent."""
        raise NotImplementedError
