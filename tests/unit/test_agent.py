"""`run_agent` as a process, with real ranks (without torch) and a scripted lighthouse."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from plain_rank import SLOTS
from scripted import AgentProcess, ScriptedLighthouse, is_there, until

from lighthouse.values import Beat, Committed, Died, Drain, Fenced, Finished, Goodbye, Hello, Leave
from replica.agent_core import new_agent
from replica.agent_journal import Journal, replay
from replica.agent_values import AgentConfig, Ledger, TookOver

pytestmark = pytest.mark.timeout(90)


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[tuple[ScriptedLighthouse, Callable[..., Awaitable[AgentProcess]]]]:
    """A lighthouse, and a way to start agents that are all ended afterwards."""
    lighthouse, agents = ScriptedLighthouse(), []
    await lighthouse.start()

    async def agent(behaviour: str = "train", **options: Any) -> AgentProcess:
        agents.append(AgentProcess(folder, options.pop("lighthouse", lighthouse.address), behaviour, **options))
        return await agents[-1].start()

    try:
        yield lighthouse, agent
    finally:
        for one in agents:
            await one.close()
        for one in agents:
            await one.all_gone()
        await lighthouse.stop()


def test_a_run_from_hello_to_farewell(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (lighthouse, start):
            agent = await start(steps=20)
            assert await agent.ended() == 0, agent.shown()
            hello = await lighthouse.heard(Hello)
            assert (hello.took_over, hello.incarnation, len(hello.weights)) == (True, 0, 2)
            assert (await lighthouse.heard(Finished)).version.step == 20
            assert [line["step"] for line in agent.ledger("commit")] == list(range(1, 21))
            turns = list(replay((tmp_path / "journal").read_bytes().splitlines(keepends=True)))
            lines = [effect.line for turn in turns for effect in turn.effects if isinstance(effect, Ledger)]
            assert lines == [{k: v for k, v in line.items() if k != "time_s"} for line in agent.ledger("")]
            assert turns[-1].state.over and all(turn.same for turn in turns)
            assert "[g1/0] rank 0 of life 1 is here" in agent.shown()
            (lock,) = (tmp_path / "locks").glob("*.lock")
            assert not lock.read_text().strip()
            assert len(list((tmp_path / "locks").iterdir())) == 1, "the agent's own folder is left"

    asyncio.run(story())


def test_a_killed_rank_ends_the_group_and_starts_it_anew(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (lighthouse, start):
            agent = await start("hang", restart_limit=2)
            ranks = [await agent.rank(1, shard_rank) for shard_rank in range(2)]
            await lighthouse.heard(Beat)
            os.kill(ranks[0], signal.SIGKILL)
            died = await lighthouse.heard(Died)
            assert (died.shard_rank, died.killed, died.reason) == (0, True, "rank 0: signal 9")
            await until(lambda: not any(map(is_there, ranks)))
            again = await lighthouse.heard(Hello, lambda hello: hello is not lighthouse.said[0][1])
            assert (again.incarnation, again.took_over) == (0, True)
            await agent.rank(2, 1)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("behaviour", "last_line"),
    [
        ("raise", "ValueError: the loss is a goat"),
        ("early", "ValueError: no such file of tokens"),
        ("tell", "ValueError: told, not printed"),
    ],
)
def test_what_ranks_raise_is_shown_and_counted(tmp_path: Path, behaviour: str, last_line: str) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (_, start):
            agent = await start(behaviour, restart_limit=1, shards=1)
            assert await agent.ended() == 1
            assert agent.shown().count(f"[g1/0] {last_line}\n") == 1, agent.shown()
            assert "the same failure ended 1 lives in a row" in agent.shown()

    asyncio.run(story())


def test_two_agents_of_one_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (lighthouse, start):
            old = await start("hang")
            ranks = [await old.rank(1, shard_rank) for shard_rank in range(2)]
            await lighthouse.heard(Beat)
            for path in tmp_path.glob("*.pid"):
                path.unlink()
            new = await start("hang")
            assert await old.ended() == 3, old.shown()
            assert not any(map(is_there, ranks))
            assert await new.rank(1, 0) not in ranks
            await lighthouse.heard(Hello, lambda hello: hello is not lighthouse.said[0][1])
            assert "asking it to yield" in new.shown()

    asyncio.run(story())


def test_a_stopped_agent_is_ended_by_its_successor(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (_, start):
            old = await start("fork")
            ranks = [await old.rank(1, shard_rank) for shard_rank in range(2)]
            kin = [int(pid) for path in tmp_path.glob("*.kin") for pid in path.read_text().split()]
            old.process.send_signal(signal.SIGSTOP)
            for path in tmp_path.glob("*.pid"):
                path.unlink()
            new = await start("fork")
            await new.rank(1, 0)
            assert not any(map(is_there, [*ranks, *kin]))
            assert await old.ended() == -signal.SIGKILL

    asyncio.run(story())


def test_a_killed_agent_leaves_no_orphans(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (_, start):
            agent = await start("fork")
            left = [await agent.rank(1, shard_rank) for shard_rank in range(2)]
            left += [int(pid) for path in tmp_path.glob("*.kin") for pid in path.read_text().split()]
            assert len(left) == 6 and all(map(is_there, left))
            agent.process.kill()
            await until(lambda: not any(map(is_there, left)), deadline_s=3.0)

    asyncio.run(story())


def test_sigterm_drains(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (lighthouse, start):
            agent = await start("hang")
            await lighthouse.heard(Beat)
            agent.process.send_signal(signal.SIGTERM)
            await lighthouse.heard(Drain)
            assert await agent.ended() == 0, agent.shown()
            await lighthouse.heard(Goodbye)

    asyncio.run(story())


def test_a_second_interrupt_ends_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (lighthouse, start):
            lighthouse._replies = _deaf_to_drain(lighthouse)  # type: ignore[method-assign]
            agent = await start("hang")
            ranks = [await agent.rank(1, shard_rank) for shard_rank in range(2)]
            await lighthouse.heard(Beat)
            agent.process.send_signal(signal.SIGINT)
            await lighthouse.heard(Drain)
            agent.process.send_signal(signal.SIGINT)
            assert await agent.ended() == 130, agent.shown()
            assert not any(map(is_there, ranks))
            assert (await lighthouse.heard(Died)).killed
            await lighthouse.heard(Goodbye)

    asyncio.run(story())


def _deaf_to_drain(lighthouse: ScriptedLighthouse) -> Any:
    replies = lighthouse._replies
    return lambda message: () if isinstance(message, Drain) else replies(message)


def test_a_group_told_to_start_anew_shows_its_stacks(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (lighthouse, start):
            agent = await start("hang", shards=1)
            rank = await agent.rank(1, 0)
            await lighthouse.heard(Beat)
            await lighthouse.send(Leave(reason="it stalls", success=False, restart=True))
            await agent.rank(2, 0)
            assert not is_there(rank)
            assert "[g1/0] Fatal Python error: Aborted\n" in agent.shown()
            assert "plain_rank.py" in agent.shown()

    asyncio.run(story())


def test_a_fenced_agent_goes(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (lighthouse, start):
            agent = await start("hang")
            await lighthouse.heard(Beat)
            await lighthouse.send(Fenced(by=9))
            assert await agent.ended() == 3, agent.shown()

    asyncio.run(story())


def test_a_wrong_token_ends_the_agent_saying_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (_, start):
            agent = await start(token="wrong")
            assert await agent.ended() == 2, agent.shown()
            assert "token" in agent.shown()

    asyncio.run(story())


def test_no_lighthouse(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (_, start):
            agent = await start(lighthouse="127.0.0.1:1", connect_s=2.0)
            assert await agent.ended() == 1, agent.shown()
            assert "lighthouse not reachable at 127.0.0.1:1, trying again" in agent.shown()

    asyncio.run(story())


def test_a_lighthouse_that_comes_back_is_found(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (lighthouse, start):
            agent = await start("hang")
            await lighthouse.heard(Beat)
            await lighthouse.stop()
            before = len(lighthouse.said)
            await until(lambda: "not reachable" in agent.shown(), agent.shown)
            await lighthouse.start(int(lighthouse.address.rpartition(":")[2]))
            hello = await lighthouse.heard(Hello, lambda hello: any(hello is m for _, m in lighthouse.said[before:]))
            assert (hello.incarnation, hello.report.generation) == (1, 1)

    asyncio.run(story())


def test_a_rank_that_leaves_its_stream_is_ended(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (_, start):
            agent = await start("close", restart_limit=1, shards=1)
            assert await agent.ended() == 1
            assert "its Attach stream ended" in agent.shown(), agent.shown()

    asyncio.run(story())


def test_the_slot_in_hand_is_known_of_a_rank_that_is_killed_as_soon_as_it_has_begun_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (lighthouse, start):
            agent = await start("poison", shards=1, restart_limit=1)
            died = await lighthouse.heard(Died)
            assert died.killed and died.slot == SLOTS - 1
            assert await agent.ended() == 1
            assert [(line["mark"], line["slot"]) for line in agent.ledger("slot")] == [("begun", SLOTS - 1)]

    asyncio.run(story())


def test_a_full_disk_costs_the_ledger_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (lighthouse, start):
            agent = await start(ledger="/dev/full", journal="/dev/full")
            assert await agent.ended() == 0, agent.shown()
            assert "cannot write /dev/full" in agent.shown()
            await lighthouse.heard(Committed, lambda committed: committed.version.step == 3)

    asyncio.run(story())


def test_a_bind_that_is_not_of_this_host(tmp_path: Path) -> None:
    async def story() -> None:
        async with scene(tmp_path) as (_, start):
            agent = await start(bind="192.0.2.1")
            assert await agent.ended() == 2
            assert "give an address of this host" in agent.shown()

    asyncio.run(story())


def test_a_journal_is_bounded_and_every_file_of_it_can_be_decided_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", limit_bytes=3000)
    state = new_agent(AgentConfig(run_id="r", name="g", host="h", shards=1))
    for now in range(100):
        journal.note(state, float(now), (TookOver(),) if now % 2 else (), ())
    journal.close(10.0)
    (tmp_path / "journal").open("ab").write(b'[12.0, {"type": "Too')
    turns = [list(replay((tmp_path / name).open("rb"))) for name in ("journal.1", "journal")]
    assert [turn.now for turn in turns[0] + turns[1]] == [float(now) for now in range(100)][-len(turns[0] + turns[1]) :]
    assert all(turns)
    with pytest.raises(ValueError, match="not a journal"):
        list(replay([b"{}\n"]))
