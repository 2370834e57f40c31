"""Who heals from whom. DESIGN §6.

A group that is in no generation and has not caught up gets a donor: the member with the fewest joiners. In a hold the
donor stages at once, at the base; otherwise through the roll call. A joiner whose donor is gone gets another.
"""

from __future__ import annotations

from lighthouse.core_change import Standing, stand
from lighthouse.core_evidence import release
from lighthouse.core_keep import way_back
from lighthouse.core_state import (
    Group,
    RunState,
    change_group,
    is_member,
    is_over,
    member_group,
    send,
    takes_part,
    tell,
    with_,
)
from lighthouse.core_values import Hold
from lighthouse.names import natural_key
from lighthouse.values import Heal, Role, Source, Stage


def advance(state: RunState, now: float) -> RunState:
    """Gives every joiner a donor, and takes back what is over."""
    due = 0 < state.retry_s <= now
    if not state.dirty and not due:
        return state
    if (state.current is None and state.change is None) or is_over(state, state.newest, False):
        return state
    standing: Standing | None = None
    if state.change is not None:
        standing = stand(state, state.change.number) if state.hold is Hold.TOO_FEW else None
        if standing is None:
            return state
    elif not len(state.odd):
        return with_(state, retry_s=0.0)  # everybody is a member, and has healed
    donors = _donors(state, standing)
    state = _release_over(state, donors)
    retry_s = 0.0
    needy = [g for g in state.groups.values() if _needs(state, g, standing)]
    for group in sorted(needy, key=lambda g: natural_key(g.name)):
        if group.retry_s > now:
            retry_s = min(retry_s or group.retry_s, group.retry_s)
        elif donors:
            state = _start(state, group, donors, standing is not None)
    return with_(state, retry_s=retry_s)


def _donors(state: RunState, standing: Standing | None) -> dict[str, Group]:
    if standing is not None:
        return {g.name: g for g in standing.on if not g.draining}
    current = state.current
    roster = current.roster if current else ()
    groups = (member_group(state, m) for m in roster if m.role is not Role.NEWCOMER)
    return {g.name: g for g in groups if g is not None and g.live and not g.draining}


def _needs(state: RunState, group: Group, standing: Standing | None) -> bool:
    """Whether `group` must be given a donor now."""
    if not group.live or group.draining or group.leaving or group.heal or group.caught:
        return False
    if standing is not None:
        return all(group.name != g.name for g in (*standing.on, *standing.behind))
    return not takes_part(state, group)


def _release_over(state: RunState, donors: dict[str, Group]) -> RunState:
    """Ends heals whose joiner is a member by now, or whose donor is gone."""
    for group in list(state.groups.values()):
        if not group.heal:
            continue
        entered = state.current is not None and state.current.committed and is_member(state.current, group)
        if entered and state.change is None and not group.mismatched:
            state = change_group(release(state, group), group, heal=0, donor="", caught=False)
        elif group.donor not in donors and not takes_part(state, group):
            state = tell(state, "heal_again", f"its donor {group.donor} is gone, or gives no more", group.name)
            state = change_group(release(state, group), group, heal=0, donor="", caught=False)
    return state


def _start(state: RunState, group: Group, donors: dict[str, Group], held: bool) -> RunState:
    known = way_back(state, group, donors)
    if known is not None:
        keeping, source = known
        sources = (Source(name=source.name, weights=source.weights),)
        state = send(state, group, Heal(heal=keeping.heal, sources=sources, entries=True))
        state = change_group(state, group, heal=keeping.heal, donor=source.name, caught=False)
        return tell(state, "heal", "by entries", group.name, donor=source.name)
    busy = [g.donor for g in state.groups.values() if g.heal]
    donor = min(donors.values(), key=lambda d: (busy.count(d.name), natural_key(d.name)))
    heal = state.next_heal
    state = with_(state, next_heal=heal + 1)
    state = send(state, donor, Stage(heal=heal, joiner=group.name, donors=1, now=held))
    state = send(state, group, Heal(heal=heal, sources=(Source(name=donor.name, weights=donor.weights),)))
    state = change_group(state, group, heal=heal, donor=donor.name, caught=False, loading=True)
    return tell(state, "heal", "", group.name, donor=donor.name)
