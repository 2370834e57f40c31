"""Promises that need a quiet world to be measured: what a planned change, a joiner or the lighthouse's death costs."""

from __future__ import annotations

import msgspec
import pytest

from lighthouse.core import decide, new_run, record, wake_at
from lighthouse.core_values import RunConfig, Said, SaidHello, Started, StoreRecord, StreamEnded, Tick
from lighthouse.values import ROOT, Goodbye, Hello, Report
from simulation.world import Spec, World

QUIET = Spec(groups=3, slots=6, slot_s=0.05, unkind=False, drift=0.0, marks=False)


def commits(world: World, who: str) -> list[float]:
    """When `who` committed."""
    return [at for at, name, _ in world.watch.times if name == who]


def longest_gap_s(times: list[float]) -> float:
    return max(b - a for a, b in zip(times, times[1:], strict=False))


def test_with_no_change_a_step_waits_for_no_lighthouse() -> None:
    world = World(1, msgspec.structs.replace(QUIET, lighthouse_back_s=1000.0))
    world.run(3.0)
    before = len(commits(world, "g1"))
    world.beacons[0].crash()
    world.run(20.0)
    assert len(commits(world, "g1")) > before + 150
    assert longest_gap_s(commits(world, "g1")) < 0.2


def test_a_drain_loses_nothing() -> None:
    world = World(2, QUIET)
    world.run(3.0)
    world.groups["g2"].drain()
    world.run(3.0)
    assert ("g2", 0, "drained") in world.watch.exits
    assert not world.watch.recomputed
    assert world.watch.told_kinds["abandon"] == 1, "the first formation, and no other"
    assert longest_gap_s(commits(world, "g1")) < 0.35, "a step of three slots a group instead of two"


def test_survivors_of_a_death_compute_no_slot_twice() -> None:
    world = World(3, QUIET)
    world.run(3.03)
    world.groups["g3"].rank_dies(world.groups["g3"].ranks[0], -9, "")
    world.run(3.0)
    assert not [r for r in world.watch.recomputed if not r.startswith("g3")]
    assert world.watch.told_kinds["formed"] == 2


@pytest.mark.parametrize("moment", [3.0, 3.02, 3.05, 3.07, 3.1])
def test_who_stalls_is_evicted(moment: float) -> None:
    """A rank hangs, wherever in the step, while its agent lives and beats: it is started anew, and nobody else."""
    world = World(5, msgspec.structs.replace(QUIET, marks=True, stall_patience_s=1.0, connect_s=5.0))
    world.run(moment)
    hung = world.groups["g2"]
    before = hung.ranks[0]
    before.stop_for(1000.0)
    world.run(20.0)
    assert world.watch.told_kinds["evicted"] == 1
    assert not before.alive
    assert longest_gap_s(commits(world, "g1")) < 8.0, "at most two patiences and an opening"
    assert commits(world, "g2")[-1] > world.engine.now - 0.5, "it is back"
    assert not [r for r in world.watch.recomputed if not r.startswith("g2")]


@pytest.mark.parametrize("fate", ["heals", "never loads", "dies while it loads", "is slow"])
def test_a_joiner_delays_nobody(fate: str) -> None:
    """Whatever becomes of a joiner: until it is a member, the others commit as if it were not there."""
    world = World(4, QUIET)
    world.run(3.0)
    alone = longest_gap_s(commits(world, "g1")[5:])
    joiner = world.add_group("j1")
    joiner.never_loads = fate == "never loads"
    if fate == "is slow":
        joiner.slowness = 30.0
    if fate == "dies while it loads":
        world.run(2.0, lambda: bool(joiner.ranks) and not joiner.ranks[0].book.usable)
        joiner.kill_host()
    began = world.engine.now
    world.run(8.0)
    enters = min((s for s, members in world.watch.rosters.items() if any(m[0] == "j1" for m in members)), default=None)
    until = next((at for at, _, end in world.watch.times if end.generation == enters), world.engine.now)
    others = [at for at in commits(world, "g1") if began - 0.5 <= at <= until]
    assert longest_gap_s(others) < alone * 1.1
    assert (enters is not None) == (fate in ("heals", "is slow"))


def hello(name: str, conn: int, abandoned: int = 0) -> SaidHello:
    message = Hello(
        run_id="r",
        name=name,
        incarnation=0,
        host=name,
        took_over=True,
        setup={"slots": "4"},
        rendezvous=("a",),
        weights=("w",),
        digest=1,
        report=Report(abandoned=abandoned, version=ROOT, cursor=0),
    )
    return SaidHello(conn=conn, message=message)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_thousand_dead_names_leave_no_trace() -> None:
    state = record(new_run(RunConfig(run_id="r", groups_wanted=3)), Started(record=StoreRecord(), wall_ms=1000), 0.0)
    sizes = []
    for index in range(100_000):
        now = index * 0.01
        state = record(state, hello(f"n{index}", index + 1), now)
        incarnation = state.next_incarnation - 1
        ended = index % 3
        if ended == 0:  # says goodbye
            bye = Said(conn=index + 1, name=f"n{index}", incarnation=incarnation, message=Goodbye(reason="bye"))
            state = record(state, bye, now)
        if ended != 2:  # else it is silent, and its stream half open
            state = record(state, StreamEnded(conn=index + 1), now)
        state, _ = decide(state, now)
        due = wake_at(state, now)
        if due is not None and due <= now + 0.01:
            state, _ = decide(record(state, Tick(), due), due)
        if index in (1_000, 99_999):
            sizes.append(len(repr(state)))
    assert sizes[1] < sizes[0] * 1.2 + 1000
