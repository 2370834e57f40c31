"""The lighthouse's gRPC server: Session, Status and Watch, carried to and from the owners of the runs.

It decides nothing but who may speak: the token is checked before anything else (`auth.py`), the first message of a
session must be a hello, and a session is read further only once its hello was answered.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio

from lighthouse.auth import TokenInterceptor
from lighthouse.codec import to_proto
from lighthouse.core_values import Core, EndRun, Happened, RunConfig
from lighthouse.deadlines import DEFAULTS, Deadlines
from lighthouse.events import Events, TooSlow, Watcher
from lighthouse.journal import Journal
from lighthouse.owner import RunOwner
from lighthouse.store import Store, StoreError
from lighthouse.streams import Carrier, Stream
from lighthouse.values import Hello, Refused
from lighthouse.wire import (
    DOWN,
    UP,
    ColdStartReply,
    LighthouseServicer,
    SkipSlotReply,
    StatusReply,
    add_LighthouseServicer_to_server,
)
from lighthouse.wire import Event as EventMessage

MESSAGE_BYTES = 64 << 20
"""Largest message either way: a roster of thousands."""
RUNS = 256
"""Runs that one lighthouse leads at most."""

OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
)
"""so_reuseport off: a taken port is an error instead of a second lighthouse beside the first. bdp_probe off: it answers
every small message with a ping, a third of what a thousand beats a second cost."""

log = logging.getLogger("lighthouse.service")


class PortTaken(Exception):
    """The address cannot be listened on; the message says what to change."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What a service is made of. `config_for` gives the config of a run that a first hello names; `only_run`, if not
    empty, is the one run that is led."""

    core: Core
    store: Store
    journal: Journal
    config_for: Callable[[str], RunConfig]
    only_run: str = ""


class Runs:
    """The owners of all runs, each a task. A run begins with its first hello, or at once if it is the only one."""

    def __init__(self, serving: Serving) -> None:
        self.events = Events()
        self.failed: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        """Done when an owner failed: the lighthouse must stop then."""
        self._serving = serving
        self._owners: dict[str, RunOwner] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self, run_id: str) -> RunOwner:
        """The owner of a run, begun if need be. Raises ValueError, for people, if the run is not led here."""
        if run_id in self._owners:
            return self._owners[run_id]
        only = self._serving.only_run
        if run_id != only and only:
            raise ValueError(f"run_id is {run_id!r} here and {only!r} at the lighthouse: make them the same")
        if not run_id:
            raise ValueError("run_id is empty: give the run a name")
        if len(self._owners) >= RUNS:
            raise ValueError(f"this lighthouse leads {RUNS} runs already: start another one")
        self.events.begin(run_id, self._history(run_id))
        owner = RunOwner(
            self._serving.config_for(run_id),
            core=self._serving.core,
            store=self._serving.store,
            journal=self._serving.journal,
            events=self.events,
        )
        self._owners[run_id] = owner
        task = asyncio.create_task(owner.run(), name=f"owner of {run_id}")
        task.add_done_callback(self._owner_done)
        self._tasks.append(task)
        return owner

    def find(self, run_id: str) -> RunOwner:
        """The owner of a run that has begun; "" means the only one. Raises LookupError, for people."""
        known = ", ".join(sorted(self._owners)) or "none yet"
        if run_id in self._owners:
            return self._owners[run_id]
        if run_id or len(self._owners) != 1:
            raise LookupError(f"run {run_id!r} is not led here; runs: {known}")
        return next(iter(self._owners.values()))

    async def all_ended(self) -> bool:
        """Waits for the end of the only run; whether it was a success."""
        ended: EndRun = await self.begin(self._serving.only_run).ended
        return ended.success

    async def close(self) -> None:
        """Ends all streams, watchers and owners."""
        for owner in self._owners.values():
            owner.close_streams()
        self.events.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _history(self, run_id: str) -> tuple[Happened, ...]:
        try:
            return self._serving.journal.history(run_id)
        except StoreError as error:
            log.error("what happened before is not known: %s", error)
            return ()

    def _owner_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self.failed.done():
            error = task.exception()
            self.failed.set_result(error or RuntimeError(f"{task.get_name()} ended by itself"))


class LighthouseService(LighthouseServicer):
    """The servicer: one coroutine for each call."""

    def __init__(self, runs: Runs, *, deadlines: Deadlines) -> None:
        self._runs = runs
        self._deadlines = deadlines
        self._conns = itertools.count(1)
        self._carrier = Carrier()

    async def Session(self, _: Any, context: grpc.aio.ServicerContext) -> None:
        """One group's session: see `proto/lighthouse/wire.proto`."""
        try:
            async with asyncio.timeout(self._deadlines.hello_s):
                hello = await _read(context)
        except TimeoutError:
            await context.abort(grpc.StatusCode.ABORTED, f"no hello came within {self._deadlines.hello_s:g} s")
        except ValueError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))
        if not isinstance(hello, Hello):
            await context.abort(grpc.StatusCode.ABORTED, "the first message of a session must be a hello")
        try:
            if not hello.name:
                raise ValueError("name is empty: give the group a name")
            owner = self._runs.begin(hello.run_id)
        except ValueError as error:
            await context.write(DOWN.wrap(Refused(reason=str(error))))
            return
        await self._serve(owner, Stream(next(self._conns), hello.name), hello, context)

    async def _serve(self, owner: RunOwner, stream: Stream, hello: Hello, context: grpc.aio.ServicerContext) -> None:
        owner.open_stream(stream, hello)
        reader = asyncio.create_task(_read_all(owner, stream, context))
        writer = asyncio.create_task(self._write_all(stream, context))
        try:
            ends: set[asyncio.Future[Any]] = {reader, writer, stream.failed}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            owner.end_stream(stream, _end_of(reader, stream))
            # A write that hangs in flow control is given up; the status then waits behind it in the transport.
            await asyncio.wait({writer}, timeout=self._deadlines.farewell_s)
        finally:
            owner.end_stream(stream, "the connection broke")
            reader.cancel()
            writer.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
        if stream.failed.done():
            await context.abort(grpc.StatusCode.ABORTED, stream.failed.result())

    async def _write_all(self, stream: Stream, context: grpc.aio.ServicerContext) -> None:
        while (message := await stream.next()) is not None:
            await context.write(self._carrier.carry(message))

    async def Status(self, request: Any, context: grpc.aio.ServicerContext) -> StatusReply | None:
        """How a run stands."""
        try:
            owner = self._runs.find(request.run_id)
        except LookupError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error.args[0]))
            return None
        reply: StatusReply = to_proto(owner.status(), StatusReply)
        return reply

    async def ColdStart(self, request: Any, context: grpc.aio.ServicerContext) -> ColdStartReply | None:
        """Has a run that holds for a cold start make it."""
        try:
            owner = self._runs.find(request.run_id)
        except LookupError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error.args[0]))
            return None
        return ColdStartReply(refused=owner.cold_start(request.by))

    async def SkipSlot(self, request: Any, context: grpc.aio.ServicerContext) -> SkipSlotReply | None:
        """Has a run that holds for a slot commit the step without it."""
        try:
            owner = self._runs.find(request.run_id)
        except LookupError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error.args[0]))
            return None
        return SkipSlotReply(refused=owner.skip_slot(request.by))

    async def Watch(self, request: Any, context: grpc.aio.ServicerContext) -> None:
        """What happens in a run, from now on or with what was kept, until the watcher goes."""
        watcher: Watcher = self._runs.events.watch(request.run_id, request.history)
        try:
            # Headers first, so that the watcher knows that it watches before anything happens.
            await context.send_initial_metadata(())
            while (happened := await watcher.next()) is not None:
                await context.write(to_proto(happened, EventMessage))
        except TooSlow as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            self._runs.events.leave(watcher)


