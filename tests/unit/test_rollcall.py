"""The roll call: what is packed comes back, and only a complete and fitting one counts."""

import math
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.values import Version
from replica.rollcall import Invalid, Record, merge, pack, record_bytes, unpack
from replica.values import HealCount, Merged

AT = Version(7, 3)


@dataclass
class Call:
    """Two members, two shards, five slots; records to be changed before merging."""

    records: list[list[Record]] = field(
        default_factory=lambda: [
            [
                Record(
                    generation=4, version=AT, slots=own, loss_sum=2.0, tokens=10, grad_sq=9.0 + 7 * shard, compute_s=0.5
                )
                for own in ((0, 1, 2), (3, 4))
            ]
            for shard in range(2)
        ]
    )

    def change(self, shard: int, place: int, **fields: Any) -> None:
        self.records[shard][place] = msgspec.structs.replace(self.records[shard][place], **fields)

    def change_all(self, **fields: Any) -> None:
        for shard in range(2):
            for place in range(2):
                self.change(shard, place, **fields)

    def merge(self, **wanted: Any) -> Merged | Invalid:
        matrix = [b"".join(pack(record, 5) for record in row) for row in self.records]
        return merge(matrix, **{"members": 2, "generation": 4, "version": AT, "slots": 5, **wanted})

    def merged(self, **wanted: Any) -> Merged:
        outcome = self.merge(**wanted)
        assert isinstance(outcome, Merged), outcome
        return outcome

    def reason(self, **wanted: Any) -> str:
        outcome = self.merge(**wanted)
        assert isinstance(outcome, Invalid), outcome
        return outcome.reason


def test_counts_are_sums_and_the_norm_is_of_the_mean_gradient() -> None:
    merged = Call().merged()
    assert (merged.start, merged.end, merged.slots) == (AT, Version(8, 4), 5)
    assert (merged.loss_sum, merged.tokens, merged.grad_norm) == (8.0, 40, 5.0 / 40)
    assert (merged.switch, merged.stop, merged.save, merged.skip, merged.digested) == (0, False, False, False, False)
    assert merged.compute_s == (0.5, 0.5)


def test_stop_and_save_are_asked_by_any() -> None:
    call = Call()
    call.change(1, 0, stop=True)
    call.change(0, 1, save=True)
    assert (call.merged().stop, call.merged().save) == (True, True)


def test_not_finite_anywhere_skips_everywhere() -> None:
    """HOLES S2: seen by shard 1 of one member alone, it is the same skip for all."""
    call = Call()
    call.change(1, 1, nonfinite=True)
    assert call.merged().skip
    call = Call()
    call.change(1, 0, grad_sq=math.nan)
    assert call.merged().skip and call.merged().grad_norm == math.inf


def test_a_loss_that_is_not_finite_leaves_equal_values_equal() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        call = Call()
        call.change(0, 0, loss_sum=bad)
        call.change(1, 0, loss_sum=math.inf)
        assert call.merged() == call.merged()


def test_no_token_at_all_is_a_skip() -> None:
    call = Call()
    call.change_all(tokens=0)
    assert call.merged().skip


