from __future__ import annotations

import pytest
import torch

from replica.buckets import Layout, ScratchPool, Shape, lay_out

CPU = torch.device("cpu")


def shapes(*numels: int, dtype: torch.dtype = torch.float32, whole: bool = False) -> list[Shape]:
    return [Shape(numel=n, dtype=dtype, device=CPU, whole=whole) for n in numels]


def packed(layout: Layout) -> list[tuple[int, ...]]:
    return [bucket.parameters for bucket in layout.buckets]


def test_the_last_parameters_come_first_and_buckets_are_full_before_the_next_begins() -> None:
    layout = lay_out(shapes(10, 20, 30, 40), 4 * 70)
    assert packed(layout) == [(3, 2), (1, 0)]
    assert [b.numel for b in layout.buckets] == [70, 30]
    assert (layout.places[2].bucket, layout.places[2].offset) == (0, 40)
    assert layout.bytes == 4 * 100


def test_a_parameter_larger_than_a_bucket_has_one_of_its_own() -> None:
    assert packed(lay_out(shapes(1, 1000, 1), 100)) == [(2,), (1,), (0,)]


def test_dtypes_do_not_mix_and_parameters_held_by_all_shards_come_last() -> None:
    layout = lay_out(
        [
            *shapes(5, whole=True),
            *shapes(5, dtype=torch.bfloat16),
            *shapes(5),
            *shapes(5, whole=True),
            *shapes(5, dtype=torch.bfloat16),
        ],
        1000,
    )
    assert packed(layout) == [(4, 1), (2,), (3, 0)]
    assert [b.whole for b in layout.buckets] == [False, False, True]


def test_every_element_has_a_place_of_its_own_also_where_a_shard_holds_nothing() -> None:
    layout = lay_out(shapes(3, 0, 7, 0, 1), 16)
    tensors = layout.allocate()
    for tensor in tensors:
        tensor.zero_()
    for p in range(5):
        layout.view(tensors, p).add_(1)
    assert all((t == 1).all() for t in tensors)
    assert [layout.view(tensors, p).numel() for p in range(5)] == [3, 0, 7, 0, 1]


def test_a_bucket_size_that_holds_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="bucket_bytes is 0"):
        lay_out(shapes(1), 0)


def test_scratch_is_used_again_once_nobody_refers_to_it() -> None:
    pool = ScratchPool(lay_out(shapes(100, 200), 400))
    first = pool.take()
    at = [t.data_ptr() for t in first]
    del first
    again = pool.take()
    assert [t.data_ptr() for t in again] == at
    assert [(t.dtype, tuple(t.shape)) for t in again] == [
        (torch.float32, (200,)),
        (torch.float32, (100,)),
    ]


def test_scratch_is_not_used_again_while_anybody_may_touch_it() -> None:
    """Whatever it is that refers to the memory: another tensor, numpy, a buffer that a socket sends from."""
    pool = ScratchPool(lay_out(shapes(100, 200), 400))
    for hold in (
        lambda tensors: tensors[0],
        lambda tensors: tensors[1][3:7],
        lambda tensors: tensors[0].numpy()[5:],
        lambda tensors: memoryview(tensors[1].numpy()),
    ):
        taken = pool.take()
        at = {t.data_ptr() for t in taken}
        held = hold(taken)
        del taken
        other = pool.take()
        assert at.isdisjoint(t.data_ptr() for t in other)
        del other, held


def test_sets_in_use_do_not_pile_up_in_the_pool() -> None:
    pool = ScratchPool(lay_out(shapes(10), 400), most_spare=2)
    held = [pool.take() for _ in range(5)]
    assert len({t[0].data_ptr() for t in held}) == 5
    assert len(pool._sets) == 2
