"""gRPC's server as a lighthouse of a thousand sessions needs it: calls that carry bytes, over one completion queue.

`grpc.aio` wakes a thread, a socket and two tasks for each message, 80 us of a core; `grpc.server` keeps two threads for
each stream. So this module is made of what grpc's own server (`grpc/_server.py`) is made of, and is the only one that
knows of it. One thread waits for the queue: as soon as a message of a stream has come it asks for the next, as soon as
one has gone it sends what waits. All else happens on the event loop's thread, where what has arrived is delivered in
order: at once, or, if it may wait, together with more.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

import grpc
from grpc._cython import cygrpc

from lighthouse.auth import ACCEPTED

PATIENT_S = 0.05
"""How long a message that may wait does so."""

log = logging.getLogger("lighthouse.calls")


class _Turn(Enum):
    """What becomes of a call, beside what is said in it."""

    BEGUN = "begun"
    OVER = "over"


class Call:
    """One call, of which nothing is read that is not asked for. Its methods belong to the event loop's thread.

    method: "/package.Service/Method"; metadata: (key, value) pairs that the caller sent
    on_message: is given each message with the time it arrived at, and None once the caller has no more to say
    on_over: is called once the call is over on both sides, whoever ended it
    """

    def __init__(self, calls: Calls, event: Any) -> None:
        self.method: str = event.call_details.method.decode(errors="replace")
        self.metadata: Sequence[tuple[str, str | bytes]] = event.invocation_metadata or ()
        self.on_message: Callable[[float, bytes | None], None] = lambda at_s, data: None
        self.on_over: Callable[[], object] = lambda: None
        self._calls = calls
        self._call = event.call
        self._lock = threading.Lock()
        """Of what follows: the queue's thread reads on, and sends what waits."""
        self._goes_on = False
        self._is_read = False
        self._waiting: deque[bytes] = deque()
        self._sending = False
        self._begun = False
        self._status: tuple[int, bytes] | None = None
        self._ended = False
        self._drained: asyncio.Future[None] | None = None
        self._call.start_server_batch((cygrpc.ReceiveCloseOnServerOperation(0),), self._closed)

    @property
    def waiting(self) -> int:
        """Messages that wait to be sent."""
        return len(self._waiting)

    def read(self, on: bool = False) -> None:
        """Asks for the next message; on: for every message from now on, as it comes."""
        with self._lock:
            self._goes_on = on
            if not self._is_read:
                self._read()

    def pause(self) -> None:
        """Nothing more is asked for until `read`; what was read, or asked for, is still delivered."""
        self._goes_on = False

    def accept(self) -> None:
        """Tells the caller that its call is answered, before there is anything to send."""
        with self._lock:
            if not self._begun and not self._ended:
                self._begun = True
                self._call.start_server_batch((cygrpc.SendInitialMetadataOperation((ACCEPTED,), 0),), _nothing)

    def send(self, data: bytes) -> None:
        """Sends a message, once those before it are sent. Never waits."""
        with self._lock:
            if self._status is None:
                self._waiting.append(data)
                self._go_on()

    def finish(self, code: grpc.StatusCode = grpc.StatusCode.OK, details: str = "", at_once: bool = False) -> None:
        """Ends the call once what waits is sent; at_once: what waits is dropped. The first code counts."""
        with self._lock:
            self._status = self._status or (code.value[0], details.encode())
            if at_once:
                self._waiting.clear()
                self._end()  # a message that hangs in flow control is before it in the transport
            else:
                self._go_on()

    async def drained(self) -> None:
        """Waits until nothing waits to be sent."""
        with self._lock:
            if not self._sending:
                return
            self._drained = asyncio.get_running_loop().create_future()
        await self._drained

    # ---- with the lock -----------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        if self._sending or self._ended:
            return
        if self._waiting:
            self._sending = True
            self._start((cygrpc.SendMessageOperation(self._waiting.popleft(), 0),), self._sent)
        elif self._status is not None:
            self._end()

    def _end(self) -> None:
        if self._status is not None and not self._ended:
            self._ended = True
            self._start((cygrpc.SendStatusFromServerOperation(None, *self._status, 0),), _nothing)

    def _start(self, operations: tuple[Any, ...], then: Callable[[Any], None]) -> None:
        head = () if self._begun else (cygrpc.SendInitialMetadataOperation(None, 0),)
        self._begun = True
        self._call.start_server_batch((*head, *operations), then)

    def _read(self) -> None:
        self._is_read = True
        self._call.start_server_batch((cygrpc.ReceiveMessageOperation(0),), self._received)

    # ---- on the queue's thread ---------------------------------------------------------------------------------------

    def _received(self, event: Any) -> None:
        data = event.batch_operations[0].message()
        with self._lock:
            self._is_read = data is None
            if data is not None and self._goes_on:
                self._read()
        self._calls.arrived(self, data)

    def _sent(self, event: Any) -> None:
        with self._lock:
            self._sending = False
            if not event.success:
                self._waiting.clear()
            self._go_on()
            drained = None if self._sending else self._drained
        if drained is not None:
            self._calls.soon(_set, drained)

    def _closed(self, _: Any) -> None:
        self._calls.arrived(self, _Turn.OVER)


