"""Processes of ranks: started, seen to end, ended with all that they started."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from scripted import ROOT_FOLDER, is_there, until
from torch.distributed import TCPStore

from replica.environment import NotARankError, RankEnvironment, read_environment, write_environment
from replica.output import Output
from replica.processes import kin
from replica.ranks import Ranks, free_port, last_traceback, reserved_port

pytestmark = pytest.mark.timeout(60)

HOLD = "import os,sys,time; open(sys.argv[1]+'/'+os.environ['PLACE'],'w').write(str(os.getpid())); time.sleep(600)"
LARGE = """
import mmap
memory = mmap.mmap(-1, 1 << 29, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
memory[:: mmap.PAGESIZE] = bytes(len(memory) // mmap.PAGESIZE)
"""


def fork(hold: str) -> str:
    """Starts a process in the rank's session, and one in a session of its own."""
    return f"""
import subprocess
for own in (False, True):
    subprocess.Popen([sys.executable, '-c', {hold!r}, sys.argv[1]], start_new_session=own,
                     env={{**os.environ, 'PLACE': os.environ['PLACE'] + '-kin-' + str(own)}})
"""


FORK = fork(HOLD)


class Scene:
    """Ranks, what they said and how they ended: exits are (life, shard_rank, code, traceback)."""

    def __init__(self, folder: Path, code: str, *arguments: str) -> None:
        self.folder = folder
        self.exits: list[tuple[int, int, int, str]] = []
        self.read_end, write_end = os.pipe()
        self.output = Output(write_end, write_end)
        self.mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
        command = [sys.executable, "-c", code, str(folder), *arguments] if code else list(arguments)
        self.ranks = Ranks(command, self.mark, dict(os.environ), self.output, self._ended)
        self._write_end = write_end

    def _ended(self, life: int, shard_rank: int, code: int, traceback: str) -> None:
        self.exits.append((life, shard_rank, code, traceback))

    async def start(self, life: int, shards: int) -> None:
        self.pids = [
            process.pid
            for process in await self.ranks.start(
                life, [{**os.environ, "PLACE": f"{life}-{shard_rank}"} for shard_rank in range(shards)], "g"
            )
        ]

    async def pid(self, place: str) -> int:
        path = self.folder / place
        await until(lambda: path.exists() and path.read_text() != "", lambda: f"{place} did not begin")
        return int(path.read_text())

    async def ended(self, count: int) -> None:
        await until(lambda: len(self.exits) >= count, lambda: f"only {self.exits}")

    def shown(self) -> str:
        """All that was shown; ends the output."""
        self.output.close(5.0)
        os.close(self._write_end)
        with os.fdopen(self.read_end, "rb") as pipe:
            return pipe.read().decode()


@asynccontextmanager
async def scene(folder: Path, code: str, *arguments: str) -> AsyncIterator[Scene]:
    it = Scene(folder, code, *arguments)
    try:
        yield it
    finally:
        await it.ranks.close()
        assert kin(it.mark) == []


def test_an_end_is_known_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path, HOLD) as it:
            await it.start(1, 2)
            pid = await it.pid("1-0")
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # the kernel knows, and the loop has not been asked yet
            for _ in range(2):  # a turn looks, the next one acts on what was seen
                await asyncio.sleep(0)
            assert [exit[:4] for exit in it.exits] == [(1, 0, -signal.SIGKILL, "")]
            assert it.ranks.alive(1, 1) and not it.ranks.alive(1, 0)
            it.ranks.end(1)
            await it.ended(2)

    asyncio.run(story())


def test_what_a_rank_starts_ends_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path, "import os,sys" + FORK + HOLD) as it:
            await it.start(1, 1)
            pids = [await it.pid(place) for place in ("1-0", "1-0-kin-False", "1-0-kin-True")]
            assert sorted(kin(it.mark)) == sorted(pids)
            it.ranks.end(1)
            await it.ranks.gone()
            assert not any(map(is_there, pids))

    asyncio.run(story())


def test_what_takes_long_to_die_is_waited_for(tmp_path: Path) -> None:
    """It has much memory to give back, after which it closes its files: a port is free only then, and a lock."""

    async def story() -> None:
        async with scene(tmp_path, "import os,sys" + fork(LARGE + HOLD) + HOLD) as it:
            await it.start(1, 1)
            pids = [await it.pid(place) for place in ("1-0", "1-0-kin-False", "1-0-kin-True")]
            it.ranks.end(1)
            await it.ranks.gone()
            assert [place for place, pid in zip(("rank", "in it", "apart"), pids, strict=True) if is_there(pid)] == []

    asyncio.run(story())


@pytest.mark.parametrize("place", ["1-0", "1-0-kin-False", "1-0-kin-True"])
def test_nothing_outlives_a_killed_agent(tmp_path: Path, place: str) -> None:
    agent = (
        "import asyncio,os,sys\nfrom replica.ranks import Ranks\nfrom replica.output import Output\n"
        "async def main():\n"
        "    ranks = Ranks(sys.argv[1:], os.environ['MARK'], dict(os.environ), Output(), print)\n"
        "    await ranks.start(1, [{**os.environ, 'PLACE': '1-0'}], 'g')\n    await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [sys.executable, "-c", agent, sys.executable, "-c", "import os,sys" + FORK + HOLD, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT_FOLDER), "MARK": mark},
    )

    async def story() -> None:
        path = tmp_path / place
        await until(lambda: path.exists() and path.read_text() != "")
        pid = int(path.read_text())
        process.kill()
        killed = time.monotonic()
        await until(lambda: not is_there(pid))
        assert time.monotonic() - killed < 3.0
        await until(lambda: kin(mark) == [])

    try:
        asyncio.run(story())
    finally:
        process.kill()
        process.wait()


