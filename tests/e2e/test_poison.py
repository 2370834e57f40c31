"""HOLES L2: a slot that kills whoever computes it, with processes that it really kills."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.cluster import RUN, SLOTS, Cluster
from e2e.conftest import Reference, reference

GROUPS = ("g0", "g1", "g2", "g3")
STEP, SLOT = 30, 2
"""Slot 2 of step 30 is the one."""
POISON = (STEP - 1) * SLOTS + SLOT
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def without_it(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Weights after so many steps of a run of one group that passes over the samples of that slot."""
    return reference(tmp_path_factory.mktemp("without") / "it", "--leave-out", str(POISON))


@pytest.mark.parametrize("policy", ["hold", "skip"])
def test_a_slot_that_kills_whoever_computes_it(
    cluster: Callable[..., Cluster], without_it: Reference, policy: str
) -> None:
    run = cluster("--groups-wanted", "4", "--poison", policy)
    run.lighthouse()
    for name in GROUPS:
        run.group(name, "--delay-s", "0.04", "--poison-slot", str(POISON))
    if policy == "hold":
        run.until(lambda: f"slot {SLOT} of step {STEP} of run" in _hold(run), "the run holds for the slot")
        assert skip_slot(run.address, run.token_file).returncode == 0
    run.until(lambda: run.step() >= STEP + 3, "the run goes on")
    assert skip_slot(run.address, run.token_file).returncode == 1  # it does not hold
    dead = [name for name in GROUPS if run.lives(name) == 2]
    assert len(dead) == 2, run.logs()
    for name in dead:
        run.until_contributing(name, 2)
    steps = run.finish(without_it)
    lines = [line for name in GROUPS for line in run.ledger(name) if line.get("set_aside")]
    assert lines and all((line["step"], line["set_aside"]) == (STEP, [SLOT]) for line in lines)
    assert steps > STEP


def _hold(run: Cluster) -> str:
    status = run.status()
    return status.hold if status is not None else ""


def skip_slot(address: str, token_file: Path) -> subprocess.CompletedProcess[bytes]:
    """`bellrock skip-slot`, as a person types it."""
    flags = ["--lighthouse", address, "--run-id", RUN, "--token-file", str(token_file), "--by", "Ann"]
    return subprocess.run([sys.executable, "-P", "-m", "trainer.cli", "skip-slot", *flags], check=False, timeout=60)
