"""The lighthouse's server over real sockets and a real store, led by a small core."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from lighthouse.auth import ACCEPTED, token_metadata
from lighthouse.client import NotAllowed, Session, Unreachable, open_session, status, status_now, watch, watch_now
from lighthouse.core_values import Core, Happened, RunConfig
from lighthouse.deadlines import DEFAULTS
from lighthouse.journal import Journal, replay
from lighthouse.service import PortTaken, Runs, Server, Serving
from lighthouse.store import Store, Superseded
from lighthouse.values import (
    ROOT,
    Base,
    Beat,
    Drain,
    Finished,
    Hello,
    Holding,
    Leave,
    Refused,
    Report,
    Version,
    Welcome,
)
from lighthouse.wire import UP, GroupMessage, LighthouseStub
from tests.unit.small_core import CORE, SmallState

TOKEN = "0123456789abcdef"


def hello(name: str, run_id: str = "run", incarnation: int = 0) -> Hello:
    return Hello(
        run_id=run_id,
        name=name,
        incarnation=incarnation,
        host="here",
        took_over=True,
        setup={"slots": "8"},
        rendezvous=("127.0.0.1:1",),
        weights=("127.0.0.1:2",),
        digest=7,
        report=Report(abandoned=0, version=ROOT, cursor=0),
    )


class Place:
    """A running lighthouse in this process."""

    def __init__(self, folder: Path, core: Core, **config: Any) -> None:
        self.store = Store(folder / "lighthouse.db")
        self.journal_path = folder / "lighthouse.db.journal"
        self.journal = Journal(self.journal_path, limit_bytes=1 << 24)
        only = config.pop("only_run", "")
        farewell_s = config.pop("farewell_s", 5.0)

        def config_for(run_id: str) -> RunConfig:
            return RunConfig(run_id=run_id, **{"groups_wanted": 1, **config})

        self.runs = Runs(
            Serving(core=core, store=self.store, journal=self.journal, config_for=config_for, only_run=only)
        )
        self.server = Server(self.runs, token=TOKEN, deadlines=msgspec.structs.replace(DEFAULTS, farewell_s=farewell_s))
        self.address = ""

    async def session(self, name: str, **hello_fields: Any) -> Session:
        session = await open_session(self.address, token=TOKEN)
        await session.send(hello(name, **hello_fields))
        return session

    def state(self, run_id: str = "run") -> SmallState:
        state: SmallState = self.runs.find(run_id)._state
        return state


@asynccontextmanager
async def lighthouse(folder: Path, core: Core = CORE, **config: Any) -> AsyncIterator[Place]:
    place = Place(folder, core, **config)
    try:
        place.address = f"127.0.0.1:{await place.server.start('127.0.0.1', 0)}"
        yield place
    finally:
        await place.runs.close()
        await place.server.stop(0.2)
        place.journal.close()
        place.store.close()


async def until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(40):
            await test()

    asyncio.run(bounded())


def test_a_session_is_welcomed_formed_and_left(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path, groups_wanted=2) as place:
            one, two = await place.session("g1"), await place.session("g2")
            first, second = await one.receive(), await two.receive()
            assert isinstance(first, Welcome)
            assert isinstance(second, Welcome)
            assert {first.incarnation, second.incarnation} == {1, 2}
            bases = [await one.receive(), await two.receive()]
            assert bases[0] == bases[1]
            assert isinstance(bases[0], Base)
            assert [m.name for m in bases[0].roster.joined] in (["g1", "g2"], ["g2", "g1"])
            record = place.store.read("run")
            assert record.last_number == record.first_number == bases[0].number
            assert record.next_incarnation == 3
            await one.send(Drain())
            assert await one.receive() == Leave(reason="drained", success=True)
            assert await one.receive() is None
            with pytest.raises(Unreachable, match="the session is over"):
                await one.send(Beat(version=ROOT))
            await two.send(Finished(version=Version(5, bases[0].number)))
            assert await two.receive() == Leave(reason="finished", success=True)
            assert await two.receive() is None
            assert place.store.read("run").finished == Version(5, bases[0].number)
            await one.close()
            await two.close()
            place.journal.close()
            assert replay(place.journal_path, CORE) == ()

    run(test)


def test_without_the_token_nothing_is_answered(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path) as place:
            for token in ("", "0123456789abcdeF", "Bearer"):
                with pytest.raises(NotAllowed, match="carries no token, or not the one"):
                    await status(place.address, token=token)
                with pytest.raises(NotAllowed, match="carries no token"):
                    await anext(watch(place.address, token=token))
                session = await open_session(place.address, token=token)
                with pytest.raises(NotAllowed, match="carries no token"):
                    await session.send(hello("g1"))
                    await session.receive()
                await session.close()
            with pytest.raises(NotAllowed, match="runs: none yet"):
                await status(place.address, token=TOKEN)
            async with grpc.aio.insecure_channel(place.address) as channel:
                health = health_pb2_grpc.HealthStub(channel)
                request = health_pb2.HealthCheckRequest(service="bellrock.lighthouse.Lighthouse")
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await health.Check(request)
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                answer = await health.Check(request, metadata=token_metadata(TOKEN))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING

    run(test)


def test_a_session_is_told_that_it_is_let_in_before_anything_is_said(tmp_path: Path) -> None:
    """So that nobody writes to a call that is being refused, which can hide why it is."""

    async def test() -> None:
        async with lighthouse(tmp_path) as place, grpc.aio.insecure_channel(place.address) as channel:
            for token, accepted in ((TOKEN, True), ("wrong", False)):
                call = LighthouseStub(channel).Session(metadata=token_metadata(token))
                assert (ACCEPTED[0] in await call.initial_metadata()) is accepted
                if accepted:
                    call.cancel()
                else:
                    assert await call.code() is grpc.StatusCode.UNAUTHENTICATED

    run(test)


def large_write_without_token(address: str) -> None:
    """Not by grpc.aio, where a write that is cut off can hide the status that the call ended with."""
    with grpc.insecure_channel(address) as channel:
        next(channel.stream_stream("/bellrock.lighthouse.Lighthouse/Session")(iter([b"x" * 1_000_000])))


def test_calls_that_are_not_as_they_should_be_are_ended_in_words(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path) as place, grpc.aio.insecure_channel(place.address) as channel:
            with pytest.raises(grpc.RpcError, match="carries no token"):
                await asyncio.to_thread(large_write_without_token, place.address)
            unary = channel.unary_unary("/bellrock.lighthouse.Lighthouse/Status")
            metadata = token_metadata(TOKEN)
            with pytest.raises(grpc.aio.AioRpcError, match="not a StatusRequest"):
                await unary(b"\xff", metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError, match="there is no method /a/b here"):
                await channel.unary_unary("/a/b")(b"", metadata=metadata)
            health = health_pb2_grpc.HealthStub(channel)
            with pytest.raises(grpc.aio.AioRpcError, match="no service 'other' here"):
                await health.Check(health_pb2.HealthCheckRequest(service="other"), metadata=metadata)
            watching = health.Watch(health_pb2.HealthCheckRequest(), metadata=metadata)
            assert (await watching.read()).status == health_pb2.HealthCheckResponse.SERVING
            watching.cancel()

    run(test)


def test_a_session_must_begin_with_a_hello_and_have_one(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path) as place:
            silent = await open_session(place.address, token=TOKEN)
            await silent.send(Beat(version=ROOT))
            with pytest.raises(Unreachable, match="must be a hello"):
                await silent.receive()
            await silent.close()
            twice = await place.session("g1")
            await twice.send(hello("g1"))
            with pytest.raises(Unreachable, match="has one hello"):
                while True:
                    await twice.receive()
            await twice.close()

    run(test)


def test_a_message_that_is_not_understood_ends_its_session_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path) as place:
            other = await place.session("g2")
            assert isinstance(await other.receive(), Welcome)
            async with grpc.aio.insecure_channel(place.address) as channel:
                call = LighthouseStub(channel).Session(metadata=(("authorization", f"Bearer {TOKEN}"),))
                await call.write(UP.wrap(hello("g1")))
                await call.write(GroupMessage())
                with pytest.raises(grpc.aio.AioRpcError, match="newer version"):
                    while await call.read() is not grpc.aio.EOF:
                        pass
            await until(lambda: len(place.runs.find("run")._streams) == 1)
            await other.send(Drain())
            assert isinstance(await other.receive(), Base | Leave)
            await other.close()

    run(test)


def test_groups_of_another_run_are_refused_in_words(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path, only_run="ours") as place:
            session = await place.session("g1", run_id="theirs")
            refused = await session.receive()
            assert isinstance(refused, Refused)
            assert "'theirs' here and 'ours' at the lighthouse" in refused.reason
            assert await session.receive() is None
            await session.close()

    run(test)


@pytest.mark.parametrize(("name", "run_id", "match"), [("", "run", "name is empty"), ("g1", "", "run_id is empty")])
def test_a_hello_without_names_is_refused_in_words(tmp_path: Path, name: str, run_id: str, match: str) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path) as place:
            session = await place.session(name, run_id=run_id)
            refused = await session.receive()
            assert isinstance(refused, Refused)
            assert match in refused.reason
            await session.close()

    run(test)


def test_a_core_with_a_defect_stops_the_lighthouse_and_leaves_its_last_turn(tmp_path: Path) -> None:
    def fails(state: SmallState, now: float) -> Any:
        if state.leaving:
            raise RuntimeError("a defect")
        return CORE.decide(state, now)

    async def test() -> None:
        async with lighthouse(tmp_path, replace(CORE, decide=fails)) as place:
            session = await place.session("g1")
            await session.send(Drain())
            assert repr(await asyncio.wait_for(place.runs.failed, 10)) == "RuntimeError('a defect')"
            place.journal.close()
            assert replay(place.journal_path, replace(CORE, decide=fails)) == ()
            (difference,) = replay(place.journal_path, CORE)
            assert difference.was == "RuntimeError('a defect')"
            assert "drained" in difference.now
            await session.close()

    run(test)


def test_runs_are_led_apart(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path) as place:
            sessions = [await place.session("g1", run_id=run_id) for run_id in ("a", "b")]
            welcomes = [await session.receive() for session in sessions]
            assert [w.incarnation for w in welcomes if isinstance(w, Welcome)] == [1, 1]
            with pytest.raises(NotAllowed, match="runs: a, b"):
                await status(place.address, token=TOKEN)
            assert (await status(place.address, token=TOKEN, run_id="b")).run_id == "b"
            for session in sessions:
                await session.close()

    run(test)


def test_status_and_watch_tell_what_happened_with_history(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path) as place:
            live: list[Happened] = []

            async def follow() -> None:
                async for happened in watch(place.address, token=TOKEN, history=False):
                    live.append(happened)

            following = asyncio.create_task(follow())
            await until(lambda: len(place.runs.events._watchers) == 1)
            session = await place.session("g1")
            await until(lambda: bool(live))
            assert [h.kind for h in live] == ["formed"]
            past = await anext(watch(place.address, token=TOKEN, run_id="run"))
            assert past == live[0]
            report = await status(place.address, token=TOKEN)
            assert (report.run_id, report.number, report.hold) == ("run", past.number, "")
            assert [(g.name, g.incarnation, g.state) for g in report.groups] == [("g1", 1, "contributor")]
            assert 0 <= report.uptime_s < 40
            assert (await asyncio.to_thread(status_now, place.address, token=TOKEN)).number == report.number
            events = watch_now(place.address, token=TOKEN)
            assert await asyncio.to_thread(next, events) == past
            events.close()  # type: ignore[attr-defined]
            following.cancel()
            await session.close()
            await until(lambda: not place.runs.events._watchers)
        async with lighthouse(tmp_path) as place:
            watching = watch(place.address, token=TOKEN)
            first = asyncio.ensure_future(anext(watching))
            session = await place.session("g1")
            assert (await first).kind == "formed"
            assert [h.kind for h in place.runs.events._kept["run"]][:1] == ["formed"]
            assert place.runs.events._kept["run"][0] == past
            await session.close()

    run(test)


def test_a_broken_stream_is_told_to_the_core(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path, lease_s=30.0) as place:
            session = await place.session("g1")
            assert isinstance(await session.receive(), Welcome)
            await session.close()
            await until(lambda: any(h.kind == "stream_ended" for h in place.runs.events._kept["run"]))

    run(test)


@pytest.mark.parametrize("stuck", [False, True])
def test_a_session_that_does_not_read_is_closed_and_holds_nobody_up(tmp_path: Path, stuck: bool) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path, lease_s=60.0, farewell_s=0.2 if stuck else 5.0) as place:
            channel = grpc.aio.insecure_channel(place.address)
            call = LighthouseStub(channel).Session(metadata=(("authorization", f"Bearer {TOKEN}"),))
            await call.write(UP.wrap(hello("g1")))
            await until(lambda: bool(place.runs._owners) and place.state().number > 0)
            owner = place.runs.find("run")
            stream = next(iter(owner._streams.values()))
            while not stream.over:
                stream.send(Holding(reason="x" * 100_000))
                if stuck:  # give the writer time to get stuck in flow control
                    await asyncio.sleep(0.002)
            await until(lambda: not owner._streams)
            await until(lambda: any("does not read" in h.text for h in place.runs.events._kept["run"]))
            other = await place.session("g2")
            assert isinstance(await other.receive(), Welcome)
            await other.close()
            with pytest.raises(grpc.aio.AioRpcError, match="which does not read them"):
                while await call.read() is not grpc.aio.EOF:
                    pass
            await channel.close()

    run(test)


def test_a_lease_runs_out_without_polling(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path, lease_s=0.3) as place:
            session = await place.session("g1")
            assert isinstance(await session.receive(), Welcome)
            assert isinstance(await session.receive(), Base)
            assert await session.receive() is None
            assert place.state().groups["g1"].lost
            assert len(place.state().ticks) < 4
            await session.close()

    run(test)


def test_a_loop_that_was_held_up_judges_nobody_whose_beats_were_waiting(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path, lease_s=1.5) as place:
            process = await _beating_group(place.address)
            assert process.stdout is not None
            assert (await process.stdout.readline()).strip() == b"beating"
            await until(lambda: bool(place.runs._owners) and bool(place.state().groups))
            for _ in range(3):
                _hold_the_loop_up(2.0)
                await asyncio.sleep(0.1)
                assert not place.state().groups["g1"].lost
            assert max(place.state().ticks) > 0.5
            process.kill()
            await process.wait()
            await until(lambda: place.state().groups["g1"].lost)

    run(test)


def _hold_the_loop_up(seconds: float) -> None:
    import time

    time.sleep(seconds)


async def _beating_group(address: str) -> asyncio.subprocess.Process:
    import sys

    code = f"""