@pytest.mark.parametrize("shard,place", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_switch_needs_every_record_of_every_shard(shard: int, place: int) -> None:
    """HOLES S2a: one rank that has not opened the plan keeps all where they are."""
    call = Call()
    call.change_all(opened=9)
    assert call.merged().switch == 9
    call.change(shard, place, opened=0)
    assert call.merged().switch == 0
    call.change(shard, place, opened=10)
    assert call.merged().switch == 0


def test_a_generation_that_is_no_newer_is_no_switch() -> None:
    call = Call()
    call.change_all(opened=4)
    assert call.merged().switch == 0


def test_heals_are_counted() -> None:
    call = Call()
    call.change(0, 0, heal=6)
    call.change(1, 0, heal=6)
    call.change(1, 1, heal=2)
    assert call.merged().heals == (HealCount(heal=2, records=1), HealCount(heal=6, records=2))


@pytest.mark.parametrize(
    "fields,reason",
    [
        ({"generation": 3}, "generation 3, not 4"),
        ({"version": Version(6, 3)}, "step 6, not 7"),
        ({"version": Version(7, 2)}, "from_generation 2, not 3"),
    ],
)
def test_a_record_of_another_step_voids_the_call(fields: dict[str, Any], reason: str) -> None:
    call = Call()
    call.change(1, 1, **fields)
    assert reason in call.reason() and "place 1, shard 1" in call.reason()


def test_a_wiped_record_voids_the_call() -> None:
    """HOLES S3: a collective that was aborted leaves the buffer as it was wiped."""
    row = b"".join(pack(record, 5) for record in Call().records[0])
    wiped = row[: record_bytes(5)] + bytes(record_bytes(5))
    outcome = merge([row, wiped], members=2, generation=4, version=AT, slots=5)
    assert outcome == Invalid(reason="the record of place 1, shard 1 is missing")


def test_a_gather_of_another_length_voids_the_call() -> None:
    assert "did not gather 3 records" in Call().reason(members=3)


@pytest.mark.parametrize(
    "own,reason",
    [((3,), "slot 4 was summed 0"), ((2, 3, 4), "slot 2 was summed 2"), ((2, 4), "slot 2 was summed 2")],
)
def test_slots_must_be_summed_once(own: tuple[int, ...], reason: str) -> None:
    """HOLES S4: lost for ever, or counted twice: neither can commit."""
    call = Call()
    for shard in range(2):
        call.change(shard, 1, slots=own)
    assert reason in call.reason()


def test_shards_of_a_member_must_have_summed_the_same() -> None:
    call = Call()
    call.change(1, 1, slots=(4,))
    assert "same slots" in call.reason()


def test_slots_set_aside_are_summed_by_nobody() -> None:
    call = Call()
    for shard in range(2):
        call.change(shard, 1, slots=(3,))
    merged = call.merged(set_aside={4})
    assert (merged.slots, merged.set_aside) == (5, (4,))
    assert "slot 4 was summed 1" in Call().reason(set_aside={4})


def test_a_farewell_has_no_slots_and_never_skips() -> None:
    call = Call()
    call.change_all(slots=(), tokens=0, loss_sum=0.0)
    merged = call.merged(farewell=True)
    assert (merged.slots, merged.skip, merged.grad_norm) == (0, False, 0.0)
    assert "was summed" in Call().reason(farewell=True)


def test_digests_count_only_if_all_gave_one() -> None:
    call = Call()
    call.change_all(digest=0)
    assert call.merged().digested and call.merged().mismatched == ()
    call.change(0, 1, digest=None)
    assert not call.merged().digested


def test_a_newcomer_is_compared_with_the_trusted() -> None:
    call = Call()
    call.change_all(digest=5)
    call.change(1, 0, digest=6)
    assert call.merged(trusted=(1,)).mismatched == (0,)
    assert call.merged(trusted=(0,)).mismatched == (1,)


def test_the_majority_of_the_trusted_is_the_reference() -> None:
    rows = [Record(generation=4, version=AT, slots=(place,), tokens=1, digest=d) for place, d in enumerate((1, 2, 2))]
    outcome = merge([b"".join(pack(r, 3) for r in rows)], members=3, generation=4, version=AT, slots=3)
    assert isinstance(outcome, Merged) and outcome.mismatched == (0,)


records = st.builds(
    Record,
    generation=st.integers(0, 2**62),
    version=st.builds(Version, st.integers(0, 2**40), st.integers(0, 2**62)),
    slots=st.sets(st.integers(0, 12)).map(lambda own: tuple(sorted(own))),
    opened=st.integers(0, 2**62),
    heal=st.integers(0, 2**62),
    stop=st.booleans(),
    save=st.booleans(),
    nonfinite=st.booleans(),
    loss_sum=st.floats(allow_nan=False),
    tokens=st.integers(0, 2**62),
    grad_sq=st.floats(allow_nan=False),
    compute_s=st.floats(0, 1e6),
    digest=st.none() | st.integers(0, 2**64 - 1),
)


@given(records)
def test_what_is_packed_comes_back(record: Record) -> None:
    data = pack(record, 13)
    assert len(data) == record_bytes(13)
    assert unpack(data, 13) == record


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(ValueError, match="bytes"):
        unpack(b"abc", 4)
    with pytest.raises(ValueError, match="written"):
        unpack(bytes(record_bytes(4)), 4)
    with pytest.raises(ValueError, match="slots are 0 to 3"):
        pack(Record(generation=1, version=AT, slots=(4,)), 4)
    with pytest.raises(ValueError, match="at least one slot"):
        record_bytes(0)


@given(st.permutations(range(8)))
def test_the_loss_does_not_depend_on_who_summed_what(order: list[int]) -> None:
    """The same losses in another order give the same bits."""
    losses = [0.1, 1e16, -1e16, 3.3, 7e-9, 1.0, 2.5, -0.3]
    outcomes = []
    for arrangement in (range(8), order):
        rows = [
            Record(generation=4, version=AT, slots=(i,), tokens=1, loss_sum=losses[k])
            for i, k in enumerate(arrangement)
        ]
        outcome = merge([b"".join(pack(r, 8) for r in rows)], members=8, generation=4, version=AT, slots=8)
        assert isinstance(outcome, Merged)
        outcomes.append(outcome.loss_sum)
    assert outcomes[0] == outcomes[1] == math.fsum(losses)


def test_another_size_of_the_step_does_not_count() -> None:
    """Records of five and of six slots have the same length."""
    records = [pack(Record(generation=4, version=AT, slots=own), slots) for own, slots in (((0, 1), 5), ((2, 3, 4), 6))]
    outcome = merge([b"".join(records)], members=2, generation=4, version=AT, slots=5)
    assert isinstance(outcome, Invalid) and "step_slots 6, not 5" in outcome.reason
