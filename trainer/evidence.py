"""What a run's ledgers, events and final digests prove. Pure: parsed lines in, findings out.

A group's ledger has one JSON object a line, written by its agent (`replica/agent_values.py`, class Ledger, says which).
A *slot of the run* is a slot's place in the run's order: cursor of its step plus its index in the step.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lighthouse.core_values import Happened

Line = Mapping[str, Any]
Ledgers = Mapping[str, Sequence[Line]]
"""Lines by group name."""

SLOT_DONE = "slot_done"


def parse_ledger(text: str) -> list[Line]:
    """The lines of a ledger; one that was torn by a crash of its writer (only the last can be) is left out."""
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def commits(ledgers: Ledgers) -> dict[tuple[int, int], dict[str, Line]]:
    """For each version (step, generation) that was committed: the line of each group that took part."""
    found: dict[tuple[int, int], dict[str, Line]] = {}
    for name, lines in ledgers.items():
        for line in lines:
            if line["event"] == "commit":
                found.setdefault((line["step"], line["generation"]), {})[name] = line
    return found


def not_exactly_once(ledgers: Ledgers, slots: int, steps: int) -> list[str]:
    """What is wrong with the samples that the run's steps consumed: empty if each slot of each step was summed once."""
    wrong = []
    by_step: dict[int, set[int]] = {}
    for (step, number), lines in sorted(commits(ledgers).items()):
        by_step.setdefault(step, set()).add(number)
        summed = Counter(slot for line in lines.values() for slot in line["slots"])
        if summed != Counter(range(slots)):
            missing = sorted(set(range(slots)) - set(summed))
            twice = sorted(slot for slot, count in summed.items() if count > 1)
            wrong.append(f"step {step}: slots {missing} missing, {twice} twice, of {slots}")
        cursors = {line["cursor"] for line in lines.values()}
        if cursors != {(step - 1) * slots}:
            wrong.append(f"step {step}: began at slot {sorted(cursors)} of the run, not {(step - 1) * slots}")
    wrong += [f"step {step} was committed in generations {sorted(n)}" for step, n in by_step.items() if len(n) > 1]
    wrong += [f"step {step} was committed by nobody" for step in range(1, steps + 1) if step not in by_step]
    return wrong


def computed_twice(ledgers: Ledgers) -> int:
    """Microbatches (one shard's part of one slot) that these groups computed more often than once, summed over both."""
    done = Counter(
        (line["cursor"], line["shard_rank"])
        for lines in ledgers.values()
        for line in lines
        if line["event"] == "slot" and line["mark"] == SLOT_DONE
    )
    return sum(count - 1 for count in done.values())


@dataclass(frozen=True, kw_only=True)
class Tempo:
    """When steps were committed, on the wall clock."""

    committed_s: Mapping[int, float]
    """By step."""
    losses: Mapping[int, float]
    """By step."""

    @staticmethod
    def of(happened: Iterable[Happened]) -> Tempo:
        """From what the lighthouse told, each step counted when it was first told."""
        times: dict[int, float] = {}
        losses: dict[int, float] = {}
        for one in happened:
            if one.kind == "step":
                times.setdefault(one.version.step, one.time_s)
                losses.setdefault(one.version.step, float(one.fields["loss"]))
        return Tempo(committed_s=times, losses=losses)

    def usual_step_s(self, before_s: float) -> float:
        """Median seconds between two commits before that time; 0 with fewer than two."""
        times = sorted(t for t in self.committed_s.values() if t < before_s)
        gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
        return statistics.median(gaps) if gaps else 0.0

    def cost_s(self, at_s: float) -> float:
        """Seconds that the step in work at that time took longer than a step does."""
        times = sorted(self.committed_s.values())
        before = [t for t in times if t <= at_s]
        after = [t for t in times if t > at_s]
        if not before or not after:
            return float("nan")
        return max(0.0, after[0] - before[-1] - self.usual_step_s(at_s))

    def step_at(self, at_s: float) -> int:
        """The newest step that was committed at that time."""
        return max((step for step, t in self.committed_s.items() if t <= at_s), default=0)


def back_at_step(lines: Sequence[Line], after_step: int) -> int | None:
    """The first step after that one which a group committed with slots of its own, having been away; None if none."""
    away = False
    for line in lines:
        if line["event"] == "load":
            away = True
        if away and line["event"] == "commit" and line["step"] > after_step and line["slots"]:
            return int(line["step"])
    return None