import asyncio
from lighthouse.client import open_session
from lighthouse.values import Beat, ROOT
from tests.unit.test_service import hello
async def main():
    session = await open_session({address!r}, token={TOKEN!r})
    await session.send(hello("g1"))
    print("beating", flush=True)
    while True:
        await session.send(Beat(version=ROOT))
        await asyncio.sleep(0.05)
asyncio.run(main())
"""
    return await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)


def test_a_taken_port_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path) as place:
            port = int(place.address.rsplit(":", 1)[1])
            second = Server(place.runs, token=TOKEN)
            with pytest.raises(PortTaken, match=f"cannot listen on 127.0.0.1:{port}"):
                await second.start("127.0.0.1", port)
            await second.stop(0)

    run(test)


def test_a_superseded_lighthouse_sends_nothing_more(tmp_path: Path) -> None:
    async def test() -> None:
        async with lighthouse(tmp_path, groups_wanted=2) as place:
            one = await place.session("g1")
            assert isinstance(await one.receive(), Welcome)
            usurper = Store(tmp_path / "lighthouse.db")
            two = await place.session("g2")
            assert isinstance(await asyncio.wait_for(place.runs.failed, 10), Superseded)
            assert place.store.read("run").last_number == 0
            await place.runs.close()
            assert await one.receive() is None
            usurper.close()
            await one.close()
            await two.close()

    run(test)


def test_nobody_listening_is_unreachable_within_the_time() -> None:
    async def test() -> None:
        with pytest.raises(Unreachable, match=r"no lighthouse answers at 127\.0\.0\.1:1"):
            await open_session("127.0.0.1:1", timeout_s=0.5)
        with pytest.raises(Unreachable):
            await status("127.0.0.1:1", timeout_s=0.5)

    run(test)
