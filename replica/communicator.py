"""The collectives of one generation: opened, used, then abandoned or closed; never reconfigured.

A rank may hold two at once: the one in use, and the next one, which an `Opening` opens in the background. Two things
make recovery fast and are promised by every backend:

- *Opening can be given up at any moment*: for a peer that never comes, a rendezvous host that is gone, a deadline.
- *Abandoning ends everything in flight within milliseconds*, whatever the peers do; a peer may be dead, stopped or
  unreachable. Whoever waits gets `CommunicatorLost`.

A collective that is in flight may write to its tensor until `Pending.done()`. A caller that was told
`CommunicatorLost` reuses a tensor only once `done()` is true; if it never is, the work stays alive with the tensor's
memory and the caller lets the tensor go. So a late write cannot touch memory that is in use.

A communicator that is no longer wanted is closed or abandoned; letting it go out of scope is not enough.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from lighthouse.deadlines import DEFAULTS, Deadlines
from replica.rendezvous import Deadline, Rendezvous

if TYPE_CHECKING:
    import torch

__all__ = ["Communicator", "CommunicatorLost", "Invitation", "Opening", "Pending", "Rendezvous"]


class CommunicatorLost(Exception):
    """The generation's collectives failed or were abandoned. Try again in a newer generation. The text is the cause."""


class Pending(Protocol):
    """A collective in flight."""

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when the result is complete and may be used by the caller's next operation on the tensor.

        Raises CommunicatorLost when the collective failed, or the communicator was abandoned before this call saw the
        result complete, even if the bytes happen to be there. Raises TimeoutError after `timeout_s` seconds; the
        collective goes on. May be called again, and from any thread.
        """

    def done(self) -> bool:
        """Whether the collective has ended, well or badly: nothing reads or writes its tensors any more."""


class Communicator(Protocol):
    """Collectives among the `size` members of generation `number`; this process is at `place`, 0 … size - 1.

    Every member calls the same collectives in the same order, from one thread at a time. A collective that fails
    loses the whole communicator.
    """

    @property
    def number(self) -> int: ...

    @property
    def place(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def abandoned(self) -> bool:
        """Whether it was abandoned, by us or by a failure; it never becomes usable again."""

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Sum `tensor` (contiguous, one shape and dtype everywhere) over the members, in place.

        The result has the same bits at all members. Raises CommunicatorLost.
        """

    def all_gather(self, record: torch.Tensor) -> tuple[Pending, torch.Tensor]:
        """Gather `record` (uint8[n] on the CPU, one n everywhere) of all members.

        Returns what to wait for and the uint8[size, n] matrix on the CPU, row i from place i. The matrix is new and
        zero until the gather completes; the record is copied. Raises CommunicatorLost.
        """

    def abandon(self, reason: str) -> None:
        """End everything in flight soon with CommunicatorLost; later calls raise it. The first reason is kept.

        Any thread, at any time, any number of times. Returns at once.
        """

    def close(self) -> None:
        """Give everything back after use. If something is in flight, this is an abandonment. Idempotent."""


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """What a backend needs to know to open a communicator. The fields are `Opening`'s."""

    number: int
    place: int
    size: int
    rendezvous: str
    prefix: str
    bind: str
    token: str
    deadlines: Deadlines = DEFAULTS


class Opening:
    """Opens the communicator of a generation in a background thread, beside the one in use.

    backend: "gloo" or "nccl"; number, place, size: the generation, this group's place in it, how many members
    rendezvous: "host:port" of the first member's `Rendezvous`; prefix: names run, generation and shard there
    timeout_s: the opening gives up after that
    bind: the address (or interface) to use towards other groups; a literal, so that nothing is looked up
    token: the run's token, which the rendezvous asks for; deadlines: of the run

    Whoever does not take the result calls `abandon`.
    """

    def __init__(
        self,
        backend: str,
        number: int,
        place: int,
        size: int,
        rendezvous: str,
        prefix: str,
        timeout_s: float,
        *,
        bind: str = "127.0.0.1",
        token: str = "",
        deadlines: Deadlines = DEFAULTS,
    ) -> None:
        self._number = number
        self._deadline = Deadline(timeout_s)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._given_up = False
        self._reason = ""
        self._opened: Communicator | None = None
        invitation = Invitation(
            number=number,
            place=place,
            size=size,
            rendezvous=rendezvous,
            prefix=prefix,
            bind=bind,
            token=token,
            deadlines=deadlines,
        )
        arguments = (_opener(backend), invitation)
        threading.Thread(target=self._run, args=arguments, name=f"open-{number}", daemon=True).start()

    def done(self) -> bool:
        """Whether `result` would return or raise at once."""
        return self._ended.is_set()

    def result(self, timeout_s: float | None = None) -> Communicator:
        """The opened communicator, which is the caller's from then on (every call gives the same one).

        Raises CommunicatorLost if it could not be opened or was abandoned, TimeoutError after `timeout_s` seconds.
        """
        if not self._ended.wait(timeout_s):
            raise TimeoutError(f"the communicator of generation {self._number} is not open after {timeout_s:g} s")
        if self._opened is None or self._given_up:
            raise CommunicatorLost(self._reason)
        return self._opened

    def abandon(self, reason: str = "its opening was abandoned") -> None:
        """Give up, also what is open already. Any thread, idempotent; returns at once."""
        with self._lock:
            if self._given_up:
                return
            self._given_up = True
            if self._opened is not None or not self._ended.is_set():
                self._reason = reason
            opened = self._opened
            self._ended.set()
        self._deadline.cancel()
        if opened is not None:
            opened.abandon(reason)

    def _run(self, opener: Callable[[Invitation, Deadline], Communicator], invitation: Invitation) -> None:
        opened: Communicator | None = None
        failure = ""
        try:
            opened = opener(invitation, self._deadline)
        except Exception as error:  # noqa: BLE001 - whatever it is, this generation cannot be opened here
            failure = f"could not be opened: {error}"
        self._deadline.close()
        with self._lock:
            unwanted = self._given_up
            if not unwanted:
                self._opened, self._reason = opened, failure
            self._ended.set()
        if unwanted and opened is not None:
            opened.abandon(self._reason)


def _opener(backend: str) -> Callable[[Invitation, Deadline], Communicator]:
    """The opening function of a backend. Imported here so that what needs no collectives needs no torch."""
    if backend == "gloo":
        from replica.gloo import open_gloo

        return open_gloo
    if backend == "nccl":
        from replica.nccl import nccl_opener

        return nccl_opener()
    raise ValueError(f'backend is "gloo" or "nccl", not {backend!r}')
