"""The lock of a group's name on a host: real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from scripted import ROOT_FOLDER, is_there

from replica.lock import GroupLock, Holder, LockError, Process
from replica.processes import end_kin, signal_process, start_time, this_boot, wait_gone

pytestmark = pytest.mark.timeout(60)


class HolderProcess:
    """`lock_holder.py`, once it holds the lock: its pids are `ranks` and `loose`."""

    def __init__(self, folder: Path, behaviour: str, name: str = "g1") -> None:
        self.mark = f"test-{os.getpid()}-{time.monotonic_ns()}"
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT_FOLDER / "tests" / "lock_holder.py"), str(folder), name, self.mark, behaviour],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT_FOLDER)},
        )
        assert self.process.stdout is not None
        *self.ranks, self.loose = map(int, self.process.stdout.readline().split())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        end_kin(self.mark, 5.0)
        for pid in self.ranks:
            if (started := start_time(pid)) is not None:
                signal_process(pid, started, signal.SIGKILL)


@pytest.fixture
def holders(tmp_path: Path) -> Iterator[list[HolderProcess]]:
    started: list[HolderProcess] = []
    yield started
    for holder in started:
        holder.close()


def take(folder: Path, yield_s: float = 5.0, name: str = "g1") -> tuple[GroupLock, Holder | None]:
    lock = GroupLock(folder, "r", name, "mine")
    return lock, asyncio.run(lock.take_over(yield_s, 10.0))


def test_free(tmp_path: Path) -> None:
    lock, before = take(tmp_path / "locks")
    assert before is None and lock.held
    holder = msgspec.json.decode(lock.path.read_bytes().strip(), type=Holder)
    assert (holder.agent.pid, holder.mark, holder.ranks) == (os.getpid(), "mine", ())
    lock.release()
    assert lock.path.read_bytes().strip() == b""


@pytest.mark.parametrize("behaviour", ["yields", "stays"])
def test_the_newer_one_wins(tmp_path: Path, holders: list[HolderProcess], behaviour: str) -> None:
    holders.append(old := HolderProcess(tmp_path, behaviour))
    began = time.monotonic()
    lock, before = take(tmp_path, yield_s=5.0 if behaviour == "yields" else 0.2)
    assert time.monotonic() - began < 4.0
    assert before is not None and before.agent.pid == old.process.pid
    assert old.process.wait() == (0 if behaviour == "yields" else -signal.SIGKILL)
    assert not any(map(is_there, [*old.ranks, old.loose]))
    lock.release()


def test_a_killed_holder_leaves_its_ranks_to_the_next(tmp_path: Path, holders: list[HolderProcess]) -> None:
    holders.append(old := HolderProcess(tmp_path, "stays"))
    old.process.kill()
    old.process.wait()
    assert all(map(is_there, [*old.ranks, old.loose]))
    lock, before = take(tmp_path)
    assert before is not None and [rank.pid for rank in before.ranks] == old.ranks
    assert not any(map(is_there, [*old.ranks, old.loose]))
    lock.release()


def test_other_names_are_left_alone(tmp_path: Path, holders: list[HolderProcess]) -> None:
    holders.append(other := HolderProcess(tmp_path, "yields", name="g2"))
    lock, before = take(tmp_path, name="g1")
    assert before is None and all(map(is_there, [other.process.pid, *other.ranks, other.loose]))
    lock.release()


def test_a_pid_that_was_used_again_is_not_touched(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        started = start_time(stranger.pid)
        assert started is not None
        lock, _ = take(tmp_path)
        stale = Process(pid=stranger.pid, started=started - 1)
        for boot, rank in ((this_boot(), stale), ("another boot", Process(pid=stranger.pid, started=started))):
            record = Holder(boot=boot, agent=stale, mark="nobody's", ranks=(rank,))
            lock.release()
            lock.path.write_bytes(msgspec.json.encode(record))
            lock, _ = take(tmp_path)
            assert stranger.poll() is None
        lock.release()
        assert not signal_process(stranger.pid, started - 1, signal.SIGKILL) and stranger.poll() is None
        assert signal_process(stranger.pid, started, signal.SIGKILL)
        assert wait_gone(stranger.pid, started, 5.0)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_torn_record_is_no_record(tmp_path: Path) -> None:
    lock, _ = take(tmp_path)
    lock.release()
    lock.path.write_bytes(b'{"boot": "x", "age')
    lock, before = take(tmp_path)
    assert before is None and lock.held
    lock.release()


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(LockError, match="chmod go-w"):
        take(folder)


def test_names_become_plain_file_names(tmp_path: Path) -> None:
    locks = [
        GroupLock(tmp_path, run_id, name, "m") for run_id, name in (("a/b", ".."), ("a", "b/.."), ("x" * 300, "g"))
    ]
    assert all(lock.path.parent == tmp_path and len(lock.path.name) < 255 for lock in locks)
    assert len({lock.path for lock in locks} | {lock.own_folder for lock in locks}) == 6
