"""A rank's book: sums are kept exactly as long as they are right, and nothing is acted on out of order."""

import msgspec
import pytest

from lighthouse.values import EntryName, Version
from replica.values import (
    Abandoned,
    Apply,
    Commit,
    Drop,
    Go,
    Load,
    Loaded,
    Merged,
    Open,
    Quit,
    ReadyFor,
    StageFor,
    Work,
)
from replica.work import Book, OutOfOrder, begun, done, heard, loaded, opened, record

V0, V1 = Version(0, 0), Version(1, 5)


def work(
    generation: int = 5, version: Version = V0, cursor: int = 0, slots: tuple[int, ...] = (0, 1), size: int = 2
) -> Work:
    return Work(generation=generation, place=0, size=size, version=version, cursor=cursor, slots=slots, step_slots=4)


def go(**fields: object) -> Go:
    return Go(work=work(**fields), rendezvous="x:1")  # type: ignore[arg-type]


def summed(book: Book) -> Book:
    """All pending slots computed."""
    for slot in book.pending:
        book = done(begun(book, slot))
    return book


def commit(book: Book, nxt: Work, **fields: object) -> Commit:
    merged = Merged(start=book.version, generation=book.work.generation if book.work else 0, slots=4)
    return Commit(merged=merged, next=nxt, **fields)  # type: ignore[arg-type]


def test_slots_are_summed_one_after_the_other() -> None:
    book = heard(Book(), go())
    assert book.pending == (0, 1) and book.live
    book = begun(book, 0)
    with pytest.raises(ValueError, match="not to be begun"):
        begun(book, 1)
    book = done(book)
    assert (book.summed, book.pending) == ((0,), (1,))
    with pytest.raises(ValueError, match="no slot"):
        done(book)


def test_a_survivor_keeps_its_sums_and_gets_more() -> None:
    book = heard(summed(heard(Book(), go())), go(generation=6, slots=(0, 1, 3)))
    assert (book.summed, book.pending) == ((0, 1), (3,))


def test_a_slot_cannot_be_taken_out_of_a_sum() -> None:
    book = heard(summed(heard(Book(), go())), go(generation=6, slots=(1, 2)))
    assert (book.summed, book.pending) == ((), (1, 2))


def test_a_moved_cursor_makes_other_slots() -> None:
    book = heard(summed(heard(Book(), go())), go(generation=6, cursor=8))
    assert (book.summed, book.pending, book.cursor) == ((), (0, 1), 8)


def test_what_was_begun_is_finished_though_its_generation_is_over() -> None:
    book = heard(heard(Book(), go()), Abandoned(number=6))
    assert not book.live and book.pending == (0, 1)
    assert not heard(book, Abandoned(number=3)).live


def test_a_commit_moves_on_and_drops_the_sums() -> None:
    book = summed(heard(Book(), go()))
    book = heard(book, commit(book, work(version=V1, cursor=4)))
    assert (book.version, book.cursor, book.summed, book.pending) == (V1, 4, (), (0, 1))


def test_a_leaver_applies_and_waits() -> None:
    book = summed(heard(Book(), go()))
    book = heard(book, commit(book, work(version=V1, cursor=4, slots=(), size=0)))
    assert (book.version, book.work, book.cursor) == (V1, None, 4)
    assert heard(book, Quit(success=True, reason="")).leaving


def test_a_farewell_moves_nothing() -> None:
    book = heard(Book(), Go(work=msgspec.structs.replace(work(slots=()), farewell=True), rendezvous=""))
    merged = Merged(start=V0, generation=5, slots=0)
    assert book.work is not None
    book = heard(book, Commit(merged=merged, next=book.work, leave=True))
    assert (book.version, book.work, book.leaving) == (V0, None, True)


def test_commits_out_of_order_are_refused() -> None:
    book = heard(Book(), go())
    with pytest.raises(OutOfOrder, match="not summed yet"):
        heard(book, commit(book, work(version=V1)))
    book = summed(book)
    late = commit(book, work(version=V1, cursor=4))
    book = heard(book, late)
    with pytest.raises(OutOfOrder, match="stands on"):
        heard(book, late)
    with pytest.raises(OutOfOrder, match="stands on"):
        heard(book, go())


