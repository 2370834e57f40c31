"""Table 5: what is left of the throughput when a group is killed every 15 s on average.

Bellrock and torchft run at once, undisturbed for a while, then under one schedule of kills: the same group of each is
SIGKILLed at the same moment. Compute is a sleep, so that they do not take it from each other. What counts is
microbatches committed per second and live group, over the same of the undisturbed stretch.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from bench.children import stage
from bench.measure import Spread
from bench.recovery import TUNINGS, runs
from bench.sleepers import NAMES, TUNED, Sleepers, samples_per_live_s
from bench.tables import Table

SEED = 2
SLOT_S = 0.1
MEAN_S = 15.0
GOODPUT = 0.9


def schedule(random: Random, seconds: float) -> Iterator[tuple[float, str]]:
    """(seconds from the start, group) of each kill."""
    at = random.expovariate(1 / MEAN_S)
    while at < seconds:
        yield at, random.choice(NAMES)
        at += random.expovariate(1 / MEAN_S)


def measure(
    calm_s: float, chaos_s: float, python: Path | None, tunings: Sequence[str]
) -> dict[str, tuple[int, float, float]]:
    """By run: kills, goodput of groups that are ready, goodput of groups whose process runs."""
    with stage() as (children, _):
        contestants = runs(children, SLOT_S, python, tunings=tunings)
        for run in contestants:
            run.until_all_contribute(time.time())
        calm = time.time()
        time.sleep(calm_s)
        begin = time.time()
        kills = disturb(contestants, begin, chaos_s)
        end = time.time()
        result = {}
        for run in contestants:
            diaries = run.diaries()
            parts = []
            for alive_from in ("ready", "started"):
                usual = samples_per_live_s(diaries, calm, begin, alive_from)
                parts.append(samples_per_live_s(diaries, begin, end, alive_from) / usual)
            result[run.key] = (kills[run.key], parts[0], parts[1])
        return result


def disturb(contestants: list[Sleepers], begin: float, seconds: float) -> dict[str, int]:
    """Kills by the schedule; how many each run suffered (a group that is down already is not killed)."""
    kills = dict.fromkeys((run.key for run in contestants), 0)
    due = list(schedule(Random(SEED), seconds))
    while (now := time.time() - begin) < seconds:
        while due and due[0][0] <= now:
            _, victim = due.pop(0)
            for run in contestants:
                kills[run.key] += run.kill(victim)
        for run in contestants:
            run.tend()
        time.sleep(0.05)
    return kills


def table(quick: bool, python: Path | None) -> Table:
    """Measures all of it."""
    calm_s, chaos_s = (5.0, 20.0) if quick else (30.0, 180.0)
    result = measure(calm_s, chaos_s, python, list(TUNINGS)[quick:])
    rows: list[list[str | int | Spread]] = [
        [key, kills, f"{ready:.2f}", f"{started:.2f}"] for key, (kills, ready, started) in result.items()
    ]
    return Table(
        number=5,
        title="Goodput with a kill every 15 s",
        command="make bench ONLY=chaos",
        text=f"{chaos_s:g} s of kills, {MEAN_S:g} s apart on average (exponential, seed {SEED}), after {calm_s:g} s "
        "without; three groups of one rank each, the same kills at the same moments in all runs.",
        columns=["run", "kills", "goodput while a group could train", "goodput while its process runs"],
        rows=rows,
        targets=[("Bellrock's at least 0.9", result["bellrock"][1] >= GOODPUT)],
        notes=[
            "microbatches committed per live group-second, over the same of the undisturbed stretch; a group counts as "
            "live from where its program has imported and built all (first figure), or from its process's start "
            "(second), until it is killed",
            "torchft-tuned as in table 2: " + " ".join(TUNED.flags),
        ],
    )
