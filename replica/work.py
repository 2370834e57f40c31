"""What a rank sums, what it has to sum, and what a verdict does to both: bookkeeping without tensors.

The rank's library and the simulator keep one `Book` each and act on what it says. A rank decides nothing: it works off
`pending` slots, reduces, takes part in the roll call, and then acts on the agent's messages in the order in which they
came, none skipped. Sums belong to a version *and* a cursor: they are kept exactly as long as both stay, and as long as
the rank still answers for every slot in them (a single slot cannot be taken out of a sum again).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import msgspec

from lighthouse.values import ROOT, Value, Version
from replica.rollcall import MOST_HEALS, Record
from replica.values import (
    Abandoned,
    Apply,
    Commit,
    Drop,
    Go,
    Load,
    Loaded,
    Open,
    Quit,
    RankDown,
    ReadyFor,
    StageFor,
    Work,
)


class OutOfOrder(ValueError):
    """A verdict does not fit what the rank stands on: something was skipped. The rank must exit, applying nothing."""


class Book(Value, frozen=True):
    """All that a rank knows about its work.

    version, cursor: what its state is, and the first slot of the step in work; usable: False while a load is under way
    or has failed
    work: the step in work, None while it waits for a verdict that brings one
    summed: slots in the local sum; in_hand: the slot begun and not done, -1 if none
    over: generations below this number are over; opened, ready: newest planned generation opened here, declared ready
    heals: heals to name in the roll call; owed: heals whose log of entries is kept
    leaving: the verdict to leave was given
    """

    version: Version = ROOT
    cursor: int = 0
    usable: bool = True
    work: Work | None = None
    summed: tuple[int, ...] = ()
    in_hand: int = -1
    over: int = 0
    opened: int = 0
    ready: int = 0
    heals: tuple[int, ...] = ()
    owed: tuple[int, ...] = ()
    leaving: bool = False

    @property
    def pending(self) -> tuple[int, ...]:
        """Slots to compute now, in order. A step that was begun is finished even if its generation is over."""
        if self.work is None:
            return ()
        return tuple(slot for slot in self.work.slots if slot not in self.summed)

    @property
    def named(self) -> int:
        """The planned generation to name in the roll call: opened here and declared ready for all; 0 for none."""
        if self.work is None or self.opened != self.ready or self.ready <= max(self.work.generation, self.over - 1):
            return 0
        return self.ready

    @property
    def live(self) -> bool:
        """Whether the generation in work is worth a collective: not known to be over."""
        return self.work is not None and self.work.generation >= self.over


def heard(book: Book, message: RankDown) -> Book:
    """The book after acting on what the agent said. Raises OutOfOrder where a verdict does not fit."""
    act = _ACTS.get(type(message))
    return book if act is None else act(book, message)


def begun(book: Book, slot: int) -> Book:
    """The forward pass of `slot` begins."""
    if slot not in book.pending or book.in_hand != -1:
        raise ValueError(f"slot {slot} is not to be begun now")
    return msgspec.structs.replace(book, in_hand=slot)


def done(book: Book) -> Book:
    """The slot in hand is in the local sum."""
    if book.in_hand == -1:
        raise ValueError("no slot was begun")
    return msgspec.structs.replace(book, summed=tuple(sorted((*book.summed, book.in_hand))), in_hand=-1)


def opened(book: Book, number: int) -> Book:
    """The communicator of planned generation `number` is open here."""
    return msgspec.structs.replace(book, opened=max(book.opened, number))


def loaded(book: Book, message: Loaded) -> Book:
    """A snapshot was loaded and verified."""
    return msgspec.structs.replace(
        book, version=message.version, cursor=message.cursor, usable=True, work=None, summed=(), in_hand=-1
    )


def record(book: Book, ready: Collection[int], stop: bool = False, **measured: Any) -> Record:
    """This rank's record of the step in work; `measured`: the fields of Record that come from the computation.

    ready: heals that this rank has room to stage for
    stop: the rank wishes the end of the run; it also comes with the data
    """
    assert book.work is not None
    return Record(
        generation=book.work.generation,
        version=book.version,
        slots=book.summed,
        opened=book.named,
        heals=tuple(heal for heal in book.heals if heal in ready)[:MOST_HEALS],
        stop=stop or book.work.last,
        **measured,
    )


def _go(book: Book, message: Go) -> Book:
    if not book.usable or message.work.version != book.version:
        raise OutOfOrder(f"told to go on from {message.work.version}, but this rank stands on {_stand(book)}")
    return _take(book, message.work)


def _commit(book: Book, message: Commit) -> Book:
    work = book.work
    if work is None or not book.usable or message.merged.start != book.version:
        raise OutOfOrder(f"told to commit a step from {message.merged.start}, but this rank stands on {_stand(book)}")
    if book.pending or book.in_hand != -1:
        raise OutOfOrder("told to commit a step that is not summed yet")
    if not work.farewell:
        end, cursor = message.merged.end, book.cursor + message.merged.slots
        book = msgspec.structs.replace(book, version=end, cursor=cursor, summed=())
    book = _staged(book, message.stage)
    if message.leave:
        return msgspec.structs.replace(book, work=None, leaving=True)
    return _take(book, message.next)


def _staged(book: Book, heals: tuple[int, ...]) -> Book:
    return msgspec.structs.replace(
        book,
        heals=tuple(heal for heal in book.heals if heal not in heals),
        owed=tuple(sorted({*book.owed, *heals})),
    )


def _take(book: Book, work: Work) -> Book:
    """Takes up `work`, which starts from the book's version. Size 0 means: wait for the next verdict."""
    keeps = work.cursor == book.cursor and set(book.summed) <= set(work.slots)
    return msgspec.structs.replace(
        book,
        work=work if work.size else None,
        cursor=work.cursor,
        summed=book.summed if keeps or not work.size else (),
    )


