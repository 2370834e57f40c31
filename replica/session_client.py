"""The agent's Session with the lighthouse: one stream at a time, tried when the core asks for it.

When to try again is the core's business, what goes over the stream too, beats included. Here a stream is opened,
carries messages both ways, and its end is told in words that a person can act on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import grpc

from lighthouse.auth import token_metadata
from lighthouse.deadlines import DEFAULTS, Deadlines
from lighthouse.values import Committed, Down, Refused, Up
from lighthouse.wire import DOWN, UP, LighthouseStub, Steps
from replica.agent_values import LighthouseSaid, SessionClosed, SessionOpened

OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.http2.max_pings_without_data", 0),
)
"""A pool of its own: each try connects anew, instead of waiting for the back-off of the last one. Keepalive finds a
lighthouse whose host is gone, which sends no reset; the lighthouse allows it."""
BRISK_S = 0.1
"""Steps shorter than this are told together."""
TOGETHER_S = 0.1
"""How long one of them waits for others. The lighthouse judges by seconds, and no step waits for it."""
FOR_GOOD = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
"""What a lighthouse answers to whom it will never let in."""

OnEvent = Callable[[SessionOpened | SessionClosed | LighthouseSaid], None]


class SessionClient:
    """Opens Sessions to the lighthouse at `address` ("host:port"). All methods belong to the loop's thread.

    deadlines: gives those in force
    """

    def __init__(
        self, address: str, token: str, on_event: OnEvent, deadlines: Callable[[], Deadlines] = lambda: DEFAULTS
    ) -> None:
        self._deadlines = deadlines
        self._address = address
        self._token = token
        self._on_event = on_event
        self._session = 0
        self._outbox: asyncio.Queue[Up | Steps | None] = asyncio.Queue()
        self._last: Committed | None = None
        self._steps: list[Committed] = []
        self._due: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._welcomed = False

    def open(self, session: int) -> None:
        """Tries to open a stream; `SessionOpened` or `SessionClosed` follows."""
        self.close(self._session)
        self._session = session
        self._outbox = asyncio.Queue()
        self._last = None
        task = asyncio.create_task(self._run(session, self._outbox), name=f"session {session}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def send(self, message: Up) -> None:
        """Queues a message on the open stream; dropped if there is none. A short step like the one before it waits for
        others, or for the next message."""
        if not self._session:
            return
        if isinstance(message, Committed):
            brisk, self._last = _is_brisk(message, self._last), message
            if brisk:
                self._steps.append(message)
                if self._due is None:
                    self._due = asyncio.get_running_loop().call_later(TOGETHER_S, self._tell_steps)
                return
        self._tell_steps()
        self._outbox.put_nowait(message)

    def close(self, session: int) -> None:
        """Sends what is queued, then closes the stream, in the background. Nothing of it is told any more."""
        if session and session == self._session:
            self._tell_steps()
            self._session = 0
            self._outbox.put_nowait(None)

    async def finish(self, timeout_s: float) -> None:
        """Closes what is open, and waits until what was queued has been sent, or `timeout_s` has passed."""
        self.close(self._session)
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=timeout_s)
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _tell_steps(self) -> None:
        steps, self._steps = tuple(self._steps), []
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if steps:
            self._outbox.put_nowait(steps[0] if len(steps) == 1 else Steps(committed=steps))

    async def _run(self, session: int, outbox: asyncio.Queue[Up | Steps | None]) -> None:
        reason = "closed"
        async with grpc.aio.insecure_channel(self._address, options=OPTIONS) as channel:
            try:
                call = LighthouseStub(channel).Session(metadata=token_metadata(self._token))
                async with asyncio.timeout(self._deadlines().session_s):
                    await call.wait_for_connection()
                self._tell(session, SessionOpened(session=session))
                reason = await self._carry(session, outbox, call)
            except TimeoutError:
                reason = self._unreachable(f"no answer within {self._deadlines().session_s:g} s")
            except grpc.aio.AioRpcError as error:
                reason = self._explain(session, error)
            except ValueError as error:
                reason = f"the lighthouse at {self._address} says what is not understood here: {error}"
        self._tell(session, SessionClosed(session=session, reason=reason))

    async def _carry(self, session: int, outbox: asyncio.Queue[Up | Steps | None], call: Any) -> str:
        """Both directions, until either ends; why it did. Raises AioRpcError."""
        writer = asyncio.create_task(_write_all(outbox, call))
        reader = asyncio.create_task(self._read_all(session, call))
        try:
            await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
            if not reader.done():  # closed here, or broken: then the reader learns why
                await asyncio.wait({reader}, timeout=self._deadlines().flush_s)
            if reader.done():
                return reader.result()
            return "closed"
        finally:
            for task in (writer, reader):
                task.cancel()
            await asyncio.gather(writer, reader, return_exceptions=True)
            call.cancel()

    async def _read_all(self, session: int, call: Any) -> str:
        while (reply := await call.read()) is not grpc.aio.EOF:
            message: Down = DOWN.unwrap(reply)
            self._welcomed = True
            self._tell(session, LighthouseSaid(session=session, message=message))
        if await call.code() is grpc.StatusCode.OK:
            return f"the lighthouse at {self._address} ended the session"
        await call  # raises what it ended with
        return "closed"

    def _tell(self, session: int, event: SessionOpened | SessionClosed | LighthouseSaid) -> None:
        if session == self._session:
            self._on_event(event)

    def _explain(self, session: int, error: grpc.aio.AioRpcError) -> str:
        details = (error.details() or "").strip()
        if error.code() in FOR_GOOD:
            reason = f"the lighthouse at {self._address} lets nobody in like this: {details}"
            if not self._welcomed:
                self._tell(session, LighthouseSaid(session=session, message=Refused(reason=reason)))
            return reason
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return self._unreachable(details)
        return f"the lighthouse at {self._address} ended the session: {error.code().name}: {details}"

    def _unreachable(self, details: str) -> str:
        return f"lighthouse not reachable at {self._address}, trying again: {details}"


def _is_brisk(done: Committed, last: Committed | None) -> bool:
    """Whether a step was short, and did nothing that the lighthouse acts upon."""
    alike = last is not None and done.start == last.start and not done.promoted and not done.mismatched
    return alike and done.step_s < BRISK_S


async def _write_all(outbox: asyncio.Queue[Up | Steps | None], call: Any) -> None:
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the reader tells why
        while (message := await outbox.get()) is not None:
            await call.write(UP.wrap(message))
        await call.done_writing()
