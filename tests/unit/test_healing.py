"""A rank that fetches entries while its training thread is busy."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import torch
from torch import nn

from lighthouse.deadlines import Knobs
from lighthouse.values import EntryName, Source, Version
from replica.digest import digest
from replica.entry import Entry, EntryLog
from replica.healing import Healing
from replica.patience import InForce
from replica.snapshot import Snapshot
from replica.state import TrainingState
from replica.transfer_server import WeightServer
from replica.values import Fetch, FetchFailed, Held, Load, Loaded, Merged, Moved, RankUp, StageFor, UpToDate

TOKEN = b"a secret of the run"
DEADLINE_S = 20.0


def entry(step: int) -> Entry:
    merged = Merged(start=Version(step, 3), generation=3, slots=8, tokens=17)
    name = EntryName(start=merged.start, end=merged.end)
    return Entry(name=name, merged=merged, presence=(True,), buckets=(torch.full((10,), 1.0 + step),))


def test_a_load_tells_how_far_it_is() -> None:
    def state(seed: int) -> TrainingState:
        torch.manual_seed(seed)
        model = nn.Linear(300, 300)
        return TrainingState(model, torch.optim.SGD(model.parameters()))

    log = EntryLog()
    server = WeightServer("127.0.0.1", TOKEN, log)
    server.stage(5, Snapshot.stage(state(1), Version(4, 3), 0, False))
    said: list[RankUp] = []
    healing = Healing(
        state=state(2),
        modules=(),
        log=log,
        server=server,
        token=TOKEN,
        in_force=InForce(Knobs()),
        shard_rank=0,
        like=[],
        log_bytes=1 << 20,
        say=said.append,
    )
    try:
        loaded = healing.load(Load(heal=5, sources=(Source(name="g0", weights=(server.address,)),)))
    finally:
        healing.close()
    assert isinstance(loaded, Loaded)
    moves = [message for message in said if isinstance(message, Moved)]
    assert moves and {(m.heal, m.total, m.sources) for m in moves} == {(5, loaded.bytes, ("g0",))}
    assert moves[0].bytes <= loaded.bytes == 300 * 301 * 4


@contextmanager
def following() -> Iterator[tuple[Healing, EntryLog, tuple[Source, ...], queue.SimpleQueue[RankUp]]]:
    """A rank's healing, the log of its donor, where that is served, and what the rank says."""
    donor, mine, model = EntryLog(), EntryLog(), nn.Linear(200, 200)
    server = WeightServer("127.0.0.1", TOKEN, donor)
    said: queue.SimpleQueue[RankUp] = queue.SimpleQueue()
    healing = Healing(
        state=TrainingState(model, torch.optim.SGD(model.parameters())),
        modules=(),
        log=mine,
        server=WeightServer("127.0.0.1", TOKEN, mine),
        token=TOKEN,
        shard_rank=0,
        like=[torch.empty(10, device="meta")],
        log_bytes=1 << 20,
        in_force=InForce(Knobs()),
        say=said.put,
    )
    try:
        yield healing, donor, (Source(name="g0", weights=(server.address,)),), said
    finally:
        healing.close()
        server.close()


def test_a_heal_named_in_the_middle_of_a_step_leaves_the_digest_of_that_step() -> None:
    """A roll call hears what the agent has said before it takes the digest."""
    with following() as (healing, *_):
        state = healing._state
        healing.digest.begin()
        healing.expect(StageFor(heal=1, now=False, place=0, donors=1))
        healing.expect(StageFor(heal=2, now=True, place=0, donors=1))
        healing.stage((2,), Version(4, 3), 0, False)
        assert healing.digest.value() == digest(state)
        healing.settle()
        next(iter(state.flatten()[0].values())).detach().add_(1)
        healing.digest.begin()
        assert healing.digest.value() == digest(state)


