"""The standbys of an agent: for each shard a process that has imported what a rank needs (`warm.py`) and waits.

When a life of the ranks is over, the next one begins in them: the interpreter is there, torch is imported. A standby
holds nothing of a life; it is started when the group has weights and contributes, one shard after the other, and does
its imports at a low priority. It ends with its agent: the kernel sees to that (`spawn.py`), the end of its socket,
and the keeper, as it carries the kin mark.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lighthouse.deadlines import DEFAULTS
from replica import processes, warm
from replica.child import Child
from replica.output import Output

PAUSE_S = 1.0
"""Pause before a standby that ended is started anew; doubled with each that ended before it was ready."""
LONGEST_PAUSE_S = 60.0
_PYTHON = re.compile(r"python(\d+(\.\d+)*)?")
_PLAIN_FLAG = re.compile(r"-[bBdEIOPqRsSu]+")
_VALUE_FLAGS = ("-W", "-X")

log = logging.getLogger("replica.standby")


@dataclass(frozen=True)
class Program:
    """A command that runs a Python program: the interpreter with its flags, and FILE or "-m" MODULE with arguments."""

    interpreter: tuple[str, ...]
    program: tuple[str, ...]


def python_program(command: Sequence[str]) -> Program | None:
    """The parts of a command that runs a Python file or module; None for any other command."""
    if not _PYTHON.fullmatch(os.path.basename(command[0])) and command[0] != sys.executable:
        return None
    at = 1
    while at < len(command) and command[at].startswith("-") and command[at] != "-m":
        if _PLAIN_FLAG.fullmatch(command[at]) or command[at][:2] in _VALUE_FLAGS and len(command[at]) > 2:
            at += 1
        elif command[at] in _VALUE_FLAGS:
            at += 2
        else:
            return None
    program = tuple(command[at:])
    if not program or not program[0] or program == ("-m",):
        return None
    return Program(tuple(command[:at]), program)


@dataclass
class _Standby:
    child: Child
    sock: socket.socket
    ready: bool = False
    heard: bytes = field(default=b"")


class Standbys:
    """The standbys of one agent, at most one for each shard. All methods belong to the loop's thread.

    command: what a rank runs; program: its parts; imports: modules to import besides torch and replica
    mark: the kin mark that they carry
    answer_s: a standby that has not answered by then (it was stopped, say) is ended, and the rank starts cold
    """

    def __init__(
        self,
        command: Sequence[str],
        program: Program,
        imports: Sequence[str],
        mark: str,
        output: Output,
        answer_s: float = DEFAULTS.standby_s,
    ) -> None:
        self._answer_s = answer_s
        self._command = list(command)
        self._program = program
        self._imports = ",".join(imports)
        self._mark = mark
        self._output = output
        self._waiting: dict[int, _Standby] = {}
        self._impossible = False
        self._pause_s = PAUSE_S
        self._not_before = 0.0
        self._left_out: set[str] = set()

    @property
    def sessions(self) -> set[int]:
        """Sessions that the standbys lead: pids."""
        return {standby.child.process.pid for standby in self._waiting.values()}

    @property
    def ready(self) -> list[int]:
        """Pids of those that could begin now."""
        return [standby.child.process.pid for standby in self._waiting.values() if standby.ready]

    def tend(self, environments: Sequence[Mapping[str, str]]) -> None:
        """Starts a standby that is missing, if none is being started; cheap where there is nothing to do.

        environments: by shard, all of a rank's environment that does not belong to one life
        """
        if self._impossible or len(self._waiting) == len(environments) or time.monotonic() < self._not_before:
            return
        if all(standby.ready for standby in self._waiting.values()):
            shard_rank = next(i for i in range(len(environments)) if i not in self._waiting)
            self._start(shard_rank, environments[shard_rank])

    async def become(self, shard_rank: int, environment: Mapping[str, str], prefix: str) -> Child | None:
        """The standby of the shard, which runs the command from now on; None if there is none that is ready."""
        standby = self._waiting.pop(shard_rank, None)
        if standby is None:
            return None
        loop = asyncio.get_running_loop()
        loop.remove_reader(standby.child.pidfd)
        loop.remove_reader(standby.sock)
        go = {"command": self._command, "environ": dict(environment)}
        try:
            if not standby.ready:
                raise TimeoutError
            standby.child.out.prefix = standby.child.errors.prefix = prefix.encode()
            async with asyncio.timeout(self._answer_s):
                await loop.sock_sendall(standby.sock, json.dumps(go).encode() + b"\n")
                if not await loop.sock_recv(standby.sock, 16):
                    raise ConnectionResetError
        except (OSError, TimeoutError):
            if standby.ready:
                log.warning("standby_lost shard_rank=%d: it does not answer; this rank starts cold", shard_rank)
            standby.child.end()
            return None
        except BaseException:
            standby.child.end()
            raise
        finally:
            standby.sock.close()
        return standby.child

    async def close(self) -> None:
        """Ends all standbys, and starts no more."""
        self._impossible = True
        standbys, self._waiting = list(self._waiting.values()), {}
        for standby in standbys:
            self._forget(standby)
        await asyncio.gather(*(asyncio.to_thread(standby.child.end) for standby in standbys))

    def _start(self, shard_rank: int, environment: Mapping[str, str]) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        interpreter, program = self._program.interpreter, self._program.program
        command = [*interpreter, warm.__file__, str(theirs.fileno()), self._imports, *program]
        prefix = f"[standby/{shard_rank}] "
        environment = {**environment, processes.KIN_VARIABLE: self._mark}
        try:
            child = Child.start(command, environment, self._output, prefix, [theirs.fileno()])
        except OSError as error:
            ours.close()
            self._retry(f"it could not be started: {error}", shard_rank)
            return
        finally:
            theirs.close()
        standby = self._waiting[shard_rank] = _Standby(child, ours)
        loop = asyncio.get_running_loop()
        loop.add_reader(child.pidfd, self._ended, shard_rank, standby)
        loop.add_reader(ours, self._said, shard_rank, standby)

    def _said(self, shard_rank: int, standby: _Standby) -> None:
        try:
            data = standby.sock.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        standby.heard += data
        if not data:  # its end is told by its pidfd
            asyncio.get_running_loop().remove_reader(standby.sock)
        elif standby.heard.endswith(b"\n"):
            self._heard(shard_rank, standby, json.loads(standby.heard))

    def _heard(self, shard_rank: int, standby: _Standby, told: Mapping[str, object]) -> None:
        if told["cannot"]:
            self._impossible = True
            log.warning("standby_impossible reason=%s: ranks start cold", json.dumps(told["cannot"]))
            return
        left_out = told["left_out"]
        assert isinstance(left_out, dict)
        for name in left_out.keys() - self._left_out:
            log.warning("standby_import_failed module=%s reason=%s", name, json.dumps(left_out[name]))
        self._left_out |= left_out.keys()
        standby.ready = True
        self._pause_s = PAUSE_S
        log.info("standby_ready shard_rank=%d pid=%d bytes=%s", shard_rank, standby.child.process.pid, told["bytes"])

    def _ended(self, shard_rank: int, standby: _Standby) -> None:
        del self._waiting[shard_rank]
        self._said(shard_rank, standby)  # its last words
        self._forget(standby)
        code = standby.child.end()
        if not self._impossible:
            self._retry(f"signal {-code}" if code < 0 else f"exit code {code}", shard_rank)

    def _retry(self, reason: str, shard_rank: int) -> None:
        log.warning("standby_ended shard_rank=%d reason=%s pause_s=%g", shard_rank, json.dumps(reason), self._pause_s)
        self._not_before = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _forget(self, standby: _Standby) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(standby.child.pidfd)
        loop.remove_reader(standby.sock)
        standby.sock.close()
