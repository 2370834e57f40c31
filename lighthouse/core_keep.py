"""What is kept for members that were left behind alive: their way back by entries, without a restart. DESIGN §4.5.

A member that is not in the next generation, though nobody knows that it is dead, may be cut off for a while and come
back. From the base on, one member of that generation keeps the entries for it (as long as its memory for them lasts),
the last step's own among them. A group that comes back while it stands in the history follows those, instead of loading
a snapshot; if they do not lead on, it heals like anybody else.
"""

from __future__ import annotations

from lighthouse.core_state import Gen, Group, Keeping, RunState, member_group, send, with_
from lighthouse.names import natural_key
from lighthouse.values import ROOT, Member, Release, Role, Stage

MOST = 32
"""Groups that something is kept for at a time: the last ones that were left behind."""


def keep(state: RunState, before: tuple[Gen, ...], gen: Gen, holders: tuple[Group, ...]) -> RunState:
    """Has entries kept for those who are in no roster any more, from the base of `gen` on, which is about to be told.

    before: the generations that may have been at work until now; holders: members that stand on the base
    """
    for keeping in state.kept:
        if keeping.name in gen.members:
            state = drop(state, keeping.name)
    for member in sorted(_left_behind(before, gen), key=lambda m: natural_key(m.name)):
        if _kept(state, member.name, member.incarnation) is None:
            state = _keep(drop(state, member.name), member, holders)
    return state


def _left_behind(before: tuple[Gen, ...], gen: Gen) -> list[Member]:
    """Members of an entered generation that are not in `gen`, and not known to be dead."""
    entered = before[:1]
    return [m for old in entered for m in old.roster if m.name not in gen.members and m.name not in old.gone]


def _keep(state: RunState, member: Member, holders: tuple[Group, ...]) -> RunState:
    busy = [keeping.donor.name for keeping in state.kept]
    donor = min(holders, key=lambda group: (busy.count(group.name), natural_key(group.name)))
    heal = state.next_heal
    state = with_(state, next_heal=heal + 1)
    state = send(state, donor, Stage(heal=heal, joiner=member.name, donors=1, place=0, now=True, entries=True))
    source = Member(name=donor.name, incarnation=donor.incarnation, role=member.role, host=donor.host)
    keeping = Keeping(name=member.name, incarnation=member.incarnation, heal=heal, donor=source)
    for oldest in state.kept[: max(0, len(state.kept) + 1 - MOST)]:
        state = drop(state, oldest.name)
    return with_(state, kept=(*state.kept, keeping))


def keep_here(state: RunState, group: Group, holders: tuple[Group, ...]) -> RunState:
    """Has entries kept for `group`, which stands where `holders` do though they may not reach each other: it has
    nothing to load, and what it has is not written over."""
    member = Member(name=group.name, incarnation=group.incarnation, role=Role.NEWCOMER, host=group.host)
    return _keep(drop(state, group.name), member, holders)


def way_back(state: RunState, group: Group, donors: dict[str, Group]) -> tuple[Keeping, Group] | None:
    """Where the entries lie that lead `group` on from where it stands, if that is in the history."""
    keeping, version = _kept(state, group.name, group.incarnation), group.report.version
    if keeping is None or version == ROOT or not state.history.contains(version) or group.unlevelled == version:
        return None
    donor = member_group(state, keeping.donor)
    return (keeping, donor) if donor is not None and donor.name in donors and not group.mismatched else None


def drop(state: RunState, name: str) -> RunState:
    """Nothing is kept for `name` any more."""
    for keeping in state.kept:
        if keeping.name == name:
            donor = member_group(state, keeping.donor)
            state = send(state, donor, Release(heal=keeping.heal)) if donor is not None else state
            state = with_(state, kept=tuple(other for other in state.kept if other is not keeping))
    return state


def _kept(state: RunState, name: str, incarnation: int) -> Keeping | None:
    return next((k for k in state.kept if (k.name, k.incarnation) == (name, incarnation)), None)
