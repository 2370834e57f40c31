"""How far a heal of this group is, told to the lighthouse as it goes on. Nothing is decided by it here."""

from __future__ import annotations

import math

from lighthouse.values import Progress
from replica.agent_state import AgentState, JoinPhase, put, set_at, version_told, welcomed
from replica.agent_values import Effect, ToLighthouse
from replica.values import Moved

EVERY_S = 0.5
"""Told no more often than this, except when the load is complete."""


def moved(state: AgentState, shard_rank: int, message: Moved, now: float) -> AgentState:
    joining = state.joining
    if joining is None or joining.phase is not JoinPhase.LOADING or message.heal != joining.heal:
        return state
    return put(state, joining=put(joining, moved=set_at(joining.moved, shard_rank, message)))


def tell(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Tells what is new since the last time, if that is long enough ago."""
    seen = _untold(state)
    if seen is None or now < due_s(state):
        return state
    effects.append(ToLighthouse(message=seen))
    assert state.joining is not None
    return put(state, joining=put(state.joining, progress=seen, progress_at=now + EVERY_S))


def due_s(state: AgentState) -> float:
    """When there is something to be told; infinite if there is nothing new."""
    joining, seen = state.joining, _untold(state)
    if joining is None or seen is None:
        return math.inf
    last = joining.progress
    loaded = last is not None and last.version.step < 0 <= seen.version.step
    return -math.inf if last is None or loaded else joining.progress_at


def _untold(state: AgentState) -> Progress | None:
    joining = state.joining
    if joining is None or not welcomed(state) or state.over or state.ending is not None:
        return None
    if joining.phase is JoinPhase.LOADING:
        parts = [part for part in joining.moved if part is not None]
        seen = Progress(
            heal=joining.heal,
            bytes=sum(part.bytes for part in parts),
            total=sum(part.total for part in parts),
            seconds=max((part.seconds for part in parts), default=0.0),
            rate=sum(part.rate for part in parts),
            donors=tuple(sorted({name for part in parts for name in part.sources})),
            version=version_told(state),
        )
    elif joining.phase is JoinPhase.FOLLOWING:
        done = [part for part in joining.loaded if part is not None]
        total = sum(part.bytes for part in done)
        seconds = max((part.seconds for part in done), default=0.0)
        seen = Progress(
            heal=joining.heal,
            bytes=total,
            total=total,
            seconds=seconds,
            rate=total / seconds if seconds > 0 else 0.0,
            donors=tuple(source.name for source in joining.sources),
            version=version_told(state),
        )
    else:
        return None
    return None if seen == joining.progress or not seen.total else seen