def test_a_raised_exception_is_shown_and_told(tmp_path: Path) -> None:
    code = "print('begun', flush=True)\nraise ValueError('a goat')"

    async def story() -> None:
        async with scene(tmp_path, code) as it:
            await it.start(1, 1)
            await it.ended(1)
            life, shard_rank, exit_code, traceback = it.exits[0]
            assert (life, shard_rank, exit_code) == (1, 0, 1)
            assert last_traceback(traceback).startswith("Traceback")
            assert last_traceback(traceback).endswith("ValueError: a goat")
            shown = it.shown()
            assert "[g/0] begun\n" in shown
            assert shown.count("[g/0] ValueError: a goat\n") == 1

    asyncio.run(story())


def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path, "", "no-such-program-of-ours") as it:
            await it.start(1, 1)
            await it.ended(1)
            assert it.exits[0][2] == 127
            assert "cannot run no-such-program-of-ours: No such file" in it.shown()

    asyncio.run(story())


def test_a_users_own_modules_do_not_shadow_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("signal", "ctypes", "replica", "trainer", "os"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    monkeypatch.chdir(tmp_path)

    async def story() -> None:
        async with scene(tmp_path, "", sys.executable, "-I", "-c", "print('not shadowed')") as it:
            await it.start(1, 1)
            await it.ended(1)
            assert it.exits[0][2] == 0
            assert "[g/0] not shadowed" in it.shown()

    asyncio.run(story())


def test_ranks_have_sessions_of_their_own_and_default_signals(tmp_path: Path) -> None:
    code = (
        "import os, signal; assert os.getsid(0) == os.getpid() != os.getsid(os.getppid()), 'session'\n"
        "assert '0000000000000000' == [l.split()[1] for l in open('/proc/self/status') if l.startswith('SigBlk')][0]\n"
    )

    async def story() -> None:
        async with scene(tmp_path, code) as it:
            await it.start(1, 1)
            await it.ended(1)
            assert it.exits[0][2:4] == (0, ""), it.exits

    asyncio.run(story())


def test_ended_before_it_was_started(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path, HOLD) as it:
            it.ranks.end(1)
            await it.start(1, 2)
            assert [exit[:3] for exit in it.exits] == [(1, 0, -9), (1, 1, -9)]
            await it.start(2, 1)
            assert it.ranks.alive(2, 0)

    asyncio.run(story())


def test_a_life_begins_when_the_last_one_is_gone(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path, "import os,sys" + FORK + HOLD) as it:
            for life in range(1, 4):
                await it.start(life, 2)
                places = [f"{life}-{shard}{kind}" for shard in range(2) for kind in ("", "-kin-False", "-kin-True")]
                pids = [await it.pid(place) for place in places]
                assert sorted(kin(it.mark)) == sorted(pids)
                it.ranks.end(life)
            await it.ended(6)

    asyncio.run(story())


def test_a_reader_that_does_not_read_holds_up_nobody(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    output = Output(write_end, write_end)
    began = time.monotonic()
    for number in range(20_000):
        output.say(f"line {number} " + "x" * 100)
    assert time.monotonic() - began < 5.0
    output.close(0.1)
    received = b""
    while b"line 19999 " not in received:
        received += os.read(read_end, 1 << 16)
    assert b"lines were dropped" in received
    os.close(read_end)
    os.close(write_end)


def test_environment_there_and_back() -> None:
    rank = RankEnvironment(
        agent="unix:/tmp/a", token_file="/t", run_id="r", group="g2", shard_rank=1, shards=2, bind="::1", life=3,
        init_method="file:///x", master_port=4711,
    )  # fmt: skip
    variables = write_environment(rank)
    assert read_environment(variables) == rank
    assert variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0" == variables["TORCH_NCCL_ENABLE_MONITORING"]
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["MASTER_PORT"]) == ("1", "2", "4711")
    with pytest.raises(NotARankError, match="BELLROCK_AGENT, BELLROCK_TOKEN_FILE.* not set: start this program with"):
        read_environment({})
    with pytest.raises(NotARankError, match="BELLROCK_SHARDS is 'two'"):
        read_environment({**variables, "BELLROCK_SHARDS": "two"})


def test_a_port_for_later_is_none_that_is_given_to_whoever_wants_any() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [free_port("127.0.0.1") for _ in range(50)]
    assert all(1024 < port < lowest for port in ports) and len(set(ports)) > 25
    with pytest.raises(OSError, match="assign"):
        free_port("192.0.2.1")


@pytest.mark.parametrize("use_libuv", [True, False])
def test_a_reserved_port_is_kept_from_others_and_can_be_listened_at(use_libuv: bool) -> None:
    """By torch's store, with which ranks begin: long after the port was chosen, when torch is imported."""
    with reserved_port("127.0.0.1") as held:
        port = held.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        store = TCPStore("127.0.0.1", port, 1, True, timedelta(seconds=30), use_libuv=use_libuv)
        store.set("key", "value")
        assert store.get("key") == b"value"
