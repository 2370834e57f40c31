"""The communicators of this rank, by generation: opened in the background, used by the training thread, left for good.

Commands about them arrive on the reader thread of the agent's stream and take effect there at once: an opening starts
even while the training thread computes (others wait for it), and an abandonment wakes a training thread that waits in
a collective. Only the training thread uses or closes communicators.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from replica.communicator import Communicator, CommunicatorLost, Opening
from replica.values import RankFailed, RankOpened

Open = Callable[[int, int, int, str], Opening]
"""Begins to open: (number, place, size, rendezvous "host:port")."""


@dataclass(eq=False, kw_only=True)
class _Generation:
    opening: Opening
    announced: bool
    finished: threading.Event = field(default_factory=threading.Event)
    communicator: Communicator | None = None
    lost: str = ""


class Communicators:
    """All generations that this rank has been told to open and has not left yet. Thread-safe.

    say: sends RankOpened and RankFailed to the agent; called on a thread of its own
    """

    def __init__(self, open_: Open, say: Callable[[RankOpened | RankFailed], None]) -> None:
        self._open = open_
        self._say = say
        self._lock = threading.Lock()
        self._generations: dict[int, _Generation] = {}
        self._left = 0
        self._floor = 0

    def open(self, number: int, place: int, size: int, rendezvous: str, *, planned: bool) -> None:
        """Begins to open generation `number`, unless it has begun or is over. planned: tell the agent how it went."""
        with self._lock:
            if number < self._floor or number in self._generations:
                return
            if size == 0:  # a generation without this group: there is nothing to open, but its number is to be named
                self._left = number
                self._say(RankOpened(number=number))
                return
            opening = self._open(number, place, size, rendezvous)
            generation = _Generation(opening=opening, announced=planned)
            self._generations[number] = generation
        threading.Thread(
            target=self._await, args=(number, generation), name=f"bellrock-open-{number}", daemon=True
        ).start()

    def abandon_below(self, number: int, reason: str) -> None:
        """Leaves every generation below `number`: whoever waits in one gets CommunicatorLost soon. Returns at once."""
        with self._lock:
            self._floor = max(self._floor, number)
            lost = [g for n, g in self._generations.items() if n < number]
        for generation in lost:
            generation.opening.abandon(reason)

    def opened(self, number: int) -> Communicator | None:
        """The communicator of `number` if it is open and not abandoned. Does not wait."""
        with self._lock:
            generation = self._generations.get(number)
            if generation is None or number < self._floor:
                return None
            return generation.communicator

    def can_name(self, number: int) -> bool:
        """Whether planned generation `number` is open here, or is one that this group leaves with."""
        return self._left == number or self.opened(number) is not None

    def get(self, number: int) -> Communicator:
        """The communicator of `number`, waiting until it is open. Raises CommunicatorLost."""
        with self._lock:
            generation = self._generations.get(number)
        if generation is None:
            raise CommunicatorLost(f"generation {number} was never opened here, or has been closed")
        generation.finished.wait()
        if generation.communicator is None:
            raise CommunicatorLost(generation.lost)
        if number < self._floor:
            raise CommunicatorLost(f"generation {number} was abandoned")
        return generation.communicator

    def fail(self, number: int, reason: str) -> None:
        """A collective of `number` failed here: leaves it, so that others notice too, and tells the agent."""
        with self._lock:
            generation = self._generations.get(number)
            over = number < self._floor
        if generation is not None and generation.communicator is not None:
            generation.communicator.abandon(reason)
        if not over:  # else the agent said so itself
            self._say(RankFailed(number=number, reason=reason))

    def close(self) -> None:
        """Gives all of them back."""
        with self._lock:
            newest = max(self._generations, default=0)
        self.close_below(newest + 1)

    def close_below(self, number: int) -> None:
        """A roll call of `number` is complete: nobody uses an older one any more. Training thread only."""
        with self._lock:
            old = [n for n in self._generations if n < number]
            closing = [self._generations.pop(n) for n in old]
        for generation in closing:
            if generation.communicator is not None:
                generation.communicator.close()
            generation.opening.abandon("a newer generation is in use")

    def _await(self, number: int, generation: _Generation) -> None:
        try:
            communicator = generation.opening.result(None)
        except (CommunicatorLost, TimeoutError, OSError, RuntimeError) as failure:
            generation.lost = f"its communicator did not open: {failure}"
            generation.finished.set()
            with self._lock:
                over = number < self._floor
            if generation.announced and not over:
                self._say(RankFailed(number=number, reason=generation.lost))
            return
        with self._lock:
            over = number < self._floor or self._generations.get(number) is not generation
            generation.communicator = communicator
        if over:
            communicator.abandon("its generation is over")
        generation.finished.set()
        if generation.announced and not over:
            self._say(RankOpened(number=number))
