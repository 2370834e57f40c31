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
from bench.heal_transfer import TOGETHER, Crowd, Donor, Rates, crowd, measure

SLEEP_S = 0.2
MAIN = 2
"""So many groups train in the run whose steps are judged: one for each core of a small machine."""
WHEN = {
    "before": "before heals",
    "during": "during heals",
    "loading": "during heals, the joiner not a member yet",
    "joined": "during heals, the joiner a member",
    "three": "with the joiner a member, nothing heals",
    "after": "after heals",
}


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


def joiners_together(report: Report, pairs: list[tuple[Crowd, Crowd]]) -> None:
    """Rows of joiners that come at once: alone with their donor, and passing on."""
    ratios = [passing.seconds / alone.seconds for alone, passing in pairs]
    what = f"{TOGETHER} joiners at once, 1 donor"
    report.tell(f"{what}: time with passing on over without", spread(ratios))
    report.tell(f"{what}: part of the bytes that the donor sends", spread([passing.share for _, passing in pairs]))


def through_the_lighthouse(report: Report, shape: Shape, outcome: Outcome) -> None:
    """How fast a real run heals from so many donors, from the first offer on; and what the donors' memory grows by."""
    count = shape.healthy
    label = f"in a run, {count} donor{'s' if count > 1 else ''}"
    ratios = [ours / bare for bare, ours in outcome.rates]
    bares, rates = zip(*outcome.rates, strict=True)
    shown = f"{spread(ratios)}; {spread(list(rates))} against {spread(list(bares))} GB/s, {len(ratios)} heals"
    report.data[f"heal over bare socket, {label}: pairs (bare, ours), GB/s"] = outcome.rates
    if count == 1:
        report.judge(f"heal over bare socket, {label}", statistics.median(ratios), shown, ">= 0.8", 0.8, least=True)
    else:
        report.tell(f"heal over bare socket, {label}", shown)
    extra, allowed = outcome.donor_extra / 1e6, (min(1.0, 2 / count) + 0.02) * shape.mb + log_limit_mb(shape)
    report.judge(
        f"donor's extra memory, {label}, MB", extra, f"{extra:.0f}", f"<= {allowed:.0f} (stripes + 2 %, log limit)",
        allowed, least=False,
    )  # fmt: skip


def log_limit_mb(shape: Shape) -> float:
    """What `Replica` sets where `heal_log_bytes` is not given: eight steps' gradients, at least 64 MiB."""
    return max(8 * shape.trained_mb / 3, (64 << 20) / 1e6)


def whole_run(report: Report, shape: Shape, outcome: Outcome) -> None:
    """Rows of the steps of the healthy, and of the way of a joiner."""
    where = "apart" if shape.apart else "on shared cores"
    for name in ("before", "during", "loading", "joined", "three", "after"):
        values = getattr(outcome, name)
        report.tell(f"steps {WHEN[name]}, ms, {where}", f"{spread([1e3 * v for v in values], 0)}, {len(values)} steps")
        report.data[f"steps {name}, {where}"] = summary(values)
    ratio = statistics.median(outcome.during) / statistics.median(outcome.before)
    longest = max(outcome.during) / max(outcome.before)
    if shape.apart:
        report.tell("median and longest step during over before, apart", f"{ratio:.3f}, {longest:.2f}")
        return
    # One member more on as many cores makes each step longer, whether it heals or not: like is compared with like.
    loading = statistics.median(outcome.loading) / statistics.median(outcome.before)
    joined = statistics.median(outcome.joined) / statistics.median(outcome.three)
    most = max(outcome.loading) / max(outcome.before)
    then = max(outcome.joined) / max(outcome.three)
    what = "step until the joiner is a member, over before"
    report.judge(f"median {what}", loading, f"{loading:.3f}", "<= 1.05", 1.05, least=False)
    report.judge(f"longest {what}", most, f"{most:.2f}", "<= 1.25", 1.25, least=False)
    what = "step from then to its first contribution, over those of as many members without a heal"
    report.judge(f"median {what}", joined, f"{joined:.3f}", "<= 1.05", 1.05, least=False)
    report.judge(f"longest {what}", then, f"{then:.2f}", "<= 1.25", 1.25, least=False)
    report.tell("median and longest of all of these over before", f"{ratio:.3f}, {longest:.2f}")


def ways(report: Report, outcome: Outcome) -> None:
    """Rows of the way of a joiner."""
    for kind, those in outcome.ways.items():
        if those:
            parts = ", ".join(f"{p.removesuffix('_s')} {statistics.median(w[p] for w in those):.2f}" for p in PARTS)
            total = [way["total_s"] for way in those]
            if kind == "warm":
                report.judge(
                    "warm: start to contribution, s", statistics.median(total), spread(total), "<= 3", 3.0, least=False
                )
            else:
                report.tell("cold: start to contribution, s", spread(total))
            report.tell(f"{kind}: parts, s", parts)
    report.data["ways"] = outcome.ways


def through_a_run(report: Report, count: int, apart: bool, flags: argparse.Namespace, mb: int) -> None:
    """One run with so many healthy groups, and its rows."""
    few = flags.quick or count != MAIN
    shape = Shape(
        mb=mb, trained_mb=flags.trained_mb, sleep_s=SLEEP_S, quiet_steps=20 if few else 50,
        healthy=count, cold=2 if few else 5, warm=2 if few else 5, apart=apart,
    )  # fmt: skip
    print(f"a run that heals from {count}{', apart' if apart else ''} …", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="heal-run-") as folder:
        outcome = run_heals(Path(folder) / "run", shape)
    if not apart:
        through_the_lighthouse(report, shape, outcome)
    if count == MAIN:
        whole_run(report, shape, outcome)
    if count == MAIN and not apart:
        ways(report, outcome)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="256 MB and few repeats")
    parser.add_argument("--mb", type=int, default=0, help="size of a shard's state; 1000, or 256 if quick")
    parser.add_argument("--trained-mb", type=int, default=16, help="of these, weights and moments that are trained")
    parser.add_argument("--json", type=Path, help="write the data here instead of printing it")
    parser.add_argument("--only", choices=("transfer", "run"), help="one part alone")
    parser.add_argument("--donors", type=int, nargs="+", default=(1, 2, 3), help="how many of them, one after another")
    flags = parser.parse_args()
    mb = flags.mb or (256 if flags.quick else 1000)
    report = Report()
    report.data["machine"] = {
        "python": platform.python_version(), "torch": torch.__version__, "cores": os.cpu_count(),
        "load": os.getloadavg(), "mb": mb,
    }  # fmt: skip
    if flags.only != "run":
        for count in flags.donors:
            print(f"transfers from {count} donor(s) …", file=sys.stderr, flush=True)
            donors, rates = measure(mb, count, 2 if flags.quick else 6, 3 if flags.quick else 5)
            transfers(report, count, donors, rates)
        print(f"{TOGETHER} joiners at once …", file=sys.stderr, flush=True)
        joiners_together(report, [(crowd(mb, False), crowd(mb, True)) for _ in range(1 if flags.quick else 4)])
    if flags.only != "transfer":
        for count in flags.donors:
            for apart in (False, True) if count == MAIN else (False,):
                through_a_run(report, count, apart, flags, mb)
    print(report.show())
    text = json.dumps(report.data, indent=1)
    if flags.json:
        flags.json.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
