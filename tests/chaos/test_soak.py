"""Three minutes of the soak: `make chaos` runs an hour of it. BELLROCK_SOAK=SEED tries another seed, 0 any."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from chaos.schedule import GUEST, LIGHTHOUSE, schedule
from chaos.soak import soak

SEED = 2
"""Of the schedule: the same in every run of the tests, so that what fails in one can be tried again."""


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_outlives_everything(tmp_path: Path) -> None:
    """The seed and the schedule are printed if something fails. With beginning and end it takes three minutes."""
    seed = int(os.environ.get("BELLROCK_SOAK", SEED)) or int(time.time())
    assert soak(tmp_path / "run", seed=seed, minutes=2.5, shards=1 + seed % 2) > 0


def test_a_seed_fixes_the_schedule() -> None:
    def drawn(seed: int, batches: int) -> list[str]:
        return [str(batch) for batch in schedule(seed, batches=batches, groups=4, shards=2, lease_s=4.0)]

    assert drawn(7, 200) == drawn(7, 200) != drawn(8, 200)
    assert drawn(7, 200)[:50] == drawn(7, 50)


def test_a_schedule_does_everything_and_spares_a_keeper() -> None:
    batches = schedule(1, batches=500, groups=4, shards=2, lease_s=4.0)
    acts = [act for batch in batches for act in batch.acts]
    assert {act.kind for act in acts} == {
        *("kill_rank", "kill_agent", "stop_rank", "stop_agent", "stop_host", "drain", "guest"),
        *("kill_lighthouse", "stop_lighthouse"),
    }
    assert {act.target for act in acts} == {"g0", "g1", "g2", "g3", GUEST, LIGHTHOUSE}
    for batch in batches:
        targets = [act.target for act in batch.acts]
        assert batch.keeper not in targets and len(set(targets)) == len(targets)
    assert any(len(batch.acts) > 1 for batch in batches)
