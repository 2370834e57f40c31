"""A rank ends itself with SIGKILL at a named moment: the others lose nothing, and the group comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.cluster import Cluster
from e2e.conftest import Reference

PHASES = ("forward", "backward", "bucket", "gradients", "roll_call", "voted", "apply", "applied")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("groups", "shards"), [(3, 1), (2, 2)])
def test_a_rank_dies(
    cluster: Callable[..., Cluster], undisturbed: Reference, phase: str, groups: int, shards: int
) -> None:
    run = cluster("--groups-wanted", str(groups))
    run.lighthouse()
    flags = ["--delay-s", "0.02", "--die", f"{phase}@3", "--die-group", "g1", "--die-shard", str(shards - 1)]
    for i in range(groups):
        run.group(f"g{i}", *flags, *(["--fsdp"] if shards > 1 else []), shards=shards)
    run.until(lambda: "signal 9" in run.log("g1"), "g1 has died")
    run.until_contributing("g1", 2)
    run.finish(undisturbed)
