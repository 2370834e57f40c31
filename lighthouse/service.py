"""The lighthouse's service: Session, Status, ColdStart and Watch, carried to and from the owners of the runs.

It decides nothing but who may speak: the token is checked before anything else (`auth.py`), the first message of a
session must be a hello, and a session is read further only once its hello was answered. All of it happens on the event
loop's thread, in the order in which it arrived (`calls.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from lighthouse.auth import NO_TOKEN, carries_token
from lighthouse.calls import Call, Calls
from lighthouse.codec import to_proto
from lighthouse.core_values import Core, EndRun, Happened, RunConfig
from lighthouse.deadlines import DEFAULTS, Deadlines
from lighthouse.events import Events, TooSlow, Watcher
from lighthouse.journal import Journal
from lighthouse.owner import RunOwner
from lighthouse.store import Store, StoreError
from lighthouse.streams import Carrier, Stream
from lighthouse.values import Hello, Refused, Up
from lighthouse.wire import (
    DOWN,
    SERVICE,
    UP,
    ColdStartReply,
    ColdStartRequest,
    SkipSlotReply,
    SkipSlotRequest,
    StatusReply,
    StatusRequest,
    Steps,
    WatchRequest,
    is_beat,
    unfold,
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

HEALTH = "grpc.health.v1.Health"
HEALTHY = ("", SERVICE)

decode: Callable[[bytes], Up | Steps] = lru_cache(64)(UP.decode)
"""What many say alike, as beats, is decoded once."""

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
        self.gather: Callable[[], None] = lambda: None
        """Has owners told all that has arrived; set by whoever listens."""
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
            gather=lambda: self.gather(),
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

    async def has_begun(self, run_id: str) -> bool:
        """Begins a run if need be, and waits until its record was read; False if an owner failed before."""
        begun = self.begin(run_id).begun
        either: set[asyncio.Future[Any]] = {begun, self.failed}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        return begun.done()

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


class _Session:
    """One group's session, from its first message on."""

    def __init__(self, service: LighthouseService, call: Call) -> None:
        self._service = service
        self._call = call
        self._owner: RunOwner | None = None
        self._stream: Stream | None = None
        hello_s = service.deadlines.hello_s
        self._patience = asyncio.get_running_loop().call_later(
            hello_s, self._refuse, f"no hello came within {hello_s:g} s"
        )
        call.on_message = self._hear
        call.on_over = self._over
        call.accept()
        call.read()

    def _hear(self, at_s: float, data: bytes | None) -> None:
        try:
            message = None if data is None else decode(data)
        except ValueError as error:
            self._refuse(str(error))
            return
        if self._owner is None or self._stream is None:
            self._patience.cancel()
            self._greet(message, at_s)
        elif message is None:
            self._end("closed by the group")
        elif self._stream.over:
            return
        elif isinstance(message, Hello):
            self._refuse("a session has one hello")
        else:
            for one in unfold(message):
                self._owner.said(self._stream, one, at_s)

    def _greet(self, hello: Up | Steps | None, at_s: float) -> None:
        if not isinstance(hello, Hello):
            self._refuse("the first message of a session must be a hello")
            return
        try:
            if not hello.name:
                raise ValueError("name is empty: give the group a name")
            self._owner = self._service.runs.begin(hello.run_id)
        except ValueError as error:
            self._call.send(DOWN.encode(Refused(reason=str(error))))
            self._call.finish()
            return
        self._stream = self._service.stream(hello.name, self._call, self._owner)
        self._owner.open_stream(self._stream, hello, at_s)

    def _refuse(self, reason: str) -> None:
        if self._stream is not None:
            self._stream.fail(reason)
        else:
            self._call.finish(grpc.StatusCode.ABORTED, reason)

    def _over(self) -> None:
        self._patience.cancel()
        self._end("the connection broke")

    def _end(self, reason: str) -> None:
        if self._owner is not None and self._stream is not None:
            self._owner.end_stream(self._stream, reason)


