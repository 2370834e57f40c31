"""Rosters: one order, one way to change, one way to promote."""

import pytest

from lighthouse.values import ROOT, Member, Role, RosterChange
from replica.roster import changed, grown, ordered, place_of, promote, share, trusted_places
from replica.values import Merged

C, S, N = Role.CONTRIBUTOR, Role.SPARE, Role.NEWCOMER


def roster(**roles: Role) -> tuple[Member, ...]:
    return ordered(Member(name=name, incarnation=1, role=role) for name, role in roles.items())


def merged(digested: bool = False, mismatched: tuple[int, ...] = ()) -> Merged:
    return Merged(start=ROOT, generation=1, slots=4, digested=digested, mismatched=mismatched)


def test_names_are_ordered_naturally() -> None:
    names = ["g10", "g2", "G1", "g02", "a", "g2b", "10", "9"]
    members = ordered(Member(name=name, incarnation=1, role=C) for name in names)
    assert [member.name for member in members] == ["9", "10", "G1", "a", "g02", "g2", "g2b", "g10"]


def test_a_change_takes_out_puts_in_and_replaces() -> None:
    before = roster(a=C, b=C, c=S)
    after = changed(before, RosterChange(previous=3, left=("a",), joined=(Member(name="b", incarnation=2, role=N),)))
    assert after == (Member(name="b", incarnation=2, role=N), Member(name="c", incarnation=1, role=S))
    assert (place_of(after, "c", 1), place_of(after, "b", 1), place_of(after, "a", 1)) == (1, -1, -1)


def test_rosters_that_came_apart_are_noticed() -> None:
    with pytest.raises(ValueError, match="x leaves"):
        changed(roster(a=C), RosterChange(previous=3, left=("x",)))


def test_newcomers_with_equal_digests_become_spares_then_contributors_in_order() -> None:
    before = roster(a=C, b=N, c=N, d=S)
    after = promote(before, merged(digested=True, mismatched=(1,)), contributors_wanted=2)
    assert [m.role for m in after] == [C, N, C, S]
    assert [m.name for m in grown(before, after)] == ["c"]
    assert [m.role for m in promote(before, merged(digested=True), 0)] == [C, C, C, C]


def test_without_digests_newcomers_stay_and_spares_fill_up() -> None:
    assert [m.role for m in promote(roster(a=C, b=N, c=S), merged(), 0)] == [C, N, C]


def test_a_dead_contributors_place_goes_to_a_spare() -> None:
    assert [m.role for m in promote(roster(b=C, c=S, d=S), merged(), 2)] == [C, C, S]


def test_nothing_to_promote_gives_the_same_roster() -> None:
    before = roster(a=C, b=S)
    assert promote(before, merged(digested=True), 1) is before
    assert grown(before, before) == ()


def test_shares_are_the_contributors() -> None:
    members = roster(a=C, b=S, c=C, d=N)
    assert [share(members, place, 5) for place in range(4)] == [(0, 1, 2), (), (3, 4), ()]
    assert trusted_places(members) == (0, 1, 2)
