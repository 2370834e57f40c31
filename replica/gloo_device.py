"""gloo's devices: a listener and a thread that waits on sockets, each.

A device serves one communicator at a time, so that what its listener accepted is known to be that communicator's. It is
used again after orderly use, because its destructor takes up to 10 ms with the GIL held.

The device's thread must not take the core from the thread that woke it. gloo's senders hold a connection's lock while
they write, the answer comes before they let go of it, and a device's thread that does not get the lock asks the kernel
for the same event again, at once, for as long as it may run: milliseconds, where a core is shared. So it is made one
that does not preempt on waking (SCHED_BATCH). docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from replica.descriptors import Noted, keep_from_programs, new_listener, open_sockets, socket_lock
from replica.rendezvous import GaveUp

_SPARE = 2
_TASKS = Path("/proc/self/task")
_THREAD = "gloo_tcp_loop"
_NAMED_S = 0.02
"""How long a device's new thread may take to name itself."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """gloo's listener and socket thread, bound to one address; used by one communicator at a time."""

    gloo: dist.ProcessGroupGloo.Device
    bind: str
    address: tuple[str, int]
    listener: Noted
    pid: int


def new_device(bind: str) -> Device:
    """Create one, and find its listener. Raises as `Devices.take`."""
    by_name = bind in (name for _, name in socket.if_nameindex())
    if not by_name and bind in ("", "0.0.0.0", "::"):
        raise ValueError("bind names the one address or interface towards the other groups, not all of them")
    failure: LookupError | None = None
    for _ in range(5):
        with socket_lock():
            before, threads = open_sockets(), set(os.listdir(_TASKS))
            create = dist.ProcessGroupGloo.create_device
            gloo = create(interface=bind) if by_name else create(hostname=bind)
            _make_patient(threads)
            try:
                listener, address = new_listener(before)
                keep_from_programs([listener])
                return Device(gloo=gloo, bind=bind, address=address, listener=listener, pid=os.getpid())
            except LookupError as error:
                failure = error
    raise GaveUp(f"gloo's listener could not be told from others: {failure}")


def _make_patient(before: set[str]) -> None:
    """Has the device's thread, one that was not there before, not preempt others when it wakes, if that can be."""
    end = time.monotonic() + _NAMED_S
    while time.monotonic() < end:
        for thread in set(os.listdir(_TASKS)) - before:
            with contextlib.suppress(OSError):  # it has ended, or this kernel does not let us
                if (_TASKS / thread / "comm").read_text().strip() == _THREAD:
                    os.sched_setscheduler(int(thread), os.SCHED_BATCH, os.sched_param(0))
                    return
        time.sleep(0.0005)


class Devices:
    """Spare devices of this process. Those of a process that it was forked from stay untouched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: list[Device] = []

    def take(self, bind: str) -> Device:
        """A spare one bound to `bind`, or a new one. Raises ValueError, GaveUp, RuntimeError (no such address)."""
        with self._lock:
            for device in self._spare:
                if device.bind == bind and device.pid == os.getpid():
                    self._spare.remove(device)
                    return device
        return new_device(bind)

    def give(self, device: Device) -> None:
        """Only after orderly use: another peer's late connection must not be waiting at the listener."""
        with self._lock:
            if sum(device.pid == os.getpid() for device in self._spare) < _SPARE:
                self._spare.append(device)
