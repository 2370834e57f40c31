"""The log of entries: who holds one, for how long, and when its buffers may be written again."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable

import pytest
import torch

from lighthouse.values import EntryName, Version
from replica.beside import Beside
from replica.entry import Answer, Buckets, Entry, EntryLog
from replica.values import Merged


def entry(step: int, generation: int = 1, numbers: int = 4, before: int | None = None) -> Entry:
    """The entry from `step` to the next one, with 4 x numbers bytes."""
    merged = Merged(start=Version(step, before or generation), generation=generation, slots=4)
    name = EntryName(start=merged.start, end=merged.end)
    return Entry(name=name, merged=merged, presence=(True, False), buckets=(torch.full((numbers,), float(step)),))


def starts(log: EntryLog) -> list[int]:
    return [name.start.step for name in log.names()]


def test_an_entry_must_carry_its_own_roll_call() -> None:
    merged = Merged(start=Version(3, 1), generation=2, slots=4)
    with pytest.raises(ValueError, match="another step"):
        Entry(name=EntryName(start=Version(3, 1), end=Version(4, 1)), merged=merged, presence=(), buckets=())


def test_an_entry_lives_until_the_next_step_proves_that_all_committed() -> None:
    log = EntryLog()
    log.keep(entry(0))
    log.keep(entry(1))
    assert starts(log) == [0, 1] and log.newest == Version(2, 1)
    log.release_before(Version(1, 1))
    assert starts(log) == [1]
    reusable = log.reuse()
    assert reusable is not None and reusable[0][0] == 0.0
    assert log.reuse() is None
    log.release_before(Version(9, 1))
    assert starts(log) == [] and log.newest == Version(2, 1)


def test_what_a_joiner_is_owed_is_kept_until_it_has_it() -> None:
    log = EntryLog()
    log.keep(entry(0))
    log.owe(5, Version(1, 1), limit_bytes=1000)
    for step in (1, 2, 3):
        log.keep(entry(step))
        log.release_before(Version(step + 1, 1))
    assert starts(log) == [1, 2, 3]
    log.fetched(5, Version(3, 1))
    assert starts(log) == [3]
    log.release(5)
    assert starts(log) == []


def test_owing_takes_in_what_is_held_already() -> None:
    log = EntryLog()
    log.keep(entry(0))
    log.keep(entry(1))
    log.owe(5, Version(1, 1), limit_bytes=1000)
    log.release_before(Version(2, 1))
    assert starts(log) == [1]


def test_a_joiner_that_is_too_slow_falls_behind_and_is_told() -> None:
    log = EntryLog()
    log.owe(5, Version(0, 1), limit_bytes=40)
    for step in range(3):
        log.keep(entry(step))
        log.release_before(Version(step + 1, 1))
    assert starts(log) == []
    with log.reading(Version(1, 1), heal=5) as found:
        assert found is Answer.BEHIND
    log.keep(entry(3))
    log.release_before(Version(4, 1))
    assert starts(log) == [], "nothing more is kept for it"
    log.owe(6, Version(4, 1), limit_bytes=40)
    log.keep(entry(4))
    with log.reading(Version(4, 1), heal=6) as found:
        assert isinstance(found, Entry)


def test_fetching_makes_room_under_the_limit() -> None:
    log = EntryLog()
    log.owe(5, Version(0, 1), limit_bytes=40)
    for step in range(10):
        log.keep(entry(step))
        log.release_before(Version(step + 1, 1))
        log.fetched(5, Version(step, 1))
    with log.reading(Version(9, 1), heal=5) as found:
        assert isinstance(found, Entry)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (Version(3, 1), Answer.NOT_YET),
        (Version(7, 1), Answer.NOT_YET),
        (Version(2, 1), Answer.GONE),
        (Version(3, 2), Answer.GONE),
    ],
)
def test_what_is_not_there_is_told_apart(asked: Version, answer: Answer) -> None:
    log = EntryLog()
    with log.reading(asked) as found:
        assert found is Answer.NOT_YET
    log.keep(entry(2))
    log.release_before(Version(3, 1))
    with log.reading(asked) as found:
        assert found is answer


def test_buffers_are_not_written_again_while_somebody_reads_them() -> None:
    log = EntryLog()
    log.keep(entry(0))
    with log.reading(Version(0, 1)) as one, log.reading(Version(0, 1)) as two:
        assert one is two and isinstance(one, Entry)
        log.release_before(Version(1, 1))
        assert starts(log) == [] and log.reuse() is None
    assert log.reuse() is one.buckets


def test_few_buffers_are_kept_for_reuse() -> None:
    log = EntryLog(reuse_sets=2)
    for step in range(5):
        log.keep(entry(step))
    log.release_before(Version(5, 1))
    assert [log.reuse() is not None for _ in range(3)] == [True, True, False]


def test_an_entry_of_a_history_that_was_cut_off_is_replaced() -> None:
    log = EntryLog()
    log.keep(entry(4, generation=1))
    log.keep(entry(4, generation=2, before=1))
    assert [name.end for name in log.names()] == [Version(5, 2)]
    assert log.reuse() is not None


def test_a_loaded_version_forgets_everything_and_ends_what_was_owed() -> None:
    log = EntryLog()
    log.owe(5, Version(0, 1), limit_bytes=1000)
    log.keep(entry(0))
    log.stand_on(Version(7, 3))
    assert starts(log) == [] and log.newest == Version(7, 3)
    with log.reading(Version(1, 1), heal=5) as found:
        assert found is Answer.BEHIND
    with log.reading(Version(7, 3)) as found:
        assert found is Answer.NOT_YET


def test_waiting_ends_when_the_entry_appears() -> None:
    log = EntryLog()
    found: list[object] = []

    def ask() -> None:
        with log.reading(Version(0, 1), wait_s=30.0) as answer:
            found.append(answer)

    thread = threading.Thread(target=ask)
    thread.start()
    kept = entry(0)
    log.keep(kept)
    thread.join(20)
    assert found == [kept]


def test_waiting_ends_when_nobody_listens_or_the_log_closes() -> None:
    log = EntryLog()
    began = time.monotonic()
    with log.reading(Version(0, 1), wait_s=60.0, gone=lambda: True) as found:
        assert found is Answer.NOT_YET
    assert time.monotonic() - began < 30
    threading.Timer(0.05, log.close).start()
    with log.reading(Version(0, 1), wait_s=60.0) as found:
        assert found is Answer.CLOSED


def copying(copied: list[int], go: threading.Event) -> Callable[[Buckets], Beside[Buckets]]:
    """As from a GPU: buckets are copied to other memory beside whatever else is done, once `go` is set."""

    def aside(buckets: Buckets) -> Beside[Buckets]:
        copied.append(int(buckets[0][0]))

        def copy() -> Buckets:
            go.wait(20.0)
            return tuple(bucket.clone() for bucket in buckets)

        return Beside(copy, "copy")

    return aside


def test_what_is_owed_to_a_joiner_moves_aside_and_leaves_the_memory_that_it_was_in() -> None:
    go, copied = threading.Event(), list[int]()
    log = EntryLog(reuse_sets=0, aside=copying(copied, go))
    log.keep(entry(0))
    log.owe(5, Version(1, 1), limit_bytes=1000)
    one = entry(1)
    memory = weakref.ref(one.buckets[0])
    log.keep(one)
    assert copied == [1], "what nobody is owed is not copied"
    log.keep(entry(2))
    log.release_before(Version(2, 1))
    assert log.get(Version(1, 1)) is one, "it is not complete yet"
    del one
    go.set()
    with log.reading(Version(1, 1), heal=5) as found:
        assert isinstance(found, Entry) and found.buckets[0] is not memory() and found.buckets[0][0] == 1.0
    end = time.monotonic() + 20.0
    while memory() is not None:
        log.release_before(Version(2, 1))
        assert time.monotonic() < end
    with log.reading(Version(1, 1), heal=5) as found:
        assert isinstance(found, Entry) and found.buckets[0][0] == 1.0
    with log.reading(Version(2, 1)) as found:
        assert isinstance(found, Entry) and found is log.get(Version(2, 1)), "a member has it from where it lies"
    log.release(5)
    assert starts(log) == [2] and log.reuse() is None
