"""A rank ends itself with SIGKILL at a named moment: the others lose nothing, and the group comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.cluster import Cluster
from e2e.conftest import Reference

PHASES = ("forward", "backward", "bucket", "gradients", "roll_call", "voted", "apply", "applied")
CASES = [(3, 1, phase) for phase in PHASES]
CASES += [(2, 2, phase) for phase in ("backward", "bucket", "roll_call", "voted", "apply")]
CASES += [(2, 1, "bucket"), (3, 2, "voted")]


@pytest.mark.parametrize(("groups", "shards", "phase"), CASES)
def test_a_rank_dies(
    cluster: Callable[..., Cluster], undisturbed: Reference, groups: int, shards: int, phase: str
) -> None:
    run = cluster("--groups-wanted", str(groups))
    run.lighthouse()
    flags = ["--delay-s", "0.02", "--die", f"{phase}@3", "--die-group", "g1", "--die-shard", str(shards - 1)]
    for i in range(groups):
        run.group(f"g{i}", *flags, *(["--fsdp"] if shards > 1 else []), shards=shards)
    run.until(lambda: "signal 9" in run.log("g1"), "g1 has died")
    run.until_contributing("g1", 2)
    run.finish(undisturbed)