def test_an_entry_drops_the_sums_and_waits_for_what_comes_next() -> None:
    """HOLES S4b: who did not commit t throws away t's sums, those of slots taken over as well."""
    book = summed(heard(Book(), go(slots=(0, 1, 2))))
    book = heard(book, Apply(name=EntryName(start=V0, end=V1), cursor=4))
    assert (book.version, book.cursor, book.summed, book.work) == (V1, 4, (), None)
    with pytest.raises(OutOfOrder):
        heard(book, Apply(name=EntryName(start=V0, end=V1), cursor=4))


def test_a_load_makes_the_state_unusable_until_it_is_done() -> None:
    book = heard(Book(), Load(heal=1, sources=()))
    assert not book.usable
    for verdict in (go(), Apply(name=EntryName(start=V0, end=V1), cursor=4)):
        with pytest.raises(OutOfOrder, match="unfinished load"):
            heard(book, verdict)
    book = loaded(book, Loaded(heal=1, version=V1, cursor=4, stop=False, bytes=1, seconds=0.1))
    assert heard(book, go(version=V1, cursor=4)).pending == (0, 1)


def test_a_plan_is_named_only_once_opened_here_and_declared_ready() -> None:
    book = heard(Book(), go())
    for steps in ((Open(number=7, place=0, size=2, rendezvous="x:1"), None, ReadyFor(number=7)),):
        for step in steps:
            assert book.named == 0
            book = opened(book, 7) if step is None else heard(book, step)
    assert book.named == 7
    assert heard(book, Abandoned(number=7)).named == 7
    assert heard(book, Abandoned(number=8)).named == 0


def test_ready_before_opened_names_nothing_yet() -> None:
    book = heard(heard(heard(Book(), go()), Open(number=7, place=0, size=2, rendezvous="")), ReadyFor(number=7))
    assert book.named == 0
    assert opened(book, 7).named == 7


def test_a_newer_plan_replaces_an_older_one() -> None:
    book = heard(opened(heard(Book(), go()), 7), ReadyFor(number=7))
    book = heard(book, Open(number=8, place=0, size=2, rendezvous=""))
    assert book.named == 0
    assert opened(book, 7).named == 0
    assert heard(opened(opened(book, 8), 7), ReadyFor(number=8)).named == 8


def test_a_leaver_names_a_plan_that_it_has_not_to_open() -> None:
    book = heard(heard(heard(Book(), go()), Open(number=7, place=-1, size=0, rendezvous="")), ReadyFor(number=7))
    assert book.named == 7


def test_a_plan_entered_is_named_no_more() -> None:
    book = summed(heard(opened(heard(Book(), go()), 7), ReadyFor(number=7)))
    assert heard(book, commit(book, work(generation=7, version=V1, cursor=4))).named == 0


def stage_for(heal: int, now: bool = False) -> StageFor:
    return StageFor(heal=heal, now=now, place=0, donors=1)


def test_heals_are_named_until_staged_and_owed_until_dropped() -> None:
    book = heard(heard(heard(Book(), go()), stage_for(3)), stage_for(2))
    book = summed(book)
    assert [record(book, ready).heals for ready in ((2, 3), (3,), ())] == [(2, 3), (3,), ()]
    book = heard(book, commit(book, work(version=V1, cursor=4), stage=(2,)))
    assert (book.heals, book.owed, record(summed(book), (2, 3)).heals) == ((3,), (2,), (3,))
    book = heard(heard(book, stage_for(3, now=True)), Drop(heal=2))
    assert (book.heals, book.owed) == ((), (3,))


def test_a_donor_that_levels_stages_as_those_do_who_committed() -> None:
    book = heard(heard(Book(), go()), stage_for(3))
    book = heard(book, Apply(name=EntryName(start=V0, end=V1), cursor=4, stage=(3,)))
    assert (book.version, book.heals, book.owed) == (V1, (), (3,))


def test_a_record_says_what_was_summed() -> None:
    book = summed(heard(Book(), go()))
    said = record(book, (), tokens=3)
    assert (said.slots, said.tokens, said.version, said.generation) == ((0, 1), 3, V0, 5)


def test_the_end_of_the_data_asks_to_stop() -> None:
    last = msgspec.structs.replace(work(), last=True)
    book = summed(heard(Book(), Go(work=last, rendezvous="x:1")))
    assert record(book, ()).stop and record(summed(heard(Book(), go())), (), stop=True).stop
    assert not record(summed(heard(Book(), go())), ()).stop
