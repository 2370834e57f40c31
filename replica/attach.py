"""A rank's client of its agent: one stream, messages in order both ways.

A reader thread takes what the agent says. Some of it takes effect there at once (the handler's business); all that
is the training thread's waits in one queue, in order. When the stream ends the agent is gone, and this process must not
apply anything more: the training thread is told by LeaveError at its next look, and a process that does not look in
time is ended.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
import sys
import threading
from collections.abc import Callable

from lighthouse.deadlines import DEFAULTS
from replica.descriptors import fork_guard, socket_lock
from replica.errors import LeaveError
from replica.frames import MESSAGE_BYTES, Frames, Kind, frame
from replica.rendezvous import split_address
from replica.shelf import Shelf
from replica.values import Attach, Mark, RankDown, RankUp, RollCall
from replica.wire import RANK_DOWN, RANK_UP

ORPHAN_EXIT_CODE = 70
"""Exit code of a rank that was still computing long after its agent had gone."""
HELD_S = 0.1
"""How long a mark may be held back that the roll call soon makes superfluous. Stalls are judged by seconds."""
_PIECE_BYTES = 1 << 16


class _Ended:
    """In the queue: the stream is over, for this reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class AgentLink:
    """The stream to the agent at `address` ("host:port" or "unix:path").

    token: the run's, which the agent asks for
    at_once: called on the reader thread with each command as it arrives; True keeps it out of the queue
    lost: called on the reader thread when the stream has ended, before the training thread can see it
    shelf: where marks of slots wait
    orphan_s: the process is ended if the training thread has not looked this long after the stream ended
    held_s: how long a mark is held back
    """

    def __init__(
        self,
        address: str,
        token: str,
        at_once: Callable[[RankDown], bool],
        lost: Callable[[str], None],
        shelf: Shelf | None = None,
        *,
        orphan_s: float = DEFAULTS.orphan_s,
        held_s: float = HELD_S,
    ) -> None:
        self._address = address
        self._token = token
        self._at_once = at_once
        self._lost = lost
        self._orphan_s = orphan_s
        self._held_s = held_s
        self._sending = threading.Lock()
        self._shelf = shelf or Shelf("")
        self._held = b""
        self._sock: socket.socket | None = None
        self._down: queue.SimpleQueue[RankDown | _Ended] = queue.SimpleQueue()
        self._peeked: RankDown | _Ended | None = None
        self._noticed = threading.Event()
        self._closing = False
        self._over: _Ended | None = None
        self._reader = threading.Thread(target=self._read, name="bellrock-attach", daemon=True)

    def attach(self, first: Attach) -> None:
        """Connects, says who this rank is, as the first message, and begins to read. Raises LeaveError."""
        try:
            sock = _connected(self._address)
            sock.sendall(frame(Kind.TOKEN, self._token.encode()) + frame(Kind.MESSAGE, RANK_UP.encode(first)))
        except OSError as error:
            raise LeaveError(f"the agent at {self._address} cannot be reached: {error}") from error
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _timeval(self._held_s))
        fork_guard.keep(self, [(sock.fileno(), os.fstat(sock.fileno()).st_ino)], lambda: None)
        with self._sending:
            self._sock = sock
        self._reader.start()

    def say(self, message: RankUp) -> None:
        """Sends a message to the agent; lost if there is no stream, or it is over. Any thread."""
        data = frame(Kind.MESSAGE, RANK_UP.encode(message))
        with self._sending:
            if isinstance(message, RollCall):
                self._held = b""
            self._send_all(data)

    def say_soon(self, mark: Mark) -> None:
        """Sends a mark with the next message, after `held_s` at most; one that is of no slot not at all if that is a
        roll call, which tells more. So the agent is not woken in a step that goes on as it should."""
        data = frame(Kind.MESSAGE, RANK_UP.encode(mark))
        with self._sending:
            if mark.slot < 0:
                self._held += data
            elif not self._shelf.put(data):
                self._send_all(data)

    def next(self) -> RankDown:
        """The next command for the training thread, waiting for it. Raises LeaveError once the stream is over."""
        if self._over is None:
            command = self._peeked or self._down.get()
            self._peeked = None
            if not isinstance(command, _Ended):
                return command
            self._over = command
        self._noticed.set()
        raise LeaveError(f"the agent is gone ({self._over.reason}): this rank leaves, applying nothing more")

    def peek(self) -> RankDown | None:
        """The next command if it has arrived, left where it is; None if there is none, or the stream is over."""
        if self._peeked is None and self._over is None:
            with contextlib.suppress(queue.Empty):
                self._peeked = self._down.get_nowait()
        return None if isinstance(self._peeked, _Ended) else self._peeked

    def close(self, flush_s: float = DEFAULTS.flush_s) -> None:
        """Ends the stream, after what was said; waits for `flush_s` at most until the agent has seen it. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._noticed.set()
        if self._sock is None:
            return
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
        if self._reader is not threading.current_thread():
            self._reader.join(flush_s)
        fork_guard.release(self)
        self._sock.close()

    def _read(self) -> None:
        try:
            reason = self._read_all()
        except OSError as failure:
            reason = str(failure)
        except Exception as failure:  # noqa: BLE001 a defect here must not leave the training thread waiting
            reason = f"{type(failure).__name__}: {failure}"
        if self._closing:
            return
        self._lost(reason)
        self._down.put(_Ended(reason))
        if not self._noticed.wait(self._orphan_s):
            with contextlib.suppress(Exception):
                print(f"bellrock: the agent is gone ({reason}); ending this rank", file=sys.stderr, flush=True)
            os._exit(ORPHAN_EXIT_CODE)

    def _read_all(self) -> str:
        """Takes what the agent says until the stream ends; why it did."""
        assert self._sock is not None
        frames = Frames(MESSAGE_BYTES)
        while True:
            try:
                data = self._sock.recv(_PIECE_BYTES)
            except BlockingIOError:  # nothing came for so long
                with self._sending:
                    self._send_all(b"")
                continue
            if not data:
                return "it ended the stream"
            frames.feed(data)
            while (got := frames.next()) is not None:
                kind, body = got
                if kind is Kind.REFUSAL:
                    return body.decode(errors="replace")
                command: RankDown = RANK_DOWN.decode(body)
                if not self._at_once(command):
                    self._down.put(command)

    def _send_all(self, data: bytes) -> None:
        """Sends what was held back, then `data`."""
        data = self._shelf.frames + self._held + data
        with contextlib.suppress(OSError):  # the reader sees the end, too
            if self._sock is not None and data:
                self._sock.sendall(data)
        self._held = b""
        self._shelf.clear()


def _timeval(seconds: float) -> bytes:
    return struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))


def _connected(address: str) -> socket.socket:
    with socket_lock():
        if address.startswith("unix:"):
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(address.removeprefix("unix:"))
            except OSError:
                sock.close()
                raise
            return sock
        sock = socket.create_connection(split_address(address), timeout=DEFAULTS.dial_s)
    sock.settimeout(None)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
