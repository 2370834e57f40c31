"""What a group serves to others as their donor: snapshots and logs of entries, staged when asked, dropped when over.

A heal is over when the lighthouse says so, when its joiner has taken part in a step here, and when the lighthouse does
not know of it in its Welcome to a new session (what it said on a stream that broke may be lost). A heal that an earlier
lighthouse began ends with the entry of its joiner, or after a while. Nobody holds a copy of the weights for nothing.
"""

from __future__ import annotations

from lighthouse.values import Release, Stage, Welcome
from replica.agent_state import AgentState, Staging, attached, live, put
from replica.agent_values import Effect, ToRanks
from replica.values import Drop, StageFor

_STAGINGS = 32
"""Heals that a group is donor of at a time; an older one was forgotten by the lighthouse, and is dropped."""


def stage(state: AgentState, message: Stage, now: float) -> AgentState:
    others = tuple(staging for staging in state.stagings if staging.heal != message.heal)
    dropped = tuple(staging.heal for staging in others[: -_STAGINGS + 1])
    new = Staging(
        heal=message.heal, donors=message.donors, now=message.now, joiner=message.joiner, entries=message.entries
    )
    return put(state, stagings=(*others[-_STAGINGS + 1 :], new), drops=(*state.drops, *dropped))


def release(state: AgentState, message: Release, now: float) -> AgentState:
    kept = tuple(staging for staging in state.stagings if staging.heal != message.heal)
    return put(state, stagings=kept, drops=(*state.drops, message.heal))


def served(state: AgentState, message: Welcome, now: float) -> AgentState:
    """Ends heals that the lighthouse does not know of; those of an earlier one may be followed for a while yet."""
    kept, over = [], []
    for staging in state.stagings:
        if staging.heal in message.heals:
            kept.append(staging)
        elif staging.heal >= message.first_heal:
            over.append(staging.heal)
        else:
            kept.append(put(staging, until=staging.until or now + message.connect_s))
    return put(state, stagings=tuple(kept), drops=(*state.drops, *over))


def joined(state: AgentState) -> AgentState:
    """Ends the heals of joiners that took part in the step just committed here: they have everything."""
    members = {member.name for member in state.seat.roster}
    kept = tuple(staging for staging in state.stagings if not (staging.staged and staging.joiner in members))
    over = tuple(staging.heal for staging in state.stagings if staging not in kept)
    return put(state, stagings=kept, drops=(*state.drops, *over)) if over else state


# ---- rules -----------------------------------------------------------------------------------------------------------


def let_go(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Ends heals whose time is over."""
    over = [staging.heal for staging in state.stagings if 0 < staging.until <= now]
    if not over:
        return state
    kept = tuple(staging for staging in state.stagings if staging.heal not in over)
    return put(state, stagings=kept, drops=(*state.drops, *over))


def stage_for(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Passes on what donors have to stage and to drop. `now` holds for a group in no step; else it names the heal."""
    if not attached(state) or not (state.drops or any(not staging.told for staging in state.stagings)):
        return state
    for dropped in state.drops:
        effects.append(ToRanks(message=Drop(heal=dropped)))
    told = []
    for staging in state.stagings:
        if not staging.told:
            at_once = staging.entries or (staging.now and not live(state))
            effects.append(ToRanks(message=StageFor(heal=staging.heal, now=at_once, entries=staging.entries)))
            staging = put(staging, told=True, staged=at_once)
        told.append(staging)
    return put(state, stagings=tuple(told), drops=())
