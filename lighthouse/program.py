"""The lighthouse as a program: options, start, one line that says where it listens, orderly end.

    lighthouse waits: the store PATH is held by pid 17 on HOST      (a standby; goes on when the lock is free)
    lighthouse listening on HOST:PORT

Exit codes: 0 stopped by a signal, or its only run finished; 1 its only run ended without finishing; 2 it could not be
started as configured, or its store failed; 3 another lighthouse has taken over; 70 a defect.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Literal

from lighthouse.auth import TokenError, read_token
from lighthouse.core import CORE
from lighthouse.core_values import Core, RunConfig
from lighthouse.deadlines import DEFAULTS, Knobs, derive
from lighthouse.journal import Journal
from lighthouse.service import PortTaken, Runs, Server, Serving
from lighthouse.store import Store, StoreError, StoreLock, Superseded

log = logging.getLogger("lighthouse")


@dataclass(frozen=True, kw_only=True)
class LighthouseOptions:
    """How a lighthouse is started."""

    store: Path = Path("lighthouse.db")
    """File of the lighthouse's records. Beside it lie its lock (.lock) and the journal (.journal)."""
    bind: str = "127.0.0.1"
    """Address to listen on; with any but a loopback one a token is needed."""
    port: int = 29510
    """Port to listen on; 0 takes a free one, which the line on standard output tells."""
    token_file: Path | None = None
    """File with the token that every caller must present; without it everyone on this host may call."""
    run_id: str = ""
    """The only run that is led; empty leads any run whose groups say hello."""
    until_ended: bool = False
    """Exit when the only run has ended, instead of going on to answer for it."""
    min_groups: int = 1
    """With fewer groups that stand on the base, the run holds."""
    groups_wanted: int = 1
    """The first formation waits for so many groups..."""
    join_wait_s: float | None = None
    """...or so many seconds after the first hello; by default a sixth of connect_s."""
    contributors: int = 0
    """Groups beyond so many are spares; 0 makes every group a contributor."""
    allowed_groups: str = ""
    """Counts of contributing groups that are allowed, as in 1,2,4; what is surplus is a spare. Empty allows any."""
    lease_s: float = DEFAULTS.knobs.lease_s
    """Seconds of silence after which a group is lost. From this and the next two all deadlines follow (--explain)."""
    stall_patience_s: float = DEFAULTS.knobs.stall_patience_s
    """Seconds without a step (or ten times the last step's, if that is more; before the first step five times this)
    after which who the others wait for is evicted and starts anew. Make it longer than anything that one group may do
    alone between two steps, as an evaluation."""
    connect_s: float = DEFAULTS.knobs.connect_s
    """Seconds to wait for others that should be there: the lighthouse, and members that open a communicator."""
    explain: bool = False
    """Print all deadlines, what they follow from, and what happens when they run out; then go on."""
    hold_patience_s: float | None = None
    """Seconds of holding after which the run saves and stops; 0 holds for ever; by default ten times connect_s."""
    cold_start_after_s: float = 0.0
    """Seconds after which a run that nobody can go on from makes a cold start; 0 never does by itself."""
    poison: Literal["hold", "skip"] = "hold"
    """What becomes of a slot that was in hand at two deaths in one step. hold: the run waits until a person has looked
    at it (bellrock skip-slot); skip: the step is committed without it, which ledgers and events name."""
    donors: int = 3
    """At most so many donors serve one joiner."""
    journal_mib: int = 256
    """Bound of the journal on disk, in MiB; the oldest is dropped."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port is {self.port}: use 0 to 65535")
        if self.token_file is None and not _is_loopback(self.bind):
            raise ValueError(f"bind is {self.bind}, which other hosts reach: give a token_file, or bind to 127.0.0.1")
        if self.until_ended and not self.run_id:
            raise ValueError("until_ended needs a run_id: name the run whose end is meant")
        if self.journal_mib < 1:
            raise ValueError("journal_mib must be at least 1")
        self.config_for(self.run_id)

    @property
    def knobs(self) -> Knobs:
        """The three deadlines from which all others are derived. Raises ValueError where they contradict each other."""
        return Knobs(lease_s=self.lease_s, stall_patience_s=self.stall_patience_s, connect_s=self.connect_s)

    def config_for(self, run_id: str) -> RunConfig:
        """The configuration of a run. Raises ValueError where options contradict each other."""
        derived = derive(self.knobs)
        return RunConfig(
            run_id=run_id,
            min_groups=self.min_groups,
            groups_wanted=max(self.groups_wanted, self.min_groups),
            join_wait_s=derived.join_wait_s if self.join_wait_s is None else self.join_wait_s,
            contributors_wanted=self.contributors,
            allowed_groups=counts(self.allowed_groups),
            lease_s=self.lease_s,
            stall_patience_s=self.stall_patience_s,
            connect_s=self.connect_s,
            hold_patience_s=derived.hold_patience_s if self.hold_patience_s is None else self.hold_patience_s,
            cold_start_after_s=self.cold_start_after_s,
            skip_poison=self.poison == "skip",
            donors=self.donors,
        )


def counts(text: str) -> tuple[int, ...]:
    """The counts in a text like "1,2,4", in order, each once. Raises ValueError if it is none."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"allowed_groups is {text!r}: give counts from 1, separated by commas, as in 1,2,4")
    return tuple(sorted({int(part) for part in parts}))


