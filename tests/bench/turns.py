"""Jobs that are alive at once and take turns: a conductor tells one job to do a few steps while all others wait.

Whole jobs one after another are too coarse for a machine that others use too; steps in turn of jobs that compute at
once would share its cores. Here every process of every job is a performer that waits at the start of a step until it
is its job's turn, and answers with the seconds that the steps took. Nothing but the standard library, since programs of
other environments are performers too.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

Answers = dict[str, dict[str, Any]]
"""By performer: its answer to a turn, with "seconds" in it."""


class Conductor:
    """Gives the turns. `path` is where performers connect to (a Unix socket)."""

    def __init__(self, path: Path, gone: Callable[[], str] = lambda: "") -> None:
        """gone: names a process that has ended and should not have, if there is one."""
        self.path = path
        self._gone = gone
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        self._performers: dict[str, Any] = {}

    def wait_for(self, names: set[str], timeout_s: float) -> None:
        """Waits until all of these performers are there. Raises TimeoutError naming who is not, or RuntimeError."""
        end = time.monotonic() + timeout_s
        self._listener.settimeout(0.5)
        while missing := names - set(self._performers):
            try:
                peer, _ = self._listener.accept()
            except TimeoutError:
                if gone := self._gone():
                    raise RuntimeError(f"{gone} has ended") from None
                if time.monotonic() > end:
                    raise TimeoutError(f"not there after {timeout_s:g} s: {', '.join(sorted(missing))}") from None
                continue
            peer.settimeout(timeout_s)
            file = peer.makefile("rw", encoding="utf-8")
            self._performers[json.loads(file.readline())["name"]] = file
            peer.close()  # the file keeps the connection

    def turn(self, job: str, steps: int, **wishes: Any) -> Answers:
        """Has the performers "JOB/..." do so many steps at once; returns when all have answered.

        Raises RuntimeError if one went away.
        """
        names = [name for name in self._performers if name.partition("/")[0] == job]
        for name in names:
            self._say(name, {"steps": steps, **wishes})
        return {name: self._hear(name) for name in names}

    def seconds(self, job: str, steps: int) -> float:
        """Seconds a step that a turn of so many took the slowest performer of the job."""
        return max(float(answer["seconds"]) for answer in self.turn(job, steps).values()) / steps

    def stop(self) -> None:
        """Tells everybody to end, and hangs up."""
        for name, file in self._performers.items():
            try:
                self._say(name, {"steps": 0})
                file.close()
            except (OSError, RuntimeError):
                continue
        self._performers.clear()
        self._listener.close()

    def _say(self, name: str, message: dict[str, Any]) -> None:
        try:
            self._performers[name].write(json.dumps(message) + "\n")
            self._performers[name].flush()
        except OSError as gone:
            raise RuntimeError(f"{name} is gone: {gone}") from gone

    def _hear(self, name: str) -> dict[str, Any]:
        try:
            line = self._performers[name].readline()
        except OSError as silent:
            raise RuntimeError(f"{name} does not answer: {silent}") from silent
        if not line:
            raise RuntimeError(f"{name} went away in its turn; its output says why")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Conductor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.stop()


class Performer:
    """A process of a job. Call `next` before each step; what is put into `notes` goes with the answer to the turn."""

    def __init__(self, path: str, name: str) -> None:
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(path)
        self._file = peer.makefile("rw", encoding="utf-8")
        self._tell({"name": name})
        self._left = 0
        self._began = 0.0
        self._stopped = False
        self.wishes: dict[str, Any] = {}
        """What the conductor said with the turn."""
        self.notes: dict[str, Any] = {}
        self.first = False
        """The step that `next` has allowed is the first one of its turn."""

    def next(self) -> bool:
        """True: do one more step. Ends the turn if it is over, and waits for the next; False if there is none."""
        if self._stopped:
            return False
        self.first = self._left == 0
        if self.first:
            if self._began:
                self._tell({"seconds": time.perf_counter() - self._began, **self.notes})
                self.notes = {}
            line = self._file.readline()
            self.wishes = json.loads(line) if line else {"steps": 0}
            self._left = int(self.wishes["steps"])
            self._began = time.perf_counter()
            self._stopped = self._left == 0
            if self._stopped:
                return False
        self._left -= 1
        return True

    def _tell(self, message: dict[str, Any]) -> None:
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()
