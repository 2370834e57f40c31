"""The agent: parent of a group's ranks, holder of its lease, and the only place where the group decides.

`run_agent` is what `bellrock group` runs. What is decided is in the core (`agent_core.py`); the loop that owns it is in
`agent_loop.py`; here its hands are put together and taken apart again, whatever happens, with no rank left behind. It
imports no torch: starting it takes a fraction of a second, and no compile or collective of a rank can hold it up.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import secrets
import shutil
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lighthouse.deadlines import KNOBS, Knobs, derive
from replica.agent_files import Appender
from replica.agent_journal import Journal
from replica.agent_life import CONFIG, FAILED
from replica.agent_loop import AgentLoop, Hands
from replica.agent_values import AgentConfig
from replica.lock import YIELD_SIGNAL, GroupLock, LockError
from replica.output import Output, OutputHandler
from replica.ranks import free_port
from replica.standby import Standbys, python_program

log = logging.getLogger("replica.agent")


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """One replica group's agent."""

    lighthouse: str
    """Address of the run's lighthouse, "host:port"."""
    token: str
    """The run's token: shown to the lighthouse, asked of ranks. Not empty."""
    run_id: str
    """The run."""
    name: str
    """Name of the group, one for each in a run; started twice on a host, the newer wins and the older ends."""
    shards: int
    """Ranks in the group."""
    command: tuple[str, ...]
    """What each rank runs: a program and its arguments; it makes one `Replica`."""
    environ: Mapping[str, str]
    """Environment that ranks inherit; what tells them their place is added."""
    bind: str = "127.0.0.1"
    """Interface that ranks listen and connect on."""
    ledger: Path | None = None
    """File to append the group's ledger to: a JSON object a line. None: no ledger."""
    journal: Path | None = None
    """File to append all events to, with their times, so that what was decided can be decided again (see
    `agent_journal.py`; the last 64 to 128 MiB are kept). None: none."""
    lock_folder: Path | None = None
    """Where names are locked, on a disk of this host, shared by all agents of this user. None: /tmp/bellrock-UID."""
    restart_limit: int = 3
    """So many identical failures of ranks in a row end the agent."""
    lease_s: float | None = None
    """This and the next two: deadlines from which all others follow. None takes the lighthouse's; a group that was
    given another leaves the run, saying so."""
    stall_patience_s: float | None = None
    """See `lighthouse.deadlines.Knobs`."""
    connect_s: float | None = None
    """Also how long the group tries to be welcomed by a lighthouse for the first time."""
    standby: str = "none"
    """"warm": for each rank a process is kept that has imported torch and waits to run the command when the ranks have
    to be started again. "none": no such process."""
    standby_imports: tuple[str, ...] = ()
    """Modules that it imports besides, before it is known whether it will be needed."""
    verbose: bool = False
    """Log every event and effect."""

    def __post_init__(self) -> None:
        if not self.command:
            raise ValueError("command is empty: give the program that a rank runs")
        if not self.token:
            raise ValueError("token is empty: use the token of the lighthouse")
        if self.shards < 1:
            raise ValueError(f"shards is {self.shards}; it must be at least 1")
        derive(self.knobs)
        if self.standby not in ("none", "warm"):
            raise ValueError(f"standby is {self.standby!r}; it must be none or warm")
        if any(not part.isidentifier() for name in self.standby_imports for part in name.split(".")):
            raise ValueError(f"standby_imports is {self.standby_imports}; it must be names of modules, as in `import`")

    @property
    def knobs(self) -> Knobs:
        """Deadlines until a lighthouse has said the run's. Raises ValueError if they contradict each other."""
        given = {name: getattr(self, name) for name in KNOBS if getattr(self, name) is not None}
        return derive(Knobs(**given)).knobs

    def config(self) -> AgentConfig:
        """What the core is told. Raises ValueError."""
        return AgentConfig(
            run_id=self.run_id,
            name=self.name,
            host=socket.gethostname(),
            shards=self.shards,
            restart_limit=self.restart_limit,
            knobs=self.knobs,
            insists=tuple(name for name in KNOBS if getattr(self, name) is not None),
        )


