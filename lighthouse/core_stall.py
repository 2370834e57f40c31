"""Stalls: somebody lives and beats, but the step in work does not end. DESIGN §8.

Progress is a committed step, or a generation of other members. Without any for the patience, everything is abandoned
like after a failure; the reports then say how far each member is in the step in work. Who is behind the furthest, which
waits for it, is evicted and starts anew. Is nobody behind, the same members go on in a new generation, where a member
that hangs cannot hide behind what it had done before.
"""

from __future__ import annotations

from lighthouse.core_evidence import forget
from lighthouse.core_hello import without_conn
from lighthouse.core_state import Group, RunState, emit, lease_clock, member_group, send, tell, with_
from lighthouse.core_values import CloseStream
from lighthouse.values import Leave, Version

SLOW_FACTOR = 10.0
"""A step that takes so many times the last one's seconds may count as stalled."""
WAITS = 1_000_000
"""Marks from here on mean that a member has summed all its slots, and waits for others (see `agent_life.mark`)."""


def patience_s(state: RunState) -> float:
    """How long the generation at work may go without progress."""
    deadlines = state.config.deadlines
    if not state.step_s:  # nothing was committed yet that this lighthouse knows of
        return deadlines.warmup_s
    return max(deadlines.stall_s, SLOW_FACTOR * state.step_s)


def due_s(state: RunState) -> float:
    """When the generation at work counts as stalled if it makes no progress; 0 for never."""
    if state.current is None or state.progress_s < 0:
        return 0.0
    return state.progress_s + patience_s(state) + state.paused_s


def is_stalled(state: RunState, now: float) -> bool:
    """Whether the generation at work has made no progress for its patience."""
    return 0 < due_s(state) <= now


def progressed(state: RunState, now: float) -> RunState:
    """`state` in which the generation at work was seen to go on."""
    return with_(state, progress_s=lease_clock(state, now))


def evict(state: RunState, number: int) -> RunState:
    """Has those start anew whom others waited for, all reports of change `number` being there."""
    current = state.current
    groups = (member_group(state, m) for m in (current.roster if current else ()))
    there = [g for g in groups if g is not None and g.live and g.report.abandoned >= number]
    if not there:
        return state
    furthest = max(map(_progress, there))
    if furthest[1] < WAITS:
        return state
    for group in there:
        if _progress(group) < furthest:
            reason = f"stalled at step {group.version.step}: the others waited for it"
            state = send(state, group, Leave(reason=reason, success=False, restart=True))
            state = emit(without_conn(state, group.conn), CloseStream(conn=group.conn))
            state = forget(tell(state, "evicted", reason, group.name), group, False, reason)
    return with_(state, trouble="", dirty=True)


def _progress(group: Group) -> tuple[Version, int]:
    return group.report.version, group.report.mark
