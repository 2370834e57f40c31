"""What a scenario can say of slots that kill whoever computes them."""

from __future__ import annotations

from simulation.scenario_commands import act
from simulation.stage import Stage


@act("an operator has the slot skipped")
def _(stage: Stage) -> None:
    stage.beacons[-1].skip_slot()


@act("whoever computes slot N of step N dies")
def _(stage: Stage, slot: str, step: str) -> None:
    stage.poison.add((int(step) - 1) * stage.spec.slots + int(slot))


@act("slot N of step N does no harm any more")
def _(stage: Stage, slot: str, step: str) -> None:
    stage.poison.discard((int(step) - 1) * stage.spec.slots + int(slot))