async def run_agent(options: AgentOptions) -> int:
    """Runs a group until it has left; its exit code (see `agent_life.py`). No process of it is left then.

    SIGTERM, SIGINT and SIGHUP ask the group to leave; a second SIGINT ends it at once. Signals are taken only if this
    runs on the main thread.
    """
    flush_s = derive(options.knobs).flush_s
    with _shown(options) as output:
        try:
            free_port(options.bind)
        except OSError as error:
            log.error("bind is %s, which ranks cannot listen on: %s; give an address of this host", options.bind, error)
            return CONFIG
        ledger = Appender(options.ledger) if options.ledger is not None else None
        journal = Journal(options.journal) if options.journal is not None else None
        try:
            return await _run(options, output, ledger, journal)
        except LockError as error:
            log.error("%s", error)
            return CONFIG
        except Exception:
            log.exception("the agent has a defect, and ends with its ranks")
            return FAILED
        finally:
            for file in (ledger, journal):
                if file is not None:
                    await asyncio.to_thread(file.close, flush_s)


async def _run(options: AgentOptions, output: Output, ledger: Appender | None, journal: Journal | None) -> int:
    mark = secrets.token_hex(16)
    # Runs of one name but with tokens of their own are different runs, and may share a host.
    run = f"{options.run_id}.{hashlib.sha256(options.token.encode()).hexdigest()[:8]}"
    lock = GroupLock(options.lock_folder or Path(f"/tmp/bellrock-{os.getuid()}"), run, options.name, mark)
    hands = Hands(
        ledger=ledger,
        journal=journal,
        output=output,
        lock=lock,
        folder=lock.own_folder,
        mark=mark,
        standbys=_standbys(options, mark, output),
    )
    loop = AgentLoop(options.config(), options, hands)
    with _signals(loop):
        try:
            if not await _locked(lock, loop):
                return await loop.over
            await asyncio.to_thread(_make_folder, hands.folder, options.token)
            loop.begin()
            return await loop.over
        finally:
            await loop.close(loop.deadlines.flush_s)
            if lock.held:
                await asyncio.to_thread(shutil.rmtree, hands.folder, ignore_errors=True)
            lock.release()


def _standbys(options: AgentOptions, mark: str, output: Output) -> Standbys | None:
    if options.standby == "none":
        return None
    program = python_program(options.command)
    if program is None:
        log.info("no standby: %s runs no Python file or module; ranks start cold", options.command[0])
        return None
    return Standbys(options.command, program, options.standby_imports, mark, output, derive(options.knobs).standby_s)


async def _locked(lock: GroupLock, loop: AgentLoop) -> bool:
    """Waits for the lock; False if the agent was asked to leave meanwhile. Raises LockError."""
    taking = asyncio.create_task(lock.take_over(loop.deadlines.yield_s, loop.deadlines.reap_s))
    either: set[asyncio.Future[Any]] = {taking, loop.over}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not taking.done():
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        return False
    if (before := taking.result()) is not None:
        log.info("took over from an agent that was here before (pid %d)", before.agent.pid)
    return not loop.over.done()


def _make_folder(folder: Path, token: str) -> None:
    """Made anew: what a predecessor that was killed has left there goes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    file = os.open(folder / "token", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(file, "w") as opened:
        opened.write(token + "\n")


@contextlib.contextmanager
def _shown(options: AgentOptions) -> Iterator[Output]:
    """Log records of this package, and what ranks print, go through one thread to standard output and error."""
    output = Output()
    handler = OutputHandler(output, options.name)
    logger = logging.getLogger("replica")
    before = (logger.level, logger.propagate)
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if options.verbose else logging.INFO)
    logger.propagate = False
    try:
        yield output
    finally:
        output.close(derive(options.knobs).flush_s)
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]


@contextlib.contextmanager
def _signals(agent: AgentLoop) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {
        signal.SIGTERM: agent.drain,
        signal.SIGHUP: agent.drain,
        signal.SIGINT: agent.interrupt,
        YIELD_SIGNAL: agent.give_way,
    }
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in handlers:
            loop.remove_signal_handler(number)
