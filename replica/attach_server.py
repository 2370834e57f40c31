"""The ranks' way to their agent: one Attach stream for each rank of one life.

Every life has a listener of its own, so a rank of an ended life has nowhere to speak. Roll call to verdict is the one
path here that every step waits for: a message is read, decided on and answered in the same turn of the loop, an answer
to all ranks is converted once, and nothing between takes a lock, a task or another thread.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from typing import Any

from lighthouse.deadlines import DEFAULTS
from replica.frames import MESSAGE_BYTES, STRANGER_BYTES, Frames, Kind, frame
from replica.values import Attach, Mark, RankDown, RankUp
from replica.wire import RANK_DOWN, RANK_UP

log = logging.getLogger("replica.attach")

OnSaid = Callable[[int, int, tuple[RankUp, ...]], None]
"""Called on the loop with life, shard_rank and what the rank said: a message, and before it marks that came with it."""
OnLeft = Callable[[int, int], None]
"""Called on the loop with life and shard_rank when a rank's stream has ended."""


class AttachServer:
    """Serves the ranks of `life`. All methods belong to the loop's thread.

    hello_s: who has not shown the token and said who it is by then is dropped
    """

    def __init__(
        self, life: int, shards: int, token: str, on_said: OnSaid, on_left: OnLeft, hello_s: float = DEFAULTS.hello_s
    ) -> None:
        self.life = life
        self.hello_s = hello_s
        self._shards = shards
        self._token = token.encode()
        self._on_said = on_said
        self._on_left = on_left
        self._ranks: dict[int, _Stream] = {}
        self._streams: set[_Stream] = set()
        self._all_gone = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> str:
        """Listens at "unix:path" or "host:0"; the address that ranks must use. Raises OSError."""
        loop = asyncio.get_running_loop()
        try:
            if address.startswith("unix:"):
                self._server = await loop.create_unix_server(lambda: _Stream(self), address.removeprefix("unix:"))
                return address
            host = address.rpartition(":")[0]
            self._server = await loop.create_server(lambda: _Stream(self), host.strip("[]"), 0)
        except OSError as error:
            raise OSError(f"cannot listen on {address} for ranks: {error}") from error
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    def send(self, shard_rank: int, message: RankDown) -> None:
        """Sends a message to one rank; dropped if it is not there."""
        stream = self._ranks.get(shard_rank)
        if stream is not None:
            stream.write(frame(Kind.MESSAGE, RANK_DOWN.encode(message)))

    def send_all(self, message: RankDown) -> None:
        """Sends a message to all ranks that are there, in shard order."""
        data = frame(Kind.MESSAGE, RANK_DOWN.encode(message))
        for shard_rank in sorted(self._ranks):
            self._ranks[shard_rank].write(data)

    async def stop(self) -> None:
        """Ends all streams and stops listening. Who does not read what it was sent does not hold this up."""
        if self._server is not None:
            self._server.close()
        for stream in list(self._streams):
            stream.end()
        while self._streams:
            self._all_gone.clear()
            await self._all_gone.wait()

    # ---- for its streams -------------------------------------------------------------------------------------------

    def came(self, stream: _Stream) -> None:
        """Somebody has connected."""
        self._streams.add(stream)

    def check(self, kind: Kind, token: bytes) -> None:
        """Raises ValueError, for people, if the first frame does not show the token."""
        if kind is not Kind.TOKEN or not hmac.compare_digest(token, self._token):
            raise ValueError("this rank shows no token, or not that of its agent: see BELLROCK_TOKEN_FILE")

    def let_in(self, stream: _Stream, first: RankUp) -> int:
        """The shard_rank that the first message tells. Raises ValueError, for people, if it is not to be let in."""
        if not isinstance(first, Attach):
            raise ValueError("the first message of a rank must be attach")  # noqa: TRY004 what was sent is wrong
        if not 0 <= first.shard_rank < self._shards:
            raise ValueError(
                f"shard_rank is {first.shard_rank}, but this group has {self._shards} shards: see BELLROCK_SHARD_RANK"
            )
        if first.shard_rank in self._ranks:
            raise ValueError(f"rank {first.shard_rank} is attached already: it must make one Replica, in one process")
        self._ranks[first.shard_rank] = stream
        return first.shard_rank

    def said(self, shard_rank: int, messages: tuple[RankUp, ...]) -> None:
        """A rank that was let in said this."""
        self._on_said(self.life, shard_rank, messages)

    def gone(self, stream: _Stream, shard_rank: int | None) -> None:
        """A stream is over."""
        self._streams.discard(stream)
        if shard_rank is not None:
            del self._ranks[shard_rank]
            self._on_left(self.life, shard_rank)
        self._all_gone.set()


class _Stream(asyncio.Protocol):
    """One connection."""

    def __init__(self, server: AttachServer) -> None:
        self._server = server
        self._frames = Frames(STRANGER_BYTES)
        self._known = False
        self._shard_rank: int | None = None
        self._marks: list[RankUp] = []
        self._transport: Any = None
        self._hello: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def end(self) -> None:
        if self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._server.came(self)
        self._hello = asyncio.get_running_loop().call_later(
            self._server.hello_s, self._refuse, "no attach came in time"
        )

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        try:
            while not self._transport.is_closing() and (got := self._frames.next()) is not None:
                self._take(*got)
        except ValueError as wrong:
            self._refuse(str(wrong))
        if self._marks:
            self._said()

    def connection_lost(self, error: Exception | None) -> None:
        if self._hello is not None:
            self._hello.cancel()
        self._server.gone(self, self._shard_rank)

    def _take(self, kind: Kind, body: bytes) -> None:
        if self._shard_rank is not None:
            message: RankUp = RANK_UP.decode(body)
            if isinstance(message, Mark):  # decided on together with what came with it
                self._marks.append(message)
            else:
                self._said(message)
        elif not self._known:
            self._server.check(kind, body)
            self._known = True
            self._frames.limit_bytes = MESSAGE_BYTES
        else:
            message = RANK_UP.decode(body)
            self._shard_rank = self._server.let_in(self, message)
            if self._hello is not None:
                self._hello.cancel()
            self._said(message)

    def _said(self, *last: RankUp) -> None:
        marks, self._marks = self._marks, []
        assert self._shard_rank is not None
        self._server.said(self._shard_rank, (*marks, *last))

    def _refuse(self, reason: str) -> None:
        log.debug("a rank's stream is ended: %s", reason)
        self.write(frame(Kind.REFUSAL, reason.encode()))
        self.end()
