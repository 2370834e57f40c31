"""What Bellrock itself costs in a step in which nothing fails: PYTHONPATH=.:tests python tests/bench/bench_step.py

Real lighthouse, agents and ranks on loopback, each group on a core as if that were its host; compute is a sleep. After
every step each rank also sends a message of a roll call's size to an echo and back, over a bare Unix socket and over a
gRPC stream, so that all figures are from the same moments of the same machine. Prints medians in ms over all groups and
steps but the first 20.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.children import pinned
from e2e.cluster import Cluster

HERE = Path(__file__).parent
SETTLED = 20
PARTS = {
    "roll_call": "roll call: record, all-gather of the records",
    "verdict": "verdict: rank, agent, rank",
    "own": "the rest in the rank: seeds, marks, entry, bookkeeping",
    "protocol": "**the protocol, together**",
    "reduce": "(the bytes of the reduction, copies included)",
    "apply": "(the registered function)",
    "socket": "a message to an echo and back: bare Unix socket",
    "grpc": "the same: gRPC stream",
}


def measured(out: Path) -> list[dict[str, float]]:
    """All settled steps of all groups."""
    steps = []
    for path in sorted(out.glob("*.times")):
        for line in path.read_text().splitlines()[SETTLED:]:
            times = json.loads(line)
            steps.append(times | {"protocol": times["roll_call"] + times["verdict"] + times["own"]})
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--sleep-s", type=float, default=0.02)
    told = parser.parse_args()
    root = HERE.parents[1]
    os.environ["PYTHONPATH"] = os.pathsep.join((str(root), str(root / "tests"), os.environ.get("PYTHONPATH", "")))
    with tempfile.TemporaryDirectory() as folder:
        echo = subprocess.Popen([sys.executable, str(HERE / "echo.py"), f"{folder}/echo"], stdout=subprocess.PIPE)
        run = Cluster(Path(folder) / "run", "--groups-wanted", str(told.groups), job=HERE / "step_job.py")
        try:
            assert echo.stdout is not None and echo.stdout.readline()
            run.lighthouse()
            names = [f"g{i}" for i in range(told.groups)]
            flags = [
                "--steps",
                told.steps,
                "--groups",
                told.groups,
                "--sleep-s",
                told.sleep_s,
                "--echo",
                f"{folder}/echo",
            ]
            for place, name in enumerate(names):
                with pinned(place):
                    run.group(name, *map(str, flags), flags=("--standby", "none"))
            for name in names:
                assert run.wait_exit(name, 60 + 10 * told.steps * (told.sleep_s + 0.01)) == 0, run.logs()
            steps = measured(run.out)
        finally:
            run.close()
            echo.kill()
            echo.wait()
    print(
        f"{told.groups} groups of one rank, each on a core as if that were its host; {len(steps)} steps, "
        f"compute a sleep of {1e3 * told.sleep_s:g} ms\n"
    )
    print("| part | median, ms | lowest tenth | highest tenth | × bare socket | × gRPC stream |")
    print("|---|---|---|---|---|---|")
    bare, stream = (statistics.median(step[name] for step in steps) for name in ("socket", "grpc"))
    for name, words in PARTS.items():
        took = [step[name] for step in steps]
        tenths, middle = statistics.quantiles(took, n=10), statistics.median(took)
        figures = f"{1e3 * middle:.3f} | {1e3 * tenths[0]:.3f} | {1e3 * tenths[-1]:.3f}"
        print(f"| {words} | {figures} | {middle / bare:.1f} | {middle / stream:.1f} |")


if __name__ == "__main__":
    main()
