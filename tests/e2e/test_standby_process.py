"""Ranks in waiting: what a program sees in one is what it sees in a process of its own, and none is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from scripted import ROOT_FOLDER, is_there, until

from replica.output import Output
from replica.processes import kin
from replica.ranks import Ranks
from replica.standby import Standbys, python_program

pytestmark = pytest.mark.timeout(240)
READY_S = 120.0

LOOK = """
import json, os, sys, threading, signal
def klass(): pass
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "path": sys.path, "orig_argv": sys.orig_argv, "name": __name__, "flags": repr(sys.flags),
    "file": globals().get("__file__"), "same": main.__dict__ is globals(), "package": __package__,
    "spec": getattr(__spec__, "name", None), "loader": type(__loader__).__name__, "builtins": __builtins__.__name__,
    "variables": {k: v for k, v in os.environ.items() if k != "BELLROCK_BEGUN"},
    "module": klass.__module__, "cwd": os.getcwd(),
    "threads": threading.active_count(), "main": threading.current_thread() is threading.main_thread(),
    "descriptors": sorted(os.listdir("/proc/self/fd")), "stdin": os.readlink("/proc/self/fd/0"),
    "session": os.getsid(0) == os.getpid(), "comm": open("/proc/self/comm").read().strip(),
    "nice": os.getpriority(os.PRIO_PROCESS, 0), "pipe": repr(signal.getsignal(signal.SIGPIPE)),
    "interrupt": repr(signal.getsignal(signal.SIGINT)),
}, sort_keys=True), flush=True)
"""


class Scene:
    """Ranks with standbys: lines shown, and exits as (life, shard_rank, code, errors)."""

    def __init__(self, command: list[str], imports: tuple[str, ...] = (), answer_s: float = READY_S) -> None:
        self.exits: list[tuple[int, int, int, str]] = []
        self._read_end, self._write_end = os.pipe()
        self.output = Output(self._write_end, self._write_end)
        self.mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
        program = python_program(command)
        assert program is not None
        self.standbys = Standbys(command, program, imports, self.mark, self.output, answer_s)
        ended = lambda *exit: self.exits.append(exit)  # noqa: E731
        self.ranks = Ranks(command, self.mark, dict(os.environ), self.output, ended, self.standbys)
        self.life = 0

    def environments(self, shards: int = 1) -> list[dict[str, str]]:
        return [
            {**os.environ, "BELLROCK_LIFE": str(self.life), "PLACE": str(shard), "PYTHONPATH": str(ROOT_FOLDER)}
            for shard in range(shards)
        ]

    async def start(self, shards: int = 1) -> list[int]:
        self.life += 1
        return [process.pid for process in await self.ranks.start(self.life, self.environments(shards), "g")]

    async def warm(self, shards: int = 1) -> list[int]:
        """Pids of the standbys, once all are ready."""
        pids: list[int] = []

        def ready() -> bool:
            self.standbys.tend(self.environments(shards))
            pids[:] = self.standbys.ready
            return len(pids) == shards

        await until(ready, deadline_s=READY_S)
        return pids

    async def ended(self) -> tuple[int, int, int, str]:
        await until(lambda: len(self.exits) == self.life, lambda: f"only {self.exits}", deadline_s=READY_S)
        return self.exits[-1]

    def shown(self) -> list[str]:
        """All lines shown; ends the output."""
        self.output.close(5.0)
        os.close(self._write_end)
        with os.fdopen(self._read_end, "rb") as pipe:
            return pipe.read().decode().splitlines()


@asynccontextmanager
async def scene(command: list[str], imports: tuple[str, ...] = (), **more: float) -> AsyncIterator[Scene]:
    it = Scene(command, imports, **more)
    try:
        yield it
    finally:
        await it.ranks.close()
        assert kin(it.mark) == []


def played(story: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(story())


@pytest.mark.parametrize("module", [False, True])
def test_a_program_sees_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: bool) -> None:
    (tmp_path / "look").mkdir()
    (tmp_path / "look" / "at.py").write_text(LOOK)
    monkeypatch.chdir(tmp_path)
    program = ["-m", "look.at"] if module else ["look/at.py"]

    async def story() -> None:
        async with scene([sys.executable, "-u", "-W", "ignore", *program, "one", "--two"]) as it:
            await it.start()
            assert (await it.ended())[2] == 0
            it.ranks.end(it.life)
            pids = await it.warm()
            assert await it.start() == pids, "the second life begins in the standby"
            assert (await it.ended())[2] == 0
            cold, warm = (line for line in it.shown() if line.startswith("[g/0] {"))
            assert warm == cold.replace('"BELLROCK_LIFE": "1"', '"BELLROCK_LIFE": "2"')

    played(story)


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    raise ValueError('a goat')\nf()",
        "import sys\nsys.exit('said so')",
        "x = = 1",
        "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__, file=sys.stderr)\n1 / 0",
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
        "import atexit\natexit.register(print, 'at the end')\nraise KeyError(1)",
    ],
)
def test_an_end_is_the_same_as_in_a_cold_start(tmp_path: Path, code: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(code)

    async def story() -> None:
        async with scene([sys.executable, str(program)]) as it:
            await it.start()
            cold = await it.ended()
            pids = await it.warm()
            assert await it.start() == pids
            assert (await it.ended())[2:] == cold[2:]

    played(story)


def test_what_has_changed_since_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("WORD = 'old'")
    program = tmp_path / "program.py"
    program.write_text("import own, sys; print('it says', own.WORD, 'torch' in sys.modules)")

    async def story() -> None:
        async with scene([sys.executable, str(program)], ("own",)) as it:
            for word in ("same", "other"):
                pids = await it.warm()
                if word == "other":
                    (tmp_path / "own.py").write_text("WORD = 'new, and longer'")
                assert await it.start() == pids
                await it.ended()
            said = [line for line in it.shown() if "it says" in line]
            assert said == ["[g/0] it says old True", "[g/0] it says new, and longer False"]

    played(story)


def test_one_that_is_killed_or_stopped_is_done_without(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('runs', flush=True)")

    async def story() -> None:
        async with scene([sys.executable, str(program)], answer_s=1.0) as it:
            (stopped,) = await it.warm()
            os.kill(stopped, signal.SIGSTOP)
            pids = await it.start()
            assert pids != [stopped] and not is_there(stopped)
            assert (await it.ended())[2] == 0
            (killed,) = await it.warm()
            os.kill(killed, signal.SIGKILL)
            await until(lambda: not it.standbys.sessions)
            (another,) = await it.warm()  # after its pause
            assert another != killed
            os.kill(another, signal.SIGKILL)
            pids = await it.start()  # it may not even be known yet
            assert pids != [another]
            assert (await it.ended())[2] == 0

    played(story)


def test_a_module_that_cannot_be_imported_is_left_to_the_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken.py").write_text("raise RuntimeError('no')")
    program = tmp_path / "program.py"
    program.write_text("try:\n    import broken\nexcept RuntimeError as e:\n    print('met', e)")
    caplog.set_level("INFO", "replica.standby")

    async def story() -> None:
        async with scene([sys.executable, str(program)], ("broken", "json")) as it:
            pids = await it.warm()
            assert await it.start() == pids
            await it.ended()
            assert "[g/0] met no" in it.shown()

    played(story)
    assert 'standby_import_failed module=broken reason="RuntimeError: no"' in caplog.text


def test_without_torch_there_is_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    program = tmp_path / "program.py"
    program.write_text("print('runs')")

    async def story() -> None:
        async with scene([sys.executable, str(program)]) as it:
            it.standbys.tend(it.environments())
            await until(lambda: "standby_impossible" in caplog.text, deadline_s=READY_S)
            await until(lambda: not it.standbys.sessions)
            it.standbys.tend(it.environments())
            assert not it.standbys.sessions
            await it.start()
            assert (await it.ended())[2] == 0

    played(story)
