"""A model of several FSDP groups with frozen, tied, seldom used and never used parameters loses a group, and heals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from e2e.cluster import Cluster, check_consumed
from e2e.conftest import TOGETHER
from e2e.test_rank_library import undisturbed
from e2e.zoo_job import SLOTS

JOB = Path(__file__).parent / "zoo_job.py"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent), prepend=":")
    one = Cluster(tmp_path / "run", "--lease-s", "5", *TOGETHER, "--groups-wanted", "2", job=JOB)
    yield one
    one.close()


def test_a_zoo_of_parameters_loses_a_group_and_heals(run: Cluster) -> None:
    """Two groups of two shards. Layers are used by some slots only, and by no slot of some steps.

    A group that decided otherwise about a gradient that is not there would step, decay or reduce otherwise.
    """
    run.lighthouse()
    for name in ("g0", "g1"):
        run.group(name, "--delay-s", "0.1", shards=2)
    run.until_contributing("g1")
    run.kill_rank("g1", shard=1)
    run.until_contributing("g1", 2)
    (run.out / "enough").touch()
    for name in ("g0", "g1"):
        assert run.wait_exit(name) == 0, run.logs()
    assert "load" in [line["event"] for line in run.ledger("g1")], "it was healed"
    steps = check_consumed({name: run.ledger(name) for name in ("g0", "g1")})
    wanted = undisturbed(shards=2, steps=steps, slots=SLOTS)
    with numpy.load(run.out / "g0.npz") as one, numpy.load(run.out / "g1.npz") as other:
        for i, values in enumerate(wanted):
            numpy.testing.assert_array_equal(one[f"arr_{i}"], other[f"arr_{i}"])
            numpy.testing.assert_allclose(one[f"arr_{i}"], values, rtol=1e-9, atol=1e-11)
    assert not run.recomputed("g0")
