"""One agent for each group on this host: the lock of a name, and what a successor needs to end its predecessor.

The lock is the kernel's (`flock`), so it goes with its holder however that ends. The file holds who that is: pid and
start time of the agent and of its ranks, and the mark that all of its kin carry. A new agent asks the holder to yield
(SIGUSR1), ends it with SIGKILL when it does not in time, then ends whatever is left of its ranks, and only then holds
the name. Pids are never trusted without their start time, and nothing of another boot or pid namespace is touched.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import signal
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from lighthouse.values import Value
from replica import processes

YIELD_SIGNAL = signal.SIGUSR1
"""Asks an agent to end its ranks and go, because a newer one of its name is there."""
_POLL_S = 0.003
_RECORD_BYTES = 4096

log = logging.getLogger("replica.lock")


class LockError(Exception):
    """The name cannot be had on this host; the message says what to change."""


class Process(Value, frozen=True):
    """A process of this host: pid and start time in clock ticks since boot."""

    pid: int
    started: int


class Holder(Value, frozen=True):
    """Who holds a name. boot: the boot and pid namespace that pids are of; mark: the kin mark of its ranks."""

    boot: str
    agent: Process
    mark: str
    ranks: tuple[Process, ...] = ()


class GroupLock:
    """The lock of (run_id, name) in `folder`, which is made if need be and must belong to this user alone.

    mark: the kin mark of the agent that takes it
    """

    def __init__(self, folder: Path, run_id: str, name: str, mark: str) -> None:
        plain = f"{quote(run_id, safe='')}+{quote(name, safe='')}"
        short = hashlib.sha256(plain.encode()).hexdigest()[:12]
        self.path = folder / f"{plain if len(plain) < 200 else short}.lock"
        self.own_folder = folder / short
        """Where the holder keeps what is its own; not made here. Short, since the path of a socket must be."""
        self.held = False
        """Whether this is the holder: no agent and no rank of another is left."""
        self._mark = mark
        self._boot = processes.this_boot()
        self._file = -1

    async def take_over(self, yield_s: float, reap_s: float) -> Holder | None:
        """Takes the lock; when it returns, no rank of a predecessor is left. Returns the predecessor, if there was one.

        yield_s: how long a holder may take to end its ranks before it is killed; reap_s: the kernel, to end the killed
        Raises LockError if holder or ranks cannot be ended.
        """
        _make_private(self.path.parent)
        self.release()
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        asked: dict[Process, float] = {}
        began = time.monotonic()
        while not self._try():
            now = time.monotonic()
            holder = self._read()
            if holder is not None and holder.boot == self._boot:
                self._press(holder.agent, asked, now, yield_s)
            if now - began > yield_s + reap_s:
                raise LockError(
                    f"another agent of this group holds {self.path} and does not go"
                    f"{f' (pid {holder.agent.pid})' if holder else ''}: end it, or give this group another name"
                )
            await asyncio.sleep(_POLL_S)
        before = self._read()
        if before is not None and before.boot == self._boot:
            await asyncio.to_thread(_end_ranks, before, reap_s)
        self.record(())
        self.held = True
        return before

    def record(self, ranks: Sequence[Process]) -> None:
        """Writes who the holder's ranks are."""
        agent = Process(pid=os.getpid(), started=processes.start_time(os.getpid()) or 0)
        self._write(msgspec.json.encode(Holder(boot=self._boot, agent=agent, mark=self._mark, ranks=tuple(ranks))))

    def release(self) -> None:
        """Gives the name up, or the wait for it; call it when no rank is left. Idempotent."""
        if self.held:
            self._write(b"")
        self.held = False
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _press(self, agent: Process, asked: dict[Process, float], now: float, yield_s: float) -> None:
        if agent not in asked:
            asked[agent] = now
            log.info("another agent of this group is here (pid %d): asking it to yield", agent.pid)
            processes.signal_process(agent.pid, agent.started, YIELD_SIGNAL)
        elif now - asked[agent] > yield_s:
            log.warning("the other agent (pid %d) does not yield: killing it", agent.pid)
            asked[agent] = now
            processes.signal_process(agent.pid, agent.started, signal.SIGKILL)

    def _read(self) -> Holder | None:
        data = os.pread(self._file, 1 << 20, 0).rstrip(b"\n")
        try:
            return msgspec.json.decode(data, type=Holder) if data else None
        except msgspec.DecodeError:
            return None

    def _write(self, data: bytes) -> None:
        # One write of one page: whoever is killed in it leaves the old record or the new one.
        os.pwrite(self._file, data.ljust(max(_RECORD_BYTES, os.fstat(self._file).st_size), b"\n"), 0)


def _end_ranks(before: Holder, reap_s: float) -> None:
    for rank in before.ranks:
        processes.end_session(rank.pid, rank.started)
    left = processes.end_kin(before.mark, reap_s, sessions=[rank.pid for rank in before.ranks])
    left += [rank.pid for rank in before.ranks if not processes.wait_gone(rank.pid, rank.started, reap_s)]
    if left:
        raise LockError(f"ranks of the former agent of this group do not go, though they were sent SIGKILL: {left}")


def _make_private(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
        raise LockError(
            f"{folder} must be a folder of this user that nobody else can write to: "
            f"correct it (chmod go-w), or give another lock folder"
        )
