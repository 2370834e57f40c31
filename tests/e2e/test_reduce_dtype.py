"""Gradients added up in bf16: groups stay bit-equal through a kill and a heal, and learn what they learn in fp32."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from e2e.cluster import Cluster
from e2e.conftest import Reference

ENOUGH = 60
"""Steps. After 28 the loss of five steps together is once more above half of what it was at first."""


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_bit_equal_after_kill_and_heal(cluster: Callable[..., Cluster], undisturbed: Reference, dtype: str) -> None:
    run = cluster("--groups-wanted", "3")
    run.lighthouse()
    for name in ("g0", "g1", "g2"):
        run.group(name, "--delay-s", "0.03", "--reduce-dtype", dtype, shards=2 if dtype == "bf16" else 1)
    run.until_contributing("g1")
    run.kill_rank("g1")
    run.until_contributing("g1", 2)
    run.until(lambda: run.committed("g0") >= ENOUGH, "all has been learnt that is asked for below")
    # Eight bits of each step's gradient: weights are near those of the undisturbed run in fp32, not equal to them.
    rtol, atol = (1e-3, 1e-4) if dtype == "fp32" else (0.1, 0.02)
    run.finish(undisturbed, rtol=rtol, atol=atol)
    losses = [line["loss"] / line["tokens"] for line in run.ledger("g0") if line["event"] == "commit"]
    assert sum(losses[-5:]) < sum(losses[:5]) / 2


def test_groups_that_add_up_otherwise_are_refused(cluster: Callable[..., Cluster]) -> None:
    run = cluster()
    run.lighthouse()
    run.group("g0", "--delay-s", "0.03")
    run.until_contributing("g0")
    run.group("g1", "--reduce-dtype", "bf16")
    assert run.wait_exit("g1") == 2
    assert "reduce_dtype" in run.log("g1") and "bf16" in run.log("g1")
