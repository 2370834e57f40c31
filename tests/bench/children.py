"""Processes that a benchmark starts, and the runs of Bellrock and of its peers made of them. All end with it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from bench.peers import ROOT, environment
from bench.turns import Conductor

from replica.ranks import free_port

PROGRAMS = ROOT / "tests" / "bench" / "programs"


class Children:
    """Child processes, each leading a process group of its own, with their output in files of `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, key: str, command: Sequence[str | Path], **variables: str) -> int:
        """Starts a child, or starts it again under its old name; its process id."""
        with (self.folder / f"{key}.out").open("ab") as out:
            self._children[key] = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**environment(), **variables},
            )
        return self._children[key].pid

    def program(self, key: str, python: Path | str, program: str, *arguments: str | Path, **variables: str) -> int:
        """Starts one of the programs beside this module."""
        return self.start(key, [python, PROGRAMS / program, *arguments], **variables)

    def pid(self, key: str) -> int:
        """Process id of a child."""
        return self._children[key].pid

    def log(self, key: str) -> str:
        """What a child has printed."""
        return (self.folder / f"{key}.out").read_text(errors="replace")

    def gone(self) -> str:
        """The name of a child that has ended; empty if none has."""
        return next((key for key, child in self._children.items() if child.poll() is not None), "")

    def until(self, true: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        """Waits for a condition. Raises TimeoutError with the ends of all logs if it does not come."""
        end = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {timeout_s:g} s: {what}\n{self.logs()}")
            time.sleep(0.02)

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"---- {key}\n{self.log(key)[-1200:]}" for key in self._children)

    def close(self) -> None:
        """Ends all that was started here: first politely, so that what they started ends with them."""
        running = [child for child in self._children.values() if child.poll() is None]
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
        end = time.monotonic() + 3
        for child in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.05, end - time.monotonic()))
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def __enter__(self) -> Children:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            print(self.logs(), file=sys.stderr)
        self.close()


@contextlib.contextmanager
def pinned(place: int) -> Iterator[None]:
    """Children started meanwhile run on one core alone, for good: the `place`th of those that there are."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[place % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class BellrockRun:
    """A lighthouse of Bellrock and its groups, started by the command line that users have.

    key: names the run and its children; lighthouse_flags: those of `bellrock lighthouse`
    """

    def __init__(self, children: Children, key: str, *lighthouse_flags: str) -> None:
        self._children = children
        self.key = key
        self.folder = children.folder / key
        self.folder.mkdir()
        self.address = f"127.0.0.1:{free_port('127.0.0.1')}"
        self.token_file = self.folder / "token"
        port, store = self.address.rpartition(":")[2], str(self.folder / "lighthouse.db")
        own = ["--port", port, "--store", store, "--stall-patience-s", "3600", *self._access()]
        children.start(f"{key}.lighthouse", [*_cli("lighthouse"), *own, *lighthouse_flags])
        children.until(lambda: "listening" in children.log(f"{key}.lighthouse"), "the lighthouse listens")

    def group(self, name: str, shards: int, command: Sequence[str | Path], *flags: str) -> None:
        """Starts a group whose ranks run `command`."""
        own = ["--lighthouse", self.address, "--name", name, "--shards", str(shards), "--folder", self.folder]
        self._children.start(f"{self.key}.{name}", [*_cli("group"), *self._access(), *own, *flags, "--", *command])

    def _access(self) -> list[str]:
        return ["--run-id", self.key, "--token-file", str(self.token_file)]


def _cli(word: str) -> list[str]:
    return [sys.executable, "-P", "-m", "trainer.cli", word]


def torchft_lighthouse(children: Children, key: str, python: Path, *flags: str) -> str:
    """Starts torchft's lighthouse; its address. flags: its own, as --join_timeout_ms."""
    port = free_port("127.0.0.1")
    command = [python.parent / "torchft_lighthouse", "--bind", f"127.0.0.1:{port}", "--min_replicas", "1", *flags]
    children.start(key, command)

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    children.until(answers, f"{key} listens")
    return f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def stage() -> Iterator[tuple[Children, Conductor]]:
    """A folder of its own with children that take turns; all of it is gone afterwards."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-") as name,
        Children(Path(name)) as children,
        Conductor(Path(name) / "turns", children.gone) as turns,
    ):
        yield children, turns
