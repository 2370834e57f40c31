"""A whole run on this machine: a lighthouse and agents as child processes, kept going and ended together.

Each child leads a session of its own, so that a Ctrl-C on the terminal reaches this process alone, which then drains
the groups in order. If this process is killed, the kernel ends the children (Linux), and ranks end with their agent.
What they print goes to the terminal or to files, never to a pipe of ours: training must not wait for a reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from lighthouse.auth import read_token
from lighthouse.core_values import Happened
from lighthouse.program import LighthouseOptions
from replica import spawn
from replica.ranks import free_port
from trainer.config import FixTheConfiguration, to_argv
from trainer.follow import follow

LIGHTHOUSE = "lighthouse"
RESTART_PAUSE_S = 0.5
QUICK_LIFE_S = 2.0
MOST_QUICK_LIVES = 5
"""A lighthouse that dies so often in a row within QUICK_LIFE_S is not started again."""

NOT_AGAIN = (2, 3)
"""Exit codes of a lighthouse that would only fail again: misconfigured, or another one has taken over."""

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
END_PATIENCE_S = 15.0


@dataclass(frozen=True, kw_only=True)
class LocalPlan:
    """What there is to run, worked out from the command line."""

    folder: Path
    """Where token, store, ledgers, journals and what children print are kept."""
    names: tuple[str, ...]
    """Names of the groups."""
    shards: int
    """Ranks in each group."""
    lighthouse: LighthouseOptions
    """How the lighthouse is started; store, token and (if it is 0) port are filled in."""
    group_flags: tuple[str, ...] = ()
    """Flags for each group."""
    command: tuple[str, ...]
    """Command of a rank."""
    quiet: bool = False
    """Agents and ranks print to files, not to this terminal; the lighthouse always does."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Environment of the children."""


def bellrock_argv(*arguments: str) -> list[str]:
    """Command line that runs `bellrock` with this Python and these sources.

    -P leaves the working directory out of the module path: a user's own trainer.py there does not shadow ours.
    """
    return [sys.executable, "-P", "-m", "trainer.cli", *arguments]


def rank_argv(*flags: str) -> list[str]:
    """Command line of a rank of the byte model's program."""
    return [sys.executable, "-P", "-m", "trainer.train", *flags]


BYTE_MODEL_IMPORTS = ("trainer.config", "trainer.model", "trainer.text", "tyro", "torch.optim.lr_scheduler")
"""What the byte model's program imports."""


def standby_flags(standby: str, imports: tuple[str, ...]) -> tuple[str, ...]:
    """Flags of `bellrock group` for its standbys."""
    return ("--standby", standby, *(("--standby-imports", *imports) if imports else ()))


