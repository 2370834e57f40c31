"""Deals: every slot to exactly one member, and nobody loses what it has summed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.deal import even_deal, even_share, lost_deal


def test_even_deal_is_contiguous_and_as_even_as_it_goes() -> None:
    assert even_deal(7, 3) == ((0, 1, 2), (3, 4), (5, 6))
    assert even_deal(2, 3) == ((0,), (1,), ())


@given(st.integers(0, 200), st.integers(1, 40))
def test_even_deal_deals_every_slot_once(slots: int, contributors: int) -> None:
    deal = even_deal(slots, contributors)
    assert [slot for own in deal for slot in own] == list(range(slots))
    assert max(map(len, deal)) - min(map(len, deal)) <= 1
    assert deal == tuple(even_share(slots, contributors, i) for i in range(contributors))


def test_nobody_to_deal_to_is_an_error() -> None:
    with pytest.raises(ValueError, match="somebody"):
        even_deal(4, 0)
    with pytest.raises(ValueError, match="somebody"):
        lost_deal(4, {}, [])


def test_survivors_keep_their_slots_and_take_the_rest_by_least_load() -> None:
    kept = {"a": (0, 1, 2), "b": (3, 4)}
    assert lost_deal(8, kept, ["a", "b", "spare"]) == {"a": (0, 1, 2), "b": (3, 4, 7), "spare": (5, 6)}


def test_a_second_loss_deals_the_slots_taken_over_as_well() -> None:
    """HOLES S4a: B dies, A takes 2 and C takes 3; C dies: 3, 4 and 5 are dealt, also to a new member, none twice."""
    assert lost_deal(6, {"a": (0, 1, 2)}, ["a", "s"]) == {"a": (0, 1, 2), "s": (3, 4, 5)}


@given(
    st.integers(1, 40),
    st.dictionaries(st.sampled_from("abcdef"), st.lists(st.integers(0, 50)).map(tuple)),
    st.lists(st.sampled_from("abcdefgh"), unique=True, min_size=1),
    st.sets(st.integers(0, 50), max_size=3),
)
def test_a_lost_deal_deals_every_slot_once(
    slots: int, kept: dict[str, tuple[int, ...]], members: list[str], set_aside: set[int]
) -> None:
    deal = lost_deal(slots, kept, members, set_aside)
    assert list(deal) == members
    dealt = sorted(slot for own in deal.values() for slot in own)
    assert dealt == [slot for slot in range(slots) if slot not in set_aside]
    assert deal == lost_deal(slots, dict(reversed(kept.items())), members, set_aside)
