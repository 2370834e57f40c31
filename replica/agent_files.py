"""Files that an agent appends to, its ledger and its journal: written by a thread, and never a reason to stop.

A full or hanging disk costs lines, which is said once, and said again when lines are written again.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
from pathlib import Path

WAITING_BYTES = 64 << 20
"""How much may wait for a slow disk before lines are lost."""

_ROTATE = b"\n"

log = logging.getLogger("replica.files")


class Appender:
    """Appends lines to the file at `path`, made with its folders if need be. `append` returns at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1
        self._waiting = 0
        self._lost = 0
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"bellrock-{path.name}", daemon=True)
        self._thread.start()

    def append(self, line: bytes) -> None:
        """Queues a line, given without its end."""
        if self._waiting > WAITING_BYTES:
            self._lost += 1
            return
        self._waiting += len(line)
        self._lines.put(line)

    def rotate(self) -> None:
        """What is appended from now on goes to a new file; the present one is kept beside it, as PATH.1."""
        self._lines.put(_ROTATE)

    def close(self, timeout_s: float) -> None:
        """Writes what waits, for `timeout_s` at most. Idempotent."""
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                if line is _ROTATE:
                    self._rotate()
                    continue
                self._waiting -= len(line)
                self._write(line + b"\n")
            except OSError as error:
                if not self._lost:
                    log.warning("cannot write %s: %s; training goes on, its lines are lost", self._path, error)
                self._lost += 1
                continue
            if self._lost:
                lost, self._lost = self._lost, 0
                log.warning("%s is written again; %d lines of it were lost", self._path, lost)
        if self._file >= 0:
            os.close(self._file)

    def _rotate(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            self._path.replace(self._path.with_name(self._path.name + ".1"))

    def _write(self, data: bytes) -> None:
        if self._file < 0:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        written = os.write(self._file, data)
        if written < len(data):  # the disk is full in the middle of a line: take the piece back
            os.ftruncate(self._file, max(0, os.fstat(self._file).st_size - written))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
