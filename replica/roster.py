"""The roster of a generation: its members in natural order of their names, each with its role.

Every member keeps the same roster by applying the same functions to the same values: changes that the lighthouse
tells, and promotions that follow from a merged roll call. A group's place in it is its rank in the communicators
between groups.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from lighthouse.batch import filled
from lighthouse.deal import even_share
from lighthouse.names import natural_key
from lighthouse.values import Member, Role, RosterChange
from replica.values import Merged

Roster = tuple[Member, ...]


class _Roles(NamedTuple):
    """What follows from the roles alone. contributor: by place, the how-manieth contributor it is, -1 if it is none."""

    trusted: tuple[int, ...]
    newcomers: bool
    spares: bool
    contributors: int
    contributor: tuple[int, ...]


_KEPT = 4
_known: dict[int, tuple[Roster, _Roles]] = {}
"""Of the last rosters asked about: a step asks again and again about one of a thousand members."""


def _roles(roster: Roster) -> _Roles:
    known = _known.get(id(roster))
    if known is not None and known[0] is roster:
        return known[1]
    roles = [member.role for member in roster]
    contributor, count = [], 0
    for role in roles:
        contributor.append(count if role is Role.CONTRIBUTOR else -1)
        count += role is Role.CONTRIBUTOR
    found = _Roles(
        trusted=tuple([place for place, role in enumerate(roles) if role is not Role.NEWCOMER]),
        newcomers=Role.NEWCOMER in roles,
        spares=Role.SPARE in roles,
        contributors=count,
        contributor=tuple(contributor),
    )
    while len(_known) >= _KEPT:
        del _known[next(iter(_known))]
    _known[id(roster)] = (roster, found)
    return found


def ordered(members: Iterable[Member]) -> Roster:
    """The members in roster order."""
    return tuple(sorted(members, key=lambda member: natural_key(member.name)))


def changed(roster: Roster, change: RosterChange) -> Roster:
    """The roster after `change`; its `previous` is the caller's to check. Who joins replaces a member of that name.

    Raises ValueError if somebody leaves who is not there: then the rosters have come apart.
    """
    by_name = {member.name: member for member in roster}
    for name in change.left:
        if by_name.pop(name, None) is None:
            raise ValueError(f"{name} leaves a roster that it is not in")
    by_name.update((member.name, member) for member in change.joined)
    return ordered(by_name.values())


def place_of(roster: Roster, name: str, incarnation: int) -> int:
    """This incarnation's place in the roster, -1 if it is not in it."""
    for place, member in enumerate(roster):
        if member.name == name:
            return place if member.incarnation == incarnation else -1
    return -1


def trusted_places(roster: Roster) -> tuple[int, ...]:
    """Places whose digests are the reference: all but newcomers'."""
    return _roles(roster).trusted


def has_newcomers(roster: Roster) -> bool:
    """Whether somebody's digest has still to be seen equal."""
    return _roles(roster).newcomers


def contributors(roster: Roster) -> int:
    """How many are dealt slots in a step that follows a commit."""
    return _roles(roster).contributors


def share(roster: Roster, place: int, slots: int) -> tuple[int, ...]:
    """Slots dealt to the member at `place` in a step that follows a commit; empty for spares and newcomers."""
    roles = _roles(roster)
    index = roles.contributor[place]
    return even_share(slots, roles.contributors, index) if index >= 0 else ()


def promote(roster: Roster, merged: Merged, contributors_wanted: int, allowed: Collection[int] = ()) -> Roster:
    """The roster after a committed step: the same object if nobody's role grew.

    Newcomers whose digest was compared and equal become spares; then spares, in roster order, become contributors
    until there are `contributors_wanted` (0: all become contributors), or the largest count `allowed` below that.
    Nobody is demoted: that happens only where a generation starts.
    """
    now = _roles(roster)
    if not now.spares and not (merged.digested and now.newcomers):
        return roster
    after = roster
    if merged.digested:
        mismatched = set(merged.mismatched)
        after = tuple(
            msgspec.structs.replace(member, role=Role.SPARE)
            if member.role is Role.NEWCOMER and place not in mismatched
            else member
            for place, member in enumerate(roster)
        )
    after = filled(after, contributors_wanted, allowed)
    return roster if after == roster else after


def grown(before: Roster, after: Roster) -> Roster:
    """Members of `after` whose role differs from that in `before` (a roster of the same names)."""
    if before is after:
        return ()
    return tuple(new for old, new in zip(before, after, strict=True) if old.role is not new.role)
