"""Where the members of a generation leave their addresses for one another: a board per prefix, pushed to all.

The first member's rank serves a `Rendezvous`; each member connects, says which board it means, posts items, and is
pushed all items of that board, old and new. A board lives while somebody is connected to it, so nothing piles up over
generations. A post returns when its echo is back, so a member may leave right after its last post.

torch's TCPStore does not fit: its client waits for ever for a host that accepts and then says nothing (10 minutes seen
with a timeout of 2 s), it cannot be interrupted, and it asks for no token.

On the wire: the server sends 16 random bytes; the client answers with HMAC-SHA256(token, those bytes + prefix), the
prefix's length (2 bytes) and the prefix; from then on both sides send items: length of the rest (4 bytes), length of
the key (2 bytes), key, value. Integers are big-endian.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import secrets
import selectors
import socket
import struct
import threading
import time
from dataclasses import dataclass, field

from lighthouse.deadlines import DEFAULTS
from replica.descriptors import fork_guard, socket_lock

_NONCE_BYTES = 16
_MAC_BYTES = 32
_HELLO = struct.Struct(f">{_MAC_BYTES}sH")
_ITEM = struct.Struct(">IH")
_ITEM_LIMIT = 1 << 20
_PENDING_LIMIT = 64 << 20


class GaveUp(Exception):
    """A deadline ran out, was cancelled, or the rendezvous is gone. The text says which and where."""


class Deadline:
    """A time to give up at, or earlier if any thread calls `cancel`, which wakes who waits in `ready`."""

    def __init__(self, timeout_s: float) -> None:
        self._end = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._cancelled = False
        self._bell = -1

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def remaining_s(self, doing: str) -> float:
        """Seconds that are left, more than 0. Raises GaveUp, naming what was being done."""
        left = self._end - time.monotonic()
        if self._cancelled:
            raise GaveUp(f"abandoned while {doing}")
        if left <= 0:
            raise GaveUp(f"not done after {self._timeout_s:g} s: {doing}")
        return left

    def ready(self, sock: socket.socket, write: bool, doing: str) -> None:
        """Wait until the socket can be read (or written). Raises GaveUp."""
        self.remaining_s(doing)
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_WRITE if write else selectors.EVENT_READ)
            selector.register(self._ring(), selectors.EVENT_READ)
            while True:
                ready = selector.select(self.remaining_s(doing))
                self.remaining_s(doing)
                if any(key.fileobj is sock for key, _ in ready):
                    return

    def close(self) -> None:
        """Give the descriptor back; afterwards `ready` must not be called."""
        with self._lock:
            if self._bell >= 0:
                os.close(self._bell)
            self._bell = -1

    def _ring(self) -> int:
        with self._lock:
            if self._bell < 0:
                self._bell = os.eventfd(int(self._cancelled), os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            return self._bell


def split_address(address: str) -> tuple[str, int]:
    """("host", port) of "host:port" or "[v6 host]:port". Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ValueError(f'an address is "host:port", not {address!r}')
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _item(key: str, value: bytes) -> bytes:
    name = key.encode()
    return _ITEM.pack(2 + len(name) + len(value), len(name)) + name + value


def _take_items(buffer: bytearray) -> list[bytes]:
    """Cut the complete items off the buffer's front. Raises ValueError for one that is too large or malformed."""
    items = []
    while len(buffer) >= _ITEM.size:
        rest, key_length = _ITEM.unpack_from(buffer)
        if rest > _ITEM_LIMIT or rest < 2 + key_length:
            raise ValueError(f"an item of {rest} bytes with a key of {key_length}")
        if len(buffer) < 4 + rest:
            break
        items.append(bytes(buffer[: 4 + rest]))
        del buffer[: 4 + rest]
    return items


def _open_item(item: bytes) -> tuple[str, bytes]:
    _, key_length = _ITEM.unpack_from(item)
    start = _ITEM.size + key_length
    return item[_ITEM.size : start].decode(errors="replace"), item[start:]


