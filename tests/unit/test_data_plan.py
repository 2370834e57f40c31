from __future__ import annotations

import pytest

from replica.data_plan import DataPlan, permuted


def test_a_pass_over_the_data_takes_each_sample_once_in_an_order_of_its_own() -> None:
    first = permuted(7, 0, 1000, 0, 1000)
    second = permuted(7, 1, 1000, 0, 1000)
    assert sorted(first) == sorted(second) == list(range(1000))
    assert first != second != list(range(1000))
    assert permuted(8, 0, 1000, 0, 1000) != first


def test_the_order_does_not_change_between_releases() -> None:
    """A restored run must go on with the samples that it would have taken."""
    assert permuted(7, 0, 1000, 0, 8) == GOLDEN


GOLDEN = [659, 421, 313, 951, 22, 944, 562, 316]


def test_places_are_computed_one_by_one_as_in_a_row() -> None:
    row = permuted(3, 5, 77, 0, 77)
    assert [permuted(3, 5, 77, i, 1)[0] for i in range(77)] == row


def test_a_slot_may_cross_the_end_of_a_pass() -> None:
    plan = DataPlan(seed=1, length=10, slot_size=4, shards=2)
    taken = [s for slot in range(5) for s in plan.samples(slot)]
    assert sorted(taken[:10]) == sorted(taken[10:]) == list(range(10))
    assert plan.epoch(2) == 0 and plan.epoch(3) == 1


def test_a_slot_may_be_larger_than_the_data() -> None:
    plan = DataPlan(seed=1, length=1, slot_size=4, shards=1)
    assert plan.samples(9) == (0, 0, 0, 0)


def test_shares_of_a_slot_are_its_samples_in_order() -> None:
    plan = DataPlan(seed=1, length=100, slot_size=6, shards=3)
    assert plan.share(4, 0) + plan.share(4, 1) + plan.share(4, 2) == plan.samples(4)


@pytest.mark.parametrize(
    ("length", "slot_size", "shards", "says"),
    [(0, 1, 1, "0 samples"), (5, 0, 1, "must be 1"), (5, 3, 2, "not divisible by the 2 shards")],
)
def test_a_plan_that_cannot_be_is_refused(length: int, slot_size: int, shards: int, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DataPlan(seed=0, length=length, slot_size=slot_size, shards=shards)


def test_a_share_of_a_shard_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="shard_rank 2"):
        DataPlan(seed=0, length=4, slot_size=2, shards=2).share(0, 2)
