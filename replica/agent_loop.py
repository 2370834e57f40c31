"""The loop that owns an agent's state: events in, recorded and decided at once, effects carried out in order.

It all happens on one thread. An event that comes while another is being dealt with (a rank that cannot be started, say)
waits its turn. What takes time goes on beside: starting ranks, sending, writing files; its outcome comes back as an
event. Every event is journalled with its time, and so is every time at which the core asked to be woken.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from lighthouse.deadlines import Deadlines
from lighthouse.values import Abandon, Died, Goodbye, Leave
from replica.agent_core import decide, new_agent, record, wake_at
from replica.agent_files import Appender
from replica.agent_journal import Journal
from replica.agent_life import FENCED
from replica.agent_state import AgentState, deadlines, welcomed, well
from replica.agent_values import (
    AgentConfig,
    CloseSession,
    DrainAsked,
    Effect,
    EndRanks,
    Event,
    Exit,
    Ledger,
    LighthouseSaid,
    OpenSession,
    RankExited,
    RankSaid,
    Say,
    SessionClosed,
    SessionOpened,
    StartRanks,
    ToLighthouse,
    TookOver,
    ToRank,
    ToRanks,
    TryPeers,
)
from replica.attach_server import AttachServer
from replica.environment import RankEnvironment, write_environment
from replica.lock import GroupLock
from replica.output import Output
from replica.ranks import Ranks, init_method, last_traceback
from replica.reach import try_peers
from replica.session_client import SessionClient
from replica.shelf import left_on, make_shelf, shelf_file
from replica.standby import Standbys
from replica.values import Commit, Quit, Raised, RankDown, RankUp

INTERRUPTED = 130
"""Exit code after a second SIGINT, as shells have it."""
SAY_AGAIN_S = 10.0
"""How often the same line is logged at most."""
LONGEST_SOCKET = 100
"""Bytes of a Unix socket's path; the kernel allows 107."""

log = logging.getLogger("replica.agent")