async def _read(context: grpc.aio.ServicerContext) -> Any:
    """The next message of a session; None at its end. Raises ValueError for one that is not understood."""
    request = await context.read()
    return None if request is grpc.aio.EOF else UP.unwrap(request)


async def _read_all(owner: RunOwner, stream: Stream, context: grpc.aio.ServicerContext) -> None:
    await stream.answered.wait()
    while not stream.over:
        try:
            message = await _read(context)
        except ValueError as error:
            stream.fail(str(error))
            return
        if isinstance(message, Hello):
            stream.fail("a session has one hello")
        elif message is None:
            return
        else:
            owner.said(stream, message)
            await owner.room()


def _end_of(reader: asyncio.Task[None], stream: Stream) -> str:
    if stream.failed.done():
        return stream.failed.result()
    if not reader.done():
        return "closed by the lighthouse"
    error = reader.exception()
    return "closed by the group" if error is None else f"broken: {error!r}"


class Server:
    """A listening gRPC server with the lighthouse's service and the standard health service."""

    def __init__(self, runs: Runs, *, token: str, deadlines: Deadlines = DEFAULTS) -> None:
        interceptors = (TokenInterceptor(token),) if token else ()
        self._server = grpc.aio.server(interceptors=interceptors, options=OPTIONS)
        self._health = health_aio.HealthServicer()
        add_LighthouseServicer_to_server(LighthouseService(runs, deadlines=deadlines), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)

    async def start(self, bind: str, port: int) -> int:
        """Listens; the port it got (0 asks for any). Raises PortTaken."""
        host = f"[{bind}]" if ":" in bind else bind
        try:
            got = self._server.add_insecure_port(f"{host}:{port}")
        except RuntimeError:
            got = 0
        if got == 0:
            raise PortTaken(
                f"cannot listen on {host}:{port}: it is taken, or not an address of this host: choose another"
            )
        await self._server.start()
        for name in ("", "bellrock.lighthouse.Lighthouse"):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return int(got)

    async def stop(self, grace_s: float = 1.0) -> None:
        """Stops listening and ends all calls."""
        await self._server.stop(grace_s)
