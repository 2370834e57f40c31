"""The communicator of a generation with one member: there is nothing to send, whatever the backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from replica.communicator import CommunicatorLost, Pending

if TYPE_CHECKING:
    import torch


class Ended:
    """A collective that had nothing to do. check: raises if the communicator was lost meanwhile."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def wait(self, timeout_s: float | None = None) -> None:
        self._check()

    def done(self) -> bool:
        return True


class SoloCommunicator:
    """The communicator of a generation with one member, on any device: nothing to send."""

    place = 0
    size = 1

    def __init__(self, number: int) -> None:
        self.number = number
        self._reason = ""

    @property
    def abandoned(self) -> bool:
        return bool(self._reason)

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        self._check()
        return Ended(self._check)

    def all_gather(self, record: torch.Tensor) -> tuple[Pending, torch.Tensor]:
        self._check()
        return Ended(self._check), record.detach().to("cpu", copy=True).view(1, -1)

    def abandon(self, reason: str) -> None:
        self._reason = self._reason or reason or "abandoned"

    def close(self) -> None:
        self._reason = self._reason or "it is closed"

    def _check(self) -> None:
        if self._reason:
            raise CommunicatorLost(f"generation {self.number}: {self._reason}")
