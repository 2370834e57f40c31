"""A rendezvous board in the shape that torch's process groups ask for."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist

from replica.rendezvous import Board


class BoardStore(dist.Store):  # type: ignore[name-defined, misc]
    """A board as torch's Store, as far as opening a process group needs one."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board

    def set(self, key: str, value: str | bytes) -> None:
        self._board.post(f"store/{key}", value if isinstance(value, bytes) else value.encode())

    def get(self, key: str) -> bytes:
        return self._board.get(f"store/{key}")

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for all keys; the deadline is the board's."""
        for key in keys:
            self._board.get(f"store/{key}")

    def check(self, keys: list[str]) -> bool:
        return all(self._board.has(f"store/{key}") for key in keys)
