"""What a run's ledgers, events and final digests prove. Pure: parsed lines in, findings out.

A group's ledger has one JSON object a line, written by its agent (`replica/agent_values.py`, class Ledger, says which).
A *slot of the run* is a slot's place in the run's order: cursor of its step plus its index in the step.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lighthouse.core_values import Happened

Line = Mapping[str, Any]
Ledgers = Mapping[str, Sequence[Line]]
"""Lines by group name."""


def parse_ledger(text: str) -> list[Line]:
    """The lines of a ledger; one that was torn by a crash of its writer (only the last can be) is left out."""
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def commits(ledgers: Ledgers) -> dict[tuple[int, int], dict[str, Sequence[int]]]:
    """For each version (step, generation) that was committed: the slots in its sum, by the group that computed them.

    A step of a generation needs all its members. So one that died after its roll call, before its agent committed, has
    its slots in the sum too: those that it had computed of that step.
    """
    found: dict[tuple[int, int], dict[str, Sequence[int]]] = {}
    for name, lines in ledgers.items():
        for line in lines:
            if line["event"] == "commit":
                found.setdefault((line["step"], line["generation"]), {})[name] = line["slots"]
    for name, lines in ledgers.items():
        entered, computed = _lives(lines), _computed(lines)
        for (step, generation), summed in found.items():
            if name not in summed and generation in entered:
                summed[name] = sorted(computed[entered[generation], step - 1])
    return found


def set_aside(ledgers: Ledgers) -> dict[tuple[int, int], Sequence[int]]:
    """For each version that was committed without some of its slots: those, as its ledgers name them."""
    lines = (line for some in ledgers.values() for line in some)
    return {(line["step"], line["generation"]): line["set_aside"] for line in lines if "set_aside" in line}


def _lives(lines: Sequence[Line]) -> dict[int, int]:
    """The life in which a group entered each generation, first."""
    return {x["generation"]: x["life"] for x in reversed(lines) if x["event"] == "enter"}


def _computed(lines: Sequence[Line]) -> defaultdict[tuple[int, int], set[int]]:
    """Slots that a group computed, by life and step (committed ones before it)."""
    found = defaultdict[tuple[int, int], set[int]](set)
    for x in lines:
        if x["event"] == "slot" and x["mark"] == "done":
            found[x["life"], x["step"]].add(x["slot"])
    return found


def not_exactly_once(ledgers: Ledgers, slots: int, steps: int) -> list[str]:
    """What is wrong with the samples that the run's steps consumed: empty if each slot of each step was summed once.

    Slots that the ledgers name as set aside are not missed.
    """
    wrong = []
    by_step: dict[int, set[int]] = {}
    aside = set_aside(ledgers)
    for (step, number), summed in sorted(commits(ledgers).items()):
        by_step.setdefault(step, set()).add(number)
        counts = Counter(slot for some in summed.values() for slot in some)
        wanted = set(range(slots)).difference(aside.get((step, number), ()))
        if counts != Counter(wanted):
            missing = sorted(wanted - set(counts))
            twice = sorted(slot for slot, count in counts.items() if count > 1)
            wrong.append(f"step {step}: slots {missing} missing, {twice} twice, of {slots}")
    for name, lines in ledgers.items():
        for line in lines:
            if line["event"] == "commit" and line["cursor"] != (line["step"] - 1) * slots:
                wrong.append(f"step {line['step']}: began at slot {line['cursor']} of the run in {name}")
    wrong += [f"step {step} was committed in generations {sorted(n)}" for step, n in by_step.items() if len(n) > 1]
    wrong += [f"step {step} was committed by nobody" for step in range(1, steps + 1) if step not in by_step]
    return wrong


def microbatches(ledgers: Ledgers) -> tuple[int, int]:
    """(how many microbatches these groups computed, how many of them one of these groups had computed before).

    A microbatch is one shard's part of one slot of the run.
    """
    done = Counter(
        (line["cursor"], line["shard_rank"])
        for lines in ledgers.values()
        for line in lines
        if line["event"] == "slot" and line["mark"] == "done"
    )
    return done.total(), done.total() - len(done)


def amid_step(lines: Sequence[Line]) -> int | None:
    """The step (committed ones before it) that a group is in the middle of: a slot is computed and another one begun.

    None if it is not there: at a step's first slot, behind its last, or between two steps.
    """
    if not lines or lines[-1]["event"] != "slot" or lines[-1]["mark"] != "begun":
        return None
    step = lines[-1]["step"]
    done = any(x["event"] == "slot" and x["mark"] == "done" and x["step"] == step for x in lines)
    return int(step) if done else None


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


def back(lines: Sequence[Line]) -> Line | None:
    """The first commit to which a group contributed slots after it had healed; None if there is none."""
    healed = False
    for line in lines:
        healed = healed or line["event"] == "load"
        if healed and line["event"] == "commit" and line["slots"]:
            return line
    return None
