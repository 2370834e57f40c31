"""The Attach stream over real sockets, with clients like those of ranks, and with the ranks' own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from scripted import until

from replica.attach import AgentLink
from replica.attach_server import AttachServer
from replica.errors import LeaveError
from replica.frames import MESSAGE_BYTES, STRANGER_BYTES, Frames, Kind, frame
from replica.shelf import Shelf, left_on, make_shelf
from replica.values import Abandoned, Attach, Mark, MarkKind, Quit, RankOpened, RankUp, RollCall
from replica.wire import RANK_DOWN, RANK_UP

pytestmark = pytest.mark.timeout(60)


class Client:
    """A rank's end of a stream: what it was told, and how the stream ended."""

    def __init__(self, address: str, token: str = "secret") -> None:
        self.told: list[Any] = []
        self.ended: str | None = None
        if address.startswith("unix:"):
            self._sock = socket.socket(socket.AF_UNIX)
            self._sock.connect(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            self._sock = socket.create_connection((host, int(port)))
        self.say_raw(frame(Kind.TOKEN, token.encode()))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def say(self, *messages: RankUp) -> None:
        for message in messages:
            self.say_raw(frame(Kind.MESSAGE, RANK_UP.encode(message)))

    def say_raw(self, data: bytes) -> None:
        self._sock.sendall(data)

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._sock.close()

    def _read(self) -> None:
        frames, why = Frames(MESSAGE_BYTES), "closed"
        while data := self._sock.recv(1 << 16):
            frames.feed(data)
            while (got := frames.next()) is not None:
                if got[0] is Kind.REFUSAL:
                    why = got[1].decode()
                else:
                    self.told.append(RANK_DOWN.decode(got[1]))
        self.ended = why


class Scene:
    def __init__(self, **more: float) -> None:
        self.said: list[tuple[int, int, RankUp]] = []
        self.left: list[tuple[int, int]] = []
        self.clients: list[Client] = []
        self.together: list[int] = []
        """How many messages were told at once, each time."""
        self.server = AttachServer(3, 2, "secret", self.hear, lambda *at: self.left.append(at), **more)
        self.address = ""

    def hear(self, life: int, shard_rank: int, messages: tuple[RankUp, ...]) -> None:
        self.together.append(len(messages))
        self.said += [(life, shard_rank, message) for message in messages]

    def client(self, *messages: RankUp, token: str = "secret") -> Client:
        self.clients.append(Client(self.address, token))
        self.clients[-1].say(*messages)
        return self.clients[-1]

    async def refused(self, client: Client, words: str) -> None:
        await until(lambda: client.ended is not None)
        assert words in str(client.ended), client.ended


@asynccontextmanager
async def scene(address: str, **more: float) -> AsyncIterator[Scene]:
    it = Scene(**more)
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
                await it.refused(client, "token")
            mark = Mark(kind=MarkKind.ROLL_CALL, step=1)
            await it.refused(it.client(mark), "must be attach")
            await it.refused(it.client(hello(2)), "this group has 2 shards")
            empty = it.client()
            empty.say_raw(frame(Kind.MESSAGE, b""))
            await it.refused(empty, "an empty RankMessage")
            assert it.said == [] and it.left == []
            it.client(hello(0))
            await until(lambda: len(it.said) == 1)
            await it.refused(it.client(hello(0)), "attached already")
            assert len(it.said) == 1 and it.left == []

    asyncio.run(story())


def test_a_broken_message_ends_the_stream(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(f"unix:{tmp_path}/a.sock") as it:
            client = it.client(hello(0))
            client.say_raw(frame(Kind.MESSAGE, b""))
            await it.refused(client, "an empty RankMessage")
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


def test_what_is_no_frame_ends_the_stream(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(f"unix:{tmp_path}/a.sock") as it:
            large = it.client(token="x" * (STRANGER_BYTES + 1))
            await it.refused(large, f"where {STRANGER_BYTES} are allowed")
            for garbage in (b"\xff" * 5, b"\0\0\0\1\7x", frame(Kind.MESSAGE, b"\xff" * 20)):
                client = it.client()
                client.say_raw(garbage)
                await until(lambda client=client: client.ended is not None)  # type: ignore[misc]
            assert it.said == [] and it.left == []

    asyncio.run(story())


def test_who_says_nothing_is_dropped(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(f"unix:{tmp_path}/a.sock", hello_s=0.2) as it:
            await it.refused(it.client(), "no attach came in time")
            there = it.client(hello(0))
            await asyncio.sleep(0.5)
            assert there.ended is None and it.left == []

    asyncio.run(story())


def test_frames_come_in_pieces_of_any_size() -> None:
    sent = [(Kind.TOKEN, b"t"), (Kind.MESSAGE, b""), (Kind.MESSAGE, bytes(1000)), (Kind.REFUSAL, "née".encode())]
    data = b"".join(frame(kind, body) for kind, body in sent)
    for size in (1, 3, 7, len(data)):
        frames, got = Frames(1000), []
        for i in range(0, len(data), size):
            frames.feed(data[i : i + size])
            while (one := frames.next()) is not None:
                got.append(one)
        assert got == sent


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_ranks_own_end_of_it(tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        async with scene(f"unix:{tmp_path}/a.sock" if kind == "unix" else "127.0.0.1:0") as it:
            lost: list[str] = []
            link = AgentLink(it.address, "secret", lambda command: command == Abandoned(number=1), lost.append)
            link.say(Mark(kind=MarkKind.ROLL_CALL, step=0))  # nobody hears it: this rank is not known yet
            await asyncio.to_thread(link.attach, hello(0))
            marks = [Mark(kind=MarkKind.SLOT_BEGUN, step=step, slot=0) for step in range(1000)]
            await asyncio.to_thread(lambda: [link.say(mark) for mark in marks])
            await until(lambda: len(it.said) == 1001)
            assert [message for _, _, message in it.said] == [hello(0), *marks]
            for number in range(3):
                it.server.send_all(Abandoned(number=number))
            assert await asyncio.to_thread(link.next) == Abandoned(number=0)
            assert await asyncio.to_thread(link.next) == Abandoned(number=2) and link.peek() is None
            second = AgentLink(it.address, "secret", lambda command: False, lambda reason: None)
            await asyncio.to_thread(second.attach, hello(0))
            with pytest.raises(LeaveError, match="attached already"):
                await asyncio.to_thread(second.next)
            link.say(marks[0])
            await asyncio.to_thread(link.close)
            await until(lambda: it.left == [(3, 0)])
            assert it.said[-1] == (3, 0, marks[0]) and lost == []
            assert threading.active_count() < 50
            with pytest.raises(LeaveError, match="cannot be reached"):
                AgentLink(f"unix:{tmp_path}/none", "secret", lambda command: False, lost.append).attach(hello(0))

    asyncio.run(story())


FOR_EVER_S = 3600.0


def rank(it: Scene, shelf: Shelf | None = None, **more: float) -> AgentLink:
    """A rank's own end, whose commands all wait in its queue."""
    return AgentLink(it.address, "secret", lambda command: False, lambda reason: None, shelf, **more)


def test_marks_of_slots_lie_on_the_shelf_and_go_with_the_roll_call(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(f"unix:{tmp_path}/a.sock") as it:
            path = Path(make_shelf(tmp_path / "marks.0"))
            link = rank(it, shelf=Shelf(str(path)), held_s=FOR_EVER_S)
            await asyncio.to_thread(link.attach, hello(0))
            begun, done = (Mark(kind=kind, step=1, slot=2) for kind in (MarkKind.SLOT_BEGUN, MarkKind.SLOT_DONE))
            call = RollCall(generation=1, step=1, records=b"r")
            link.say_soon(begun)
            link.say_soon(done)
            assert left_on(path) == [begun, done], "what a rank that is killed now leaves"
            link.say(call)
            await until(lambda: len(it.said) == 4)
            assert [message for _, _, message in it.said] == [hello(0), begun, done, call]
            assert it.together == [1, 3] and left_on(path) == []
            other = rank(it, shelf=Shelf(make_shelf(tmp_path / "marks.1")))
            await asyncio.to_thread(other.attach, hello(1))
            await asyncio.to_thread(lambda: [other.say_soon(begun) for _ in range(500)])
            await until(lambda: len(it.said) == 505)
            for each in (link, other):
                await asyncio.to_thread(each.close)

    asyncio.run(story())


def test_a_shelf_that_was_torn_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "marks.0"
    assert left_on(path) == []
    for data in (b"", b"\xff\xff\xff\xff", b"\x05\0\0\0\0\0\0\1\1x"):
        path.write_bytes(data)
        assert left_on(path) == []


def test_marks_are_held_back_until_a_message_or_a_moment_and_dropped_for_a_roll_call(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(f"unix:{tmp_path}/a.sock") as it:
            link, other = rank(it, held_s=FOR_EVER_S), rank(it)
            for shard_rank, each in enumerate((link, other)):
                await asyncio.to_thread(each.attach, hello(shard_rank))
            await until(lambda: len(it.said) == 2)
            marks = [Mark(kind=MarkKind.GRADIENTS, step=step) for step in range(3)]
            call = RollCall(generation=1, step=1, records=b"r")
            opened = RankOpened(number=7)
            link.say_soon(marks[0])
            link.say(call)
            link.say_soon(marks[1])
            link.say(opened)
            await until(lambda: len(it.said) == 5)
            assert it.said[2:] == [(3, 0, message) for message in (call, marks[1], opened)]
            other.say_soon(marks[2])
            await until(lambda: len(it.said) == 6)
            assert it.said[5] == (3, 1, marks[2])
            for each in (link, other):
                await asyncio.to_thread(each.close)

    asyncio.run(story())


def test_a_rank_starts_though_the_disk_takes_no_shelf(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "marks.0"
    shelf = Shelf(make_shelf(path))
    assert shelf.put(b"mark") and shelf.frames == b"mark"
    assert left_on(path) == []
