"""Watchers get everything in order, or are told that they were too slow; nobody waits for them."""

from __future__ import annotations

import asyncio

import pytest

from lighthouse.core_values import Happened
from lighthouse.events import KEPT, WAITING, Events, TooSlow


def step(i: int) -> Happened:
    return Happened(time_s=float(i), kind="step", number=i)


def test_history_comes_first_then_what_happens() -> None:
    async def test() -> None:
        events = Events()
        events.begin("run", [step(1), step(2)])
        events.tell("run", step(3))
        with_history, without = events.watch("run", True), events.watch("", False)
        events.tell("run", step(4))
        events.close()
        assert [await with_history.next() for _ in range(5)] == [step(1), step(2), step(3), step(4), None]
        assert [await without.next() for _ in range(2)] == [step(4), None]

    asyncio.run(test())


def test_a_watcher_of_one_run_sees_no_other() -> None:
    async def test() -> None:
        events = Events()
        watcher = events.watch("later", True)
        for run_id in ("run", "later"):
            events.begin(run_id, [])
            events.tell(run_id, Happened(time_s=0.0, kind=run_id))
        watcher.close()
        assert [await watcher.next(), await watcher.next()] == [Happened(time_s=0.0, kind="later"), None]

    asyncio.run(test())


def test_a_watcher_that_does_not_read_is_told_so_after_what_it_has() -> None:
    async def test() -> None:
        events = Events()
        events.begin("run", [step(i) for i in range(10)])
        watcher = events.watch("run", True)
        for i in range(10, 10 + WAITING + 5):
            events.tell("run", step(i))
        assert [await watcher.next() for _ in range(10 + WAITING)] == [step(i) for i in range(10 + WAITING)]
        with pytest.raises(TooSlow):
            await watcher.next()

    asyncio.run(test())


def test_what_is_kept_is_bounded() -> None:
    events = Events()
    events.begin("run", [])
    for i in range(KEPT + 10):
        events.tell("run", step(i))
    watcher = events.watch("run", True)
    assert len(watcher._waiting) == KEPT
    assert watcher._waiting[0] == step(10)
    events.leave(watcher)
