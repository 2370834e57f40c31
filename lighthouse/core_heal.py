"""Who heals from whom. DESIGN §6.

A group that is in no generation and has not caught up gets donors: the members with the fewest joiners. In a hold they
stage at once, at the base; otherwise through the roll call, so that all stage one version: each two of the stripes. One
donor's death costs the joiner nothing then; a joiner that has too few left is given others, and begins anew. It is told
of joiners that load already, too: they pass on what they have, if it is of the same version.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from lighthouse import core_pause
from lighthouse.core_change import Standing, stand
from lighthouse.core_evidence import release
from lighthouse.core_keep import keep_here, way_back
from lighthouse.core_state import (
    Change,
    Group,
    RunState,
    change_group,
    grace_until_s,
    in_grace,
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
from lighthouse.values import ROOT, Heal, Release, Role, Source, Stage, Version

_HEALS_IN = (Hold.TOO_FEW, Hold.PAUSE, Hold.POISON)
"""Holds in which members stand at the base and have nothing to do but to wait."""


def advance(state: RunState, now: float) -> RunState:
    """Gives every joiner a donor, and takes back what is over."""
    due = 0 < state.retry_s <= now
    if not state.dirty and not due:
        return state
    if (state.current is None and state.change is None) or is_over(state, state.newest, False):
        return state
    standing: Standing | None = None
    if state.change is not None:
        standing = stand(state, state.change.number) if state.hold in _HEALS_IN else None
        if standing is None:
            return state
    elif not len(state.odd):
        return with_(state, retry_s=0.0)  # everybody is a member, and has healed
    donors = _donors(state, standing)
    retry_s = 0.0
    grace = in_grace(state, now)
    state = _release_over(state, donors, standing, grace)
    if grace:  # joiners that are missing may be on their way back
        retry_s = grace_until_s(state)
    else:
        state = _drop_forgotten(state)
    needy = [g for g in state.groups.values() if _needs(state, g, standing)]
    for group in sorted(needy, key=lambda g: natural_key(g.name)):
        if group.retry_s > now:
            retry_s = min(retry_s or group.retry_s, group.retry_s)
        elif donors and (standing is not None or not core_pause.pauses(state)):
            state = _start(state, group, donors, standing.version if standing is not None else None)
    return with_(state, retry_s=retry_s)


def last_donors(state: RunState) -> frozenset[str]:
    """Names of those who drain but are to stay: nobody else stands on the base of a hold, and somebody could heal."""
    change = state.change
    standing = stand(state, change.number) if change is not None and state.hold in _HEALS_IN else None
    if standing is None or any(not group.draining for group in standing.on):
        return frozenset()
    last = frozenset(group.name for group in standing.on)
    heirs = (g for g in state.groups.values() if g.live and not g.draining and g.name not in last)
    return last if any(heirs) else frozenset()


def _donors(state: RunState, standing: Standing | None) -> dict[str, Group]:
    if standing is not None:
        able = list(standing.on)
    else:
        roster = state.current.roster if state.current else ()
        groups = (member_group(state, m) for m in roster if m.role is not Role.NEWCOMER)
        able = [g for g in groups if g is not None and g.live]
    staying = [g for g in able if not g.draining]
    return {g.name: g for g in staying or able}  # the last who have the weights give them before they leave


def _needs(state: RunState, group: Group, standing: Standing | None) -> bool:
    """Whether `group` must be given a donor now."""
    if not group.live or group.draining or group.leaving or group.heal or group.caught:
        return False
    if standing is not None:
        return all(group.name != g.name for g in (*standing.on, *standing.behind))
    return not takes_part(state, group)


def _release_over(state: RunState, donors: dict[str, Group], standing: Standing | None, grace: bool) -> RunState:
    """Ends heals whose joiner is a member by now, and those that cannot go on with the donors that are left."""
    there = {name: {donor.incarnation} for name, donor in donors.items()}
    if grace and state.current is not None:  # a member that is missing may be on its way back
        for name, incarnation in state.current.members.items():
            there.setdefault(name, set()).add(incarnation)
    for group in list(state.groups.values()):
        if not group.heal:
            continue
        entered = state.current is not None and state.current.committed and is_member(state.current, group)
        if entered and state.change is None and not group.mismatched:
            state = release(state, group, caught=False)
            continue
        if core_pause.pauses(state) and not takes_part(state, group) and _is_too_late(group, standing):
            state = release(state, group, caught=False)
            continue
        gone = _gone(group, there)
        if state.change is not None and not _is_staged(state, group, state.change):
            state = release(state, group, caught=False)
        elif gone and not takes_part(state, group) and not _suffice(group, gone):
            names = ", ".join(sorted(gone, key=natural_key))
            state = tell(state, "heal_again", f"donors of it are gone, or give no more: {names}", group.name)
            state = release(state, group, caught=False)
    return state


def _is_staged(state: RunState, group: Group, change: Change) -> bool:
    """Whether donors stage, have staged or need not: in a hold there is no roll call to stage by."""
    at_once = group.held and group.first == change.number
    return at_once or group.moving or any(keeping.heal == group.heal for keeping in state.kept)


def _is_too_late(group: Group, standing: Standing | None) -> bool:
    """Whether the others go on, or stand elsewhere than it: where entries are not replayed, nothing leads there."""
    loaded = group.report.heal == group.heal and group.report.version.step >= 0
    return standing is None or (loaded and group.report.version != standing.version)


def _gone(group: Group, there: dict[str, set[int]]) -> set[str]:
    """Names of the donors of `group` that are none any more. An incarnation that is not known is any."""
    return {
        name
        for name, incarnation in group.donors.items()
        if name not in there or (incarnation and incarnation not in there[name])
    }


def _suffice(group: Group, gone: set[str]) -> bool:
    """Whether a heal can go on without some of its donors: two hold each stripe, all of them the log.

    Nothing has moved before all have staged, and none will stage without the others: then it is begun anew.
    """
    names = list(group.donors)
    if group.caught or (group.progress is not None and group.progress.version.step >= 0):
        return len(gone) < len(names)
    return group.moving and all(names[i] not in gone or names[i - 1] not in gone for i in range(len(names)))


def _start(state: RunState, group: Group, donors: dict[str, Group], base: Version | None) -> RunState:
    """Has `group` follow entries that were kept for it, or else heal from those who have the fewest joiners, spares
    before contributors. base: where the donors stand in a hold."""
    known = way_back(state, group, donors)
    has_all = group.apart and ROOT < group.report.version == base
    if known is None and has_all and not core_pause.pauses(state):
        state = keep_here(state, group, tuple(donors.values()))
        known = way_back(state, group, donors)
    held = state.change is not None
    first = state.last_number if held else state.last_number + 1
    fresh = {"held": held, "first": first, "progress": None, "caught": False}
    if known is not None:
        keeping, source = known
        keeper = Source(name=source.name, weights=source.weights)
        state = send(state, group, Heal(heal=keeping.heal, sources=(keeper,), entries=True))
        named = {source.name: source.incarnation}
        state = change_group(state, group, heal=keeping.heal, donors=named, **fresh)
        return tell(state, "heal", "by entries", group.name, donors=source.name)
    busy = Counter(name for g in state.groups.values() for name in g.donors)
    spares = {m.name for m in state.current.roster if m.role is Role.SPARE} if state.current else set[str]()
    ranked = sorted(donors.values(), key=lambda d: (busy[d.name], d.name not in spares, natural_key(d.name)))
    chosen = ranked[: state.config.donors]
    heal = state.next_heal
    state = with_(state, next_heal=heal + 1)
    for place, donor in enumerate(chosen):
        now, at = base is not None, base or ROOT
        stage = Stage(heal=heal, joiner=group.name, donors=len(chosen), place=place, now=now, version=at)
        state = send(state, donor, stage)
    passing = _sources(_loading(state)[: state.config.donors])
    state = send(state, group, Heal(heal=heal, sources=_sources(chosen), passing=passing))
    named = {donor.name: donor.incarnation for donor in chosen}
    # What it begins to write over is not what it said hello with: until it has caught up, equal to nobody's.
    anew = {"loading": True, "digest": -heal, "donors_digest": chosen[0].digest}
    state = change_group(state, group, heal=heal, donors=named, **fresh, **anew)
    return tell(state, "heal", "", group.name, donors=" ".join(named))


def _loading(state: RunState) -> list[Group]:
    """Joiners that load just now, the one that was told last first."""
    return sorted((g for g in state.groups.values() if g.loads), key=lambda g: g.heal, reverse=True)


def _sources(groups: list[Group]) -> tuple[Source, ...]:
    return tuple(Source(name=group.name, weights=group.weights) for group in groups)


def _drop_forgotten(state: RunState) -> RunState:
    """Releases what donors still stage for and nobody heals by: a release may have been lost with its stream."""
    heals = {g.heal for g in state.groups.values()} | {keeping.heal for keeping in state.kept}
    for group in list(state.groups.values()):
        stagings = group.report.stagings
        if stagings and group.live:
            for heal in stagings:
                state = state if heal in heals else send(state, group, Release(heal=heal))
            kept = tuple(heal for heal in stagings if heal in heals)
            state = change_group(state, group, report=msgspec.structs.replace(group.report, stagings=kept))
    return state
