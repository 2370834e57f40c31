"""One TCP connection between a weight server and a joiner: proof of the token, frames, and chunks, under deadlines.

Deadlines are on bytes moved, not on waiting: a piece (at most 1 MiB) that has not moved whole within the stall time
ends the connection, be it that the peer is silent, that it sends a byte a second, or that it does not read. The kernel
keeps time (SO_RCVTIMEO, SO_SNDTIMEO), so that a piece costs one system call. Bytes go from and into tensors' memory
by scatter and gather; each piece is hashed just before it is sent, or just after it came, while it is in the cache.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

import xxhash

from replica.transfer_values import PROTOCOL, Accepted, Answer, Challenge, Denied, JoinerSays, SourceSays
from replica.transfer_wire import JOINER, SOURCE

_PIECE = 1 << 20
_VIEWS = 256
"""Pieces of memory in one system call; below every platform's limit."""
_SMALL = 16 << 10
"""A view of fewer bytes is copied together with its neighbours before it is hashed."""
_LENGTH = struct.Struct("<I")
_HASH = struct.Struct("<Q")
NEWS = 0xFFFFFFFF
"""In the place of a chunk's number: which chunks can be passed on by now?"""
QUESTION_BYTES = 4096
"""A joiner's messages are never longer."""
MANIFEST_BYTES = 256 << 20
"""A manifest is never longer."""


class LinkLost(Exception):
    """The connection is of no use any more: closed, stalled, or the peer does not keep to the protocol."""


class Link:
    """A connected socket. One thread reads and writes; `cut` may be called from any."""

    def __init__(self, sock: socket.socket, patience_s: float) -> None:
        self._sock = sock
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.patience(patience_s, patience_s)

    def patience(self, send_s: float, receive_s: float) -> None:
        """How long a piece may take from now on, by direction."""
        self._send_s, self._receive_s = send_s, receive_s
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _timeval(send_s))
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(receive_s))

    def cut(self) -> None:
        """Ends whatever waits on this connection. Any thread, any number of times."""
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the descriptor; only the thread that uses the link."""
        self._sock.close()

    def ended(self) -> bool:
        """Whether the peer has closed or has sent something unasked for: nobody waits for an answer there."""
        try:
            self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    # ---- frames ----------------------------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> None:
        """Sends a message with its length before it."""
        self._send_views([memoryview(_LENGTH.pack(len(frame))), memoryview(frame)])

    def _receive(self, limit_bytes: int) -> bytes:
        """The next message; LinkLost if it is longer than the limit."""
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if length > limit_bytes:
            raise LinkLost(f"a message of {length} bytes; at most {limit_bytes} are expected")
        return self._read(length)

    def say_as_source(self, message: SourceSays | bytes) -> None:
        """A source's message, or the frame of one."""
        self._send(message if isinstance(message, bytes) else as_source(message))

    def say_as_joiner(self, message: JoinerSays) -> None:
        """A joiner's message."""
        self._send(JOINER.encode(message))

    def hear_source(
        self, limit_bytes: int = QUESTION_BYTES, read: Callable[[bytes], SourceSays] | None = None
    ) -> SourceSays:
        """The source's next message; read: what reads it, in place of `of_source`."""
        return (read or of_source)(self._receive(limit_bytes))

    def hear_joiner(self) -> JoinerSays:
        """The joiner's next message."""
        try:
            said: JoinerSays = JOINER.decode(self._receive(QUESTION_BYTES))
        except ValueError as error:
            raise LinkLost(f"a message that cannot be read: {error}") from error
        return said

    # ---- chunks ----------------------------------------------------------------------------------------------------

    def want(self, chunk: int) -> None:
        """Asks for a chunk; answers come in the order of asking."""
        self._send_views([memoryview(_LENGTH.pack(chunk))])

    def wanted(self) -> int | None:
        """The next chunk that the joiner wants; None once it has closed."""
        first = self._sock_read_one()
        if first is None:
            return None
        (chunk,) = _LENGTH.unpack(first + self._read(_LENGTH.size - 1))
        return int(chunk)

    def send_chunk(self, chunk: int, views: Sequence[memoryview], hash_: int | None = None) -> None:
        """Sends a chunk from its pieces of memory, and its hash: the one given, which it came with, or its own."""
        hasher = xxhash.xxh3_64(seed=chunk)
        batches = _batches(views)
        last = batches.pop() if batches else []
        for batch in (*batches, last):
            if hash_ is None:
                _hash(hasher, batch)
            if batch is not last:
                self._send_views(batch)
        told = hasher.intdigest() if hash_ is None else hash_
        self._send_views([*last, memoryview(_HASH.pack(told))])

    def receive_chunk(self, chunk: int, views: Sequence[memoryview]) -> int | None:
        """Receives a chunk into its pieces of memory; its hash, None if that is wrong."""
        hasher = xxhash.xxh3_64(seed=chunk)
        for batch in _batches(views):
            self._receive_views(batch)
            _hash(hasher, batch)
        (expected,) = _HASH.unpack(self._read(_HASH.size))
        return int(expected) if hasher.intdigest() == expected else None

    # ---- bytes -----------------------------------------------------------------------------------------------------

    def _read(self, size: int) -> bytes:
        content = bytearray(size)
        view = memoryview(content)
        for start in range(0, size, _PIECE):
            self._receive_views([view[start : start + _PIECE]])
        return bytes(content)

    def _sock_read_one(self) -> bytes | None:
        try:
            return self._sock.recv(1) or None
        except BlockingIOError:
            raise LinkLost(f"nothing was asked for in {self._receive_s:g} s") from None
        except OSError as error:
            raise LinkLost(f"the connection broke: {error}") from error

    def _send_views(self, views: list[memoryview]) -> None:
        self._move(views, self._sock.sendmsg, self._send_s, "accepted")

    def _receive_views(self, views: list[memoryview]) -> None:
        self._move(views, self._fill, self._receive_s, "sent")

    def _fill(self, views: list[memoryview]) -> int:
        return self._sock.recvmsg_into(views, 0, socket.MSG_WAITALL)[0]

    def _move(self, views: list[memoryview], act: Callable[[list[memoryview]], int], limit_s: float, verb: str) -> None:
        left = sum(len(view) for view in views)
        until = time.monotonic() + limit_s
        while left:
            try:
                moved = act(views)
                if moved == 0:
                    raise LinkLost("the peer closed the connection")
            except BlockingIOError:
                moved = 0
            except OSError as error:
                raise LinkLost(f"the connection broke: {error}") from error
            left -= moved
            if left and time.monotonic() >= until:
                raise LinkLost(f"stalled: {left} bytes of a piece were not {verb} in {limit_s:g} s")
            if left and moved:
                views = _rest(views, moved)


