"""Ranks that are killed begin again in standbys; whatever is killed, nobody else notices, and nothing is left."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from e2e.cluster import Cluster, alive, processes_of
from e2e.conftest import Reference

pytestmark = pytest.mark.timeout(400)
READY_S = 180.0
WARM = ("--standby", "warm")
JOB = ("--delay-s", "0.1")


def ready(run: Cluster, name: str, count: int) -> None:
    """Waits until `count` standbys of the group have become ready, over all its lives."""
    run.until(lambda: run.log(name).count("standby_ready") >= count, f"{name} has standbys", READY_S)


def test_killed_ranks_begin_again_in_their_standbys(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    run = cluster("--groups-wanted", "2")
    run.lighthouse()
    run.group("g0", *JOB, "--fsdp", shards=2)
    run.group("g1", *JOB, "--fsdp", shards=2, flags=WARM)
    ready(run, "g1", 2)
    standbys = run.rank_pids("g1", standby=True)
    run.kill_rank("g1", 1)
    run.until_contributing("g1", 2)
    assert run.rank_pids("g1") == standbys
    assert run.lives("g0") == 1
    cold, warm = (line for line in run.ledger("g1") if line["event"] == "split")
    assert (cold["warm"], warm["warm"]) == (0, 1) and cold["import_s"] > warm["import_s"]
    detail = next(group.detail for group in run.known().groups if group.name == "g1")
    assert "after its warm start: start " in detail
    ready(run, "g1", 4)
    assert not set(run.rank_pids("g1", standby=True).values()) & set(standbys.values())
    run.finish(undisturbed)
    assert run.rank_pids("g1", standby=True) == {}


def test_a_killed_standby_is_nobodys_loss(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    run = cluster("--groups-wanted", "2")
    run.lighthouse()
    run.group("g0", *JOB)
    run.group("g1", *JOB, flags=WARM)
    ready(run, "g1", 1)
    run.kill(run.rank_pids("g1", standby=True)[0])
    ready(run, "g1", 2)
    assert 'standby_ended shard_rank=0 reason="signal 9"' in run.log("g1")
    # Both at once: the rank and its standby. It starts cold then.
    standby = run.rank_pids("g1", standby=True)[0]
    run.kill(standby)
    run.kill_rank("g1")
    run.until_contributing("g1", 2)
    assert run.rank_pids("g1")[0] != standby
    assert run.lives("g0") == 1 and run.lives("g1") == 2
    run.finish(undisturbed)


def test_standbys_end_with_their_agent(cluster: Callable[..., Cluster], undisturbed: Reference) -> None:
    run = cluster("--groups-wanted", "2")
    run.lighthouse()
    run.group("g0", *JOB)
    run.group("g1", *JOB, flags=WARM)
    ready(run, "g1", 1)
    standby = run.rank_pids("g1", standby=True)[0]
    run.kill(standby, signal.SIGSTOP)  # it must not need to do anything for it
    run.kill("g1")
    run.until(lambda: not alive(standby), "the standby is gone", 10.0)
    run.group("g1", *JOB, flags=WARM, key="g1 again")
    ready(run, "g1 again", 1)  # which is started only once the group contributes
    run.finish(undisturbed, ("g0", "g1 again"))
    run.until(lambda: processes_of(run.folder) == [run.pid("lighthouse")], "all are gone", 30.0)
