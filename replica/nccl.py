"""Collectives between GPUs: torch's ProcessGroupNCCL, used directly. Not yet run on two GPUs.

Three things differ from gloo:

- An aborted collective *looks* complete: its kernels exit, the stream goes on. So a result counts only if, after it
  was seen complete, the communicator had neither been abandoned nor reported an error.
- torch's own watchdog and monitor would end the process upon a remote error. `NCCL_ENVIRONMENT` (environment.py)
  switches that off: torch reads it when the first process group is made, so a rank is started with it. (It is the
  process's, so it holds for the group's own collectives too: their failures are the agent's to see.)
- Aborting can itself hang, most likely amid traffic of other communicators on the device. So an abandonment counts at
  once and aborts nothing: that is done when the training thread comes to this communicator again, which has then
  nothing else in flight; or after a deadline. It runs in a thread with a deadline of its own; behind that the process
  ends, which its agent sees at once.

A call into torch may block while NCCL connects (NCCL's calls return at once, but torch waits for what they began): so
an abandonment takes no lock that such a call holds, and an opening is watched from beside and aborted when its
deadline is over. The destructor of a process group waits for its watchdog with the interpreter's lock held: the
thread that aborts lets go of it, once the watchdog has ended.

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

WATCHDOG_S = 2.0
"""torch's watchdog looks ten times a second whether it is to end."""
WATCH_S = 0.05
"""How often it is looked whether an opening is not wanted any more."""
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
        opened = NcclCommunicator(invitation, group, store, device)
        proved = threading.Event()
        watch = threading.Thread(target=_abort_when_over, args=(opened, deadline, proved), daemon=True)
        watch.start()
        try:
            group.eager_connect_single_device(device)
            opened.all_reduce(torch.ones(1, device=device)).wait(deadline.remaining_s("connecting the GPUs"))
            deadline.remaining_s("connecting the GPUs")
        except (CommunicatorLost, TimeoutError, GaveUp, RuntimeError) as error:  # torch's own errors are RuntimeErrors
            opened.abandon("its opening failed")
            opened.abort()
            raise GaveUp(f"connecting the GPUs: {error}") from error
        finally:
            proved.set()
            watch.join()
        opened.still_good()
        return opened
    finally:
        board.close()


def _abort_when_over(opening: NcclCommunicator, deadline: Deadline, proved: threading.Event) -> None:
    """Ends an opening that is not wanted any more: torch waits for NCCL to connect, by default for half an hour."""
    while not proved.wait(WATCH_S):
        try:
            deadline.remaining_s("connecting the GPUs")
        except GaveUp as over:
            opening.abandon(str(over))
            opening.abort()
            return


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
        self._lock = threading.Lock()
        """Held for moments only: not while torch is called."""
        self._reason = ""
        self._aborting = False

    @property
    def abandoned(self) -> bool:
        return bool(self._reason)

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        if tensor.device != self.device or not tensor.is_contiguous():
            raise ValueError(f"this communicator sums contiguous tensors on {self.device}")
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.SUM  # type: ignore[assignment]

        def launch(group: Any) -> Pending:
            work = group.allreduce([tensor], options)
            with torch.cuda.stream(self._side):
                event = self._after(work)
            tensor.record_stream(self._side)
            return _NcclPending(self, event, (work, tensor))

        return self._launch(launch)

    def all_gather(self, record: torch.Tensor) -> tuple[Pending, torch.Tensor]:
        host = torch.zeros(self.size, record.numel(), dtype=torch.uint8, pin_memory=True)

        def launch(group: Any) -> Pending:
            with torch.cuda.stream(self._side):
                mine = record.detach().to(self.device, copy=True)
                gathered = torch.zeros(self.size * record.numel(), dtype=torch.uint8, device=self.device)
                work = group._allgather_base(gathered, mine)
                self._after(work)
                host.copy_(gathered.view(self.size, -1), non_blocking=True)
                event = torch.cuda.Event()
                event.record(self._side)
            return _NcclPending(self, event, (work, mine, gathered, host))

        return self._launch(launch), host

    def abandon(self, reason: str) -> None:
        with self._lock:
            again, self._reason = bool(self._reason), self._reason or reason or "abandoned"
        if again:  # the training thread gives it up: it is in nothing else now
            self.abort()
        else:
            later = threading.Timer(self._abort_s, self.abort)
            later.daemon = True
            later.start()

    def close(self) -> None:
        with self._lock:
            self._reason = self._reason or "it is closed"
        self.abort()

    def abort(self) -> None:
        """End what is in flight on the device, once abandoned. Any thread, idempotent; returns at once."""
        with self._lock:
            begun, self._aborting = self._aborting, True
        if not begun:
            threading.Thread(target=self._abort, name=f"abort-{self.number}", daemon=True).start()

    def still_good(self) -> None:
        """Raises CommunicatorLost if abandoned, or if NCCL reported an error, which abandons it."""
        self._usable()

    def _usable(self) -> Any:
        group = self._group
        if not self._reason and (error := group.get_error()).name != "SUCCESS":
            self.abandon(f"NCCL reported {error}")
        if self._reason:
            self.abort()
            raise CommunicatorLost(f"generation {self.number}: {self._reason}")
        return group

    def _launch(self, launch: Callable[[Any], Pending]) -> Pending:
        """Launches a collective. torch raises RuntimeError for one that was aborted meanwhile, or failed at once."""
        try:
            return launch(self._usable())
        except RuntimeError as error:
            self.abandon(f"a collective could not be launched: {error}")
            raise CommunicatorLost(f"generation {self.number}: {self._reason}") from error

    def _after(self, work: Any) -> torch.cuda.Event:
        """An event of the side stream, which is the current one, after the work."""
        work.wait()  # orders the stream after it; does not block
        event = torch.cuda.Event()
        event.record(self._side)
        return event

    def _abort(self) -> None:
        """Aborts; ends the process if that does not return. Then lets go of the process group."""
        returned, group = threading.Event(), self._group

        def abort() -> None:
            group.abort()
            returned.set()

        threading.Thread(target=abort, name=f"nccl-abort-{self.number}", daemon=True).start()
        if not returned.wait(self._abort_s):
            print(f"ncclCommAbort of generation {self.number} hangs; exiting", file=sys.stderr, flush=True)
            os._exit(STUCK_EXIT_CODE)
        time.sleep(WATCHDOG_S)
        self._group = None