def _apply(book: Book, message: Apply) -> Book:
    if not book.usable or message.name.start != book.version:
        raise OutOfOrder(f"told to apply an entry to {message.name.start}, but this rank stands on {_stand(book)}")
    book = msgspec.structs.replace(book, version=message.name.end, cursor=message.cursor, work=None, summed=())
    return _staged(book, message.stage)


def _load(book: Book, message: Load) -> Book:
    return msgspec.structs.replace(book, usable=False, work=None, summed=(), heals=(), owed=())


def _abandoned(book: Book, message: Abandoned) -> Book:
    return msgspec.structs.replace(book, over=max(book.over, message.number))


def _open(book: Book, message: Open) -> Book:
    """A newer plan replaces the older. Size 0: this group leaves with it, and has nothing to open before naming it."""
    return msgspec.structs.replace(book, opened=0 if message.size else message.number, ready=0)


def _ready(book: Book, message: ReadyFor) -> Book:
    return msgspec.structs.replace(book, ready=max(book.ready, message.number))


def _stage(book: Book, message: StageFor) -> Book:
    """Staged now or named in the roll call: either way the log is owed only from the snapshot on."""
    if message.now:
        book = _drop(book, Drop(heal=message.heal))
        return msgspec.structs.replace(book, owed=tuple(sorted({*book.owed, message.heal})))
    return msgspec.structs.replace(book, heals=tuple(sorted({*book.heals, message.heal})))


def _drop(book: Book, message: Drop) -> Book:
    return msgspec.structs.replace(
        book,
        heals=tuple(heal for heal in book.heals if heal != message.heal),
        owed=tuple(heal for heal in book.owed if heal != message.heal),
    )


def _quit(book: Book, message: Quit) -> Book:
    return msgspec.structs.replace(book, work=None, leaving=True)


def _stand(book: Book) -> str:
    return str(book.version) if book.usable else "an unfinished load"


_ACTS: dict[type[Any], Callable[[Book, Any], Book]] = {
    Go: _go,
    Commit: _commit,
    Apply: _apply,
    Load: _load,
    Abandoned: _abandoned,
    Open: _open,
    ReadyFor: _ready,
    StageFor: _stage,
    Drop: _drop,
    Quit: _quit,
}
