"""Agents, ranks and the lighthouse come and go: by signals from outside, as in life."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from e2e.cluster import Cluster, alive
from e2e.conftest import Reference

DELAY = ("--delay-s", "0.06")
"""Of a slot. Steps cost a machine with few cores as much as starting does, and there is little to learn from more."""


def three(run: Cluster, shards: int = 1) -> None:
    """Three groups that train."""
    run.lighthouse()
    for name in ("g0", "g1", "g2"):
        run.group(name, *DELAY, shards=shards)
    run.until_contributing("g0")


def test_a_group_leaves_as_one(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    run = cluster("--groups-wanted", "2")
    run.lighthouse()
    for name in ("g0", "g1"):
        run.group(name, *DELAY, "--fsdp", shards=2)
    run.until_contributing("g0")
    before = run.rank_pids("g1")
    run.kill_rank("g1", 1)
    run.until(lambda: not any(alive(pid) for pid in before.values()), "both ranks of g1 are gone", 10.0)
    run.until_contributing("g1", 2)
    assert run.lives("g0") == 1
    run.finish(undisturbed)


@pytest.mark.parametrize("with_a_death", [False, True])
def test_the_lighthouse_is_away(cluster: Callable[..., Cluster], undisturbed: Reference, with_a_death: bool) -> None:
    run = cluster("--groups-wanted", "3")
    three(run)
    numbers = [run.known().number]
    run.kill("lighthouse")
    run.wait_exit("lighthouse")
    seen = run.committed("g0")
    run.until(lambda: run.committed("g0") >= seen + 20, "steps are committed without a lighthouse")
    if with_a_death:
        run.kill_rank("g1")
        run.until(lambda: run.lives("g1", ended=True) == 1, "the agent of g1 knows")
    run.lighthouse()
    seen = run.committed("g0")
    run.until(lambda: run.committed("g0") >= seen + 5, "training goes on")
    if with_a_death:
        run.until_contributing("g1", 2)
    numbers.append(run.known().number)
    assert numbers == sorted(numbers)
    assert run.generations("g0") == sorted(run.generations("g0"))
    assert run.lives("g0") == run.lives("g2") == 1
    run.finish(undisturbed)


def test_drain(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    run = cluster("--groups-wanted", "3")
    three(run)
    run.kill("g1", signal.SIGTERM)
    assert run.wait_exit("g1") == 0, run.logs()
    last = max(line["step"] for line in run.ledger("g1") if line["event"] == "commit")
    seen = run.committed("g0")
    run.until(lambda: run.committed("g0") >= seen + 5, "the others go on")
    # The leaver's last step is everybody's, and nobody computed a slot of it, or of the next, twice.
    assert any(line["event"] == "commit" and line["step"] == last for line in run.ledger("g0"))
    for name in ("g0", "g2"):
        assert run.recomputed(name) == [], run.logs()
    assert len(run.generations("g0")) == 2
    run.finish(undisturbed, ("g0", "g2"))


def test_all_drain(cluster: Callable[..., Cluster]) -> None:
    run = cluster("--groups-wanted", "3")
    three(run)
    for name in ("g0", "g1", "g2"):
        run.kill(name, signal.SIGTERM)
    for name in ("g0", "g1", "g2"):
        assert run.wait_exit(name) == 0, run.logs()


def test_an_agent_is_killed(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    run = cluster("--groups-wanted", "3")
    three(run, shards=2)
    before = run.rank_pids("g1")
    run.kill("g1")
    run.group("g1", *DELAY, shards=2, key="g1 again")
    run.until(lambda: not any(alive(pid) for pid in before.values()), "the ranks of g1 are gone", 10.0)
    assert "welcome" not in run.log("g1 again")
    run.until(lambda: "welcome" in run.log("g1 again"), "the new agent of g1 is welcome")
    run.until(lambda: "entered" in run.log("g1 again"), "g1 is a member again")
    run.finish(undisturbed, ("g0", "g1 again", "g2"))


def test_a_name_is_started_twice(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    run = cluster("--groups-wanted", "3")
    three(run)
    run.group("g1", *DELAY, key="g1 again")
    assert run.wait_exit("g1") == 3, run.logs()
    assert "g1" in run.log("g1") and ("newer" in run.log("g1") or "another" in run.log("g1")), run.log("g1")
    run.until(lambda: "entered" in run.log("g1 again"), "the newer g1 is a member")
    run.finish(undisturbed, ("g0", "g1 again", "g2"))


def test_all_live_weights_are_gone(cluster: Callable[..., Cluster]) -> None:
    run = cluster("--groups-wanted", "2")
    run.lighthouse()
    for name in ("g0", "g1"):
        run.group(name, *DELAY)
    run.until_contributing("g0")
    run.kill_rank("g0")
    run.kill_rank("g1")
    for name in ("g0", "g1"):
        assert run.wait_exit(name) == 1
        assert "live weights are gone" in run.log(name)


def test_too_few_hold_and_heal_in_the_hold(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    """Two groups, both needed: one dies, the other holds; the dead one heals from the base that it holds."""
    run = cluster("--groups-wanted", "2", "--min-groups", "2")
    run.lighthouse()
    for name in ("g0", "g1"):
        run.group(name, *DELAY, shards=2)
    run.until_contributing("g0")
    run.kill_rank("g1", 1)
    run.until(lambda: "1 of min_groups 2" in run.log("g0"), "the run holds, and says why")
    run.until_contributing("g1", 2)
    assert run.lives("g0") == 1
    run.finish(undisturbed)


@pytest.mark.timeout(300)
def test_a_rank_hangs(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    """It lives, and its agent beats; the others wait for it in vain, until it is evicted and started anew."""
    run = cluster("--groups-wanted", "3", "--stall-patience-s", "6", "--connect-s", "30")
    three(run)
    hung = run.rank_pids("g1")[0]
    run.kill_rank("g1", number=signal.SIGSTOP)
    run.until(lambda: not alive(hung), "the rank that hangs is ended", 30.0)
    run.until_contributing("g1", 2)
    assert "stalled" in run.log("g1")
    assert run.lives("g0") == run.lives("g2") == 1
    assert run.recomputed("g0") == run.recomputed("g2") == []
    run.finish(undisturbed)
