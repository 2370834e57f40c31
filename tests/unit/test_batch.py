"""How large a step is, who contributes to it, and where the data ends."""

from __future__ import annotations

import pytest

from lighthouse.batch import BatchPolicy, batch_policy, contributors_of, filled, limited
from lighthouse.core_values import RunConfig
from lighthouse.program import LighthouseOptions, counts
from lighthouse.values import Member, Role

C, S, N = Role.CONTRIBUTOR, Role.SPARE, Role.NEWCOMER


def roster(*roles: Role) -> tuple[Member, ...]:
    return tuple(Member(name=f"g{i}", incarnation=1, role=role) for i, role in enumerate(roles))


def roles(members: tuple[Member, ...]) -> list[Role]:
    return [member.role for member in members]


def test_a_fixed_batch_does_not_know_how_many_contribute() -> None:
    batch = batch_policy({"slots": "7", "model": "x"})
    assert [batch.step_slots(count, 70) for count in (0, 1, 3, 9)] == [7, 7, 7, 7]
    assert not batch.through(10**12)


def test_an_elastic_batch_is_so_many_slots_for_each() -> None:
    batch = batch_policy({"slots_per_group": "3"})
    assert [batch.step_slots(count, 5) for count in (0, 1, 2, 4)] == [3, 3, 6, 12]


@pytest.mark.parametrize("elastic", [False, True])
def test_data_ends_with_its_last_whole_batch_or_with_a_shorter_one(elastic: bool) -> None:
    drop = BatchPolicy(slots=4, elastic=elastic, data_slots=10)
    assert [drop.through(cursor) for cursor in (0, 4, 6, 7, 8, 10)] == [False, False, False, True, True, True]
    keep = BatchPolicy(slots=4, elastic=elastic, data_slots=10, drop_last=False)
    assert [keep.through(cursor) for cursor in (8, 9, 10)] == [False, False, True]
    assert [keep.step_slots(1, cursor) for cursor in (4, 8, 9)] == [4, 2, 1]


def test_the_last_elastic_step_takes_what_is_left() -> None:
    batch = BatchPolicy(slots=4, elastic=True, data_slots=30)
    assert [batch.step_slots(3, cursor) for cursor in (12, 20, 24)] == [12, 10, 6]


@pytest.mark.parametrize(
    ("setup", "says"),
    [
        ({}, "either 'slots' or"),
        ({"slots": "1", "slots_per_group": "1"}, "either 'slots' or"),
        ({"slots": "0"}, "'slots' is '0'"),
        ({"slots_per_group": "-2"}, "'slots_per_group' is '-2'"),
        ({"slots": "1", "data_slots": "many"}, "'data_slots' is 'many'"),
    ],
)
def test_a_setup_without_a_batch_is_refused(setup: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        batch_policy(setup)


def test_how_many_contribute() -> None:
    assert [contributors_of(able, 0, ()) for able in range(4)] == [0, 1, 2, 3]
    assert [contributors_of(able, 2, ()) for able in range(4)] == [0, 1, 2, 2]
    assert [contributors_of(able, 0, (1, 2, 4)) for able in range(1, 7)] == [1, 2, 2, 4, 4, 4]
    assert contributors_of(9, 3, (1, 2, 4)) == 2
    assert contributors_of(1, 0, (2, 4)) == 1, "min_groups says how few may go on"


def test_surplus_becomes_spare_at_a_base_and_comes_back_by_promotion() -> None:
    lost_one = roster(C, C, C)
    assert roles(limited(lost_one, 0, (1, 2, 4))) == [C, C, S]
    assert roles(limited(roster(C, N, C, C), 0, (1, 2, 4))) == [C, N, C, S]
    assert roles(filled(roster(C, C, S, S), 0, (1, 2, 4))) == [C, C, C, C]
    assert roles(filled(roster(C, C, S, N), 0, (1, 2, 4))) == [C, C, S, N]
    assert roles(filled(roster(C, N, S, S), 0, (1, 2, 4))) == [C, N, C, S]
    assert limited(lost_one, 0, ()) == filled(lost_one, 0, ()) == lost_one


def test_counts_are_read_from_a_flag() -> None:
    assert counts("") == () and counts("4, 1,2,2") == (1, 2, 4)
    for wrong in ("0", "1;2", "two", "-1"):
        with pytest.raises(ValueError, match="separated by commas"):
            counts(wrong)


def test_a_run_that_could_never_go_on_is_refused() -> None:
    with pytest.raises(ValueError, match="raise min_groups to 2"):
        LighthouseOptions(allowed_groups="2,4")
    with pytest.raises(ValueError, match="raise contributors_wanted"):
        RunConfig(run_id="r", min_groups=3, groups_wanted=3, contributors_wanted=2, allowed_groups=(3,))
