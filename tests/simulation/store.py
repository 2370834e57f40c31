"""The lighthouse's store, as a value with compare-and-set: what `lighthouse/store.py` promises, without the file."""

from __future__ import annotations

import msgspec

from lighthouse.core_values import (
    BaseRecord,
    ClaimRecord,
    StoreBase,
    StoreClaim,
    StoreDeaths,
    StoreEffect,
    StoreFinished,
    StoreIncarnation,
    StoreNumber,
    StoreRecord,
    StoreSetup,
)


class Superseded(Exception):
    """The write contradicts what is stored: another lighthouse leads."""


class Store:
    """What outlives lighthouses.

    terms: an older leader is refused everything, as a store with a leader's counter does. Without it a paused leader
    could still claim and base a number that its successor read as merely spent: two histories.
    """

    def __init__(self, terms: bool = True) -> None:
        self.record = StoreRecord()
        self.all_bases: list[BaseRecord] = []
        self._terms = terms
        self._term = 0

    def lead(self) -> int:
        """A lighthouse opens the store: the term in which it leads."""
        self._term += 1
        return self._term

    def write(self, term: int, effect: StoreEffect) -> None:
        """Carries `effect` out durably. Raises Superseded."""
        if self._terms and term != self._term:
            raise Superseded(f"term {term} is over")
        self.record = written(self.record, effect)
        if isinstance(effect, StoreBase):
            self.all_bases.append(_record(effect))


def written(record: StoreRecord, effect: StoreEffect) -> StoreRecord:
    """The record after `effect`. Raises Superseded."""
    replace = msgspec.structs.replace
    match effect:
        case StoreNumber(number=number):
            _refuse(number <= record.last_number, f"number {number} is spent")
            return replace(record, last_number=number, first_number=record.first_number or number)
        case StoreClaim(number=number):
            _refuse(number != record.last_number, f"number {number} is not the newest")
            _refuse(any(c.number == number for c in record.claims), f"{number} is claimed")
            claim = ClaimRecord(number=number, roster=effect.roster, planned=effect.planned)
            return replace(record, claims=(*record.claims, claim))
        case StoreBase():
            return _based(record, effect)
        case StoreIncarnation(next=following):
            _refuse(following <= record.next_incarnation, f"incarnation {following} was given")
            return replace(record, next_incarnation=following)
        case StoreSetup(setup=setup):
            _refuse(bool(record.setup) and record.setup != setup, "another setup is stored")
            return replace(record, setup=setup)
        case StoreFinished(version=version):
            _refuse(record.finished not in (None, version), "the run is finished elsewhere")
            return replace(record, finished=version)
        case StoreDeaths(deaths=deaths):
            return replace(record, deaths=deaths)
    raise TypeError(f"not a store effect: {effect!r}")


def _based(record: StoreRecord, effect: StoreBase) -> StoreRecord:
    number = effect.number
    mine = _record(effect)
    there = next((b for b in record.bases if b.number == number), None)
    if there is not None:
        _refuse(there != mine, f"generation {number} has another base")
        return record
    _refuse(any(b.number > number for b in record.bases), f"a base above {number} is stored")
    _refuse(not effect.reported and number != record.last_number, f"a number above {number} is spent")
    _refuse(all(c.number != number for c in record.claims), f"{number} was never claimed")
    claims = tuple(c for c in record.claims if c.number >= number)
    return msgspec.structs.replace(record, bases=(*record.bases, mine), claims=claims)


def _record(effect: StoreBase) -> BaseRecord:
    return BaseRecord(number=effect.number, version=effect.version, cursor=effect.cursor, set_aside=effect.set_aside)


def _refuse(bad: bool, why: str) -> None:
    if bad:
        raise Superseded(why)
