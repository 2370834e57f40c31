"""What a planned change costs: PYTHONPATH=.:tests python tests/bench/bench_switch.py

Three contributors train under the real command line; compute is a sleep, as a GPU would leave the CPU free. A fourth
group joins as a spare, drains, joins again, and a contributor is swapped for it, again and again. For each switch of a
generation: how much longer the step whose roll call switched was, and the first step over the new communicator, than
the median of the four steps before and the four after. The ledger of a group that stays throughout has the times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

from e2e.cluster import Cluster

STAYS, SWAPPED = "g0", ("g1", "g3")
NEIGHBOURS = 4


@dataclass(frozen=True)
class Switch:
    """One switch; shares of the neighbours' median by which the step that switched, and the next one, were longer."""

    at: float
    switching: float
    first: float


def switches(run: Cluster) -> list[Switch]:
    """All planned switches of the group that stays: from one generation to the next, step by step."""
    commits = [line for line in run.ledger(STAYS) if line["event"] == "commit"]
    found = []
    for i in range(NEIGHBOURS + 1, len(commits) - NEIGHBOURS - 1):
        if commits[i + 1]["generation"] == commits[i]["generation"]:
            continue
        took = {j: commits[j]["time_s"] - commits[j - 1]["time_s"] for j in range(i - NEIGHBOURS, i + NEIGHBOURS + 2)}
        usual = statistics.median(seconds for j, seconds in took.items() if j not in (i, i + 1))
        found.append(Switch(commits[i]["time_s"], took[i] / usual - 1, took[i + 1] / usual - 1))
    return found


def neighbours_spread(run: Cluster) -> float:
    """How much longer than the median one step in ten is, where nothing happens."""
    times = [line["time_s"] for line in run.ledger(STAYS) if line["event"] == "commit"]
    took = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    return statistics.quantiles(took, n=10)[-1] / statistics.median(took) - 1


class Changes:
    """Makes planned changes one after another, each once the run has settled."""

    def __init__(self, run: Cluster, delay_s: float) -> None:
        self.run = run
        self.delay_s = delay_s
        self.done: list[tuple[float, str]] = []

    def start(self, name: str) -> None:
        """Starts a group."""
        self.run.group(name, "--delay-s", str(self.delay_s), flags=("--standby", "none"))

    def join(self, name: str) -> None:
        """A group starts, heals, and enters as a spare."""
        self._change("join", lambda: self.start(name))
        self._steps(6)

    def leave(self, kind: str, name: str) -> None:
        """A group drains: a spare, or a contributor whose place a spare takes."""
        self._change(kind, lambda: self.run.kill(name, SIGTERM))
        assert self.run.wait_exit(name) == 0, self.run.logs()
        self._steps(6)

    def _change(self, kind: str, act: Callable[[], None]) -> None:
        before = len(set(self.run.generations(STAYS)))
        act()
        self.run.until(lambda: len(set(self.run.generations(STAYS))) > before, f"{kind} switches", 120.0)
        self.done.append((time.time(), kind))

    def _steps(self, count: int) -> None:
        end = self.run.step() + count
        self.run.until(lambda: self.run.step() >= end, "steps go on")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay-s", type=float, default=0.15)
    told = parser.parse_args()
    root = Path(__file__).resolve().parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join((str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")))
    run = Cluster(Path(tempfile.mkdtemp()) / "run", "--lease-s", "5", "--groups-wanted", "3", "--contributors", "3")
    changes = Changes(run, told.delay_s)
    try:
        run.lighthouse()
        for name in ("g0", "g1", "g2"):
            changes.start(name)
        run.until_contributing(STAYS, steps=8)
        there, spare = SWAPPED
        for _ in range(told.rounds):
            changes.join(spare)
            changes.leave("drain of a spare", spare)
            changes.join(spare)
            changes.leave("swap", there)
            there, spare = spare, there
        report(changes.done, switches(run), neighbours_spread(run))
    finally:
        run.close()


def report(done: list[tuple[float, str]], found: list[Switch], spread: float) -> None:
    """Prints the table: each switch belongs to the change that was seen just after it."""
    print("| change | switches | step that switches: median, longest | first step after it: median, longest |")
    print("|---|---|---|---|")
    kinds = dict.fromkeys(kind for _, kind in done)
    for kind in kinds:
        mine = [s for s in found if next((k for at, k in done if at >= s.at), None) == kind]
        if mine:
            cells = [
                f"{100 * statistics.median(took):+.0f} %, {100 * max(took):+.0f} %"
                for took in ([s.switching for s in mine], [s.first for s in mine])
            ]
            print(f"| {kind} | {len(mine)} | {cells[0]} | {cells[1]} |")
    print(f"\none step in ten is longer than the median by {100 * spread:.0f} % or more")


if __name__ == "__main__":
    main()
