"""What a group has to do in the step that follows: the same answer in every group that stands on one version."""

from __future__ import annotations

from lighthouse.values import Base
from replica.agent_state import AgentState
from replica.roster import Roster, contributors, share
from replica.values import Work


def work_at(
    state: AgentState, generation: int, roster: Roster, place: int, digest: bool, base: Base | None = None
) -> Work:
    """The next step of the member at `place`: an even deal of as many slots as the roster's contributors consume, or
    the deal that `base` tells; or the farewell. Place -1: wait for a verdict."""
    stand = state.stand
    farewell = stand.stop or stand.version.step >= state.steps
    member = place >= 0
    slots: tuple[int, ...] = ()
    if farewell:
        step_slots = state.batch.slots
    elif base is not None:
        step_slots, slots = base.step_slots, base.slots
    else:
        step_slots = state.batch.step_slots(contributors(roster), stand.cursor)
        slots = share(roster, place, step_slots) if member else ()
    return Work(
        generation=generation,
        place=place,
        size=len(roster) if member else 0,
        version=stand.version,
        cursor=stand.cursor,
        slots=slots,
        step_slots=step_slots,
        digest=digest and not farewell,
        farewell=farewell,
        last=not farewell and state.batch.through(stand.cursor + step_slots),
    )
