"""The lighthouse's gRPC server over real sockets: what is delivered when, what is read, and how calls end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from lighthouse import calls as calls_module
from lighthouse.calls import Call, Calls

LARGE = (("grpc.max_receive_message_length", 64 << 20),)


class Heard:
    """A server that keeps what it is told; patient with what begins with a "p"."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.said: list[tuple[float, bytes | None]] = []
        self.over: list[str] = []
        self.answer: Callable[[Call, bytes], object] = lambda call, data: call.read(on=True)
        self.server = Calls(self._begin, LARGE, patient=lambda data: data[:1] == b"p")
        self.address = f"127.0.0.1:{self.server.listen('127.0.0.1:0')}"

    def _begin(self, call: Call) -> None:
        self.calls.append(call)

        def hear(at_s: float, data: bytes | None) -> None:
            self.said.append((at_s, data))
            if data is not None:
                self.answer(call, data)

        call.on_message = hear
        call.on_over = lambda: self.over.append(call.method)
        call.read()

    @property
    def messages(self) -> list[bytes | None]:
        return [data for _, data in self.said]


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[Heard, grpc.aio.Channel]]:
    heard = Heard()
    async with grpc.aio.insecure_channel(heard.address, options=LARGE) as channel:
        try:
            yield heard, channel
        finally:
            await heard.server.stop(0.1)


def run(test: Callable[[Heard, Any], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40), serving() as (heard, channel):
            await test(heard, channel)

    asyncio.run(bounded())


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


def test_all_is_delivered_in_order_and_answered_in_order() -> None:
    async def test(heard: Heard, channel: Any) -> None:
        def echo(call: Call, data: bytes) -> None:
            call.read(on=True)
            call.send(data)

        heard.answer = echo
        streams = [channel.stream_stream(f"/a/{i}")(metadata=(("key", str(i)),)) for i in range(5)]
        sent = [str(number).encode() for number in range(200)]
        for data in sent:
            for stream in streams:
                await stream.write(data)
        for stream in streams:
            assert [await stream.read() for _ in sent] == sent
            await stream.done_writing()
        await until(lambda: heard.messages.count(None) == 5)
        assert sorted(call.method for call in heard.calls) == [f"/a/{i}" for i in range(5)]
        assert {dict(call.metadata)["key"] for call in heard.calls} == set("01234")
        assert [at_s for at_s, _ in heard.said] == sorted(at_s for at_s, _ in heard.said)
        for call in heard.calls:
            call.finish()
        assert [await stream.code() for stream in streams] == [grpc.StatusCode.OK] * 5
        await until(lambda: len(heard.over) == 5)

    run(test)


def test_what_may_wait_waits_for_what_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "PATIENT_S", 3600.0)

    async def test(heard: Heard, channel: Any) -> None:
        stream = channel.stream_stream("/a/b")()
        await stream.write(b"first")
        await until(lambda: heard.messages == [b"first"])
        await stream.write(b"patient 1")
        await stream.write(b"patient 2")
        await until(lambda: len(heard.server._arrived) == 2)
        assert heard.messages == [b"first"]
        await stream.write(b"urgent")
        await until(lambda: heard.messages == [b"first", b"patient 1", b"patient 2", b"urgent"])
        await stream.write(b"patient 3")
        await until(lambda: heard.server._arrived)
        heard.server.gather()
        assert heard.messages[-1] == b"patient 3"

    run(test)


def test_what_may_wait_is_delivered_after_a_while() -> None:
    async def test(heard: Heard, channel: Any) -> None:
        stream = channel.stream_stream("/a/b")()
        for count in range(1, 4):
            await stream.write(b"patient")
            await until(lambda count=count: len(heard.messages) == count)

    run(test)


def test_one_timer_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "PATIENT_S", 3600.0)

    async def test(heard: Heard, channel: Any) -> None:
        stream = channel.stream_stream("/a/b")()
        await stream.write(b"first")
        for count in range(1, 6):
            await until(lambda count=count: len(heard.messages) == 2 * count - 1)
            await stream.write(b"patient")
            await until(lambda: heard.server._arrived)
            await asyncio.sleep(0)
            await stream.write(b"urgent")
        timers: list[Any] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        assert sum("_wake_for_many" in repr(timer) for timer in timers) == 1

    run(test)


