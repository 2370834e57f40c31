"""What a step costs in CPU time, by process and thread: what a noisy machine does not change much.

    PYTHONPATH=.:tests python -m bench.step_cpu [--size 1M] [--steps 40] [--rounds 6]

A plain job and a run of Bellrock are alive at once and take turns, as in table 1. Before and after each turn the kernel
is asked what every thread of every process has used, and how often it waited or was preempted. What the jobs do while
they wait for their turn (gloo's threads look around a hundred times a second, agents beat) is in it, too.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from bench.children import stage
from bench.measure import Spread
from bench.step_overhead import BELLROCK, GROUPS, PLAIN, start_bellrock, start_plain

SETTLE_S = 0.15
"""So long after a turn all that belongs to its steps is done."""
KINDS = {"plain_job.py": "plain", "trainer.cli lighthouse": "lighthouse", "trainer.cli group": "agent"}
"""By words of the command line; all others are ranks, or standbys of ranks."""


class Used(NamedTuple):
    """Of a thread so far: milliseconds of a core, how often it waited, how often it was preempted."""

    cpu_ms: float
    waits: int
    preempted: int


Usage = dict[tuple[str, str, str], Used]
"""By kind of process, name of thread, thread."""


def used() -> Usage:
    """What the threads of all processes below this one have used."""
    found = {}
    for pid in descendants(os.getpid()):
        try:
            words = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
            kind = next((kind for key, kind in KINDS.items() if key in words), "rank")
            for thread in Path(f"/proc/{pid}/task").iterdir():
                name = "main" if thread.name == str(pid) else (thread / "comm").read_text().strip()
                status = (thread / "status").read_text()
                switches = [int(n) for n in re.findall(r"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", status, re.M)]
                cpu_ns = int((thread / "schedstat").read_text().split()[0])
                found[kind, name, thread.name] = Used(cpu_ns / 1e6, *switches)
        except OSError:  # it has ended
            continue
    return found


def descendants(root: int) -> list[int]:
    """Process ids of all children of a process, and of theirs."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children[parent].append(int(entry.name))
    found, todo = [], [root]
    while todo:
        found += children[todo[-1]]
        todo += children[todo.pop()]
    return found


def between(before: Usage, after: Usage) -> dict[str, Counter[str]]:
    """What was used meanwhile: by the fields of `Used`, by "kind of process, name of thread"."""
    found: dict[str, Counter[str]] = {field: Counter() for field in Used._fields}
    for key, now in after.items():
        for field, more, less in zip(Used._fields, now, before.get(key, Used(0.0, 0, 0)), strict=True):
            found[field][", ".join(key[:2])] += more - less  # type: ignore[assignment]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="1M", help="1M or 25M parameters")
    parser.add_argument("--steps", type=int, default=40, help="of a turn")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each job")
    told = parser.parse_args()
    whole: dict[str, list[float]] = {PLAIN: [], BELLROCK: []}
    took: dict[str, list[float]] = {PLAIN: [], BELLROCK: []}
    sums: dict[str, dict[str, Counter[str]]] = {job: {field: Counter() for field in Used._fields} for job in whole}
    with stage() as (children, turns):
        start_plain(children, turns, told.size, 1)
        start_bellrock(children, turns, told.size, 1)
        names = {f"{PLAIN}/{i}" for i in range(GROUPS)} | {f"{BELLROCK}/g{i}.0" for i in range(GROUPS)}
        turns.wait_for(names, 120.0)
        for number in range(-2, told.rounds):
            for job in whole:
                time.sleep(SETTLE_S)
                before, step_s = used(), turns.seconds(job, told.steps)
                time.sleep(SETTLE_S)
                more = between(before, used())
                if number >= 0:
                    took[job].append(1e3 * step_s)
                    whole[job].append(more["cpu_ms"].total() / told.steps)
                    for field in Used._fields:
                        sums[job][field] += more[field]
    for job in whole:
        show(job, took[job], whole[job], sums[job], told.steps * told.rounds)
    extra = [ours - plain for ours, plain in zip(whole[BELLROCK], whole[PLAIN], strict=True)]
    print(f"\nmore than plain: {Spread.of(extra)} ms of a core a step")
    return 0


def show(job: str, took_ms: list[float], cpu_ms: list[float], sums: dict[str, Counter[str]], steps: int) -> None:
    """Prints what the threads used in the turns of one job. took_ms, cpu_ms: of a step, by turn."""
    print(f"\n{job}: a step takes {Spread.of(took_ms, 1)} ms, and {Spread.of(cpu_ms)} ms of a core\n")
    print("| thread | CPU, ms a step | waits | preempted |\n|---|---|---|---|")
    for name, ms in sums["cpu_ms"].most_common():
        waits, preempted = (sums[field][name] / steps for field in ("waits", "preempted"))
        print(f"| {name} | {ms / steps:.3f} | {waits:.1f} | {preempted:.1f} |")


if __name__ == "__main__":
    sys.exit(main())
