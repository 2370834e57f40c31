"""Collectives between GPUs: torch's ProcessGroupNCCL, used directly. Not yet run on two GPUs.

Three things differ from gloo:

- An aborted collective *looks* complete: its kernels exit, the stream goes on. So a result counts only if, after it was
  seen complete, the communicator had neither been abandoned nor reported an error.
- torch's own watchdog and monitor would end the process upon a remote error. `ENVIRONMENT` switches that off; the entry
  point of a rank sets it before any process group exists. (It is the process's, so it holds for the group's own
  collectives too: their failures are the agent's to see.)
- Aborting can itself hang. It runs in a thread with a deadline; behind that the process ends, which its agent sees at
  once. Call `abandon` when nothing else of the rank is in flight on the device: when it waits for its verdict.

A wait polls events, with pauses that grow to 1 ms, and leaves the result ordered before what the caller's current
stream does next.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from replica.board_store import BoardStore
from replica.communicator import Communicator, CommunicatorLost, Invitation, Pending
from replica.rendezvous import Board, Deadline, GaveUp
from replica.solo import SoloCommunicator

ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "NCCL_RUNTIME_CONNECT": "0",
}
"""What the environment of a rank must say before its first process group is made.

The last connects all channels while opening, instead of in the first collective, which would be in the switch.
"""

STUCK_EXIT_CODE = 75


def nccl_opener() -> Callable[[Invitation, Deadline], Communicator]:
    """The opening function for the caller's current device. Blocks when called; meant for `Opening`'s thread."""
    if not dist.is_nccl_available() or not torch.cuda.is_available():
        raise ValueError('backend "nccl" needs a GPU and a torch that was built with NCCL; use "gloo"')
    device = torch.device("cuda", torch.cuda.current_device())

    def open_nccl(invitation: Invitation, deadline: Deadline) -> Communicator:
        if invitation.size == 1:
            return SoloCommunicator(invitation.number)
        return _open(invitation, deadline, device)

    return open_nccl


def _open(invitation: Invitation, deadline: Deadline, device: torch.device) -> Communicator:
    """Connect without blocking calls, then prove it by one small sum. Raises GaveUp."""
    torch.cuda.set_device(device)
    board = Board(invitation.rendezvous, invitation.prefix, invitation.token, deadline)
    try:
        board.post(f"at/{invitation.place}", b"here")
        for place in range(invitation.size):
            board.get(f"at/{place}")
        store = BoardStore(board)
        options = dist.ProcessGroupNCCL.Options()
        options.config.blocking = 0
        options._timeout = timedelta(seconds=invitation.deadlines.collective_s)
        group = dist.ProcessGroupNCCL(store, invitation.place, invitation.size, options)
        group.eager_connect_single_device(device)
        opened = NcclCommunicator(invitation, group, store, device)
        try:
            opened.all_reduce(torch.ones(1, device=device)).wait(deadline.remaining_s("connecting the GPUs"))
            deadline.remaining_s("connecting the GPUs")
        except (CommunicatorLost, TimeoutError, GaveUp) as error:
            opened.abandon("its opening failed")
            raise GaveUp(f"connecting the GPUs: {error}") from error
        return opened
    finally:
        board.close()


class _NcclPending:
    """Work on the device up to an event."""

    def __init__(self, owner: NcclCommunicator, event: torch.cuda.Event, keep: Sequence[Any]) -> None:
        self._owner = owner
        self._event = event
        self._keep: Sequence[Any] = keep

    def wait(self, timeout_s: float | None = None) -> None:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = 20e-6
        while True:
            self._owner.still_good()
            if self.done():
                break
            if end is not None and time.monotonic() >= end:
                raise TimeoutError(f"the collective is not complete after {timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, 1e-3)
        self._owner.still_good()  # what an abort left behind looks complete, too
        torch.cuda.current_stream(self._owner.device).wait_event(self._event)
        self._keep = ()

    def done(self) -> bool:
        return bool(self._event.query())


class NcclCommunicator:
    """See `Communicator`. Sums tensors on its device; gathers records of the CPU by way of the device."""

    def __init__(self, invitation: Invitation, group: Any, store: BoardStore, device: torch.device) -> None:
        self.number = invitation.number
        self.place = invitation.place
        self.size = invitation.size
        self.device = device
        self._group = group
        self._store = store
        self._side = torch.cuda.Stream(device)
        self._abort_s = invitation.deadlines.abort_s
        self._lock = threading.RLock()
        self._reason = ""

    @property
    def abandoned(self) -> bool:
        return bool(self._reason)

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        if tensor.device != self.device or not tensor.is_contiguous():
            raise ValueError(f"this communicator sums contiguous tensors on {self.device}")
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM  # type: ignore[assignment]
        with self._lock:
            self.still_good()
            work = self._group.allreduce([tensor], options)
            event = self._after(work)
        tensor.record_stream(self._side)
        return _NcclPending(self, event, (work, tensor))

    def all_gather(self, record: torch.Tensor) -> tuple[Pending, torch.Tensor]:
        host = torch.zeros(self.size, record.numel(), dtype=torch.uint8, pin_memory=True)
        with self._lock, torch.cuda.stream(self._side):
            self.still_good()
            mine = record.detach().to(self.device, copy=True)
            gathered = torch.zeros(self.size * record.numel(), dtype=torch.uint8, device=self.device)
            work = self._group._allgather_base(gathered, mine)
            work.wait()  # orders the side stream after it; does not block
            host.copy_(gathered.view(self.size, -1), non_blocking=True)
            event = torch.cuda.Event()
            event.record(self._side)
        return _NcclPending(self, event, (work, mine, gathered, host)), host

    def abandon(self, reason: str) -> None:
        with self._lock:
            if self._reason:
                return
            self._reason = reason or "abandoned"
        threading.Thread(target=self._abort, name=f"abort-{self.number}", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            if self._reason:
                return
            self._reason = "it is closed"
        threading.Thread(target=self._abort, name=f"close-{self.number}", daemon=True).start()

    def still_good(self) -> None:
        """Raises CommunicatorLost if abandoned, or if NCCL reported an error, which abandons it."""
        if not self._reason:
            error = self._group.get_error()
            if error.name != "SUCCESS":
                self.abandon(f"NCCL reported {error}")
        if self._reason:
            raise CommunicatorLost(f"generation {self.number}: {self._reason}")

    def _after(self, work: Any) -> torch.cuda.Event:
        """An event on the side stream, after the work."""
        with torch.cuda.stream(self._side):
            work.wait()
            event = torch.cuda.Event()
            event.record(self._side)
            return event

    def _abort(self) -> None:
        """Abort; end the process if that does not return."""
        returned = threading.Event()

        def abort() -> None:
            self._group.abort()
            returned.set()

        threading.Thread(target=abort, name=f"nccl-abort-{self.number}", daemon=True).start()
        if not returned.wait(self._abort_s):
            print(f"ncclCommAbort of generation {self.number} hangs; exiting", file=sys.stderr, flush=True)
            os._exit(STUCK_EXIT_CODE)
