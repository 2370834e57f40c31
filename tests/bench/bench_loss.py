"""Measures what the loss of a group costs the others: PYTHONPATH=.:tests python tests/bench/bench_loss.py

Three groups of one rank train under the real command line, on loopback; a slot's compute is a sleep, as a GPU would
leave the CPU free. A group's rank is killed (SIGKILL) at a random moment of a step, or all of its host is stopped
(SIGSTOP), again and again; in between everybody comes back. Prints, over all losses, from the signal: until the last
survivor's rank had left the old communicator (all its collectives ended, sockets given back); until the next commit;
and how many slots survivors computed twice.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

from e2e.cluster import Cluster

JOB = Path(__file__).with_name("loss_job.py")
NAMES = ("g0", "g1", "g2")
USUAL = 5
"""Steps whose median is the usual one."""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """What one loss cost, in seconds from the signal.

    usual_step_s: the median step of all groups before it; lease_s: how long nothing can be known of the loss
    """

    left_s: float
    commit_s: float
    usual_step_s: float
    lease_s: float = 0.0

    @property
    def may_leave_s(self) -> float:
        """What leaving the old communicator may take."""
        return self.lease_s + 0.1

    @property
    def may_commit_s(self) -> float:
        """What the next commit may take."""
        return self.lease_s + 2 * self.usual_step_s + 0.3


def commit_times(run: Cluster, name: str) -> list[float]:
    """When the last steps were committed in a group, oldest first."""
    return [line["time_s"] for line in run.ledger_tail(name) if line["event"] == "commit"]


def contributes(run: Cluster, name: str, since: float) -> bool:
    """Whether the group has contributed to so many steps since then that they tell what a step usually takes."""
    lines = run.ledger_tail(name)
    return sum(x["event"] == "commit" and x["time_s"] > since and bool(x["slots"]) for x in lines) > USUAL


def generation(run: Cluster, name: str) -> int:
    """The generation that the group is in."""
    return max(int(x["generation"]) for x in run.ledger(name) if x["event"] == "enter")


def first_commit(run: Cluster, name: str, above: int) -> float:
    """When the group first committed in a newer generation than that; 0 if it has not."""
    lines = run.ledger_tail(name)
    return next((float(x["time_s"]) for x in lines if x["event"] == "commit" and x["generation"] > above), 0.0)


def left_at(run: Cluster, name: str, number: int) -> float:
    """When the group's rank had left the communicator of that generation; 0 if it has not."""
    path = run.out / f"left.{name}.0"
    rows = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return next((float(at) for n, at in rows if int(n) == number), 0.0)


def lose(run: Cluster, victim: str, wait_s: float, lease_s: float, *, stop: bool) -> Loss:
    """Kills a group's rank, or stops its host, after so long; has it come back, and gives what that cost the others."""
    since = time.time()
    for name in NAMES:
        run.until(lambda name=name: contributes(run, name, since), f"{name} contributes", 120.0)
    survivors = [name for name in NAMES if name != victim]
    number = generation(run, survivors[0])
    pids = [*run.rank_pids(victim).values(), *([run.pid(victim)] if stop else [])]
    due = time.monotonic() + wait_s
    run.until(lambda: time.monotonic() >= due, "the moment has come")
    times = commit_times(run, survivors[0])[-USUAL - 1 :]
    usual = statistics.median(later - earlier for earlier, later in pairwise(times))
    at = time.time()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP if stop else signal.SIGKILL)
    run.until(lambda: all(left_at(run, name, number) for name in survivors), "the survivors leave")
    run.until(lambda: all(first_commit(run, name, number) for name in survivors), "the survivors commit")
    if stop:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    return Loss(
        left_s=max(left_at(run, name, number) for name in survivors) - at,
        commit_s=max(first_commit(run, name, number) for name in survivors) - at,
        usual_step_s=usual,
        lease_s=lease_s if stop else 0.0,
    )


def row(kind: str, losses: list[Loss], twice: int) -> str:
    """One line of the table."""
    words = [kind, str(len(losses))]
    for took, allowed in (
        ([loss.left_s for loss in losses], [loss.may_leave_s for loss in losses]),
        ([loss.commit_s for loss in losses], [loss.may_commit_s for loss in losses]),
    ):
        words += [f"{1e3 * value:.0f}" for value in (statistics.median(took), max(took), statistics.median(allowed))]
    return f"| {' | '.join(words)} | {twice} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--stops", type=int, default=5)
    parser.add_argument("--delay-s", type=float, default=0.15)
    parser.add_argument("--lease-s", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=1)
    told = parser.parse_args()
    random = Random(told.seed)
    root = Path(__file__).resolve().parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join((str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")))
    run = Cluster(Path(tempfile.mkdtemp()) / "run", "--lease-s", str(told.lease_s), "--groups-wanted", "3", job=JOB)
    try:
        run.lighthouse()
        for name in NAMES:
            job = ("--delay-s", str(told.delay_s), "--steps", "1000000")
            run.group(name, *job, flags=("--restart-limit", "1000"))
        kills, stops = [], []
        for i in range(told.kills + told.stops):
            victim = random.choice(NAMES)
            wait_s = random.uniform(0.0, 6 * told.delay_s)
            stop = i >= told.kills
            (stops if stop else kills).append(lose(run, victim, wait_s, told.lease_s, stop=stop))
            last = (stops or kills)[-1]
            print(f"{i + 1}: {victim} left {last.left_s:.3f} s, commit {last.commit_s:.3f} s", flush=True)
        twice = sum(len(run.recomputed(name)) for name in NAMES)
        step_ms = 1e3 * statistics.median(loss.usual_step_s for loss in kills + stops)
        print(f"\nthree groups, a slot {told.delay_s:g} s, a step {step_ms:.0f} ms, lease {told.lease_s:g} s; in ms\n")
        print("| loss | count | left: median | most | target | commit: median | most | target | slots computed twice |")
        print("|---|---|---|---|---|---|---|---|---|")
        if kills:
            print(row("SIGKILL of a rank", kills, twice))
        if stops:
            print(row("SIGSTOP of a host", stops, twice))
    finally:
        run.close()


if __name__ == "__main__":
    main()