class Calls:
    """A server; `on_call` is handed each call, on the event loop's thread, before anything of it is delivered.

    patient: of a message, whether it may wait up to `PATIENT_S` to be delivered; asked on another thread
    """

    def __init__(
        self,
        on_call: Callable[[Call], None],
        options: Sequence[tuple[str, int]],
        *,
        patient: Callable[[bytes], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_call = on_call
        self._patient = patient
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[tuple[Call, float, bytes | _Turn | None]] = deque()
        self._woken = False
        self._timed = False
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._queue = cygrpc.CompletionQueue()
        self._server = cygrpc.Server(tuple(options), False)
        self._server.register_completion_queue(self._queue)
        self._thread = threading.Thread(target=self._serve, name="calls", daemon=True)

    def listen(self, address: str) -> int:
        """Serves at "host:port" from now on (port 0 asks for any); the port it got, 0 if it cannot be had."""
        port = int(self._server.add_http2_port(address.encode()))
        if port:
            self._server.start()
            self._thread.start()
            self._ask()
        return port

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls, and ends those that have not ended within the time. Once only."""
        self._server.shutdown(self._queue, self._shut)
        done, _ = await asyncio.wait({self._ended}, timeout=grace_s)
        if not done:
            self._server.cancel_all_calls()
            await self._ended
        self._server.destroy()
        self._queue.shutdown()
        self.gather()

    def gather(self) -> None:
        """Delivers all that has arrived."""
        while self._arrived:
            call, at_s, what = self._arrived.popleft()
            try:
                self._deliver(call, at_s, what)
            except Exception:
                log.exception("%s has a defect", call.method)
                call.finish(grpc.StatusCode.INTERNAL, "a defect of the lighthouse; its log has more", at_once=True)

    def _deliver(self, call: Call, at_s: float, what: bytes | _Turn | None) -> None:
        if what is _Turn.BEGUN:
            self._on_call(call)
        elif what is _Turn.OVER:
            call.on_over()
        elif not isinstance(what, _Turn):
            call.on_message(at_s, what)

    # ---- on the queue's thread ---------------------------------------------------------------------------------------

    def arrived(self, call: Call, what: bytes | _Turn | None) -> None:
        """Has it delivered: a message, the end of them (None), or what became of the call."""
        self._arrived.append((call, self._clock(), what))
        if self._woken:
            return
        if not isinstance(what, bytes) or not self._patient(what):
            self._woken = True
            self.soon(self._wake)
        elif not self._timed:
            self._timed = True
            self.soon(self._loop.call_later, PATIENT_S, self._wake_for_many)

    def soon(self, act: Callable[..., Any], *arguments: Any) -> None:
        """Has the event loop's thread do something, if it still runs."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *arguments)

    def _wake(self) -> None:
        self._woken = False
        self.gather()

    def _wake_for_many(self) -> None:
        self._timed = False
        self.gather()

    def _serve(self) -> None:
        while (event := self._queue.poll()).completion_type != cygrpc.CompletionType.queue_shutdown:
            try:
                event.tag(event)
            except Exception:  # whatever it is, the others must be heard
                log.exception("an event of gRPC's was not understood")
            del event  # it holds a call, which must be able to end while nothing happens

    def _ask(self) -> None:
        self._server.request_call(self._queue, self._queue, self._called)

    def _called(self, event: Any) -> None:
        if event.success:
            self._ask()
            call = Call(self, event)
            self.arrived(call, _Turn.BEGUN)

    def _shut(self, _: Any) -> None:
        self.soon(_set, self._ended)


def _nothing(_: Any) -> None:
    pass


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