def test_a_call_is_read_when_it_is_to_be() -> None:
    async def test(heard: Heard, channel: Any) -> None:
        heard.answer = lambda call, data: None
        stream, other = channel.stream_stream("/a/b")(), channel.stream_stream("/a/c")()

        for number in range(10):
            await stream.write(b"%d" % number)
        await until(lambda: heard.messages)
        await other.write(b"other")
        await until(lambda: b"other" in heard.messages)
        assert heard.messages == [b"0", b"other"]  # the first one only
        first, second = sorted(heard.calls, key=lambda call: call.method)
        second.read(on=True)
        first.read(on=True)
        await until(lambda: b"9" in heard.messages)
        first.pause()
        for number in range(10, 20):
            await stream.write(b"%d" % number)
        await other.write(b"another")
        await until(lambda: b"another" in heard.messages)
        assert set(heard.messages[11:]) <= {b"another", b"10"}  # one had been asked for
        first.read(on=True)
        await until(lambda: b"19" in heard.messages)
        assert [data for data in heard.messages if data and data.isdigit()] == [b"%d" % n for n in range(20)]

    run(test)


def test_what_waits_is_sent_before_the_end_or_dropped() -> None:
    async def test(heard: Heard, channel: Any) -> None:
        def answer(call: Call, data: bytes) -> None:
            for _ in range(20):
                call.send(b"x" * 1_000_000)
            call.finish(grpc.StatusCode.ABORTED, "over", at_once=data == b"at once")
            call.send(b"too late")
            call.finish()

        heard.answer = answer
        whole, cut = channel.stream_stream("/a/b")(), channel.stream_stream("/a/c")()
        await whole.write(b"whole")
        await cut.write(b"at once")
        counts = []
        for stream in (whole, cut):
            counts.append(0)
            with pytest.raises(grpc.aio.AioRpcError, match="over"):
                while await stream.read() is not grpc.aio.EOF:
                    counts[-1] += 1
            assert await stream.code() is grpc.StatusCode.ABORTED
        assert counts[0] == 20
        assert counts[1] < 20
        await until(lambda: len(heard.over) == 2)

    run(test)


def test_a_defect_ends_its_call_alone(caplog: pytest.LogCaptureFixture) -> None:
    async def test(heard: Heard, channel: Any) -> None:
        def answer(call: Call, data: bytes) -> None:
            call.read(on=True)
            if data == b"bad":
                raise RuntimeError("a defect")
            call.send(data)

        heard.answer = answer
        good, bad = channel.stream_stream("/a/good")(), channel.stream_stream("/a/bad")()
        await good.write(b"1")
        await bad.write(b"bad")
        with pytest.raises(grpc.aio.AioRpcError, match="a defect"):
            await bad.read()
        await good.write(b"2")
        assert [await good.read(), await good.read()] == [b"1", b"2"]
        assert "/a/bad has a defect" in caplog.text

    run(test)


def test_who_goes_is_noticed_and_who_stays_is_ended_at_a_stop() -> None:
    async def test() -> None:
        heard = Heard()
        async with grpc.aio.insecure_channel(heard.address) as channel:
            goes, stays = channel.stream_stream("/a/goes")(), channel.stream_stream("/a/stays")()
            for stream in (goes, stays):
                await stream.write(b"here")
            await until(lambda: len(heard.messages) == 2)
            goes.cancel()
            await until(lambda: heard.over == ["/a/goes"])
            await asyncio.wait_for(heard.server.stop(0.1), 10)
            assert heard.over == ["/a/goes", "/a/stays"]
            assert await stays.code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)

    asyncio.run(test())


def test_a_sender_can_wait_until_all_is_sent() -> None:
    async def test(heard: Heard, channel: Any) -> None:
        heard.answer = lambda call, data: None
        stream = channel.stream_stream("/a/b")()
        await stream.write(b"here")
        await until(lambda: heard.calls)
        (call,) = heard.calls
        await call.drained()
        for _ in range(10):
            call.send(b"x" * 4_000_000)
        waiting = asyncio.ensure_future(call.drained())
        await asyncio.sleep(0)
        assert not waiting.done()
        for _ in range(10):
            await stream.read()
        await waiting
        assert call.waiting == 0

    run(test)