class Board:
    """A member's connection to its board. For one thread."""

    def __init__(self, address: str, prefix: str, token: str, deadline: Deadline) -> None:
        """Connect and say hello. Raises GaveUp."""
        self._at = f"the rendezvous at {address}"
        self._deadline = deadline
        self._items: dict[str, bytes] = {}
        self._buffer = bytearray()
        host, port = split_address(address)
        self._sock = socket.socket(_family(host), socket.SOCK_STREAM)
        try:
            self._sock.setblocking(False)
            self._connect(host, port)
            nonce = self._read(_NONCE_BYTES)
            name = prefix.encode()
            proof = hmac.digest(token.encode(), nonce + name, hashlib.sha256)
            self._send(_HELLO.pack(proof, len(name)) + name)
        except BaseException:
            self._sock.close()
            raise

    def post(self, key: str, value: bytes) -> None:
        """Put an item on the board; it is there when this returns. Raises GaveUp."""
        self._send(_item(key, value))
        self.get(key)

    def get(self, key: str) -> bytes:
        """The item of that key, waiting until it is there. Raises GaveUp."""
        while key not in self._items:
            self._receive(f"waiting for {key!r} at {self._at}")
            for item in _take_items(self._buffer):
                name, value = _open_item(item)
                self._items[name] = value
        return self._items[key]

    def has(self, key: str) -> bool:
        """Whether the item has been received already."""
        return key in self._items

    def close(self) -> None:
        self._sock.close()

    def _connect(self, host: str, port: int) -> None:
        """Connect, trying again while it is refused: the serving rank may not be listening yet."""
        doing = f"connecting to {self._at}"
        pause_s = 0.01
        while True:
            self._sock.connect_ex((host, port))
            self._deadline.ready(self._sock, True, doing)
            error = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if not error:
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return
            if error != errno.ECONNREFUSED or self._deadline.remaining_s(doing) < pause_s:
                raise GaveUp(f"{doing}: {os.strerror(error)}")
            family = self._sock.family
            self._sock.close()
            threading.Event().wait(pause_s)
            pause_s = min(2 * pause_s, 0.2)
            self._sock = socket.socket(family, socket.SOCK_STREAM)
            self._sock.setblocking(False)

    def _read(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._receive(f"waiting for a first word of {self._at}")
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _receive(self, doing: str) -> None:
        self._deadline.ready(self._sock, False, doing)
        try:
            data = self._sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError as error:
            raise GaveUp(f"{doing}: {error}") from error
        if not data:
            raise GaveUp(f"{doing}: it closed the connection")
        self._buffer += data

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._deadline.ready(self._sock, True, f"writing to {self._at}")
            try:
                view = view[self._sock.send(view) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise GaveUp(f"writing to {self._at}: {error}") from error


@dataclass(eq=False)
class _Guest:
    """A connection as the server sees it. board is None until its hello was right."""

    sock: socket.socket
    nonce: bytes
    since: float
    board: str | None = None
    received: bytearray = field(default_factory=bytearray)
    to_send: bytearray = field(default_factory=bytearray)


class Rendezvous:
    """Serves boards in a thread of its own, at an address to be told to the members. Asks for the run's token.

    bind: address to listen on; port 0 takes a free one; hello_s: who has not shown the token by then is dropped.
    """

    def __init__(
        self, bind: str = "127.0.0.1", token: str = "", *, port: int = 0, hello_s: float = DEFAULTS.hello_s
    ) -> None:
        self._token = token.encode()
        self._hello_s = hello_s
        with socket_lock():
            self._listener = socket.create_server((bind, port), family=_family(bind), backlog=1024)
        self._listener.setblocking(False)
        self.address: str = join_address(*self._listener.getsockname()[:2])
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._boards: dict[str, dict[str, bytes]] = {}
        self._guests: dict[str, set[_Guest]] = {}
        self._shy: set[_Guest] = set()
        noted = [(s.fileno(), os.fstat(s.fileno()).st_ino) for s in (self._listener, self._wake, self._woken)]
        fork_guard.keep(self, noted, lambda: None)
        self._thread = threading.Thread(target=self._serve, name="rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; whoever waits at a board is told by the connection's end. Idempotent."""
        fork_guard.release(self)
        try:
            self._wake.send(b"x")
        except OSError:  # closed before
            return
        self._thread.join()
        self._wake.close()

    def _serve(self) -> None:
        while True:
            ready = self._selector.select(self._hello_s if self._shy else None)
            for key, mask in ready:
                if key.fileobj is self._woken:
                    return self._end()
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    self._attend(key.data, mask)
            too_old = time.monotonic() - self._hello_s
            for guest in [guest for guest in self._shy if guest.since < too_old]:
                self._drop(guest)

    def _end(self) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # gone again, or out of descriptors: it will try again
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        guest = _Guest(sock, secrets.token_bytes(_NONCE_BYTES), time.monotonic())
        self._shy.add(guest)
        self._selector.register(sock, selectors.EVENT_READ, guest)
        self._push(guest, guest.nonce)

    def _attend(self, guest: _Guest, mask: int) -> None:
        try:
            if mask & selectors.EVENT_READ:
                data = guest.sock.recv(1 << 16)
                if not data:
                    return self._drop(guest)
                guest.received += data
                if guest.board is None:
                    self._welcome(guest)
                if guest.board is not None:
                    for item in _take_items(guest.received):
                        self._post(guest.board, item)
            self._flush(guest)
        except BlockingIOError:
            pass
        except (OSError, ValueError):
            self._drop(guest)

    def _welcome(self, guest: _Guest) -> None:
        """Read the hello, if all of it is there; a right one is answered with all that is on its board."""
        if len(guest.received) < _HELLO.size:
            return
        proof, length = _HELLO.unpack_from(guest.received)
        if len(guest.received) < _HELLO.size + length:
            return
        prefix = bytes(guest.received[_HELLO.size : _HELLO.size + length])
        del guest.received[: _HELLO.size + length]
        if not hmac.compare_digest(proof, hmac.digest(self._token, guest.nonce + prefix, hashlib.sha256)):
            raise ValueError("wrong token")
        self._shy.discard(guest)
        guest.board = prefix.decode(errors="replace")
        self._guests.setdefault(guest.board, set()).add(guest)
        for item in self._boards.setdefault(guest.board, {}).values():
            self._push(guest, item)

    def _post(self, board: str, item: bytes) -> None:
        self._boards[board][_open_item(item)[0]] = item
        for guest in list(self._guests[board]):
            self._push(guest, item)

    def _push(self, guest: _Guest, data: bytes) -> None:
        """Queue data; the selector says when it can go. Who does not read is dropped."""
        if len(guest.to_send) + len(data) > _PENDING_LIMIT:
            return self._drop(guest)
        guest.to_send += data
        self._selector.modify(guest.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, guest)

    def _flush(self, guest: _Guest) -> None:
        if guest.to_send:
            sent = guest.sock.send(guest.to_send)
            del guest.to_send[:sent]
            if not guest.to_send:
                self._selector.modify(guest.sock, selectors.EVENT_READ, guest)

    def _drop(self, guest: _Guest) -> None:
        """Forget a connection, and its board with the last of them."""
        self._shy.discard(guest)
        if guest.sock.fileno() < 0:
            return
        self._selector.unregister(guest.sock)
        guest.sock.close()
        if guest.board is not None:
            guests = self._guests[guest.board]
            guests.discard(guest)
            if not guests:
                del self._guests[guest.board], self._boards[guest.board]
