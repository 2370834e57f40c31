"""A user's data set, slot by slot: the same samples in whatever order slots are asked for, with workers or without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from replica import MisuseError
from replica.api import Slot
from replica.data import open_data
from replica.data_plan import DataPlan

LENGTH, SLOT_SIZE = 50, 4


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index * index


class Counting:
    """Sample c of the run is c."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.seeks: list[int] = []

    def seek(self, cursor: int) -> None:
        self.seeks.append(cursor)

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.seeks[-1], self.length))


def reader(dataset: Any, *, shards: int = 1, shard_rank: int = 0, workers: int = 0, plan: bool = True) -> Any:
    made = open_data(
        dataset,
        plan=DataPlan(seed=1, length=LENGTH, slot_size=SLOT_SIZE, shards=shards) if plan else None,
        slot_size=SLOT_SIZE,
        shards=shards,
        shard_rank=shard_rank,
        collate=None,
        workers=workers,
        start_method="fork",
    )
    return made._read


def slot(cursor: int, index: int) -> Slot:
    plan = DataPlan(seed=1, length=LENGTH, slot_size=SLOT_SIZE, shards=1)
    return Slot(index=index, number=cursor + index, samples=plan.share(cursor + index, 0))


ASKED = [
    *[(cursor, index) for cursor in (0, 6, 12, 18) for index in (0, 1)],
    (18, 4),  # taken over
    *[(cursor, index) for cursor in (24, 30, 36) for index in (0, 1, 2)],  # dealt more
    (39, 2),  # a step of another size
    *[(cursor, index) for cursor in (42, 48, 54) for index in (1,)],
]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_slot_is_the_same_samples_whatever_was_read_before(workers: int) -> None:
    read = reader(Squares(), workers=workers)
    for cursor, index in ASKED:
        asked = slot(cursor, index)
        assert asked.samples is not None
        assert torch.equal(read(asked), torch.tensor([i * i for i in asked.samples])), (cursor, index)


def test_a_stream_is_sought_only_where_slots_do_not_follow_each_other() -> None:
    data = Counting(1000)
    read = reader(data, plan=False)
    for cursor, index in ASKED:
        first = (cursor + index) * SLOT_SIZE
        assert read(slot(cursor, index)).tolist() == list(range(first, first + SLOT_SIZE))
    assert data.seeks[:4] == [0, 24, 48, 72]


def test_each_shard_takes_its_share_of_a_streams_slot() -> None:
    shares = [reader(Counting(100), shards=2, shard_rank=r, plan=False)(slot(6, 1)).tolist() for r in range(2)]
    assert shares == [[28, 29], [30, 31]]


def test_a_stream_that_cannot_fill_a_slot_is_through() -> None:
    read = reader(Counting(11), plan=False)
    assert [read(slot(0, index)) is None for index in (0, 1, 2, 3)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("dataset", "more", "says"),
    [
        (iter([1, 2]), {}, "give it a seek"),
        (Squares(), {"plan": False}, "give Replica\\(dataset_length=50\\); none was given"),
        (Counting(10), {"workers": 1}, "workers read a map-style"),
    ],
)
def test_what_cannot_be_read_is_told_in_words(dataset: Any, more: dict[str, Any], says: str) -> None:
    with pytest.raises(MisuseError, match=says):
        reader(dataset, **more)
