"""A rank ends itself with SIGKILL at a named moment: the others lose nothing, and the group comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from e2e.cluster import Cluster
from e2e.conftest import TOGETHER, Reference

PHASES = ("forward", "backward", "bucket", "gradients", "roll_call", "voted", "apply", "applied")
SHARDED = ("backward", "bucket", "roll_call", "voted", "apply")
DELAY = ("--delay-s", "0.15")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def trains(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, undisturbed: Reference
) -> Iterator[Cluster]:
    """A run of so many groups with so many shards each, in which a rank dies again and again."""
    groups, shards = request.param
    run = Cluster(tmp_path_factory.mktemp("kills") / "run", "--lease-s", "5", *TOGETHER, "--groups-wanted", str(groups))
    try:
        begin(run, groups, shards)
        yield run
        assert all(run.lives(f"g{i}") == 1 for i in range(groups) if i != 1), "nobody else died of it"
        run.finish(undisturbed)
    finally:
        run.close()


def begin(run: Cluster, groups: int, shards: int, *flags: str) -> None:
    """Starts the lighthouse and the groups."""
    run.lighthouse()
    for i in range(groups):
        run.group(f"g{i}", *DELAY, *flags, *(["--fsdp"] if shards > 1 else []), shards=shards)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("trains", [(3, 1)], indirect=True, ids=["3-1"])
def test_a_rank_dies(trains: Cluster, phase: str) -> None:
    dies_and_is_back(trains, 3, 1, phase)


@pytest.mark.parametrize("phase", SHARDED)
@pytest.mark.parametrize("trains", [(2, 2)], indirect=True, ids=["2-2"])
def test_a_rank_of_two_shards_dies(trains: Cluster, phase: str) -> None:
    dies_and_is_back(trains, 2, 2, phase)


def dies_and_is_back(run: Cluster, groups: int, shards: int, phase: str) -> None:
    """The last shard of g1, which has contributed to some steps in that life, dies; g1 is back and contributes."""
    life = run.lives("g1")
    run.until_contributing("g1", life)
    (run.out / "told").write_text(phase)
    (run.out / "told").rename(run.out / f"die-g1.{shards - 1}")
    run.until(lambda: run.lives("g1") > life, "g1 is lost")
    run.until_contributing("g1", life + 1)
    assert f"rank {shards - 1}: signal 9" in run.log("g1").rpartition("group_lost")[2].splitlines()[0]
    assert not any(run.recomputed(f"g{i}") for i in range(groups))


@pytest.mark.parametrize(("groups", "shards", "phase"), [(2, 1, "bucket"), (3, 2, "voted")])
def test_a_rank_dies_in_one_of_its_first_steps(
    cluster: Callable[..., Cluster], undisturbed: Reference, groups: int, shards: int, phase: str
) -> None:
    run = cluster("--groups-wanted", str(groups))
    begin(run, groups, shards, "--die", f"{phase}@3", "--die-group", "g1", "--die-shard", str(shards - 1))
    run.until(lambda: "signal 9" in run.log("g1"), "g1 has died", 120.0)
    run.until_contributing("g1", 2)
    run.finish(undisturbed)
