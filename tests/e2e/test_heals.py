"""Deaths while a group heals or a communicator opens: nobody else is held up, and the group gets there in the end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.cluster import Cluster
from e2e.conftest import Reference


@pytest.mark.parametrize("phase", ["load", "apply", "open"])
def test_a_joiner_dies_while_it_heals(cluster: Callable[..., Cluster], undisturbed: Reference, phase: str) -> None:
    run = cluster("--groups-wanted", "2")
    run.lighthouse()
    for name in ("g0", "g1"):
        run.group(name, "--delay-s", "0.1", shards=2)
    run.until_contributing("g0")
    run.group("g2", "--delay-s", "0.1", "--die", f"{phase}@0", "--die-group", "g2", "--die-shard", "1", shards=2)
    run.until_contributing("g2", 2)
    assert run.lives("g0") == run.lives("g1") == 1
    run.finish(undisturbed)


def test_a_donor_dies_while_it_is_healed_from(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    run = cluster("--groups-wanted", "2")
    run.lighthouse()
    for name in ("g0", "g1"):
        run.group(name, "--delay-s", "0.1", shards=1)
    run.until_contributing("g0")
    run.group("g2", "--delay-s", "0.1", "--wait-at-load", str(run.folder / "loading"))
    run.until(lambda: (run.folder / "loading").exists(), "g2 is about to load")
    run.kill_rank("g0")  # the donor with the fewest joiners, first by name
    (run.folder / "loading").unlink()
    run.until_contributing("g0", 2)
    run.until_contributing("g2")
    run.finish(undisturbed)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_member_dies_while_a_communicator_opens(
    cluster: Callable[..., Cluster], undisturbed: Reference, shards: int
) -> None:
    """One death makes the survivors open a generation; the next rank dies right there."""
    run = cluster("--groups-wanted", "3")
    run.lighthouse()
    die = ("--die", "open@5", "--die-group", "g1", "--die-shard", str(shards - 1))
    for name in ("g0", "g1", "g2"):
        run.group(name, "--delay-s", "0.1", *die, shards=shards)
    run.until_contributing("g1", 2)
    run.kill_rank("g2", shards - 1)
    run.until_contributing("g2", 2)
    run.finish(undisturbed)
