"""The Attach service over real gRPC, with clients like those of ranks."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from scripted import until

from lighthouse.auth import token_metadata
from replica.attach_server import AttachServer
from replica.values import Abandoned, Attach, Mark, MarkKind, Quit, RankUp
from replica.wire import RANK_DOWN, RANK_UP, AgentStub, RankMessage

pytestmark = pytest.mark.timeout(60)


class Client:
    """A rank's end of a stream: what it was told, and how the stream ended."""

    def __init__(self, address: str, token: str = "secret") -> None:
        self.told: list[Any] = []
        self.ended: grpc.RpcError | str | None = None
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address)
        self._call = AgentStub(self._channel).Attach(iter(self._outbox.get, None), metadata=token_metadata(token))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def say(self, *messages: RankUp) -> None:
        for message in messages:
            self._outbox.put(RANK_UP.wrap(message))

    def say_raw(self, message: RankMessage) -> None:
        self._outbox.put(message)

    def close(self) -> None:
        self._outbox.put(None)
        self._call.cancel()
        self._thread.join(10)
        self._channel.close()

    def _read(self) -> None:
        try:
            for reply in self._call:
                self.told.append(RANK_DOWN.unwrap(reply))
            self.ended = "closed"
        except grpc.RpcError as error:
            self.ended = error


class Scene:
    def __init__(self) -> None:
        self.said: list[tuple[int, int, RankUp]] = []
        self.left: list[tuple[int, int]] = []
        self.clients: list[Client] = []
        self.server = AttachServer(
            3, 2, "secret", lambda *said: self.said.append(said), lambda *at: self.left.append(at)
        )
        self.address = ""

    def client(self, *messages: RankUp, token: str = "secret") -> Client:
        self.clients.append(Client(self.address, token))
        self.clients[-1].say(*messages)
        return self.clients[-1]

    async def refused(self, client: Client, code: grpc.StatusCode, words: str) -> None:
        await until(lambda: client.ended is not None)
        assert isinstance(client.ended, grpc.RpcError)
        assert client.ended.code() is code and words in client.ended.details(), client.ended


@asynccontextmanager
async def scene(address: str) -> AsyncIterator[Scene]:
    it = Scene()
    it.address = await it.server.start(address)
    try:
        yield it
    finally:
        await asyncio.gather(*(asyncio.to_thread(client.close) for client in it.clients))
        await it.server.stop()


def hello(shard_rank: int) -> Attach:
    return Attach(shard_rank=shard_rank, pid=1, setup={"slots": "4"}, rendezvous="a:1", weights="b:2", digest=2**64 - 1)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_messages_both_ways_in_order(tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        async with scene(f"unix:{tmp_path}/a.sock" if kind == "unix" else "127.0.0.1:0") as it:
            marks = [Mark(kind=MarkKind.SLOT_BEGUN, step=step, slot=0) for step in range(100)]
            one, two = it.client(hello(1), *marks), it.client(hello(0))
            await until(lambda: len(it.said) == 102)
            assert [said for said in it.said if said[1] == 1] == [(3, 1, message) for message in (hello(1), *marks)]
            for number in range(50):
                it.server.send_all(Abandoned(number=number))
            it.server.send(0, Quit(success=True, reason="only you"))
            it.server.send(7, Quit(success=True, reason="nobody"))
            everyone = [Abandoned(number=number) for number in range(50)]
            await until(lambda: len(two.told) == 51 and len(one.told) == 50)
            assert one.told == everyone and two.told == [*everyone, Quit(success=True, reason="only you")]
            one.close()
            await until(lambda: it.left == [(3, 1)])

    asyncio.run(story())


def test_who_is_not_let_in(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(f"unix:{tmp_path}/a.sock") as it:
            for token in ("", "secre", "secrets"):
                client = it.client(hello(0), token=token)
                await it.refused(client, grpc.StatusCode.UNAUTHENTICATED, "token")
            mark = Mark(kind=MarkKind.ROLL_CALL, step=1)
            await it.refused(it.client(mark), grpc.StatusCode.INVALID_ARGUMENT, "must be attach")
            await it.refused(it.client(hello(2)), grpc.StatusCode.INVALID_ARGUMENT, "this group has 2 shards")
            empty = it.client()
            empty.say_raw(RankMessage())
            await it.refused(empty, grpc.StatusCode.INVALID_ARGUMENT, "an empty RankMessage")
            assert it.said == [] and it.left == []
            it.client(hello(0))
            await until(lambda: len(it.said) == 1)
            await it.refused(it.client(hello(0)), grpc.StatusCode.ALREADY_EXISTS, "attached already")
            assert len(it.said) == 1 and it.left == []

    asyncio.run(story())


def test_a_broken_message_ends_the_stream(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(f"unix:{tmp_path}/a.sock") as it:
            client = it.client(hello(0))
            client.say_raw(RankMessage())
            await it.refused(client, grpc.StatusCode.INVALID_ARGUMENT, "an empty RankMessage")
            await until(lambda: it.left == [(3, 0)])

    asyncio.run(story())


def test_a_stopped_server_ends_all_streams(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(f"unix:{tmp_path}/a.sock") as it:
            clients = [it.client(hello(shard_rank)) for shard_rank in range(2)]
            await until(lambda: len(it.said) == 2)
            await it.server.stop()
            await until(lambda: all(client.ended is not None for client in clients))
            await until(lambda: sorted(it.left) == [(3, 0), (3, 1)])

    asyncio.run(story())


def test_an_address_that_cannot_be_had() -> None:
    async def story() -> None:
        with pytest.raises(OSError, match="cannot listen on"):
            async with scene("unix:/no/such/folder/a.sock"):
                pass

    asyncio.run(story())
