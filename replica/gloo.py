"""Collectives on the CPU over TCP: torch's ProcessGroupGloo, used directly, with a way to end it.

What makes it end: after the opening, the sockets that gloo opened are found (accepted at its own listener, or connected
to the listeners that the other members posted) and noted. Abandoning shuts them down, upon which gloo fails what it has
in flight, also towards a stopped peer. gloo's own `abort` and `shutdown` do not do that.

It is done gently, because gloo forgets to fail the one transfer that is half done on a connection when that ends (in
`Pair::signalException`: a receive whose first bytes came, a send whose write was refused); a work that waits for just
that one does not end. So an abandonment waits a few ms until nothing arrives any more, then shuts down reading only,
and keeps the connections until the works have ended, so that no write is refused here or at a peer that abandons, too.
What is left is a peer that died in the middle of a collective's last transfers: who waits on such a work gives up once
a connection has been gone for `_FORGOTTEN_S`, if nobody has told it before.

What happens afterwards is left to a thread: it waits until all works have ended and only then lets the process group
go, because its destructor waits for works while it holds the GIL. If works do not end, the communicator stays in the
graveyard with its works and their tensors, and is looked at again at the next opening; `wait` does not wait for it.

Of a generation's members two may live in one process (tests do), not more. Cost: three threads and
size - 1 sockets a communicator. Collectives are rings; opening connects everyone to everyone.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from replica.board_store import BoardStore
from replica.communicator import Communicator, CommunicatorLost, Invitation, Pending
from replica.descriptors import Held, Noted, connections, fork_guard, keep_from_programs, open_sockets
from replica.gloo_device import Device, Devices
from replica.rendezvous import Board, Deadline, GaveUp, join_address, split_address
from replica.solo import Ended, SoloCommunicator

__all__ = ["GlooCommunicator", "graveyard_size", "open_gloo"]

_SLICE_S = 0.05
_GRACE_S = 0.05
_QUIET_S = 0.003
_ARRIVE_S = 0.015
_GENTLE_S = 0.06
_FORGOTTEN_S = 1.0
_REAP_S = 2.0


def open_gloo(invitation: Invitation, deadline: Deadline) -> Communicator:
    """Open the communicator that the invitation describes. Blocks; meant for `Opening`'s thread.

    Raises GaveUp when the deadline ran out or was cancelled, or the rendezvous or a member went away. While gloo
    connects (all members are there by then) a cancelled deadline is seen after `mesh_s` at most.
    """
    if invitation.size == 1:
        return SoloCommunicator(invitation.number)
    _shell.sweep()
    board = Board(invitation.rendezvous, invitation.prefix, invitation.token, deadline)
    try:
        device = _shell.take_device(invitation.bind)
        board.post(f"at/{invitation.place}", f"{join_address(*device.address)} {_shell.life()}".encode())
        places = [board.get(f"at/{place}").decode().split() for place in range(invitation.size)]
        if sum(life == _shell.life() for _, life in places) > 2:
            raise ValueError("of a generation's members, at most two can be in one process: whose socket is whose?")
        peers = [split_address(address) for place, (address, _) in enumerate(places) if place != invitation.place]
        return _connect(invitation, device, peers, BoardStore(board), deadline)
    finally:
        board.close()


def graveyard_size() -> int:
    """How many communicators could not be ended yet."""
    return _shell.sweep()


def _connect(
    invitation: Invitation, device: Device, peers: list[tuple[str, int]], store: BoardStore, deadline: Deadline
) -> GlooCommunicator:
    doing = f"connecting with {len(peers)} members"
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [device.gloo]
    options._threads = 2
    options._timeout = timedelta(seconds=min(invitation.deadlines.mesh_s, deadline.remaining_s(doing)))
    before = open_sockets()
    try:
        group = dist.ProcessGroupGloo(store, invitation.place, invitation.size, options)
    except RuntimeError as error:
        deadline.remaining_s(doing)
        raise GaveUp(f"{doing}: {_gist(error)}") from error
    sockets = connections(before, device.address, peers)
    keep_from_programs(sockets)
    opened = GlooCommunicator(invitation, group, store, device, sockets)
    if len(sockets) < len(peers):
        opened.abandon("a member left while the communicator opened")
        raise GaveUp(f"{doing}: {len(peers) - len(sockets)} connections are gone already")
    return opened


def _gist(error: BaseException) -> str:
    """What gloo says, without the place in its source and its advice."""
    return re.sub(r"^\[[^]]*\.cc:\d+\] ", "", str(error).partition("\n")[0]).partition(" This is typically")[0]


class _GlooPending:
    """A work of gloo. Keeps the work and its tensors until it has ended."""

    def __init__(self, owner: GlooCommunicator, work: dist.Work, tensors: Sequence[torch.Tensor]) -> None:
        self._owner = owner
        self._work: dist.Work | None = work
        self._tensors: Sequence[torch.Tensor] = tensors

    def wait(self, timeout_s: float | None = None) -> None:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        whole_at = time.monotonic()
        while not self._owner.abandoned:
            left = _SLICE_S if end is None else min(_SLICE_S, end - time.monotonic())
            if left <= 0:
                raise TimeoutError(f"the collective is not complete after {timeout_s:g} s")
            if self.ended(left):
                break
            if self._owner.is_whole():
                whole_at = time.monotonic()
            elif time.monotonic() > whole_at + _FORGOTTEN_S:
                self._owner.abandon("a member's connection ended, and its collective with it")
        if self._owner.abandoned and not self.ended(0):
            self.ended(_GRACE_S)
        self._owner.still_good()

    def done(self) -> bool:
        return self._work is None or self._work.is_completed()

    def ended(self, timeout_s: float) -> bool:
        """Wait for the end; a failure loses the owner."""
        work = self._work
        if work is None:
            return True
        had_ended = work.is_completed()
        if timeout_s <= 0 and not had_ended:
            return False
        try:
            work.wait(timedelta(milliseconds=math.ceil(1000 * timeout_s) or 1))  # below 1 ms means for ever
        except RuntimeError as error:  # its failure, or only that it goes on
            if not had_ended:
                return work.is_completed() and self.ended(timeout_s)
            self._owner.abandon(f"a collective failed: {_gist(error)}")
        self._work, self._tensors = None, ()
        return True


class GlooCommunicator:
    """See `Communicator`. Opened by `open_gloo`."""

    def __init__(
        self,
        invitation: Invitation,
        group: dist.ProcessGroupGloo,
        store: BoardStore,
        device: Device,
        sockets: Sequence[Noted],
    ) -> None:
        self.number = invitation.number
        self.place = invitation.place
        self.size = invitation.size
        # Only a net, which also empties the graveyard: stalls are judged by the lighthouse.
        self._timeout = timedelta(seconds=invitation.deadlines.collective_s)
        self._group: dist.ProcessGroupGloo | None = group
        self._store = store
        self._device: Device | None = device
        self._sockets = tuple(sockets)
        self._lock = threading.RLock()
        self._in_flight: list[_GlooPending] = []
        self._reason = ""
        self._held = Held(())
        self._orderly = False
        self._immortal = False
        fork_guard.keep(self, (*sockets, device.listener), self._forked)

    @property
    def abandoned(self) -> bool:
        return bool(self._reason)

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        if not tensor.is_contiguous() or tensor.device.type != "cpu":
            raise ValueError("gloo sums contiguous tensors on the CPU")
        if tensor.numel() == 0:
            self.still_good()
            return Ended(self.still_good)
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM  # type: ignore[assignment]
        options.timeout = self._timeout
        with self._lock:
            return self._started(self._usable().allreduce([tensor], options), (tensor,))

    def all_gather(self, record: torch.Tensor) -> tuple[Pending, torch.Tensor]:
        mine = record.detach().clone()
        matrix = torch.zeros(self.size * mine.numel(), dtype=torch.uint8)
        options = distributed_c10d.AllgatherOptions()  # type: ignore[attr-defined]
        options.timeout = self._timeout
        with self._lock:
            work = self._usable()._allgather_base(matrix, mine, options)
            return self._started(work, (matrix, mine)), matrix.view(self.size, -1)

    def abandon(self, reason: str) -> None:
        with self._lock:
            if self._reason:
                return
            self._reason = reason or "abandoned"
            self._end()

    def close(self) -> None:
        with self._lock:
            if self._reason:
                return
            if all(pending.done() for pending in self._in_flight):
                self._orderly = True
                self._reason = "it is closed"
            else:
                self._reason = "it was closed while in use"
            self._end()

    def still_good(self) -> None:
        """Raises CommunicatorLost if abandoned."""
        if self._reason:
            raise CommunicatorLost(self._reason)

    def is_whole(self) -> bool:
        """Whether gloo still has the connections to all members: it closes those that their other end closed."""
        return all(_same(noted) for noted in self._sockets)

    def make_immortal(self) -> None:
        """Never run gloo's destructor, not even when the interpreter ends: it would wait for the works."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))
        self._immortal = True

    def reap(self, deadline_s: float) -> bool:
        """End the works, then give everything back. False if they did not end in time."""
        end = time.monotonic() + deadline_s
        if not self._orderly:
            self._let_arrive(min(_ARRIVE_S, deadline_s))
        self._held.shut_down(socket.SHUT_RD)
        if not self._works_end(min(end, time.monotonic() + _GENTLE_S)):
            self._held.shut_down(socket.SHUT_RDWR)
            self._held.close()
            if not self._works_end(end):
                return False
        while any(_same(noted) for noted in self._sockets) and time.monotonic() < end:
            time.sleep(0.001)  # gloo's thread closes them once it sees them shut down
        self._held.close()
        fork_guard.release(self)
        if self._immortal:
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._group))
        self._group = None
        if self._orderly and self._device is not None:
            _shell.devices.give(self._device)
        self._device = None
        return True

    def _let_arrive(self, deadline_s: float) -> None:
        """Return when all works have ended, or nothing has arrived for a while."""
        received = self._held.received_bytes()
        end = time.monotonic() + deadline_s
        quiet_at = time.monotonic() + _QUIET_S
        while time.monotonic() < min(end, quiet_at) and not all(pending.done() for pending in self._in_flight):
            time.sleep(_QUIET_S / 3)
            now = self._held.received_bytes()
            if now != received:
                received, quiet_at = now, time.monotonic() + _QUIET_S

    def _works_end(self, end: float) -> bool:
        while self._in_flight:
            if not self._in_flight[0].ended(max(0.0, end - time.monotonic())):
                return False
            del self._in_flight[0]
        return True

    def _usable(self) -> Any:  # torch's stub of ProcessGroupGloo lacks its collectives
        self.still_good()
        assert self._group is not None
        return self._group

    def _started(self, work: dist.Work, tensors: Sequence[torch.Tensor]) -> _GlooPending:
        pending = _GlooPending(self, work, tensors)
        self._in_flight = [*(other for other in self._in_flight if not other.done()), pending]
        return pending

    def _end(self) -> None:
        self._held = Held(self._sockets)
        _shell.bury(self)

    def _forked(self) -> None:
        self._reason = self._reason or "it belongs to the process that this one was forked from"