class LighthouseService:
    """What is answered to whom: `begin` is handed every call."""

    def __init__(self, runs: Runs, *, token: str, deadlines: Deadlines) -> None:
        self.runs = runs
        self.deadlines = deadlines
        self._token = token
        self._conns = itertools.count(1)
        self._carrier = Carrier()
        self._watching: set[asyncio.Task[None]] = set()
        self._methods: dict[str, Callable[[Call], object]] = {
            f"/{SERVICE}/Session": partial(_Session, self),
            f"/{SERVICE}/Status": _answers(StatusRequest, self._status),
            f"/{SERVICE}/ColdStart": _answers(ColdStartRequest, self._cold_start),
            f"/{SERVICE}/SkipSlot": _answers(SkipSlotRequest, self._skip_slot),
            f"/{SERVICE}/Watch": partial(_asked, WatchRequest, self._watch),
            f"/{HEALTH}/Check": _answers(health_pb2.HealthCheckRequest, _health),
            f"/{HEALTH}/Watch": partial(_asked, health_pb2.HealthCheckRequest, _watch_health),
        }

    def begin(self, call: Call) -> None:
        """Has a call answered, if it carries the token."""
        method = self._methods.get(call.method)
        if not carries_token(call.metadata, self._token):
            call.finish(grpc.StatusCode.UNAUTHENTICATED, NO_TOKEN)
        elif method is None:
            call.finish(grpc.StatusCode.UNIMPLEMENTED, f"there is no method {call.method} here")
        else:
            method(call)

    def stream(self, name: str, call: Call, owner: RunOwner) -> Stream:
        """A new stream, for a session that has said hello."""
        return Stream(
            next(self._conns), name, call, self._carrier, owner.end_stream, farewell_s=self.deadlines.farewell_s
        )

    def _status(self, request: Any) -> Any:
        return to_proto(self.runs.find(request.run_id).status(), StatusReply)

    def _cold_start(self, request: Any) -> Any:
        return ColdStartReply(refused=self.runs.find(request.run_id).cold_start(request.by))

    def _skip_slot(self, request: Any) -> Any:
        return SkipSlotReply(refused=self.runs.find(request.run_id).skip_slot(request.by))

    def _watch(self, call: Call, request: Any) -> None:
        task = asyncio.create_task(self._follow(call, request.run_id, request.history))
        self._watching.add(task)
        task.add_done_callback(self._watching.discard)
        call.on_over = task.cancel

    async def _follow(self, call: Call, run_id: str, history: bool) -> None:
        """What happens in a run, from now on or with what was kept, until the watcher goes."""
        watcher: Watcher = self.runs.events.watch(run_id, history)
        call.accept()  # so that the watcher knows that it watches before anything happens
        try:
            while (happened := await watcher.next()) is not None:
                call.send(to_proto(happened, EventMessage).SerializeToString())
                await call.drained()
            call.finish()
        except TooSlow as error:
            call.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            self.runs.events.leave(watcher)


def _answers(kind: Any, answer: Callable[[Any], Any]) -> Callable[[Call], None]:
    """A method of one request and one reply. LookupError of `answer`: there is no such thing, for people."""

    def reply(call: Call, request: Any) -> None:
        try:
            call.send(answer(request).SerializeToString())
            call.finish()
        except LookupError as error:
            call.finish(grpc.StatusCode.NOT_FOUND, str(error.args[0]))

    return partial(_asked, kind, reply)


def _asked(kind: Any, answer: Callable[[Call, Any], None], call: Call) -> None:
    """Has `answer` told the one request of a call, once it is there and understood."""

    def hear(_: float, data: bytes | None) -> None:
        if data is not None:
            try:
                answer(call, kind.FromString(data))
            except DecodeError as error:
                call.finish(grpc.StatusCode.INVALID_ARGUMENT, f"not a {kind.DESCRIPTOR.name}: {error}")

    call.on_message = hear
    call.read()


def _health(request: Any) -> Any:
    if request.service not in HEALTHY:
        raise LookupError(f"there is no service {request.service!r} here")
    return health_pb2.HealthCheckResponse(status="SERVING")


def _watch_health(call: Call, request: Any) -> None:
    """Health does not change before the lighthouse ends, and all calls with it."""
    status = "SERVING" if request.service in HEALTHY else "SERVICE_UNKNOWN"
    call.send(health_pb2.HealthCheckResponse(status=status).SerializeToString())


class Server:
    """A listening gRPC server with the lighthouse's service and the standard health service."""

    def __init__(self, runs: Runs, *, token: str, deadlines: Deadlines = DEFAULTS) -> None:
        service = LighthouseService(runs, token=token, deadlines=deadlines)
        self._runs = runs
        self._calls = Calls(service.begin, OPTIONS, patient=is_beat)
        self._listens = False

    async def start(self, bind: str, port: int) -> int:
        """Listens; the port it got (0 asks for any). Raises PortTaken."""
        host = f"[{bind}]" if ":" in bind else bind
        got = self._calls.listen(f"{host}:{port}")
        if got == 0:
            raise PortTaken(
                f"cannot listen on {host}:{port}: it is taken, or not an address of this host: choose another"
            )
        self._listens = True
        self._runs.gather = self._calls.gather
        return got

    async def stop(self, grace_s: float = 1.0) -> None:
        """Stops listening and ends all calls."""
        if self._listens:
            self._listens = False
            await self._calls.stop(grace_s)
