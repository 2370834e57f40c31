"""The communicators of a rank: opened in the background, used, left; of an abandoned generation none is used again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replica.values import RankFailed, RankOpened
from simulation.collectives import Communicator, Done, Lost

if TYPE_CHECKING:
    from simulation.rank import Rank


class Communicators:
    """By generation number. `floor`: every generation below it is abandoned."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._world = rank.world
        self.floor = 0
        self._places: dict[int, tuple[Communicator, int]] = {}
        self._open: set[int] = set()
        self._lost: dict[int, str] = {}

    def is_open(self, number: int) -> bool:
        """Whether it can be used."""
        return number in self._open

    def lost(self, number: int) -> str | None:
        """Why it can never be used, None if it can, or may still open."""
        return self._lost.get(number, "abandoned" if number < self.floor else None)

    def open(self, number: int, place: int, size: int, rendezvous: str, planned: bool) -> None:
        """Begins to open it, unless that was begun before; the agent hears how a planned one ends."""
        if number < self.floor or number in self._places or number in self._lost:
            return
        communicator = self._world.communicator(number, self._rank.shard_rank, size, rendezvous)
        self._places[number] = (communicator, place)
        communicator.open_at(
            place,
            size,
            self._rank.group.label,
            lambda _: self._rank.due(self._opened, number, planned),
            lambda reason: self._rank.due(self._not_opened, number, planned, reason),
        )
        self._rank.later(self._patience_s(planned), self._not_opened, number, planned, "not opened in time")

    def _patience_s(self, planned: bool) -> float:
        deadlines = self._world.run_config().deadlines
        return deadlines.open_s if planned else deadlines.reach_s

    def _opened(self, number: int, planned: bool) -> None:
        if number < self.floor or number not in self._places or number in self._lost:
            return
        self._open.add(number)
        if planned:
            self._rank.say(RankOpened(number=number))
        self._rank.opened(number)

    def _not_opened(self, number: int, planned: bool, reason: str) -> None:
        if number in self._open or number in self._lost or number < self.floor or number not in self._places:
            return
        self._lost[number] = reason
        if planned:
            self._rank.say(RankFailed(number=number, reason=reason))
        self._rank.opened(number)

    def launch(self, number: int, payload: Any, done: Done, lost: Lost) -> None:
        """Launches the next operation of an open communicator."""
        communicator, place = self._places[number]
        communicator.launch(place, payload, done, lost)

    def leave(self, number: int) -> None:
        """Takes part in nothing of it any more."""
        if number in self._places:
            communicator, place = self._places[number]
            communicator.leave(place)

    def close_below(self, number: int) -> None:
        """Older ones have served: they are closed, in order."""
        for old in [n for n in self._places if n < number]:
            self.leave(old)
            del self._places[old]
            self._open.discard(old)

    def abandon_below(self, number: int) -> None:
        """Those below `number` are never used again."""
        self.floor = max(self.floor, number)
        for old in [n for n in self._places if n < number]:
            self.leave(old)

    def close(self) -> None:
        """The process is gone."""
        for number in self._places:
            self.leave(number)
        self._places.clear()
