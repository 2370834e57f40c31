"""What can go wrong while a group heals, with real processes: the healthy go on while the heal is stuck, and the joiner
gets there by another way, or gives up alone and says why.

Corrupted chunks, wrong versions, other shapes, and peers that send or read a byte now and then are tested on the same
sockets in tests/unit/test_transfer.py.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.conftest import Reference

from lighthouse.client import status_now

GROUPS = ("g0", "g1", "g2")
SLOW = ("--delay-s", "0.1")  # so that a run of the reference's length outlives what is waited for on a busy machine
Make = Callable[..., Cluster]

pytestmark = pytest.mark.timeout(600)


def running(cluster: Make, *flags: str, groups: tuple[str, ...] = GROUPS) -> Cluster:
    """A run whose groups have made some steps together."""
    run = cluster("--groups-wanted", str(len(groups)), *flags)
    run.lighthouse()
    for name in groups:
        run.group(name, *SLOW)
    for name in groups:
        run.until_contributing(name)
    return run


def stuck(run: Cluster, *flags: str) -> Path:
    """j joins, and stands still amid its load until the file is gone."""
    wait = run.folder / "amid"
    run.group("j", *SLOW, "--wait-loading", str(wait), *flags)
    run.until(wait.exists, "j is amid its load", 120.0)
    return wait


def goes_on(run: Cluster, name: str, steps: int = 5) -> None:
    """The group commits steps, now."""
    before = run.committed(name)
    run.until(lambda: run.committed(name) >= before + steps, f"{name} goes on", 120.0)


def present(run: Cluster) -> set[str]:
    """Groups that the lighthouse hears."""
    status = run.status()
    return {group.name for group in status.groups if group.state != "lost"} if status is not None else set()


def heals(run: Cluster, name: str = "j") -> list[int]:
    """The heals by which the group loaded."""
    return [line["heal"] for line in run.ledger(name) if line["event"] == "load"]


def test_one_of_three_donors_dies_and_the_joiner_does_not_notice(cluster: Make, undisturbed: Reference) -> None:
    run = running(cluster)
    wait = stuck(run)
    goes_on(run, "g1")
    assert "from g0 g1 g2" in detail(run) or "loads" in detail(run)
    run.kill_rank("g0")
    goes_on(run, "g1")
    wait.unlink()
    run.until_contributing("j")
    assert run.lives("j") == 1 and len(heals(run)) == 1 and "heal_failed" not in run.log("j")
    run.until_contributing("g0", 2)
    run.finish(undisturbed)


def detail(run: Cluster) -> str:
    """What `bellrock status` says of j."""
    status = status_now(run.address, token=run.token_file.read_text().strip(), run_id="e2e", timeout_s=20.0)
    return next(group.detail for group in status.groups if group.name == "j")


def test_a_donor_is_drained(cluster: Make, undisturbed: Reference) -> None:
    run = running(cluster)
    wait = stuck(run)
    run.kill("g0", signal.SIGTERM)
    assert run.wait_exit("g0") == 0
    goes_on(run, "g1")
    wait.unlink()
    run.until_contributing("j")
    assert len(heals(run)) == 1
    run.finish(undisturbed, ("g1", "g2", "j"))


def test_a_donor_stands_still(cluster: Make, undisturbed: Reference) -> None:
    """Its host is lost to the run after the stall patience; the joiner has what it held from the others."""
    run = running(cluster, "--stall-patience-s", "12")
    wait = stuck(run)
    pid = run.rank_pids("g0")[0]
    run.kill_rank("g0", number=signal.SIGSTOP)
    run.until(lambda: run.rank_pids("g0").get(0, pid) != pid, "g0 is put out and started again", 120.0)
    goes_on(run, "g1")
    wait.unlink()
    run.until_contributing("j")
    run.until_contributing("g0", 2)
    run.finish(undisturbed)


def test_a_joiner_stands_still(cluster: Make, undisturbed: Reference) -> None:
    run = running(cluster, groups=("g0", "g1"))
    wait = stuck(run)
    run.kill_rank("j", number=signal.SIGSTOP)
    wait.unlink()
    goes_on(run, "g0", 10)
    run.kill_rank("j", number=signal.SIGCONT)
    run.until_contributing("j")
    assert run.lives("g0") == run.lives("g1") == 1
    run.finish(undisturbed)


def test_a_joiner_that_falls_behind_the_log_starts_over(cluster: Make, undisturbed: Reference) -> None:
    run = cluster("--groups-wanted", "2")
    run.lighthouse()
    log = ("--log-bytes", "60000")  # some ten steps
    for name in ("g0", "g1"):
        run.group(name, *SLOW, *log)
    run.until_contributing("g0")
    wait = stuck(run, *log)
    goes_on(run, "g0", 30)
    wait.unlink()
    run.until_contributing("j")
    assert run.lives("j") == 1 and len(heals(run)) == 2
    assert run.lives("g0") == run.lives("g1") == 1
    run.finish(undisturbed)


def test_a_joiner_has_too_little_memory_the_first_time(cluster: Make, undisturbed: Reference) -> None:
    run = running(cluster, groups=("g0", "g1"))
    run.group("j", *SLOW, "--spare-mb", "1")
    run.until(lambda: run.lives("j") > 1, "j dies of it", 120.0)
    goes_on(run, "g0")
    run.until_contributing("j", 2)
    assert run.lives("g0") == run.lives("g1") == 1
    run.finish(undisturbed)


def test_a_joiner_that_dies_again_and_again_is_held_off_and_gives_up_alone(
    cluster: Make, undisturbed: Reference
) -> None:
    run = running(cluster, groups=("g0", "g1"))
    run.group("j", *SLOW, "--die", "loading@0", "--die-group", "j", "--die-always")
    assert run.wait_exit("j", 240.0) != 0
    log = run.log("j")
    assert log.count("group_lost") == 3 and "pause_s=1.0" in log and "pause_s=2.0" in log, log
    goes_on(run, "g0")
    assert run.lives("g0") == run.lives("g1") == 1
    run.finish(undisturbed, ("g0", "g1"))


def test_the_lighthouse_is_started_again_amid_a_load(cluster: Make, undisturbed: Reference) -> None:
    run = running(cluster, groups=("g0", "g1"))
    wait = stuck(run)
    run.kill("lighthouse")
    run.wait_exit("lighthouse")
    goes_on(run, "g0")
    run.lighthouse()
    run.until(lambda: "j" in present(run), "j is back")
    wait.unlink()
    run.until_contributing("j")
    assert len(heals(run)) == 1, "it goes on with the heal that it is in"
    run.finish(undisturbed)


def test_a_member_that_is_no_donor_dies_amid_a_load(cluster: Make, undisturbed: Reference) -> None:
    """Takeover and heal at once: each does not know of the other."""
    run = running(cluster, "--donors", "1")
    wait = stuck(run)
    run.kill_rank("g2")
    goes_on(run, "g0")
    wait.unlink()
    run.until_contributing("j")
    run.until_contributing("g2", 2)
    assert len(heals(run)) == 1 and not run.recomputed("g0")
    run.finish(undisturbed)


def test_a_run_below_min_groups_waits_for_a_joiner_that_heals_meanwhile(cluster: Make, undisturbed: Reference) -> None:
    run = running(cluster, "--min-groups", "2", groups=("g0", "g1"))
    run.kill_rank("g1")
    run.until(lambda: len(heals(run, "g1")) == 1, "g1 heals while the run holds", 120.0)
    run.until_contributing("g1", 2)
    assert not run.recomputed("g0")
    run.finish(undisturbed)


def test_a_run_that_replays_nothing_pauses_for_a_joiner(cluster: Make, undisturbed: Reference) -> None:
    run = cluster("--groups-wanted", "2")
    run.lighthouse()
    for name in ("g0", "g1"):
        run.group(name, *SLOW, "--heal", "pause")
    run.until_contributing("g0")
    run.group("j", *SLOW, "--heal", "pause")
    run.until_contributing("j")
    run.kill_rank("g0")
    run.until_contributing("g0", 2)
    assert not any(line["event"] == "apply" for name in ("g0", "g1", "j") for line in run.ledger(name))
    assert not run.recomputed("g1") and not run.recomputed("j")
    run.finish(undisturbed)


@pytest.mark.parametrize("joiners", [2])
def test_joiners_come_together(cluster: Make, undisturbed: Reference, joiners: int) -> None:
    run = running(cluster)
    names = [f"j{i}" for i in range(joiners)]
    for name in names:
        run.group(name, *SLOW)
    for name in names:
        run.until_contributing(name)
        assert len(heals(run, name)) == 1
    run.finish(undisturbed)
