"""Worlds from seeds, each attacked for a while: every promise holds at every event, and all recover and finish.

Set BELLROCK_SEEDS="first:count" for other seeds than the 500 of a normal run.
"""

from __future__ import annotations

import os

import pytest

from simulation.seeds import replay_command, run_seed, run_seeds
from simulation.world import Spec, World


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_promises_hold_in_every_seed() -> None:
    first, count = (int(n) for n in os.environ.get("BELLROCK_SEEDS", "0:500").split(":"))
    failures, counts = run_seeds(range(first, first + count), jobs=min(2, os.cpu_count() or 1))
    told = "\n".join(f"seed {seed}: {what}\n    {replay_command(seed)}" for seed, what in sorted(failures.items()))
    assert not failures, f"{len(failures)} of {count} seeds broke a promise:\n{told}"
    # A run of seeds in which nothing happens proves nothing.
    for kind in ("formed", "switched", "heal", "died", "lost", "drain", "hold", "heal_failed", "finished"):
        assert counts[kind] > count // 50, f"{kind} happened only {counts[kind]} times"


def test_who_is_started_after_a_person_wanted_the_run_to_stop_is_asked_too() -> None:
    world = World(1, Spec(groups=2, slot_s=0.3))
    world.run(1.0)
    world.watch.stop_asked = True
    for group in world.groups.values():
        group.rank_dies(group.ranks[0], -9, "")
    world.run(1.0)
    assert all(rank.alive and rank.wants_stop for group in world.groups.values() for rank in group.ranks)


def test_a_seed_always_tells_the_same_story() -> None:
    one, two = run_seed(3), run_seed(3)
    assert one.watch.times == two.watch.times
    assert list(one.watch.notes) == list(two.watch.notes)
    assert [turn for life in one.lives for turn in life.turns] == [turn for life in two.lives for turn in life.turns]
