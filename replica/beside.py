"""Work that goes on beside the training thread, and what came of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import torch

T = TypeVar("T")
_BEHIND = 10
"""By so much is the priority of a thread lower that gives way."""
SHUT_S = 0.1
"""So long a step may keep joiners waiting."""


def give_way() -> None:
    """What this thread does from now on can wait: it has a core to itself only where the training threads leave one.

    Once is as good as twice, and threads that it starts have its priority.
    """
    with suppress(OSError, AttributeError):
        main = os.getpriority(os.PRIO_PROCESS, os.getpid())
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), main + _BEHIND)


class Gate:
    """Where those who serve joiners stop while the rank does what other groups wait for: its collectives, its apply.

    What moves then takes cores, memory and links from what all wait for; in forward and backward it takes next to
    nothing. It is shut for `SHUT_S` at most, lest a joiner waits for ever where a step is little else.
    """

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether nobody has to stop."""
        return self._open.is_set() or time.monotonic() >= self._until

    def shut(self) -> None:
        """Whoever comes to it from now on stops."""
        self._until = time.monotonic() + SHUT_S
        self._open.clear()

    def open(self) -> None:
        """All may pass."""
        self._open.set()

    def passed(self) -> None:
        """Waits until it is open."""
        if not self.is_open:
            self._open.wait(max(0.0, self._until - time.monotonic()))


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
