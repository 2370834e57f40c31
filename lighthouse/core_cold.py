"""Cold starts: a run that holds because something must not be risked goes on all the same, since a person says so.

A hold for the fence, or for a cold start, is safe and may last for ever: who is waited for may be gone for good. An
operator who knows that they are, or a deadline in the configuration, has the run go on from the newest version that is
here: of the history if anybody stands in it, of any other if nobody does (the store was lost, say). What others may
have made meanwhile is cut off from the history; whoever comes back with it heals. If some of them are at work in truth,
they go on by themselves until they hear of it: that is the risk, and it is an incident. DESIGN §4.
"""

from __future__ import annotations

import msgspec

from lighthouse.core_state import Group, RunState, with_
from lighthouse.core_values import Hold
from lighthouse.values import ROOT

HOLDS = (Hold.FENCE, Hold.COLD_START)
"""What a cold start ends."""


def asked(state: RunState, by: str) -> RunState:
    """`state` once somebody wants a cold start; nothing changes if the run does not hold for one."""
    if state.change is None or state.hold not in HOLDS or state.finished is not None or state.ended:
        return state
    return with_(state, cold=by, dirty=True, change=msgspec.structs.replace(state.change, looked=None))


def advance(state: RunState, now: float) -> RunState:
    """Has a cold start made whose deadline has passed."""
    due = due_s(state)
    if state.cold or not 0 < due <= now or not _is_trained(state):
        return state
    return asked(state, f"cold_start_after_s, {state.config.cold_start_after_s:g} s")


def due_s(state: RunState) -> float:
    """When a cold start is made by itself; 0 for never."""
    after_s = state.config.cold_start_after_s
    return state.hold_since_s + after_s if after_s and state.hold in HOLDS else 0.0


def _is_trained(state: RunState) -> bool:
    """Whether anybody here has more than initial weights: to begin at the root again is for a person to say."""
    return any(g.live and not g.loading and g.report.version > ROOT for g in state.groups.values())


def able(state: RunState, reporters: list[Group]) -> list[Group]:
    """Those of `reporters` whose version may be the next base: who stands in the history; in a cold start, anybody."""
    standing = [g for g in reporters if not g.loading and state.history.contains(g.report.version)]
    if standing and not (state.cold and all(g.report.version == ROOT for g in standing)):
        return standing
    others = [g for g in reporters if not g.loading and g.report.version >= ROOT]
    return others if state.cold else standing
