"""Work that goes on beside the training thread, and what came of it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
_BEHIND = 10
"""By so much is the priority of a thread lower that gives way."""


def give_way() -> None:
    """What this thread does from now on can wait: it has a core to itself only where the training threads leave one.

    Once is as good as twice, and threads that it starts have its priority.
    """
    with suppress(OSError, AttributeError):
        main = os.getpriority(os.PRIO_PROCESS, os.getpid())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), main + _BEHIND)


def let_go(large: list[torch.Tensor]) -> None:
    """Empties a list of large tensors beside the caller: the kernel takes a tenth of a second for a gigabyte."""
    if large:
        threading.Thread(target=large.clear, name="let-go", daemon=True).start()


class Beside(Generic[T]):
    """Runs `work` on a thread of its own, from now on. `result` may be asked for by any thread, any number of times."""

    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._work: list[Callable[[], T]] = [work]
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether `result` need not wait."""
        return not self._thread.is_alive()

    def result(self) -> T:
        """What the work gave, once it is done. Raises what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._results[0]

    def _run(self) -> None:
        try:
            # What it refers to, whoever holds this perhaps, is let go of once it is done.
            self._results.append(self._work.pop()())
        except BaseException as error:  # noqa: BLE001 raised again where the result is asked for
            self._error = error
