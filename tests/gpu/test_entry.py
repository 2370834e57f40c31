"""Entries of a GPU that are owed to a joiner: they move to pinned memory, beside what the GPU does next."""

from __future__ import annotations

import gc
import time

import pytest
import torch

from lighthouse.values import EntryName, Version
from replica.entry import Entry, EntryLog
from replica.values import Merged

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]


def entry(step: int) -> Entry:
    merged = Merged(start=Version(step, 1), generation=1, slots=4)
    bucket = torch.zeros(16 << 20, device="cuda")
    for _ in range(50):
        bucket += 0.02 * step  # still being written when the entry is kept
    name = EntryName(start=merged.start, end=merged.end)
    return Entry(name=name, merged=merged, presence=(True,), buckets=(bucket,))


def test_what_is_owed_to_a_joiner_lies_in_pinned_memory_and_not_on_the_gpu() -> None:
    log = EntryLog(reuse_sets=0)
    log.owe(5, Version(1, 1), limit_bytes=1 << 30)
    before = torch.cuda.memory_allocated()
    for step in (1, 2, 3, 4):
        log.keep(entry(step))
        log.release_before(Version(step, 1))
    end = time.monotonic() + 60
    while torch.cuda.memory_allocated() > before + (64 << 20) + (1 << 20):
        log.release_before(Version(4, 1))
        gc.collect()
        assert time.monotonic() < end
    for step in (1, 2, 3, 4):
        with log.reading(Version(step, 1), heal=5) as found:
            assert isinstance(found, Entry)
            (bucket,) = found.buckets
            assert bucket.is_pinned() and torch.allclose(bucket, torch.full_like(bucket, float(step)), rtol=1e-3)
