"""Table 3: how fast a joiner gets its weights, against torchft's transports and a bare socket; and who waits for it.

Each round starts new pairs of processes: the first transfer of a pair counts apart from the warm ones after it. The
kinds take turns. Then runs of three groups with that much state lose one each: how much longer than usual do the
survivors' steps take while the replacement heals?
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench.children import stage
from bench.measure import Spread
from bench.recovery import runs
from bench.sleepers import NAMES, Sleepers, contributions
from bench.tables import Table

KINDS = {
    "a bare socket": ("bellrock", "bare"),
    "Bellrock": ("bellrock", "heal"),
    "torchft, HTTP": ("torchft", "http"),
    "torchft, process group": ("torchft", "pg"),
}
SLOT_S = 0.1
QUIET_STEPS = 40
"""Before a group is killed, so that it is known how much longer than the median steps are by themselves."""
BARE, OURS = "a bare socket", "Bellrock"
PART = 0.9

Rates = dict[str, tuple[float, list[float]]]
"""By kind: GB/s of the first transfer, and of those after it."""


def transfers(mb: int, warm: int, python: Path | None, back: bool) -> Rates:
    """One round: new processes. back: the kinds take turns the other way round, since the first finds memory that was
    in use just now, and the last does not."""
    with stage() as (children, turns):
        names = {"bellrock/joiner"}
        children.program("bellrock", sys.executable, "heal_pair.py", turns.path, "bellrock", str(mb))
        if python is not None:
            names.add("torchft/joiner")
            children.program("torchft", python, "torchft_pair.py", turns.path, "torchft", str(mb))
        turns.wait_for(names, 120.0)

        def rate(kind: str) -> float:
            job, word = KINDS[kind]
            return float(turns.turn(job, 1, kind=word)[f"{job}/joiner"]["gb_s"])

        kinds = [kind for kind, (job, _) in KINDS.items() if f"{job}/joiner" in names][:: -1 if back else 1]
        first = {kind: rate(kind) for kind in kinds}
        rest = [{kind: rate(kind) for kind in kinds} for _ in range(warm)]
        return {kind: (first[kind], [each[kind] for each in rest]) for kind in KINDS if kind in first}


class Waited(NamedTuple):
    """By how many seconds steps were longer than the median one, in all: of a heal; and of as many that nothing heals
    in, the median of all that followed each other before."""

    healing_s: float
    usual_s: float

    @property
    def beyond_s(self) -> float:
        """What the heal is to blame for."""
        return max(0.0, self.healing_s - self.usual_s)


def stalls(mb: int, python: Path | None, heals: int) -> dict[str, list[Waited]]:
    """By run: what the survivors' steps took longer while a replacement healed, so often."""
    with stage() as (children, _):
        result: dict[str, list[Waited]] = {}
        for run in runs(children, SLOT_S, python, mb, ("torchft",)):
            for _ in range(heals):
                run.until_all_contribute(time.time())
                _let_it_run(run, len(contributions(run.diary(NAMES[0]))) + QUIET_STEPS)
                result.setdefault(run.key, []).append(stall(run, NAMES[-1]))
        return result


def _let_it_run(run: Sleepers, steps: int) -> None:
    def enough() -> bool:
        run.tend()
        return len(contributions(run.diary(NAMES[0]))) >= steps

    run.children.until(enough, f"{run.key} makes steps", 60.0)


def stall(run: Sleepers, victim: str) -> Waited:
    """Kills a group; what its replacement's healing cost the first of the others."""
    old, at = run.pid(victim), time.time()
    run.kill(victim)

    def mine() -> list[dict[str, object]]:
        return [line for line in run.diary(victim) if line["pid"] != old and float(line["time_s"]) > at]

    def back() -> bool:
        run.tend()
        return len(contributions(mine())) >= 2

    run.children.until(back, f"{victim} of {run.key} contributes again", 150.0)
    ready = next(line["time_s"] for line in mine() if line["event"] == "ready")
    done = contributions(mine())[0]["time_s"]
    steps = contributions(run.diary(NAMES[0]))
    took = [
        (later["time_s"], later["time_s"] - earlier["time_s"] - later["microbatches"] * run.slot_s)
        for earlier, later in zip(steps, steps[1:], strict=False)
    ]
    before = [beside for when, beside in took if when < at][-QUIET_STEPS:]
    during = [beside for when, beside in took if ready < when <= done + run.slot_s]
    usual = statistics.median(before)

    def waited(steps: list[float]) -> float:
        return sum(max(0.0, beside - usual) for beside in steps)

    starts = range(max(1, len(before) - len(during) + 1))
    return Waited(waited(during), statistics.median(waited(before[i : i + len(during)]) for i in starts))


def _told(heals: list[Waited]) -> str:
    if not heals:
        return "–"
    usual = statistics.median(each.usual_s for each in heals)
    return f"{Spread.of(each.beyond_s for each in heals)}; as many steps without a heal {usual:.2f}"


def table(quick: bool, python: Path | None) -> Table:
    """Measures all of it."""
    mb = 64 if quick else 1024
    rounds = [transfers(mb, 2 if quick else 4, python, number % 2 == 1) for number in range(1 if quick else 4)]
    waited = stalls(mb, python, 1 if quick else 3)
    rows: list[list[str | int | Spread]] = []
    parts: dict[str, tuple[Spread, Spread]] = {}
    for kind in rounds[0]:
        first = Spread.of(each[kind][0] / each[BARE][0] for each in rounds)
        warm = Spread.of(
            mine / bare for each in rounds for mine, bare in zip(each[kind][1], each[BARE][1], strict=True)
        )
        parts[kind] = (first, warm)
        gb_s = Spread.of(rate for each in rounds for rate in each[kind][1])
        run = {OURS: "bellrock", "torchft, HTTP": "torchft"}.get(kind, "")
        rows.append([kind, first, warm, gb_s, _told(waited.get(run, []))])
    return Table(
        number=3,
        title="Healing",
        command="make bench ONLY=healing",
        text=f"{mb} MB of weights and Adam moments of many tensor sizes from one donor on loopback, into the joiner's "
        "own tensors. First: in new processes, into memory of which the joiner has touched its model's alone.",
        columns=[
            "by",
            "first / bare",
            "warm / bare",
            "warm, GB/s",
            "the healthy waited for a heal, s (a run of three groups)",
        ],
        rows=rows,
        targets=[
            ("at least 0.9 of the bare socket, first", parts[OURS][0].median >= PART),
            ("at least 0.9 of the bare socket, warm", parts[OURS][1].median >= PART),
            (
                "no stall of the healthy (at most 0.05 s of a heal in all)",
                statistics.median(each.beyond_s for each in waited["bellrock"]) <= 0.05,
            ),
        ],
        notes=[
            "Bellrock verifies each chunk (xxh3); neither of the others does",
            "waited: all that steps were longer than the median one while it healed, less what as many steps are by "
            "themselves",
        ],
    )
