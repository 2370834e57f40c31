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
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from replica.errors import LeaveError
from replica.values import Attach, RankDown, RankUp
from replica.wire import RANK_DOWN, RANK_UP, AgentStub

ORPHAN_EXIT_CODE = 70
"""Exit code of a rank that was still computing long after its agent had gone."""

_OPTIONS = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
)


class _Ended:
    """In the queue: the stream is over, for this reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class AgentLink:
    """The stream to the agent at `address` ("host:port" or "unix:path").

    metadata: what shows the agent the run's token
    at_once: called on the reader thread with each command as it arrives; True keeps it out of the queue
    lost: called on the reader thread when the stream has ended, before the training thread can see it
    orphan_s: the process is ended if the training thread has not looked this long after the stream ended
    """

    def __init__(
        self,
        address: str,
        metadata: tuple[tuple[str, str], ...],
        at_once: Callable[[RankDown], bool],
        lost: Callable[[str], None],
        *,
        orphan_s: float = 10.0,
    ) -> None:
        self._at_once = at_once
        self._lost = lost
        self._orphan_s = orphan_s
        self._up: queue.SimpleQueue[RankUp | None] = queue.SimpleQueue()
        self._down: queue.SimpleQueue[RankDown | _Ended] = queue.SimpleQueue()
        self._peeked: RankDown | _Ended | None = None
        self._noticed = threading.Event()
        self._closing = False
        self._over: _Ended | None = None
        self._channel = grpc.insecure_channel(address, options=_OPTIONS)
        self._call: Any = AgentStub(self._channel).Attach(self._outgoing(), metadata=metadata, wait_for_ready=True)
        self._reader = threading.Thread(target=self._read, name="bellrock-attach", daemon=True)

    def attach(self, first: Attach) -> None:
        """Says who this rank is, as the first message, and begins to read."""
        self._up.put(first)
        self._reader.start()

    def say(self, message: RankUp) -> None:
        """Queues a message to the agent; lost if the stream is over. Any thread."""
        self._up.put(message)

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

    def close(self, flush_s: float = 2.0) -> None:
        """Sends what is queued, for `flush_s` seconds at most, and ends the stream. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._noticed.set()
        self._up.put(None)
        if self._reader.ident is not None:
            self._reader.join(flush_s)
        self._call.cancel()
        self._channel.close()

    def _outgoing(self) -> Iterator[Any]:
        while (message := self._up.get()) is not None:
            yield RANK_UP.wrap(message)

    def _read(self) -> None:
        reason = "it ended the stream"
        try:
            for message in self._call:
                command: RankDown = RANK_DOWN.unwrap(message)
                if not self._at_once(command):
                    self._down.put(command)
        except grpc.RpcError as failure:
            reason = f"{failure.code().name}: {failure.details()}"
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
