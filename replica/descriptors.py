"""Sockets that a library opened inside this process, noted so that they can be shut down from outside it.

gloo has no call that wakes a collective waiting for a stopped peer; `shutdown(2)` on its sockets does. A descriptor's
number alone may by then name something else, so each is noted with its inode, and shut down through a duplicate whose
inode was compared first.

A forked child inherits the descriptors. It would keep a dead parent's connections open, and peers would not see the
death, so the child closes its copies right after the fork. Children that exec never get them (close-on-exec is set).
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache


@cache
def socket_lock() -> threading.Lock:
    """This process's lock that is held while sockets are opened that are found by comparing descriptors.

    Other code of ours that opens *listening* sockets in a rank may hold it while it does, to stay out of that.
    """
    return threading.Lock()


_TCP_INFO_BYTES = 136
"""Of Linux' struct tcp_info, up to and with tcpi_bytes_received."""

Address = tuple[str, int]
Noted = tuple[int, int]
"""(descriptor, inode)"""


def open_sockets() -> set[Noted]:
    """All sockets of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            status = os.stat(int(name))
        except OSError:  # closed since the listing, or the listing's own descriptor
            continue
        if stat.S_ISSOCK(status.st_mode):
            found.add((int(name), status.st_ino))
    return found


def look(noted: Noted) -> tuple[Address | None, Address | None, bool]:
    """(local address, peer's address, whether it listens) of an internet stream socket; None for what it has not."""
    with _duplicate(noted) as sock:
        if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
            return None, None, False
        listens = bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        local: Address = sock.getsockname()[:2]
        try:
            peer: Address | None = sock.getpeername()[:2]
        except OSError:  # not connected, or not any more
            peer = None
        return local, peer, listens


def new_listener(before: set[Noted]) -> tuple[Noted, Address]:
    """The one listening socket that was opened since `before`, and its address. LookupError if there is not one."""
    found = [(noted, local) for noted in open_sockets() - before for local, _, listens in [look(noted)] if listens]
    if len(found) != 1 or found[0][1] is None:
        raise LookupError(f"{len(found)} listening sockets were opened at the same time, so which is whose is unknown")
    return found[0][0], found[0][1]


def connections(before: set[Noted], local: Address, peers: Iterable[Address]) -> list[Noted]:
    """The connected sockets opened since `before` that were accepted at `local`, or connect to one of `peers`."""
    wanted = frozenset(peers)
    found = []
    for noted in sorted(open_sockets() - before):
        here, there, _ = look(noted)
        if there is not None and (here == local or there in wanted):
            found.append(noted)
    return found


class Held:
    """Duplicates of noted sockets: their connections last, whatever the owner does, until `close`.

    Made and used by one thread at a time. A socket that is not the one noted any more is left out.
    """

    def __init__(self, sockets: Iterable[Noted]) -> None:
        self._held: list[socket.socket] = []
        for noted in sockets:
            with _duplicate(noted) as sock:
                if sock is not None:
                    self._held.append(sock.dup())

    def received_bytes(self) -> int:
        """How much has arrived on all of them since they were connected; 0 where the kernel does not say."""
        total = 0
        for sock in self._held:
            info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
            if len(info) == _TCP_INFO_BYTES:
                total += struct.unpack_from("=Q", info, _TCP_INFO_BYTES - 8)[0]
        return total

    def shut_down(self, how: int) -> None:
        """`shutdown(2)` on each: socket.SHUT_RD, _WR or _RDWR. The owner, who reads from it, is told at once."""
        for sock in self._held:
            with suppress(OSError):  # the other side was first
                sock.shutdown(how)

    def close(self) -> None:
        """Let the connections go; idempotent."""
        for sock in self._held:
            sock.close()
        self._held = []


def keep_from_programs(sockets: Iterable[Noted]) -> None:
    """Set close-on-exec on each."""
    for fd, _ in sockets:
        with suppress(OSError):  # closed meanwhile
            os.set_inheritable(fd, False)


class ForkGuard:
    """Closes this process's noted sockets in a forked child, and tells their owners there.

    `keep` also holds its owner alive: what has threads inside must not be destroyed by going out of scope, least of
    all in a child where those threads do not exist.
    """

    def __init__(self) -> None:
        self._kept: dict[object, tuple[tuple[Noted, ...], Callable[[], None]]] = {}
        self._registered = False

    def keep(self, owner: object, sockets: Iterable[Noted], in_child: Callable[[], None]) -> None:
        """From now on a forked child closes `sockets` and calls `in_child`, which must take no lock."""
        if not self._registered:
            self._registered = True
            os.register_at_fork(after_in_child=self._forked)
        self._kept[owner] = (tuple(sockets), in_child)

    def release(self, owner: object) -> None:
        self._kept.pop(owner, None)

    def owners(self) -> list[object]:
        return list(self._kept)

    def _forked(self) -> None:
        for sockets, in_child in list(self._kept.values()):
            for fd, inode in sockets:
                try:
                    if os.fstat(fd).st_ino == inode:
                        os.close(fd)
                except OSError:
                    pass
            in_child()


fork_guard = ForkGuard()
"""The process's one guard."""


class _duplicate:
    """A duplicate of a noted socket as a Python socket, or None if the descriptor is not that socket any more."""

    def __init__(self, noted: Noted) -> None:
        self._noted = noted
        self._sock: socket.socket | None = None

    def __enter__(self) -> socket.socket | None:
        fd, inode = self._noted
        try:
            copy = os.dup(fd)
        except OSError:
            return None
        if os.fstat(copy).st_ino != inode:
            os.close(copy)
            return None
        self._sock = socket.socket(fileno=copy)
        return self._sock

    def __exit__(self, *_: object) -> None:
        if self._sock is not None:
            self._sock.close()