def connect(address: str, connect_s: float, patience_s: float, lock: AbstractContextManager[Any]) -> Link:
    """A link to "host:port". The descriptor is made with `lock` held. Raises LinkLost."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, proto, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    except (OSError, ValueError) as error:
        raise LinkLost(f"{address!r} is no address: {error}") from error
    with lock:
        sock = socket.socket(family, kind, proto)
    try:
        sock.settimeout(connect_s)
        sock.connect(target)
        return Link(sock, patience_s)
    except OSError as error:
        sock.close()
        raise LinkLost(f"cannot connect within {connect_s:g} s: {error}") from error


def prove_as_joiner(link: Link, token: bytes) -> None:
    """Proves to the source that we know the token, and has it prove the same. Raises LinkLost."""
    challenge = link.hear_source()
    if not isinstance(challenge, Challenge) or challenge.protocol != PROTOCOL:
        raise LinkLost(f"the source speaks another protocol: {challenge}; here {PROTOCOL}")
    nonce = os.urandom(32)
    link.say_as_joiner(Answer(nonce=nonce, proof=_proof(token, b"joiner", challenge.nonce, nonce)))
    answer = link.hear_source()
    if isinstance(answer, Denied):
        raise LinkLost(answer.reason)
    if not isinstance(answer, Accepted) or not hmac.compare_digest(
        answer.proof, _proof(token, b"source", challenge.nonce, nonce)
    ):
        raise LinkLost("the source does not know the run's token")


def prove_as_source(link: Link, token: bytes) -> bool:
    """Has the joiner prove that it knows the token, and proves the same. False: it does not. Raises LinkLost."""
    ours = os.urandom(32)
    link.say_as_source(Challenge(protocol=PROTOCOL, nonce=ours))
    answer = link.hear_joiner()
    if not isinstance(answer, Answer) or len(answer.nonce) != 32:
        return False
    if not hmac.compare_digest(answer.proof, _proof(token, b"joiner", ours, answer.nonce)):
        return False
    link.say_as_source(Accepted(proof=_proof(token, b"source", ours, answer.nonce)))
    return True


def _proof(token: bytes, side: bytes, source_nonce: bytes, joiner_nonce: bytes) -> bytes:
    return hmac.new(token, b"bellrock weights " + side + source_nonce + joiner_nonce, hashlib.sha256).digest()


def as_source(message: SourceSays) -> bytes:
    """A source's message as a frame."""
    return SOURCE.encode(message)


def of_source(frame: bytes) -> SourceSays:
    """The source's message that a frame holds. Raises LinkLost."""
    try:
        said: SourceSays = SOURCE.decode(frame)
    except ValueError as error:
        raise LinkLost(f"a message that cannot be read: {error}") from error
    return said


def _batches(views: Sequence[memoryview]) -> list[list[memoryview]]:
    """The same memory in groups of at most one piece and at most as many views as one system call takes."""
    batches: list[list[memoryview]] = []
    batch: list[memoryview] = []
    room = 0
    for view in views:
        while size := len(view):
            if not room or len(batch) >= _VIEWS:
                batch = []
                batches.append(batch)
                room = _PIECE
            if size <= room:
                batch.append(view)
                room -= size
                break
            batch.append(view[:room])
            view, room = view[room:], 0
    return batches


def _hash(hasher: xxhash.xxh3_64, views: Sequence[memoryview]) -> None:
    """Adds the views to what is hashed, small ones together: each update lets the interpreter's lock go."""
    small: list[memoryview] = []
    for view in views:
        if len(view) < _SMALL:
            small.append(view)
            continue
        if small:
            hasher.update(b"".join(small))
            small.clear()
        hasher.update(view)
    if small:
        hasher.update(b"".join(small))


def _rest(views: list[memoryview], moved: int) -> list[memoryview]:
    """What is left of `views` after their first `moved` bytes."""
    for i, view in enumerate(views):
        if moved < len(view):
            return [view[moved:], *views[i + 1 :]]
        moved -= len(view)
    return []


def _timeval(seconds: float) -> bytes:
    return struct.pack("@ll", int(seconds), max(int(seconds % 1 * 1e6), 1))
