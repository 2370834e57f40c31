"""The ranks' way to their agent: one Attach stream for each rank of one life.

Every life has a listener of its own, so a rank of an ended life has nowhere to speak. Roll call to verdict is the one
path here that every step waits for: a message is read, decided on and answered in the same turn of the loop, an answer
to all ranks is converted once, and nothing between takes a lock or another thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc

from lighthouse.auth import TokenInterceptor
from replica.values import Attach, RankDown, RankUp
from replica.wire import RANK_DOWN, RANK_UP, AgentServicer, add_AgentServicer_to_server

MESSAGE_BYTES = 64 << 20
"""Largest message either way: a roll call of thousands of members."""
OPTIONS = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.max_ping_strikes", 0),
)
"""No keepalive: on one host the kernel tells of every end, and a rank that is stopped for a look at it is not dead."""

log = logging.getLogger("replica.attach")

OnSaid = Callable[[int, int, RankUp], None]
"""Called on the loop with life, shard_rank and what the rank said."""
OnLeft = Callable[[int, int], None]
"""Called on the loop with life and shard_rank when a rank's stream has ended."""


class AttachServer(AgentServicer):
    """Serves the ranks of `life`. All methods belong to the loop's thread."""

    def __init__(self, life: int, shards: int, token: str, on_said: OnSaid, on_left: OnLeft) -> None:
        self.life = life
        self._shards = shards
        self._on_said = on_said
        self._on_left = on_left
        self._outboxes: dict[int, asyncio.Queue[Any]] = {}
        self._server = grpc.aio.server(interceptors=(TokenInterceptor(token),), options=OPTIONS)
        add_AgentServicer_to_server(self, self._server)

    async def start(self, address: str) -> str:
        """Listens at "unix:path" or "host:0"; the address that ranks must use. Raises OSError."""
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address} for ranks: {error}") from error
        await self._server.start()
        return address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"

    def send(self, shard_rank: int, message: RankDown) -> None:
        """Queues a message to one rank; dropped if it is not there."""
        outbox = self._outboxes.get(shard_rank)
        if outbox is not None:
            outbox.put_nowait(RANK_DOWN.wrap(message))

    def send_all(self, message: RankDown) -> None:
        """Queues a message to all ranks that are there, in shard order."""
        carried = RANK_DOWN.wrap(message)
        for shard_rank in sorted(self._outboxes):
            self._outboxes[shard_rank].put_nowait(carried)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Ends all streams and stops listening."""
        await self._server.stop(grace_s)

    async def Attach(self, _: Any, context: Any) -> None:
        """One rank's stream: see `proto/replica/wire.proto`."""
        first = await self._read(context)
        if first is None:
            return
        shard_rank = await self._let_in(first, context)
        outbox = self._outboxes[shard_rank] = asyncio.Queue()
        writer = asyncio.create_task(_write_all(outbox, context), name=f"to rank {shard_rank}")
        try:
            message: RankUp | None = first
            while message is not None:
                self._on_said(self.life, shard_rank, message)
                message = await self._read(context)
        finally:
            del self._outboxes[shard_rank]
            writer.cancel()
            self._on_left(self.life, shard_rank)

    async def _let_in(self, first: RankUp, context: Any) -> int:
        """The shard_rank that the first message tells; ends the call if it tells none that can be let in."""
        if not isinstance(first, Attach):
            code, why = grpc.StatusCode.INVALID_ARGUMENT, "the first message of a rank must be attach"
        elif not 0 <= first.shard_rank < self._shards:
            code = grpc.StatusCode.INVALID_ARGUMENT
            why = f"shard_rank is {first.shard_rank}, but this group has {self._shards} shards: see BELLROCK_SHARD_RANK"
        elif first.shard_rank in self._outboxes:
            code = grpc.StatusCode.ALREADY_EXISTS
            why = f"rank {first.shard_rank} is attached already: a rank must make one Replica, in one process"
        else:
            return first.shard_rank
        await context.abort(code, why)
        raise AssertionError("abort returned")

    async def _read(self, context: Any) -> RankUp | None:
        """The next message; None at the end of the stream, or if it is broken."""
        request = await context.read()
        if request is grpc.aio.EOF:
            return None
        try:
            message: RankUp = RANK_UP.unwrap(request)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        return message


async def _write_all(outbox: asyncio.Queue[Any], context: Any) -> None:
    while True:
        try:
            await context.write(await outbox.get())
        except Exception as error:  # noqa: BLE001 grpc raises several kinds; all mean that the stream is over
            log.debug("a rank's stream broke: %s", error)
            return
