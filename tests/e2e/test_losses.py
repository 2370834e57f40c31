"""Several groups are lost at once, or one after the other while the step of the first is still being finished.

Whoever is left finishes that very step: keeps what it has summed, and computes what the lost ones were dealt, once.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e.cluster import SLOTS, Cluster
from e2e.conftest import Reference

GROUPS = ("g0", "g1", "g2", "g3")
pytestmark = pytest.mark.timeout(600)


def four(cluster: Callable[..., Cluster], *job: str, delay_s: float = 0.15) -> Cluster:
    """Four groups that train; a slot takes a while, so that what is killed is killed amid a step."""
    run = cluster("--groups-wanted", "4")
    run.lighthouse()
    for name in GROUPS:
        run.group(name, "--delay-s", str(delay_s), *job)
    for name in GROUPS:
        run.until_contributing(name)
    return run


def check_nothing_twice(run: Cluster, *survivors: str) -> None:
    """No survivor computed a slot twice, and in each step that was finished by fewer they computed what was missing.

    That is: of the first step of a generation, each slot was computed by exactly one of its members that lived.
    """
    for name in survivors:
        assert run.recomputed(name) == [], run.logs()
    for enter in [line for line in run.ledger(survivors[0]) if line["event"] == "enter"][1:]:
        step = (enter["step"], enter["generation"])
        committed = [name for name in GROUPS if any(made(x, *step) for x in run.ledger(name))]
        begun = Counter(
            x["slot"]
            for name in committed
            for x in run.ledger(name)
            if x["event"] == "slot" and x["mark"] == "begun" and x["step"] == enter["step"]
        )
        if committed:  # else it was broken off as well
            assert begun == Counter(range(SLOTS)), f"{step}: slots computed by {committed}: {begun}"


def made(line: dict[str, Any], step: int, generation: int) -> bool:
    """Whether a ledger's line is the commit of the step after `step`, in that generation."""
    return line["event"] == "commit" and (line["from_step"], line["generation"]) == (step, generation)


def kill(run: Cluster, *names: str) -> None:
    """SIGKILL to a rank of each, as close together as can be."""
    for pid in [run.rank_pids(name)[0] for name in names]:
        os.kill(pid, signal.SIGKILL)


def test_two_are_lost_in_one_step(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    run = four(cluster)
    kill(run, "g1", "g3")
    for name in ("g1", "g3"):
        run.until_contributing(name, 2)
    check_nothing_twice(run, "g0", "g2")
    assert run.lives("g0") == run.lives("g2") == 1
    run.finish(undisturbed)


def test_one_is_lost_while_the_step_of_another_is_taken_over(
    cluster: Callable[..., Cluster], undisturbed: Reference, tmp_path: Path
) -> None:
    """g3 waits before its reduce, so that the step cannot end before the second death."""
    gate = tmp_path / "gate"
    wait = ("--wait-at", "gradients@8", "--wait-group", "g3", "--wait-file", str(gate))
    run = four(cluster, *wait, "--die", "gradients@8", "--die-group", "g1", delay_s=0.05)
    run.until(lambda: len(run.generations("g0")) == 2 and gate.exists(), "g0 takes over, and g3 waits")
    run.kill_rank("g2")
    run.until(lambda: len(run.generations("g0")) == 3, "g0 takes over from g2 as well")
    gate.unlink()
    for name in ("g1", "g2"):
        run.until_contributing(name, 2)
    enters = [line for line in run.ledger("g0") if line["event"] == "enter"]
    assert enters[1]["step"] == enters[2]["step"] == 8, "the second was lost in the very step of the first"
    check_nothing_twice(run, "g0", "g3")
    run.finish(undisturbed)


def test_all_but_one_are_lost(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    run = four(cluster)
    before = run.rank_pids("g2")
    kill(run, "g0", "g1", "g3")
    for name in ("g0", "g1", "g3"):
        run.until_contributing(name, 2)
    check_nothing_twice(run, "g2")
    assert run.rank_pids("g2") == before
    run.finish(undisturbed)


def test_a_stopped_host_is_lost_and_comes_back(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    """It stands still for longer than its lease; when it goes on, it is as it was, and follows by entries."""
    run = four(cluster, delay_s=0.05)
    pids = [run.pid("g1"), *run.rank_pids("g1").values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    before = run.generations("g0")
    run.until(lambda: run.generations("g0") > before, "the others go on without it")
    seen = run.committed("g0")
    run.until(lambda: run.committed("g0") >= seen + 20, "they train")
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    run.until(lambda: "apply" in [line["event"] for line in run.ledger("g1")], "g1 follows")

    def contributed() -> int:
        events = run.ledger("g1")
        first = [line["event"] for line in events].index("apply")
        return sum(bool(line.get("slots")) for line in events[first:])

    run.until(lambda: contributed() >= 3, "g1 contributes again")
    assert [run.pid("g1"), *run.rank_pids("g1").values()] == pids and run.lives("g1") == 1
    assert not [line for line in run.ledger("g1") if line["event"] == "load"]
    check_nothing_twice(run, "g0", "g2", "g3")
    assert run.recomputed("g1") == []
    run.finish(undisturbed)
