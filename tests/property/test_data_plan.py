from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replica.data_plan import DataPlan, permuted


@given(seed=st.integers(0, 2**63), epoch=st.integers(0, 10**6), length=st.integers(1, 3000))
def test_every_order_is_a_permutation(seed: int, epoch: int, length: int) -> None:
    assert sorted(permuted(seed, epoch, length, 0, length)) == list(range(length))


@given(
    seed=st.integers(0, 2**63),
    length=st.integers(1, 2**60),
    run_slot=st.integers(0, 2**40),
    shards=st.integers(1, 8),
    per_shard=st.integers(1, 9),
)
def test_shares_make_up_the_slot(seed: int, length: int, run_slot: int, shards: int, per_shard: int) -> None:
    plan = DataPlan(seed=seed, length=length, slot_size=shards * per_shard, shards=shards)
    whole = plan.samples(run_slot)
    assert all(0 <= s < length for s in whole)
    assert whole == tuple(s for r in range(shards) for s in plan.share(run_slot, r))


@given(length=st.integers(1, 200), slot_size=st.integers(1, 50), epochs=st.integers(1, 3), seed=st.integers(0, 9))
def test_a_run_takes_each_sample_once_a_pass(length: int, slot_size: int, epochs: int, seed: int) -> None:
    plan = DataPlan(seed=seed, length=length, slot_size=slot_size, shards=1)
    slots = -(-length * epochs // slot_size)
    row = [s for c in range(slots) for s in plan.samples(c)]
    for e in range(epochs):
        assert sorted(row[e * length : (e + 1) * length]) == list(range(length))
