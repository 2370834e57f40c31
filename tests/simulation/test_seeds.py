"""Worlds from seeds, each attacked for a while: every promise holds at every event, and all recover and finish.

Set BELLROCK_SEEDS="first:count" for other seeds than the 500 of a normal run.
"""

from __future__ import annotations

import os

import pytest

from simulation.seeds import replay_command, run_seed, run_seeds

FOUND = (
    *(1330, 1729, 2256, 2550, 3075, 4106, 5058, 5108, 6379, 7448, 8184),
    *(10262, 11373, 12560, 12637, 12893, 15260, 16897, 17929, 18356, 19199),
)
"""Seeds of the first 20,000 that showed what was wrong once."""


@pytest.mark.slow
def test_all_promises_hold_in_seeds_that_broke_one() -> None:
    for seed in FOUND:
        run_seed(seed)


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


def test_a_seed_always_tells_the_same_story() -> None:
    one, two = run_seed(3), run_seed(3)
    assert one.watch.times == two.watch.times
    assert list(one.watch.notes) == list(two.watch.notes)
    assert [turn for life in one.lives for turn in life.turns] == [turn for life in two.lives for turn in life.turns]