async def run_lighthouse(options: LighthouseOptions, core: Core | None = None) -> int:
    """Runs a lighthouse until a signal, the end of its only run, or a failure. Returns the exit code.

    `core` is what decides; the lighthouse's own if it is not given. Takes over SIGTERM and SIGINT meanwhile.
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    try:
        return await _lead(options, core or CORE, stopped)
    except (StoreError, TokenError, PortTaken) as error:
        return _give_up(2, str(error))
    except Superseded as error:
        return _give_up(3, str(error))
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def _lead(options: LighthouseOptions, core: Core, stopped: asyncio.Event) -> int:
    token = read_token(options.token_file) if options.token_file else ""
    with ExitStack() as stack:
        lock = StoreLock(options.store)
        stack.callback(lock.release)
        if not await _take(lock, options.store, stopped):
            return 0
        store = Store(options.store)
        stack.callback(store.close)
        path = options.store.with_name(options.store.name + ".journal")
        journal = Journal(path, limit_bytes=options.journal_mib << 20)
        stack.callback(journal.close)
        runs = Runs(
            Serving(core=core, store=store, journal=journal, config_for=options.config_for, only_run=options.run_id)
        )
        server = Server(runs, token=token, deadlines=derive(options.knobs))
        try:
            # Listen first: a taken port must be told before a run begins.
            port = await server.start(options.bind, options.port)
            if options.run_id:
                runs.begin(options.run_id)
            _say(f"lighthouse listening on {_shown(options.bind)}:{port}")
            return await _serve(runs, options.until_ended, stopped)
        finally:
            await runs.close()
            await server.stop()


async def _take(lock: StoreLock, store: Path, stopped: asyncio.Event) -> bool:
    """Takes the lock, waiting for it as a standby. False if the lighthouse is to stop instead."""
    if lock.try_take():
        return True
    _say(f"lighthouse waits: the store {store} is held by {lock.holder()}")
    loop = asyncio.get_running_loop()
    taken = loop.create_future()

    def wait() -> None:
        try:
            lock.take()
            tell = partial(taken.set_result, None)
        except OSError as error:
            tell = partial(taken.set_exception, StoreError(f"cannot wait for the lock of {store}: {error}"))
        with suppress(RuntimeError):  # the loop is closed: the process is about to end
            loop.call_soon_threadsafe(lambda: taken.done() or tell())

    # Waiting for a lock cannot be interrupted: a daemon thread may be left behind at the end of the process.
    threading.Thread(target=wait, name="standby", daemon=True).start()
    signalled = asyncio.ensure_future(stopped.wait())
    await asyncio.wait({taken, signalled}, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if stopped.is_set():
        taken.cancel()
        return False
    taken.result()
    return True


async def _serve(runs: Runs, until_ended: bool, stopped: asyncio.Event) -> int:
    ended = asyncio.ensure_future(runs.all_ended()) if until_ended else asyncio.get_running_loop().create_future()
    signalled = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait({runs.failed, ended, signalled}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        signalled.cancel()
        ended.cancel()
    if runs.failed.done():
        error = runs.failed.result()
        if isinstance(error, StoreError | Superseded):
            raise error
        log.error("the lighthouse has a defect and stops; its journal shows how", exc_info=error)
        return _give_up(70, f"defect: {error!r}")
    if ended.done() and not ended.cancelled():
        return 0 if ended.result() else 1
    return 0


def _is_loopback(bind: str) -> bool:
    try:
        return ip_address(bind).is_loopback
    except ValueError:
        return bind == "localhost"


def _shown(bind: str) -> str:
    return f"[{bind}]" if ":" in bind else bind


_say = partial(print, flush=True)


def _give_up(code: int, why: str) -> int:
    print(f"lighthouse: {why}", file=sys.stderr, flush=True)
    return code
