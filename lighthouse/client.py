"""Calls to a lighthouse, in values: what agents, commands and tests use instead of gRPC.

Errors are typed by what to do about them: `Unreachable` (try again: it may be starting, or gone for a moment),
`NotAllowed` (the token or the request is wrong: fix the configuration).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import TracebackType
from typing import Any

import grpc

from lighthouse.auth import ACCEPTED, token_metadata
from lighthouse.codec import from_proto
from lighthouse.core_values import Happened, RunStatus
from lighthouse.values import Down, Up
from lighthouse.wire import DOWN, UP, ColdStartRequest, LighthouseStub, SkipSlotRequest, StatusRequest, WatchRequest

OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 64 << 20),
    ("grpc.enable_http_proxy", 0),
    # A pool of its own: two agents of one process (tests) then have two connections, as they would have in life.
    ("grpc.use_local_subchannel_pool", 1),
)

_CONFIGURATION = {
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
}


class Unreachable(Exception):
    """The lighthouse did not answer, or the call broke. Try again."""


class NotAllowed(Exception):
    """The lighthouse refuses the call: the message says what to change."""


class Session:
    """A group's side of a session. `send` and `receive` may be used by one task each."""

    def __init__(self, address: str, channel: grpc.aio.Channel, call: Any) -> None:
        self._address = address
        self._channel = channel
        self._call = call

    async def send(self, message: Up) -> None:
        """Sends a message; the first must be a Hello. Raises Unreachable or NotAllowed once the session is over."""
        with _errors(self._address):
            try:
                await self._call.write(UP.wrap(message))
            except asyncio.InvalidStateError as error:  # the call has ended already: its status says why
                await self._ended(error)

    async def receive(self) -> Down | None:
        """The next message; None when the lighthouse has closed the session. Raises Unreachable or NotAllowed."""
        with _errors(self._address):
            message = await self._call.read()
            if message is grpc.aio.EOF:
                if await self._call.code() is not grpc.StatusCode.OK:
                    await self._ended(None)
                return None
            value: Down = DOWN.unwrap(message)
            return value

    async def close(self) -> None:
        """Ends the session: the lighthouse sees the stream end. Idempotent."""
        self._call.cancel()
        await self._channel.close()

    async def _ended(self, cause: Exception | None) -> None:
        code, details = await self._call.code(), await self._call.details()
        over = "the session is over" if code is grpc.StatusCode.OK else details
        raise _typed(self._address, code, over) from cause

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def open_session(address: str, *, token: str = "", timeout_s: float = 5.0) -> Session:
    """Connects to the lighthouse at "host:port" and opens a session; the caller says hello.

    Raises Unreachable if there is no connection within the time. A wrong token shows at the first message.
    """
    channel = grpc.aio.insecure_channel(address, options=OPTIONS)
    try:
        async with _deadline(timeout_s, address):
            await channel.channel_ready()
            call = LighthouseStub(channel).Session(metadata=token_metadata(token))
            # Nothing is said before: a write to a call that is being refused can hide why it is.
            if ACCEPTED[0] not in await call.initial_metadata():
                await call.code()
        return Session(address, channel, call)
    except BaseException:
        await channel.close()
        raise


async def status(address: str, *, token: str = "", run_id: str = "", timeout_s: float = 5.0) -> RunStatus:
    """How a run stands; `run_id` "" means the only one. Raises Unreachable or NotAllowed."""
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        with _errors(address):
            stub = LighthouseStub(channel)
            request = StatusRequest(run_id=run_id)
            reply = await stub.Status(request, timeout=timeout_s, metadata=token_metadata(token), wait_for_ready=True)
            answer: RunStatus = from_proto(reply, RunStatus)
            return answer


async def watch(
    address: str, *, token: str = "", run_id: str = "", history: bool = True, timeout_s: float = 5.0
) -> AsyncIterator[Happened]:
    """What happens in a run, first what was kept, until the caller stops or the lighthouse does.

    Raises Unreachable (not connected in time, or broken off: watch again) or NotAllowed.
    """
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        with _errors(address):
            async with _deadline(timeout_s, address):
                await channel.channel_ready()
            stub = LighthouseStub(channel)
            request = WatchRequest(run_id=run_id, history=history)
            async for event in stub.Watch(request, metadata=token_metadata(token)):
                yield from_proto(event, Happened)


def status_now(address: str, *, token: str = "", run_id: str = "", timeout_s: float = 5.0) -> RunStatus:
    """`status`, for callers without an event loop."""
    with grpc.insecure_channel(address, options=OPTIONS) as channel, _errors(address):
        stub = LighthouseStub(channel)
        request = StatusRequest(run_id=run_id)
        reply = stub.Status(request, timeout=timeout_s, metadata=token_metadata(token), wait_for_ready=True)
        answer: RunStatus = from_proto(reply, RunStatus)
        return answer


def cold_start_now(address: str, *, by: str, token: str = "", run_id: str = "", timeout_s: float = 5.0) -> str:
    """Asks for a cold start: empty if it is made, or why nothing was done. Raises Unreachable or NotAllowed."""
    return _act(address, "ColdStart", ColdStartRequest(run_id=run_id, by=by), token, timeout_s)


def skip_slot_now(address: str, *, by: str, token: str = "", run_id: str = "", timeout_s: float = 5.0) -> str:
    """Asks to skip the slots that a run holds for: empty if it does, or why not. Raises Unreachable or NotAllowed."""
    return _act(address, "SkipSlot", SkipSlotRequest(run_id=run_id, by=by), token, timeout_s)


def _act(address: str, method: str, request: Any, token: str, timeout_s: float) -> str:
    """What a person asks of a run is answered by why it is refused, or by nothing."""
    with grpc.insecure_channel(address, options=OPTIONS) as channel, _errors(address):
        call = getattr(LighthouseStub(channel), method)
        return str(call(request, timeout=timeout_s, metadata=token_metadata(token), wait_for_ready=True).refused)


def watch_now(address: str, *, token: str = "", run_id: str = "", history: bool = True) -> Iterator[Happened]:
    """`watch`, for callers without an event loop; blocks while nothing happens."""
    with grpc.insecure_channel(address, options=OPTIONS) as channel, _errors(address):
        stub = LighthouseStub(channel)
        request = WatchRequest(run_id=run_id, history=history)
        for event in stub.Watch(request, metadata=token_metadata(token)):
            yield from_proto(event, Happened)


@asynccontextmanager
async def _deadline(timeout_s: float, address: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise Unreachable(f"no lighthouse answers at {address} within {timeout_s:g} s") from error


@contextmanager
def _errors(address: str) -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise _typed(address, error.code(), error.details()) from error


def _typed(address: str, code: grpc.StatusCode, details: str | None) -> Exception:
    kind = NotAllowed if code in _CONFIGURATION else Unreachable
    return kind(f"lighthouse at {address}: {details or code.name.lower()}")
