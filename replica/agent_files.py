"""Files that an agent appends to, its ledger and its journal: written by a thread, and never a reason to stop.

Lines that come together are written together: each time that the thread is woken it takes a core, and the interpreter's
lock, from the loop that ranks wait for. A full or hanging disk costs lines, which is said once, and said again when
lines are written again.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import deque
from pathlib import Path

WAITING_BYTES = 64 << 20
"""How much may wait for a slow disk before lines are lost."""
TOGETHER_S = 0.02
"""How long a line waits for others, if nothing else is said; what an agent that is killed takes with it."""

_ROTATE = b"\n"

log = logging.getLogger("replica.files")


class Appender:
    """Appends lines to the file at `path`, made with its folders if need be. `append` returns at once.

    together_s: how long a line waits for others
    """

    def __init__(self, path: Path, together_s: float = TOGETHER_S) -> None:
        self._path = path
        self._together_s = together_s
        self._file = -1
        self._waiting = 0
        self._lost = 0
        self._lines: deque[bytes] = deque()
        self._some = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"bellrock-{path.name}", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        """Queues a line, given without its end."""
        if self._waiting > WAITING_BYTES:
            self._lost += 1
            return
        self._waiting += len(line)
        self._put(line + b"\n")

    def rotate(self) -> None:
        """What is appended from now on goes to a new file; the present one is kept beside it, as PATH.1."""
        self._put(_ROTATE)

    def close(self, timeout_s: float) -> None:
        """Writes what waits, for `timeout_s` at most. Idempotent."""
        self._closed.set()
        self._some.set()
        self._thread.join(timeout_s)

    def _put(self, line: bytes) -> None:
        self._lines.append(line)
        if not self._some.is_set():
            self._some.set()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._some.wait()
            self._closed.wait(self._together_s)
            self._some.clear()
            self._take_all()
        self._take_all()
        if self._file >= 0:
            os.close(self._file)

    def _take_all(self) -> None:
        while self._lines:
            self._take()

    def _take(self) -> None:
        """Writes what is there up to a rotation, or rotates."""
        lines: list[bytes] = []
        while self._lines and self._lines[0] is not _ROTATE:
            lines.append(self._lines.popleft())
        try:
            if lines:
                self._waiting -= sum(map(len, lines)) - len(lines)
                self._write(lines)
            else:
                self._lines.popleft()
                self._rotate()
        except OSError as error:
            if not self._lost:
                log.warning("cannot write %s: %s; training goes on, its lines are lost", self._path, error)
            self._lost += len(lines) or 1
            return
        if self._lost:
            lost, self._lost = self._lost, 0
            log.warning("%s is written again; %d lines of it were lost", self._path, lost)

    def _rotate(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._path.replace(self._path.with_name(self._path.name + ".1"))

    def _write(self, lines: list[bytes]) -> None:
        """Raises OSError with those left in `lines` that are not written."""
        if self._file < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        data = b"".join(lines)
        written = os.write(self._file, data)
        if written < len(data):  # the disk is full in the middle of a line: take the piece back
            whole = data.rfind(b"\n", 0, written) + 1
            os.ftruncate(self._file, max(0, os.fstat(self._file).st_size - (written - whole)))
            del lines[: data.count(b"\n", 0, whole)]
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
