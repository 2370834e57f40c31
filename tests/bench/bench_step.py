"""What the rank library itself costs in a step: everything but the program's compute and the bytes moved.

    PYTHONPATH=.:tests python tests/bench/bench_step.py [--groups 2] [--steps 300]

Groups of one rank train a model of a few hundred parameters, one slot each, told what to do by the scripted agents of
the tests, which run in one Python process here. Prints, for each part of a step at each group, the medians of wall
time, CPU of the training thread, and CPU of the whole process, in milliseconds; on a busy machine CPU says more.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from pathlib import Path

from e2e.scripted_agents import Fleet

PARTS = {
    "slot": "between the last step and the slot's begin: seeds, mark",
    "computed": "the program's forward and backward, with hooks that fill and send buckets",
    "gradients": "flush of what no hook has filled",
    "roll_call": "waiting for the buckets, their norm, the record",
    "voted": "gather of the records",
    "apply": "the agent's verdict",
    "applied": "apply: copy back, scale, optimizer, schedule",
    "end": "the program's own bookkeeping",
}


def parts(phases: list[tuple[str, int, float, float, float]]) -> dict[str, list[tuple[float, ...]]]:
    """(wall, CPU of the training thread, CPU of the process) of each part in ms, step by step."""
    took: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    before = phases[0][2:]
    for name, step, *at in phases:
        if name in PARTS:
            if step > 10:
                took[name].append(tuple((now - then) * 1e3 for now, then in zip(at, before, strict=True)))
            before = tuple(at)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder), kind="plain", shards=1, slots=told.groups, steps=told.steps)
        fleet.digests = False
        try:
            members = [fleet.spawn(f"g{i}", phases=True, bucket_bytes=1 << 20) for i in range(told.groups)]
            fleet.attach_all()
            fleet.form(members)
            fleet.finish()
            for group in members:
                took = parts(fleet.did(group)["phases"])
                for name, words in PARTS.items():
                    middle = [statistics.median(column) for column in zip(*took[name], strict=True)]
                    print(group.name, *(f"{ms:7.3f}" for ms in middle), words)
        finally:
            fleet.close()


if __name__ == "__main__":
    main()