class LocalRun:
    """Starts the children, restarts the lighthouse if it dies, and ends all of them.

    tell: called with a line for people. Use from one event loop, in the main thread (children die with the thread that
    started them).
    """

    def __init__(self, plan: LocalPlan, tell: Callable[[str], None]) -> None:
        self._plan = plan
        self._tell = tell
        self._ending = False
        self._asked = 0
        self._agents: dict[str, asyncio.subprocess.Process] = {}
        self._lighthouse: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        plan.folder.mkdir(parents=True, exist_ok=True)
        self._options = replace(
            plan.lighthouse,
            store=plan.folder / "lighthouse.db",
            token_file=self.token_file,
            port=plan.lighthouse.port or free_port("127.0.0.1"),
        )
        self.address = f"127.0.0.1:{self._options.port}"
        self.token = make_token(self.token_file)

    @property
    def token_file(self) -> Path:
        """Where the run's token lies, readable by this user alone."""
        return self._plan.folder / "token"

    @property
    def asked_to_end(self) -> bool:
        """Whether somebody asked for the end before the run was finished."""
        return self._asked > 0

    def log_file(self, name: str) -> Path:
        """Where the child `name` ("lighthouse", or a group's name) prints to."""
        return self._plan.folder / f"{name}.log"

    def agent_pid(self, name: str) -> int:
        """Process id of a group's agent."""
        return self._agents[name].pid

    async def carry_out(self, saw: Callable[[Happened], None]) -> dict[str, int]:
        """The whole run: starts it, calls `saw` with all that happens, drains when asked to end, leaves no child.

        Returns the exit code of each group.
        """
        loop = asyncio.get_running_loop()
        for number in END_SIGNALS:
            loop.add_signal_handler(number, self.drain)
        watching: asyncio.Task[None] | None = None
        try:
            await self.start()
            watching = asyncio.create_task(self._watch(saw))
            return await self.wait()
        finally:
            await self.end()
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
            for number in END_SIGNALS:
                loop.remove_signal_handler(number)

    async def _watch(self, saw: Callable[[Happened], None]) -> None:
        async for one in follow(self.address, self.token, self._options.run_id):
            saw(one)

    async def start(self) -> None:
        """Starts the lighthouse and one agent for each group. Raises FixTheConfiguration if the port is taken."""
        check_port_is_free(self._options.port)
        await self._start_lighthouse()
        self._keeper = asyncio.create_task(self._keep_lighthouse())
        for name in self._plan.names:
            self._agents[name] = await self._start_agent(name)

    async def wait(self) -> dict[str, int]:
        """Exit code of each group, once all have ended (or the lighthouse cannot be kept alive)."""
        assert self._keeper is not None
        over = asyncio.gather(*(self._watch_agent(name) for name in self._agents))
        await asyncio.wait((over, self._keeper), return_when=asyncio.FIRST_COMPLETED)
        if not over.done() and self._keeper_failed():
            self.drain()
        await over
        return {name: agent.returncode or 0 for name, agent in self._agents.items()}

    def drain(self) -> None:
        """Asks every group to leave after its step; asked again, ends everything at once."""
        self._asked += 1
        if self._asked == 1:
            self._tell("asking every group to leave after its step (once more ends everything at once)")
        for agent in self._agents.values():
            _signal(agent, signal.SIGTERM if self._asked == 1 else signal.SIGKILL)

    async def kill_lighthouse(self) -> None:
        """SIGKILL, as a test of the restart."""
        if self._lighthouse is not None:
            _signal(self._lighthouse, signal.SIGKILL)

    async def end(self) -> None:
        """Ends what is left: politely, then with SIGKILL. No child is left afterwards. Idempotent."""
        self._ending = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await _end(list(self._agents.values()))
        if self._lighthouse is not None:
            await _end([self._lighthouse])

    def _keeper_failed(self) -> bool:
        keeper = self._keeper
        return keeper is not None and keeper.done() and not keeper.cancelled() and keeper.exception() is not None

    async def _start_lighthouse(self) -> None:
        argv = bellrock_argv("lighthouse", *to_argv(self._options))
        self._lighthouse = await self._start(LIGHTHOUSE, argv)

    async def _keep_lighthouse(self) -> None:
        """Returns when the lighthouse ended well; raises RuntimeError when it cannot be kept alive."""
        quick = 0
        while self._lighthouse is not None:
            began = time.monotonic()
            code = await self._lighthouse.wait()
            if code == 0 or self._ending:
                return
            if code in NOT_AGAIN:
                self._tell(f"the lighthouse ended ({describe(code)}); it printed:\n{self.tail(LIGHTHOUSE)}")
                raise RuntimeError("the lighthouse cannot run")
            quick = quick + 1 if time.monotonic() - began < QUICK_LIFE_S else 1
            if quick >= MOST_QUICK_LIVES:
                self._tell(f"the lighthouse does not stay alive; it printed:\n{self.tail(LIGHTHOUSE)}")
                raise RuntimeError("the lighthouse does not stay alive")
            self._tell(f"the lighthouse ended ({describe(code)}); starting it again")
            await asyncio.sleep(RESTART_PAUSE_S)
            await self._start_lighthouse()

    async def _start_agent(self, name: str) -> asyncio.subprocess.Process:
        plan = self._plan
        flags = ["--name", name, "--shards", str(plan.shards), "--run-id", self._options.run_id]
        flags += ["--lighthouse", self.address, "--token-file", str(self.token_file), "--folder", str(plan.folder)]
        return await self._start(name, bellrock_argv("group", *flags, *plan.group_flags, "--", *plan.command))

    async def _watch_agent(self, name: str) -> None:
        code = await self._agents[name].wait()
        if code and not self._ending and not self.asked_to_end:
            printed = f"; it printed:\n{self.tail(name)}" if self._plan.quiet else ""
            self._tell(f"group {name} ended: {describe(code)}{printed}")

    def tail(self, name: str, lines: int = 30) -> str:
        """The last lines that a child printed to its file."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log_file(name).read_text(errors="replace").splitlines()[-lines:])
        return ""

    async def _start(self, name: str, argv: list[str]) -> asyncio.subprocess.Process:
        quiet = self._plan.quiet or name == LIGHTHOUSE
        with _output(self.log_file(name) if quiet else None) as output:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-S", spawn.__file__, str(os.getpid())),  # dies with this process
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT if output is not None else None,
                env=dict(self._plan.environ),
                start_new_session=True,
            )


@contextlib.contextmanager
def _output(path: Path | None) -> Iterator[int | None]:
    if path is None:
        yield None
        return
    with path.open("ab") as file:
        yield file.fileno()


async def _end(children: list[asyncio.subprocess.Process]) -> None:
    """Ends children that still run: SIGTERM, and SIGKILL for those that do not go by it."""
    waits = {asyncio.create_task(child.wait()): child for child in children}
    for child in children:
        _signal(child, signal.SIGTERM)
    if waits:
        _, late = await asyncio.wait(waits, timeout=END_PATIENCE_S)
        for wait in late:
            _signal(waits[wait], signal.SIGKILL)
        await asyncio.gather(*late)


def _signal(child: asyncio.subprocess.Process, number: signal.Signals) -> None:
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)


def describe(code: int) -> str:
    """An exit code as people say it."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    return f"exit code {code}"


def check_port_is_free(port: int) -> None:
    """Raises FixTheConfiguration if something listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise FixTheConfiguration(
                f"--port {port} cannot be used ({error.strerror}): end what listens there, or give another port."
            ) from error


def make_token(path: Path) -> str:
    """The token in `path`; a new one, readable by this user alone, if there is no such file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    return read_token(path)
