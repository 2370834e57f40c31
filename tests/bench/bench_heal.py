"""What healing costs and how fast it is: PYTHONPATH=.:tests python tests/bench/bench_heal.py [--quick]

Prints tables with the target of each figure and whether it was met, and the whole as JSON at the end (or in a file).
Every figure is a ratio within this one run, from interleaved measurements: median (least to most). `heal_transfer.py`
has the transfers between processes, `heal_run.py` the run that heals a state again and again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from bench.heal_run import PARTS, Outcome, Shape, run_heals, summary
from bench.heal_transfer import Donor, Rates, measure

LOG_LIMIT_BYTES = 4 << 30
"""Default of `Replica(heal_log_bytes=...)`."""


@dataclass
class Report:
    """Rows with targets, and everything as plain data."""

    rows: list[tuple[str, str, str, str]] = field(default_factory=list)
    data: dict[str, object] = field(default_factory=dict)

    def judge(self, what: str, value: float, shown: str, target: str, limit: float, *, least: bool) -> None:
        """A figure with its target; least: it must be at least `limit`, else at most."""
        met = value >= limit if least else value <= limit
        self.rows.append((what, shown, target, "met" if met else "MISSED"))
        self.data[what] = {"value": value, "target": target, "met": met}

    def tell(self, what: str, shown: str) -> None:
        """A figure without a target."""
        self.rows.append((what, shown, "", ""))

    def show(self) -> str:
        """A table in Markdown."""
        lines = ["| what | figure | target | |", "|---|---|---|---|"]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in self.rows)])


def spread(values: list[float], digits: int = 2) -> str:
    """Median (least to most)."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def transfers(report: Report, count: int, donors: list[Donor], rates: Rates) -> None:
    """Rows of the transfers from so many donors."""
    label = f"{count} donor{'s' if count > 1 else ''}"
    for kind, pairs in (("first", rates.first), ("warm", rates.warm)):
        ratios = [ours / bare for bare, ours in pairs]
        shown = f"{spread(ratios)}; {spread([o for _, o in pairs])} against {spread([b for b, _ in pairs])} GB/s"
        what = f"heal over bare socket, {label}, {kind}"
        report.data[f"{what}: pairs (bare, ours), GB/s"] = pairs
        if count == 1:
            report.judge(what, statistics.median(ratios), shown, ">= 0.8", 0.8, least=True)
        else:
            report.tell(what, shown)
    memory = max(rates.memory)
    report.judge(f"joiner's memory over its shard, {label}", memory, f"{memory:.3f}", "<= 1.1", 1.1, least=False)
    staged = max(donor.extra / donor.total for donor in donors)
    stripes = min(1.0, 2 / count)
    report.judge(
        f"donor's extra memory over its shard, {label}", staged, f"{staged:.3f}",
        f"<= {stripes:.2f} + 2 %", stripes + 0.02, least=False,
    )  # fmt: skip
    rate = [donor.staged / donor.ahead_s / 1e9 for donor in donors]
    report.tell(f"copy into memory made ahead, GB/s, {label}", spread(rate))
    report.tell(f"copy into fresh memory, GB/s, {label}", spread([d.staged / d.fresh_s / 1e9 for d in donors]))


def whole_run(report: Report, shape: Shape, outcome: Outcome) -> None:
    """Rows of the run."""
    for name in ("before", "during", "after"):
        values = getattr(outcome, name)
        report.tell(f"steps {name} heals, ms", f"{spread([1e3 * v for v in values], 0)}, {len(values)} steps")
        report.data[f"steps {name}"] = summary(values)
    ratio = statistics.median(outcome.during) / statistics.median(outcome.before)
    report.judge("median step during over before", ratio, f"{ratio:.3f}", "<= 1.05", 1.05, least=False)
    longest = max(outcome.during) / max(outcome.before)
    report.judge("longest step during over before", longest, f"{longest:.2f}", "<= 1.25", 1.25, least=False)
    for kind, ways in outcome.ways.items():
        if ways:
            parts = ", ".join(f"{p.removesuffix('_s')} {statistics.median(w[p] for w in ways):.2f}" for p in PARTS)
            total = [way["total_s"] for way in ways]
            if kind == "warm":
                report.judge(
                    "warm: start to contribution, s", statistics.median(total), spread(total), "<= 3", 3.0, least=False
                )
            else:
                report.tell("cold: start to contribution, s", spread(total))
            report.tell(f"{kind}: parts, s", parts)
    report.data["ways"] = outcome.ways
    extra, allowed = outcome.donor_extra / 1e6, shape.mb + LOG_LIMIT_BYTES / 1e6
    report.judge(
        "donor's extra memory in the run, MB", extra, f"{extra:.0f}", "<= stripes + log limit", allowed, least=False
    )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="256 MB and few repeats")
    parser.add_argument("--mb", type=int, default=0, help="size of a shard's state; 1000, or 256 if quick")
    parser.add_argument("--trained-mb", type=int, default=16, help="of these, weights and moments that are trained")
    parser.add_argument("--json", type=Path, help="write the data here instead of printing it")
    parser.add_argument("--only", choices=("transfer", "run"), help="one part alone")
    flags = parser.parse_args()
    mb = flags.mb or (256 if flags.quick else 1000)
    report = Report()
    report.data["machine"] = {
        "python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count(),
        "load": os.getloadavg(), "mb": mb,
    }  # fmt: skip
    if flags.only != "run":
        for count in (1, 2, 3):
            print(f"transfers from {count} donor(s) …", file=sys.stderr, flush=True)
            donors, rates = measure(mb, count, 2 if flags.quick else 6, 3 if flags.quick else 5)
            transfers(report, count, donors, rates)
    if flags.only != "transfer":
        shape = Shape(
            mb=mb, trained_mb=flags.trained_mb, sleep_s=0.2,
            quiet_steps=20 if flags.quick else 50, heals=2 if flags.quick else 5,
        )  # fmt: skip
        print("a run that heals …", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="heal-run-") as folder:
            whole_run(report, shape, run_heals(Path(folder) / "run", shape))
    print(report.show())
    text = json.dumps(report.data, indent=1)
    if flags.json:
        flags.json.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
