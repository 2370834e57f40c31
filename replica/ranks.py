"""The processes of a group's ranks: started, watched by pidfd, ended with all that they started.

Each rank leads a session of its own, so that Ctrl-C in a terminal reaches the agent alone and one signal reaches a rank
with its children. A rank's end is known as soon as the kernel knows: its pidfd wakes the loop, its process group is
killed while its zombie still holds the number, then it is reaped. Whatever made a group of its own is found as kin
before the next life begins. Should the agent itself be killed, the kernel ends the ranks (`spawn.py`) and the keeper
the rest (`processes.py`).
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lighthouse.deadlines import DEFAULTS
from replica import processes
from replica.child import Child
from replica.environment import OF_ONE_LIFE
from replica.lock import Process
from replica.output import Output
from replica.standby import Standbys

_TRACEBACK = "Traceback (most recent call last):"

log = logging.getLogger("replica.ranks")

OnExit = Callable[[int, int, int, str], None]
"""Called on the loop with life, shard_rank, exit code (or minus the signal), and the end of what it wrote to its
standard error; of a rank that was not started, or ended for it by `end_one`, a reason in its place."""


@dataclass
class _Rank:
    life: int
    shard_rank: int
    child: Child
    ended_for: str = ""


class Ranks:
    """The ranks of one agent. All methods belong to the loop's thread.

    command: what a rank runs, searched in PATH
    mark: the kin mark that all of them carry
    environ: what the keeper inherits, which must not hold a kin mark
    standbys: where ranks begin if one is ready; they are closed with this
    reap_s: how long processes that were sent SIGKILL may take to go before it is said that they do not
    """

    def __init__(
        self,
        command: Sequence[str],
        mark: str,
        environ: Mapping[str, str],
        output: Output,
        on_exit: OnExit,
        standbys: Standbys | None = None,
        reap_s: float = DEFAULTS.reap_s,
    ) -> None:
        self._reap_s = reap_s
        self._command = list(command)
        self._standbys = standbys
        self._mark = mark
        self._output = output
        self._on_exit = on_exit
        self._ranks: dict[int, _Rank] = {}
        self._ended_sessions: set[int] = set()
        self._ended_life = 0
        self._lasting: list[dict[str, str]] = []
        self._port: socket.socket | None = None
        self._empty = asyncio.Event()
        self._empty.set()
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", processes.__file__, mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={name: value for name, value in environ.items() if name != processes.KIN_VARIABLE},
        )

    async def start(self, life: int, variables: Sequence[Mapping[str, str]], label: str) -> list[Process]:
        """Starts a rank for each of `variables`, its environment, once nothing of an earlier life is left.

        label: what its output lines begin with, before "/shard_rank"
        returns: the processes; one that could not be started is told to `on_exit` instead
        """
        await self.gone()
        self._lasting = [{n: value for n, value in each.items() if n not in OF_ONE_LIFE} for each in variables]
        started = []
        for shard_rank, environment in enumerate(variables):
            if life <= self._ended_life:  # ended before it was started
                self._on_exit(life, shard_rank, -signal.SIGKILL, "")
                continue
            try:
                started.append(await self._start(life, shard_rank, environment, f"[{label}/{shard_rank}] "))
            except OSError as error:
                self._on_exit(life, shard_rank, 1, f"{_TRACEBACK}\nOSError: the rank could not be started: {error}")
        return started

    def new_port(self, host: str) -> int:
        """A TCP port of `host` for the next life, kept from others until the one after it. Raises OSError."""
        if self._port is not None:
            self._port.close()
        self._port = reserved_port(host)
        return int(self._port.getsockname()[1])

    def end(self, life: int, *, dump_s: float = 0.0) -> None:
        """SIGKILL to the process groups of all ranks of `life`, started or not. `on_exit` follows for each.

        dump_s: how long ranks may take before that to write the stacks of all their threads to standard error, for
        which they are sent SIGABRT
        """
        self._ended_life = max(self._ended_life, life)
        for rank in [rank for rank in self._ranks.values() if rank.life <= life]:
            if dump_s > 0.0:
                rank.child.process.send_signal(signal.SIGABRT)
            else:
                processes.kill_group(rank.child.process.pid)
        if dump_s > 0.0:
            asyncio.get_running_loop().call_later(dump_s, self.end, life)

    def get_ready(self) -> None:
        """Has standbys started for a next life: the group is well. Call it often."""
        if self._standbys is not None and self._ranks:
            self._standbys.tend(self._lasting)

    def end_one(self, life: int, shard_rank: int, reason: str) -> None:
        """SIGKILL to the process group of one rank, if it is there; `on_exit` follows, with code 1 and `reason`."""
        rank = self._ranks.get(shard_rank)
        if rank is not None and rank.life == life:
            rank.ended_for = reason
            processes.kill_group(rank.child.process.pid)

    def alive(self, life: int, shard_rank: int) -> bool:
        """Whether this rank of this life has not ended."""
        rank = self._ranks.get(shard_rank)
        return rank is not None and rank.life == life

    def notice_deaths(self, patience_s: float, besides: int = -1) -> None:
        """Says `on_exit` now for every rank that has begun to exit, waiting `patience_s` at most for each to end.

        besides: a rank that is not looked at
        """
        for shard_rank, rank in list(self._ranks.items()):
            if shard_rank == besides:
                continue
            if processes.is_dying(rank.child.process.pid) and select.select([rank.child.pidfd], [], [], patience_s)[0]:
                self._ended(rank)

    async def gone(self) -> None:
        """Waits until no rank is left, then ends what they left behind."""
        await self._empty.wait()
        spare = self._standbys.sessions if self._standbys is not None else set()
        ended, self._ended_sessions = self._ended_sessions, set()
        left = await asyncio.to_thread(processes.end_kin, self._mark, self._reap_s, spare, ended)
        if left:
            log.warning("processes of an ended rank do not go, though they were sent SIGKILL: %s", left)

    async def close(self) -> None:
        """Ends everything, and the keeper too."""
        if self._standbys is not None:
            await self._standbys.close()
        for life in {rank.life for rank in self._ranks.values()}:
            self.end(life)
        try:
            await asyncio.wait_for(self.gone(), 2 * self._reap_s)
        except TimeoutError:
            log.warning("ranks do not go, though they were sent SIGKILL: the kernel still holds them")
        if self._port is not None:
            self._port.close()
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        await asyncio.to_thread(self._keeper.wait)

    async def _start(self, life: int, shard_rank: int, environment: Mapping[str, str], prefix: str) -> Process:
        environment = {**environment, processes.KIN_VARIABLE: self._mark}
        child = await self._standbys.become(shard_rank, environment, prefix) if self._standbys is not None else None
        if child is None:
            child = Child.start(self._command, environment, self._output, prefix)
        rank = _Rank(life, shard_rank, child)
        self._ranks[shard_rank] = rank
        self._empty.clear()
        asyncio.get_running_loop().add_reader(child.pidfd, self._ended, rank)
        if life <= self._ended_life:  # ended meanwhile
            processes.kill_group(child.process.pid)
        return Process(pid=child.process.pid, started=processes.start_time(child.process.pid) or 0)

    def _ended(self, rank: _Rank) -> None:
        asyncio.get_running_loop().remove_reader(rank.child.pidfd)
        code = rank.child.end()
        self._ended_sessions.add(rank.child.process.pid)
        del self._ranks[rank.shard_rank]
        if not self._ranks:
            self._empty.set()
        errors = rank.child.errors.tail()
        if rank.ended_for and code == -signal.SIGKILL:
            code, errors = 1, f"{_TRACEBACK}\n{rank.ended_for}"
        self._on_exit(rank.life, rank.shard_rank, code, errors)


def free_port(host: str) -> int:
    """A TCP port of `host` that nobody has at the moment. Raises OSError if it is no address of this machine."""
    with reserved_port(host) as held:
        return int(held.getsockname()[1])


def reserved_port(host: str) -> socket.socket:
    """A socket that has a TCP port of `host`, which nobody else is given by this function as long as it is open.

    Who listens with SO_REUSEADDR, as torch's stores and gRPC do, can take the port all the same: it is for a process
    that does so only when its interpreter has started, and torch is imported. So it is none that the kernel gives to
    whoever wants any, either. Raises OSError if `host` is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    lowest = _lowest_given()
    for _ in range(_TRIES):
        port = _FIRST_PORT + secrets.randbelow(lowest - _FIRST_PORT) if lowest > _FIRST_PORT else 0
        held = socket.socket(family)
        try:
            held.bind((host, port))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not before: two could have the port then
        except OSError as error:
            held.close()
            if error.errno == errno.EADDRINUSE:
                continue
            raise
        return held
    raise OSError(errno.EADDRINUSE, f"no port of {host} was free in {_TRIES} tries")


_FIRST_PORT = 10_000
_TRIES = 100


def _lowest_given() -> int:
    """The first port that the kernel gives to sockets that want any."""
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768


def init_method(folder: Path) -> str:
    """URL of a file store that nobody has used, for the in-group process group."""
    return f"file://{folder}/process-group"


def last_traceback(errors: str) -> str:
    """The last Python traceback in what a rank printed, "" if there is none."""
    _, found, text = errors.rpartition(_TRACEBACK)
    return f"{found}{text}".strip() if found else ""