class Options(Protocol):
    """What the loop needs of `AgentOptions`."""

    @property
    def lighthouse(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def command(self) -> tuple[str, ...]: ...
    @property
    def environ(self) -> Mapping[str, str]: ...
    @property
    def bind(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class Hands:
    """What a loop is given to work with. folder: the group's own, made before ranks are started."""

    ledger: Appender | None
    journal: Journal | None
    output: Output
    lock: GroupLock
    folder: Path
    mark: str
    standbys: Standbys | None


class AgentLoop:
    """Owns the state of one agent. `over` is done, with the exit code, when it has left."""

    def __init__(self, config: AgentConfig, options: Options, hands: Hands) -> None:
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[int] = self._loop.create_future()
        self._options = options
        self._hands = hands
        self._state: AgentState = new_agent(config)
        self._inbox: deque[tuple[Event, ...]] = deque()
        self._deciding = False
        self._timer: asyncio.TimerHandle | None = None
        self._session = SessionClient(options.lighthouse, options.token, self._session_event, lambda: self.deadlines)
        self._ranks = Ranks(
            options.command,
            hands.mark,
            options.environ,
            hands.output,
            self._rank_exited,
            hands.standbys,
            self.deadlines.reap_s,
        )
        self._attach: AttachServer | None = None
        self._starting: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving_told = False
        self._tracebacks: dict[int, str] = {}
        self._interrupts = 0
        self._restart_told = False
        self._said: dict[str, float] = {}

    @property
    def deadlines(self) -> Deadlines:
        """Those in force: the lighthouse's, once it has welcomed the group."""
        return deadlines(self._state)

    # ---- from outside ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """The lock is held: starts the ranks, and all that follows."""
        self._deliver(TookOver())

    def drain(self) -> None:
        """Asks the group to leave."""
        self._deliver(DrainAsked())

    def interrupt(self) -> None:
        """Asks the group to leave; the second time, ends it at once."""
        self._interrupts += 1
        if self._interrupts == 1:
            log.info("leaving after the step in work; interrupt again to end at once")
            self.drain()
        else:
            self._cut(INTERRUPTED, "ended by a second interrupt", goodbye=True)

    def give_way(self) -> None:
        """A newer agent of the same name is here: ends the ranks and goes."""
        self._cut(FENCED, "a newer agent of the same name took over", goodbye=False)

    async def close(self, flush_s: float) -> None:
        """Ends all ranks and everything else. What is queued to be sent may take `flush_s`."""
        self._finish(FENCED)
        if self._timer is not None:
            self._timer.cancel()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await asyncio.gather(self._ranks.close(), self._session.finish(flush_s))
        if self._attach is not None:
            await self._attach.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- events in, effects out ------------------------------------------------------------------------------------

    def _deliver(self, *events: Event) -> None:
        """Records events that came together, and decides."""
        self._inbox.append(events)
        if self._deciding or self.over.done():
            return
        self._deciding = True
        try:
            while self._inbox:
                self._turn(self._inbox.popleft())
        except Exception as error:  # noqa: BLE001 a defect: nothing may be decided any more
            if not self.over.done():
                self.over.set_exception(error)
        finally:
            self._deciding = False
        self._set_timer()

    def _turn(self, events: tuple[Event, ...]) -> None:
        before, now = self._state, self._loop.time()
        effects: tuple[Effect, ...] | None = None
        try:
            state = before
            for event in events:
                state = record(state, event, now)
            self._state, effects = decide(state, now)
            for effect in effects:
                _CARRY[type(effect)](self, effect)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("%s -> %s", *([type(one).__name__ for one in some] for some in (events, effects)))
            if well(self._state):
                self._ranks.get_ready()
        finally:
            # Last, since ranks wait for the verdict; but also of what the core could not deal with.
            if self._hands.journal is not None:
                self._hands.journal.note(before, now, events, effects)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.over.done():
            return
        when = wake_at(self._state, self._loop.time())
        if when is not None:
            self._timer = self._loop.call_at(when, self._deliver)

    def _finish(self, code: int) -> None:
        if not self.over.done():
            self.over.set_result(code)

    def _cut(self, code: int, reason: str, *, goodbye: bool) -> None:
        """Ends the ranks and the agent at once, telling the lighthouse if it listens."""
        if self.over.done():
            return
        log.warning("%s", reason)
        self._ranks.end(self._state.life.number)
        if welcomed(self._state):
            self._session.send(Died(reason=reason, shard_rank=0, killed=True))
            if goodbye:
                self._session.send(Goodbye(reason=reason))
        self._finish(code)

    # ---- ranks -----------------------------------------------------------------------------------------------------

    def _start_ranks(self, effect: StartRanks) -> None:
        self._leaving_told = False
        self._tracebacks.clear()
        self._starting = self._beside(self._start(effect.life))

    async def _start(self, life: int) -> None:
        try:
            if self._attach is not None:
                await self._attach.stop()
                self._attach = None
            shards, hello_s = self._state.config.shards, self.deadlines.hello_s
            server = AttachServer(life, shards, self._options.token, self._rank_said, self._rank_left, hello_s)
            address = await server.start(_address(self._hands.folder, life))
            self._attach = server
            variables = self._variables(life, address)
        except OSError as error:
            for shard_rank in range(self._state.config.shards):
                self._deliver(RankExited(life=life, shard_rank=shard_rank, code=1, traceback=f"OSError: {error}"))
            return
        started = await self._ranks.start(life, variables, self._state.config.name)
        self._hands.lock.record(started)

    def _variables(self, life: int, address: str) -> list[dict[str, str]]:
        config, port = self._state.config, self._ranks.new_port(self._options.bind)
        folder = self._hands.folder / str(life)
        folder.mkdir(mode=0o700)
        inherited = {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **self._options.environ}
        return [
            {
                **inherited,
                **write_environment(
                    RankEnvironment(
                        agent=address,
                        token_file=str(self._hands.folder / "token"),
                        run_id=config.run_id,
                        group=config.name,
                        shard_rank=shard_rank,
                        shards=config.shards,
                        bind=self._options.bind,
                        marks_file=make_shelf(shelf_file(self._hands.folder, life, shard_rank)),
                        life=life,
                        init_method=init_method(folder),
                        master_port=port,
                        knobs=self.deadlines.knobs,
                    )
                ),
            }
            for shard_rank in range(config.shards)
        ]

    def _session_event(self, event: SessionOpened | SessionClosed | LighthouseSaid) -> None:
        """A lighthouse that wants a group to start anew has seen it stall: then people want to see its stacks."""
        if isinstance(event, LighthouseSaid) and isinstance(event.message, Leave):
            self._restart_told = event.message.restart
        if isinstance(event, LighthouseSaid) and isinstance(event.message, Abandon):
            # Others may know of a death here before we do: what is reported next must not count on the dead.
            self._ranks.notice_deaths(self.deadlines.dying_s)
        self._deliver(event)

    def _rank_said(self, life: int, shard_rank: int, messages: tuple[RankUp, ...]) -> None:
        if isinstance(message := messages[-1], Raised):
            self._tracebacks[shard_rank] = message.traceback
            self._ranks.notice_deaths(self.deadlines.dying_s, besides=shard_rank)  # a death beside it may be why
        self._deliver(*(RankSaid(life=life, shard_rank=shard_rank, message=message) for message in messages))

    def _rank_left(self, life: int, shard_rank: int) -> None:
        """A rank without its stream is of no use: it ends by itself, or is ended."""
        if not self._leaving_told and not self.over.done() and self._ranks.alive(life, shard_rank):
            self._beside(self._end_deserter(life, shard_rank))

    async def _end_deserter(self, life: int, shard_rank: int) -> None:
        await asyncio.sleep(self.deadlines.deserter_s)
        self._ranks.end_one(life, shard_rank, "its Attach stream ended, though its process lived on")

    def _rank_exited(self, life: int, shard_rank: int, code: int, errors: str) -> None:
        told = self._tracebacks.pop(shard_rank, "")
        if told and told.strip().rpartition("\n")[2] not in errors:  # ended before it could print what it raised
            for line in told.rstrip().splitlines():
                self._hands.output.say(f"[{self._state.config.name}/{shard_rank}] {line}")
        printed = last_traceback(errors) if code > 0 else ""
        if marks := tuple(left_on(shelf_file(self._hands.folder, life, shard_rank))):
            self._rank_said(life, shard_rank, marks)
        self._deliver(RankExited(life=life, shard_rank=shard_rank, code=code, traceback=told or printed))

    # ---- effects ---------------------------------------------------------------------------------------------------

    def _to_lighthouse(self, effect: ToLighthouse) -> None:
        self._session.send(effect.message)

    def _to_rank(self, effect: ToRank) -> None:
        if self._attach is not None:
            self._attach.send(effect.shard_rank, effect.message)
        self._note_leaving(effect.message)

    def _to_ranks(self, effect: ToRanks) -> None:
        if self._attach is not None:
            self._attach.send_all(effect.message)
        self._note_leaving(effect.message)

    def _note_leaving(self, message: RankDown) -> None:
        if isinstance(message, Quit) or (isinstance(message, Commit) and message.leave):
            self._leaving_told = True

    def _end_ranks(self, effect: EndRanks) -> None:
        self._ranks.end(effect.life, dump_s=self.deadlines.stacks_s if self._restart_told else 0.0)
        self._restart_told = False

    def _try_peers(self, effect: TryPeers) -> None:
        self._beside(try_peers(effect, self._deliver, self.deadlines.probe_s))

    def _ledger(self, effect: Ledger) -> None:
        if self._hands.ledger is not None:
            self._hands.ledger.append(msgspec.json.encode({"time_s": time.time(), **effect.line}))

    def _say(self, effect: Say) -> None:
        line = " ".join([effect.event, *(f"{name}={_shown(value)}" for name, value in effect.fields.items())])
        now = self._loop.time()
        self._said = {said: at for said, at in self._said.items() if now - at < SAY_AGAIN_S}
        if self._said.setdefault(line, now) == now:
            log.info("%s", line)

    def _exit(self, effect: Exit) -> None:
        log.log(
            logging.INFO if effect.code == 0 else logging.ERROR, "exit code=%d reason=%s", effect.code, effect.reason
        )
        self._finish(effect.code)

    def _beside(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._beside_done)
        return task

    def _beside_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.over.done():
            self.over.set_exception(error)


_CARRY: dict[type[Any], Callable[[AgentLoop, Any], None]] = {
    ToLighthouse: AgentLoop._to_lighthouse,
    ToRank: AgentLoop._to_rank,
    ToRanks: AgentLoop._to_ranks,
    StartRanks: AgentLoop._start_ranks,
    EndRanks: AgentLoop._end_ranks,
    OpenSession: lambda loop, effect: loop._session.open(effect.session),
    TryPeers: AgentLoop._try_peers,
    CloseSession: lambda loop, effect: loop._session.close(effect.session),
    Ledger: AgentLoop._ledger,
    Say: AgentLoop._say,
    Exit: AgentLoop._exit,
}


def _address(folder: Path, life: int) -> str:
    path = folder / f"{life}.sock"
    return f"unix:{path}" if len(str(path).encode()) <= LONGEST_SOCKET else "127.0.0.1:0"


def _shown(value: str) -> str:
    """A field's value on one line, quoted if it has blanks."""
    return msgspec.json.encode(value).decode() if not value or any(c in value for c in ' \n\t"=') else value
