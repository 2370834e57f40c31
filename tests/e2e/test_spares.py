"""Groups beyond `--contributors`: kept current by the same reductions, dealt nothing, there in the step of a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from e2e.cluster import Cluster
from e2e.conftest import Reference

DELAY = ("--delay-s", "0.1")


def begun(run: Cluster, name: str, step: int) -> list[int]:
    """Slots of a step whose forward pass the group has begun, over all its lives and shards, in order."""
    lines = [line for line in run.ledger(name) if line["event"] == "slot" and line["mark"] == "begun"]
    return sorted(line["slot"] for line in lines if line["step"] == step and line["shard_rank"] == 0)


def committed(run: Cluster, name: str) -> dict[int, Any]:
    """The group's commits, by the step that they made."""
    return {line["step"]: line for line in run.ledger(name) if line["event"] == "commit"}


def test_a_spare_takes_over_in_the_step_of_the_loss(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    """g2 is the spare. g0 dies in the middle of its slots of step 6; it comes back as the spare."""
    run = cluster("--groups-wanted", "3", "--contributors", "2")
    run.lighthouse()
    die = ("--die", "backward@6", "--die-group", "g0")
    for name in ("g0", "g1", "g2"):
        run.group(name, *DELAY, *die)
    run.until_contributing("g2")
    run.until(lambda: "load" in [line["event"] for line in run.ledger("g0")], "g0 heals")
    run.until(lambda: roles(run).get("g0") == "spare", "g0 is back as the spare")
    at = run.committed("g1")
    run.until(lambda: run.committed("g0") > 3 and run.committed("g1") >= at + 5, "the three go on")
    assert roles(run) == {"g0": "spare", "g1": "contributor", "g2": "contributor"}
    run.finish(undisturbed)

    lost = [0, 1, 2]  # the even deal of the first contributor
    two = committed(run, "g2")
    assert all(two[step]["slots"] == [] for step in range(1, 7)), "a spare is dealt nothing"
    assert begun(run, "g2", 6) == lost == two[7]["slots"], "it computed what was lost, and nothing else"
    assert begun(run, "g1", 6) == [3, 4, 5] == committed(run, "g1")[7]["slots"], "the survivor computed its own alone"
    assert two[8]["slots"] == [3, 4, 5] and committed(run, "g1")[8]["slots"] == lost, "a contributor from then on"
    for step, line in committed(run, "g0").items():
        assert step < 7 or line["slots"] == [], "the one that came back is the spare"
    assert not run.recomputed("g1") and not run.recomputed("g2")


def roles(run: Cluster) -> dict[str, str]:
    """How each group stands, as the lighthouse sees it."""
    return {group.name: group.state for group in run.known().groups}
