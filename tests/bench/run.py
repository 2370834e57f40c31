"""make bench: side by side with what users would pick instead.

    PYTHONPATH=.:tests python -m bench.run [--quick] [--only steps,recovery,...] [--no-peers] [--write]

Prints the tables, writes them to build/bench.md and build/bench.json as they come, and, with --write, those that were
measured into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench import chaos_goodput, control_plane, healing, peers, recovery, step_breakdown, step_overhead
from bench.machine import load, machine
from bench.tables import Table, page, replace_section

MEASURES: dict[str, Callable[[bool, Path | None], Table]] = {
    "steps": step_overhead.table,
    "recovery": recovery.table,
    "healing": healing.table,
    "control": control_plane.table,
    "chaos": chaos_goodput.table,
    "breakdown": step_breakdown.table,
}


LIMIT_S, QUICK_LIMIT_S = 1200.0, 180.0
"""Seconds that all tables may take, beside the installation of the peers; on two cores that do nothing else."""


class TimeIsUp(BaseException):
    """No more time: whatever is being measured is given up."""


def _time_is_up(*_: object) -> None:
    raise TimeIsUp


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three minutes instead of twenty")
    parser.add_argument("--only", default="", help=f"some of {','.join(MEASURES)}")
    parser.add_argument("--limit-s", type=float, default=0.0, help="seconds that all may take")
    parser.add_argument("--no-peers", action="store_true", help="measure Bellrock alone")
    parser.add_argument("--write", action="store_true", help="write docs/benchmarks.md")
    told = parser.parse_args()
    names = told.only.split(",") if told.only else list(MEASURES)
    python = None if told.no_peers else peers.install()
    words = machine(python)
    limit_s = told.limit_s or (QUICK_LIMIT_S if told.quick else LIMIT_S)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started is ended
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    tables: list[Table] = []
    failed = []
    for name in names:
        began, busy = time.monotonic(), load()
        try:
            table = MEASURES[name](told.quick, python)
            tables.append(dataclasses.replace(table, notes=[*table.notes, busy]))
        except TimeIsUp:
            failed.append(name)
            rest = ", ".join(names[names.index(name) :])
            print(f"{limit_s:g} s are over; not measured: {rest}", file=sys.stderr, flush=True)
            break
        except (OSError, RuntimeError) as failure:
            failed.append(name)
            print(f"{name} failed: {failure}", file=sys.stderr, flush=True)
            continue
        print(f"{tables[-1].markdown()}\n({time.monotonic() - began:.0f} s)\n", flush=True)
        keep(tables, words)
    if told.write:
        docs = peers.ROOT / "docs" / "benchmarks.md"
        docs.write_text(replace_section(docs.read_text(), page(tables, words)))
    return 1 if failed else 0


def keep(tables: list[Table], words: dict[str, str]) -> None:
    """Writes what there is so far below build/."""
    folder = peers.ROOT / "build"
    folder.mkdir(exist_ok=True)
    (folder / "bench.md").write_text(page(tables, words))
    plain = {"machine": words, "tables": [table.plain() for table in tables]}
    (folder / "bench.json").write_text(json.dumps(plain, indent=2))


if __name__ == "__main__":
    sys.exit(main())
