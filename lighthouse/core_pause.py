"""Runs whose updates cannot be replayed: everybody pauses while a joiner loads. DESIGN §6.6.

Where `heal` is "pause" in what all groups have in common, no entry is ever applied: a joiner has to stand on the base
when the next generation is formed. So a change is begun for it, without anybody lost: members keep their sums, donors
stage at the base, and the generation is formed once all who are waited for have loaded. Nobody is waited for longer
than a joiner may go without moving any bytes; it is held off then, and the others go on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from lighthouse.core_evidence import held_off_s, release
from lighthouse.core_state import Group, RunState, is_over, takes_part, tell
from lighthouse.core_values import Hold
from lighthouse.names import natural_key


def pauses(state: RunState) -> bool:
    """Whether joiners heal while everybody pauses."""
    return state.setup.get("heal") == "pause"


def wanted(state: RunState, now: float) -> str:
    """Names of those for whom a generation at work is to pause now; empty if it need not."""
    current = state.current
    if not pauses(state) or current is None or not current.committed or state.change or state.plan:
        return ""
    if is_over(state, state.newest, False) or not len(state.odd):
        return ""
    return named(g for g in state.groups.values() if _may_heal(g, now) and not takes_part(state, g))


def until_s(state: RunState, now: float) -> float:
    """Until when those who load are waited for: ever later, as long as bytes move."""
    since_s = state.hold_since_s if state.hold is Hold.PAUSE else now
    return max(since_s, state.moved_s) + state.config.deadlines.heal_s


def awaited(state: RunState, standing: Collection[str], now: float) -> list[Group]:
    """Groups that do not stand on the base yet and are to: those that heal, or are about to."""
    if not pauses(state):
        return []
    return [g for g in state.groups.values() if g.name not in standing and _may_heal(g, now)]


def give_up(state: RunState, groups: list[Group], now: float) -> RunState:
    """The others do without these; they may try again later."""
    for group in groups:
        failures = group.heal_failures + 1
        wait_s = held_off_s(failures)
        reason = f"no bytes have moved for {state.config.deadlines.heal_s:g} s, and the others wait"
        state = tell(state, "heal_failed", reason, group.name, failures=failures, held_off_s=f"{wait_s:g}")
        state = release(state, group, heal_failures=failures, retry_s=now + wait_s, caught=False)
    return state


def _may_heal(group: Group, now: float) -> bool:
    return group.live and not group.draining and not group.leaving and group.retry_s <= now


def named(groups: Iterable[Group]) -> str:
    """The names of the first of them, for people."""
    return ", ".join(sorted((g.name for g in groups), key=natural_key)[:8])
