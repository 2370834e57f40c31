"""A local run's processes: the lighthouse comes back, an end that is asked for is one, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from lighthouse.client import Unreachable, status
from lighthouse.program import LighthouseOptions
from trainer.launcher import LocalPlan, LocalRun, bellrock_argv


def waits_for_ever(folder: Path) -> tuple[str, ...]:
    """A rank's command, with a mark in its arguments that `processes_of` finds."""
    return (sys.executable, "-c", "import time; time.sleep(1000)", str(folder))


FAILS = (sys.executable, "-c", "raise ValueError('as it was told to')")


def plan(folder: Path, command: tuple[str, ...], names: tuple[str, ...] = ("g0",)) -> LocalPlan:
    return LocalPlan(
        folder=folder,
        names=names,
        shards=1,
        lighthouse=LighthouseOptions(run_id="local", port=0),
        group_flags=("--restart-limit", "1"),
        command=command,
        quiet=True,
        environ=dict(os.environ),
    )


async def until(holds: Callable[[], Awaitable[bool]], deadline_s: float = 30.0) -> None:
    async with asyncio.timeout(deadline_s):
        while not await holds():
            await asyncio.sleep(0.05)


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that were given a path in `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if entry.name.isdecimal() and str(folder) in command:
            found.append(command)
    return found


async def _lighthouse_comes_back(folder: Path) -> None:
    said: list[str] = []
    run = LocalRun(plan(folder, waits_for_ever(folder)), said.append)

    async def answers() -> bool:
        try:
            return (await status(run.address, token=run.token, run_id="local", timeout_s=1.0)).run_id == "local"
        except Unreachable:
            return False

    try:
        await run.start()
        await until(answers)
        await run.kill_lighthouse()
        await until(lambda: _true(any("SIGKILL); starting it again" in line for line in said)))
        await until(answers)
    finally:
        await run.end()


async def _true(value: bool) -> bool:
    return value


def test_a_killed_lighthouse_is_started_again(tmp_path: Path) -> None:
    asyncio.run(_lighthouse_comes_back(tmp_path))
    assert processes_of(tmp_path) == []


def test_groups_that_fail_are_told_with_what_they_printed(tmp_path: Path) -> None:
    said: list[str] = []
    run = LocalRun(plan(tmp_path, FAILS, ("g0", "g1")), said.append)
    exits = asyncio.run(run.carry_out(lambda _: None))
    assert set(exits) == {"g0", "g1"} and all(exits.values())
    assert any("group g1 ended: exit code" in line and "ValueError: as it was told to" in line for line in said)
    assert processes_of(tmp_path) == []


@pytest.mark.timeout(90)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_command_is_the_end_of_all(tmp_path: Path, number: signal.Signals) -> None:
    argv = bellrock_argv("run", "--groups", "2", "--shards", "1", "--folder", str(tmp_path), "--quiet")
    run = subprocess.Popen([*argv, "--", *waits_for_ever(tmp_path)], stdout=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(ranks_in(tmp_path)) == 2)
        run.send_signal(number)
        run.wait(timeout=60)
        wait_for(lambda: not processes_of(tmp_path))
    finally:
        run.kill()
        run.wait()


def ranks_in(folder: Path) -> list[str]:
    """Command lines of ranks that run by now."""
    return [command for command in processes_of(folder) if command.startswith(f"{sys.executable} -c ")]


def wait_for(holds: Callable[[], bool], deadline_s: float = 30.0) -> None:
    end = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_a_taken_port_is_an_error_at_once(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        argv = bellrock_argv("run", "--port", port, "--folder", str(tmp_path), "--", *waits_for_ever(tmp_path))
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "give another port" in ended.stderr
