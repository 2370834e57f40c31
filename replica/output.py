"""What a group shows: its agent's own lines and what its ranks print, written by one thread of its own.

The agent's loop must never wait for a terminal, a pager or a full pipe: a beat not sent in time costs the group its
membership. So the loop only queues, and when a reader is too slow for too long the oldest agent's lines are dropped and
counted. Ranks, which only print, are held back by their pipes as by any slow reader.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import threading
from collections import deque

WAITING_LINES = 10_000
"""Agent's lines that may wait to be written."""
LONGEST_LINE = 1 << 16
"""Bytes of a rank's line after which it is cut in two."""
KEPT_BYTES = 1 << 16
"""How much of the end of a rank's stream is kept, to find what ended it."""
READ_BYTES = 1 << 16
_READS = 64


class Stream:
    """One pipe from a rank: its lines, each with `prefix`, and the end of what was read."""

    def __init__(self, source: int, prefix: str, sink: int) -> None:
        os.set_blocking(source, False)
        self.source = source
        self.prefix = prefix.encode()
        self.sink = sink
        self.ended = False
        self._lock = threading.Lock()
        self._line = b""
        self._kept = b""
        self._ready: deque[bytes] = deque()

    def read(self) -> bool:
        """Takes what is there, up to a bound; whether there may be more now."""
        with self._lock:
            return self._read()

    def tail(self) -> str:
        """The end of all that was written so far, also of what nobody has read yet."""
        with self._lock:
            for _ in range(_READS):
                if not self._read():
                    break
            return self._kept.decode(errors="replace")

    def lines(self) -> bytes:
        """Whole lines to write, taken away."""
        with self._lock:
            text = b"".join(self._ready)
            self._ready.clear()
            return text

    def _read(self) -> bool:
        if self.ended:
            return False
        try:
            data = os.read(self.source, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self.ended = True
            data = b"\n" if self._line else b""
        self._kept = (self._kept + data)[-KEPT_BYTES:]
        *whole, self._line = (self._line + data).split(b"\n")
        while len(self._line) > LONGEST_LINE:
            whole.append(self._line[:LONGEST_LINE])
            self._line = self._line[LONGEST_LINE:]
        self._ready.extend(self.prefix + line + b"\n" for line in whole)
        return not self.ended


class Output:
    """Writes to two descriptors, `out` and `err`, from its own thread. All methods return at once but `close`."""

    def __init__(self, out: int = 1, err: int = 2) -> None:
        self._sinks = (out, err)
        self._broken: set[int] = set()
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._new: deque[Stream] = deque()
        self._closing = False
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="bellrock-output", daemon=True)
        self._thread.start()

    def say(self, line: str) -> None:
        """One line of the agent itself, to `err`."""
        if len(self._lines) >= WAITING_LINES:
            with contextlib.suppress(IndexError):
                self._lines.popleft()
                self._dropped += 1
        self._lines.append(line.encode(errors="replace") + b"\n")
        self._nudge()

    def follow(self, source: int, prefix: str, *, err: bool) -> Stream:
        """Writes on what comes from the pipe `source`, line by line, until its end, and closes it then."""
        stream = Stream(source, prefix, self._sinks[err])
        self._new.append(stream)
        self._nudge()
        return stream

    def close(self, timeout_s: float) -> None:
        """Writes what is there already, waiting for slow readers no longer than `timeout_s`. Idempotent."""
        self._closing = True
        self._nudge()
        self._thread.join(timeout_s)

    def _nudge(self) -> None:
        with contextlib.suppress(OSError):  # closed
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        while True:
            while self._new:
                stream = self._new.popleft()
                self._selector.register(stream.source, selectors.EVENT_READ, stream)
            ready = [key.data for key, _ in self._selector.select()]
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            closing = self._closing
            streams = [key.data for key in self._selector.get_map().values() if key.data is not None]
            for stream in streams if closing else ready:
                if stream is not None:
                    self._take(stream)
            self._write_lines()
            if closing and not self._new:
                break
        self._selector.close()
        os.close(self._wake)

    def _take(self, stream: Stream) -> None:
        """What is there now: once while others wait too, all of it when this closes."""
        while stream.read() and self._closing:
            self._write(stream.sink, stream.lines())
        self._write(stream.sink, stream.lines())
        if stream.ended:
            self._selector.unregister(stream.source)
            os.close(stream.source)

    def _write_lines(self) -> None:
        while self._lines:
            if self._dropped:
                dropped, self._dropped = self._dropped, 0
                self._write(self._sinks[1], b"(%d lines were dropped: nobody read them in time)\n" % dropped)
            with contextlib.suppress(IndexError):
                self._write(self._sinks[1], self._lines.popleft())

    def _write(self, sink: int, data: bytes) -> None:
        while data and sink not in self._broken:
            try:
                data = data[os.write(sink, data) :]
            except BlockingIOError:
                _wait_writable(sink)
            except OSError:  # the reader is gone; training goes on
                self._broken.add(sink)


def _wait_writable(sink: int) -> None:
    """Waits until a non-blocking descriptor takes more."""
    with selectors.SelectSelector() as selector:
        selector.register(sink, selectors.EVENT_WRITE)
        selector.select()


class OutputHandler(logging.Handler):
    """Log records as lines of an `Output`."""

    def __init__(self, output: Output, name: str) -> None:
        super().__init__()
        self._output = output
        self.setFormatter(logging.Formatter(f"%(asctime)s.%(msecs)03d {name} %(levelname)s %(message)s", "%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        self._output.say(self.format(record))