def _same(noted: Noted) -> bool:
    try:
        return os.fstat(noted[0]).st_ino == noted[1]
    except OSError:
        return False


class _Shell:
    """What outlives a communicator in this process: spare devices, threads that reap, the graveyard."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.devices = Devices()
        self._graves: list[GlooCommunicator] = []
        self._reapers: set[threading.Thread] = set()
        self._registered = False
        self._secret = secrets.token_hex(8)

    def life(self) -> str:
        """Names this process, among all hosts."""
        return f"{self._secret}-{os.getpid()}"

    def take_device(self, bind: str) -> Device:
        with self._lock:
            if not self._registered:
                self._registered = True
                atexit.register(self._at_exit)
        return self.devices.take(bind)

    def bury(self, communicator: GlooCommunicator) -> None:
        """Reap it in a thread; if that takes too long it goes to the graveyard."""

        def reap() -> None:
            reaped = communicator.reap(_REAP_S)
            if not reaped:
                communicator.make_immortal()
            with self._lock:
                if not reaped:
                    self._graves.append(communicator)
                self._reapers.discard(threading.current_thread())

        thread = threading.Thread(target=reap, name=f"reap-{communicator.number}", daemon=True)
        with self._lock:
            self._reapers.add(thread)
        thread.start()

    def sweep(self) -> int:
        """Reap what has ended in the graveyard meanwhile; how many are left."""
        with self._lock:
            graves, self._graves = self._graves, []
        left = [grave for grave in graves if not grave.reap(0)]
        with self._lock:
            self._graves += left
            return len(self._graves)

    def _at_exit(self) -> None:
        """End what a program leaves open, so that the interpreter does not wait for a peer in a destructor."""
        for owner in fork_guard.owners():
            if isinstance(owner, GlooCommunicator):
                owner.abandon("the process exits")
        with self._lock:
            reapers = list(self._reapers)
        for thread in reapers:
            thread.join(_REAP_S + 1)


_shell = _Shell()