def test_the_state_is_gone_through_when_the_first_step_has_completed_it() -> None:
    """Not when somebody heals for the first time: the others would wait."""
    with following() as (healing, *_):
        state = healing._state
        weights = state.extent.bytes
        for parameter in state._model.parameters():
            state._optimizer.state[parameter]["momentum_buffer"] = torch.ones_like(parameter)
        healing.stage((), Version(1, 3), 6, False)
        assert state.extent.bytes == 2 * weights
        for step in (2, 3):
            state._optimizer.state.clear()
            healing.stage((), Version(step, 3), 6 * step, False)
        assert state.extent.bytes == 2 * weights, "that is not for each step"
        healing.load(Load(heal=1, sources=()))
        healing.stage((), Version(4, 3), 24, False)
        assert state.extent.bytes == weights, "that is for the first after a load"


def test_joiners_that_come_together_share_a_snapshot_and_its_memory_serves_again() -> None:
    with following() as (healing, *_):
        server = healing._server
        for heal, place in ((1, 0), (2, 0), (3, 1), (4, 0)):
            healing.expect(StageFor(heal=heal, now=False, place=place, donors=3))
        ready(healing, 1, 2, 3, 4)
        healing.stage((1, 2, 3), Version(4, 3), 0, False)
        one, two, three = (server._staged[heal] for heal in (1, 2, 3))
        assert one is two and one.held != three.held
        ready(healing, 4)
        healing.stage((4,), Version(5, 3), 8, False)
        assert server._staged[4] is not one, "another version"
        memory = one.memory[0].data_ptr()
        healing.drop(1)
        assert not healing._spare, "it is served to another still"
        healing.drop(2)
        healing.expect(StageFor(heal=5, now=False, place=0, donors=3))
        assert healing.ready((5,)) == (5,), "at once"
        healing.stage((5,), Version(6, 3), 16, False)
        assert server._staged[5].memory[0].data_ptr() == memory


def ready(healing: Healing, *heals: int) -> None:
    """Waits until there is room for them."""
    end = time.monotonic() + DEADLINE_S
    while healing.ready(heals) != heals:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_entry_fetched_while_the_one_before_waits_to_be_applied_is_not_lost() -> None:
    """The agent gives its verdict and asks for the next entry; a busy training thread applies the first much later."""
    with following() as (healing, donor, sources, said):
        for step in (4, 5):
            donor.keep(entry(step))
        healing.fetch(Fetch(version=Version(4, 3), sources=sources))
        assert said.get(timeout=DEADLINE_S) == Held(name=entry(4).name, merged=entry(4).merged)
        healing.fetch(Fetch(version=Version(5, 3), sources=sources))
        with suppress(queue.Empty):
            said.put(said.get(timeout=0.5))  # what is told before the first is applied must hold afterwards too
        assert healing.take(entry(4).name).buckets[0][0] == 5.0
        assert said.get(timeout=DEADLINE_S) == Held(name=entry(5).name, merged=entry(5).merged)
        assert healing.take(entry(5).name).buckets[0][0] == 6.0


@pytest.mark.parametrize("late", [False, True])
def test_an_entry_that_leads_to_a_step_committed_here_keeps_nobody_waiting(late: bool) -> None:
    """A rank fetched the entry of a step, entered a generation meanwhile, and committed that step itself. Later it is a
    step behind: it must not wait for the old entry to be applied first."""
    with following() as (healing, donor, sources, said):
        if not late:
            donor.keep(entry(4))
        healing.fetch(Fetch(version=Version(4, 3), sources=sources))
        if not late:
            assert said.get(timeout=DEADLINE_S) == Held(name=entry(4).name, merged=entry(4).merged)
        healing.settle(Version(5, 3))
        for step in (4, 5):
            donor.keep(entry(step))
        if late:
            assert said.get(timeout=DEADLINE_S).__class__ in (Held, FetchFailed, UpToDate)
        healing.fetch(Fetch(version=Version(5, 3), sources=sources))
        wanted = Held(name=entry(5).name, merged=entry(5).merged)
        while said.get(timeout=DEADLINE_S) != wanted:
            pass
        assert healing.take(entry(5).name).buckets[0][0] == 6.0
