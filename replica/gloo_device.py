"""gloo's devices: a listener and a thread that waits on sockets, each.

A device serves one communicator at a time, so that what its listener accepted is known to be that communicator's. It is
used again after orderly use, because its destructor takes up to 10 ms with the GIL held.
"""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import dataclass

import torch.distributed as dist

from replica.descriptors import Noted, keep_from_programs, new_listener, open_sockets, socket_lock
from replica.rendezvous import GaveUp

_SPARE = 2


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
            before = open_sockets()
            create = dist.ProcessGroupGloo.create_device
            gloo = create(interface=bind) if by_name else create(hostname=bind)
            try:
                listener, address = new_listener(before)
                keep_from_programs([listener])
                return Device(gloo=gloo, bind=bind, address=address, listener=listener, pid=os.getpid())
            except LookupError as error:
                failure = error
    raise GaveUp(f"gloo's listener could not be told from others: {failure}")


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
