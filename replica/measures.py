"""Where the time of a rank's training thread goes in a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Part(Enum):
    """What a moment of a step goes to."""

    PROGRAM = "program"
    REDUCE = "reduce"
    OPEN = "open"
    ROLL_CALL = "roll call"
    VERDICT = "verdict"
    APPLY = "apply"
    OWN = "own"


@dataclass(frozen=True, kw_only=True)
class Times:
    """Seconds of the training thread in one step, by what they went to; all together they are the step.

    program: the training program's (forward, backward, and what it does between steps)
    reduce: copying gradients into buckets and back, and waiting for the bytes of their reduction
    open: waiting until the generation's communicator is open; apply: the registered function
    roll_call: from the reduction's end until all records were here; verdict: from then until the agent's verdict
    own: everything else of the protocol in this thread
    """

    program: float = 0.0
    reduce: float = 0.0
    open: float = 0.0
    roll_call: float = 0.0
    verdict: float = 0.0
    apply: float = 0.0
    own: float = 0.0

    @property
    def protocol(self) -> float:
        """What the protocol itself cost: everything but compute and the bytes of the reduction."""
        return self.roll_call + self.verdict + self.own


class Stopwatch:
    """Charges time to parts of a step, each moment to one of them."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._then = clock()
        self._took = dict.fromkeys(Part, 0.0)

    def charge(self, part: Part) -> None:
        """All since the last charge went to `part`."""
        now = self._clock()
        self._took[part] += now - self._then
        self._then = now

    def lap(self) -> Times:
        """What this step went to; the next one begins."""
        times = Times(**{part.name.lower(): seconds for part, seconds in self._took.items()})
        self._took = dict.fromkeys(Part, 0.0)
        return times
