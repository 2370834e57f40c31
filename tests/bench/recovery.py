"""Table 2: what the loss of one of three groups costs, of Bellrock and of torchft with default and tuned settings.

All runs are alive at once, and lose a group in turn: a rank is SIGKILLed at a random moment of a step. Of each loss,
seen by the survivors: how much later than usual the next step was committed; how many microbatches they computed in
vain; and when the replacement contributed for the first time, since the kill and since its process was started.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench.children import Children, stage
from bench.measure import Spread
from bench.sleepers import (
    DEFAULT,
    NAMES,
    SLOTS,
    TUNED,
    BellrockSleepers,
    Line,
    Sleepers,
    TorchftSleepers,
    contributions,
    recomputed,
    usual_step_s,
)
from bench.tables import Table

SEED = 1
TUNINGS = {"torchft": DEFAULT, "torchft-tuned": TUNED}
SLOT_S = 0.1
STALL_S = 0.15
REPLACED_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Loss:
    """One loss. step_s: the usual step; recomputed: microbatches.

    stall_s: what the worst step took longer, without taken_over_s: the compute of the lost microbatches in it
    strength_s: from the kill, replaced_s: from its process's start, to the replacement's first contribution
    """

    step_s: float
    stall_s: float
    taken_over_s: float
    recomputed: int
    strength_s: float
    replaced_s: float

    @property
    def whole_s(self) -> float:
        """The stall with what was taken over."""
        return self.stall_s + self.taken_over_s


def lose(run: Sleepers, victim: str, moment: float) -> Loss:
    """Kills a group after `moment` (of 1) of a step, and sees everybody back."""
    run.until_all_contribute(time.time())
    survivors = [name for name in NAMES if name != victim]
    time.sleep(moment * usual_step_s(run.diary(survivors[0]), time.time()))
    old, at = run.pid(victim), time.time()
    run.kill(victim)

    def back() -> bool:
        run.tend()
        replaced = any(line["pid"] != old for line in contributions(run.diary(victim), at))
        return replaced and all(len(contributions(run.diary(name), at)) >= 3 for name in survivors)

    run.children.until(back, f"{victim} of {run.key} contributes again", 150.0)
    return _of(run, victim, survivors, at, old)


def _of(run: Sleepers, victim: str, survivors: list[str], at: float, old: int) -> Loss:
    stalls = [_stall(contributions(run.diary(name)), at, run.slot_s) for name in survivors]
    mine = [line for line in run.diary(victim) if line["pid"] != old and line["time_s"] > at - 1]
    began = next(line["time_s"] for line in mine if line["event"] == "started")
    contributed = contributions(mine)[0]["time_s"]
    return Loss(
        step_s=usual_step_s(run.diary(survivors[0]), at),
        stall_s=max(stall for stall, _ in stalls),
        taken_over_s=max(taken for _, taken in stalls),
        recomputed=sum(recomputed(run.diary(name), at - 10 * run.slot_s) for name in survivors),
        strength_s=contributed - at,
        replaced_s=contributed - began,
    )


def _stall(steps: list[Line], at: float, slot_s: float) -> tuple[float, float]:
    """(stall beyond the own compute, own compute beyond the usual) of the step that suffered most from a loss.

    Steps are compared by what they took beside the survivor's own sleeps, since it sleeps more often afterwards.
    """
    first = next(i for i, line in enumerate(steps) if line["time_s"] > at)
    took = [
        (later["time_s"] - earlier["time_s"] - later["microbatches"] * slot_s, later["microbatches"])
        for earlier, later in zip(steps, steps[1:], strict=False)
    ]
    before = took[max(0, first - 9) : first - 1]
    usual_s, usual_count = (statistics.median(column) for column in zip(*before, strict=True))
    stall_s, count = max(took[first - 1 : first + 2])
    return stall_s - usual_s, max(0, count - usual_count) * slot_s


def runs(
    children: Children,
    slot_s: float,
    python: Path | None,
    ballast_mb: int = 0,
    tunings: Sequence[str] = ("torchft", "torchft-tuned"),
) -> list[Sleepers]:
    """All contestants, started. ballast_mb: of weights that are healed and never change; tunings: of torchft."""
    started: list[Sleepers] = [BellrockSleepers(children, "bellrock", slot_s, ballast_mb)]
    if python is not None:
        started += [TorchftSleepers(children, key, slot_s, ballast_mb, python, TUNINGS[key]) for key in tunings]
    return started


def measure(kills: int, python: Path | None) -> dict[str, list[Loss]]:
    """So many losses of each contestant, in turn."""
    random = Random(SEED)
    with stage() as (children, _):
        contestants = runs(children, SLOT_S, python)
        losses: dict[str, list[Loss]] = {run.key: [] for run in contestants}
        for _ in range(kills):
            victim, moment = random.choice(NAMES), random.random()
            for run in contestants:
                losses[run.key].append(lose(run, victim, moment))
        return losses


def table(quick: bool, python: Path | None) -> Table:
    """Measures all of it."""
    losses = measure(1 if quick else 10, python)
    ours = losses["bellrock"]
    rows: list[list[str | int | Spread]] = []
    for key, own in losses.items():
        parts = (theirs.whole_s / max(loss.whole_s, 1e-3) for theirs, loss in zip(own, ours, strict=True))
        rows.append(
            [
                key,
                len(own),
                Spread.of(loss.step_s for loss in own),
                Spread.of(loss.stall_s for loss in own),
                "1" if own is ours else Spread.of(parts, 1),
                f"{sum(loss.recomputed for loss in own)} of {len(own) * SLOTS}",
                Spread.of((loss.strength_s for loss in own), 1),
                Spread.of((loss.replaced_s for loss in own), 1),
            ]
        )
    stall_s = Spread.of(loss.stall_s for loss in ours).median
    replaced_s = Spread.of(loss.replaced_s for loss in ours).median
    return Table(
        number=2,
        title="The loss of one of three groups",
        command="make bench ONLY=recovery",
        text=f"One rank SIGKILLed at a random moment; compute is a sleep of {SLOT_S:g} s for each of {SLOTS} "
        f"microbatches of a step. All runs alive at once, losses in turn, the same victims and moments; seed {SEED}.",
        columns=[
            "run",
            "kills",
            "usual step, s",
            "stall beyond it and the compute taken over, s",
            "both / Bellrock's",
            "microbatches computed in vain",
            "kill to full strength, s",
            "process start to first contribution, s",
        ],
        rows=rows,
        targets=[
            ("Bellrock's stall at most 0.15 s beyond the taken-over compute", stall_s <= STALL_S),
            ("nothing computed in vain", not any(loss.recomputed for loss in ours)),
            ("a replacement contributes within 3 s of its process's start", replaced_s <= REPLACED_S),
        ],
        notes=[
            "torchft's DistributedDataParallel is corrected: as it is, its hook ends the survivors' processes when a "
            "collective fails",
            "the process's start: of Bellrock's warm standby (its default) the moment at which it was told to go on",
            "torchft-tuned: lighthouse with " + " ".join(TUNED.flags) + f", manager's timeouts {TUNED.timeout_s:g} s",
        ],
    )
