"""How the benchmarks compare: ratios within one round, rounds interleaved, medians with their spread.

A shared machine is faster in one minute than in the next. So nothing here is a time alone: all that is compared takes
turns in one run (A B C A B C ...), and each round gives one ratio for each of them, from times that were taken next to
each other. What is reported is the median of these ratios, with the least and the most.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The median of some figures, the least and the most of them, and how many they were."""

    median: float
    least: float
    most: float
    count: int
    digits: int = 2

    @classmethod
    def of(cls, values: Iterable[float], digits: int = 2) -> Spread:
        """The spread of at least one figure; `digits` behind the point are shown."""
        known = list(values)
        return cls(median=statistics.median(known), least=min(known), most=max(known), count=len(known), digits=digits)

    def __str__(self) -> str:
        if self.count == 1:
            return f"{self.median:.{self.digits}f}"
        return f"{self.median:.{self.digits}f} ({self.least:.{self.digits}f} … {self.most:.{self.digits}f})"


Rounds = Mapping[str, Sequence[float]]
"""By name of what is compared: one figure of each round, in the order of the rounds."""


def interleave(contestants: Mapping[str, Callable[[], float]], rounds: int, *, warm_up: int = 1) -> Rounds:
    """Lets all take turns, in their order, `rounds` times after `warm_up` turns that do not count; what each returned.

    Every other round goes backwards, so that nobody always comes after the same neighbour.
    """
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(-warm_up, rounds):
        order = list(contestants) if number % 2 == 0 else list(reversed(contestants))
        for name in order:
            figure = contestants[name]()
            if number >= 0:
                taken[name].append(figure)
    return taken


def ratios(rounds: Rounds, name: str, to: str) -> Spread:
    """Round by round, the figure of `name` over the figure of `to`."""
    return Spread.of(mine / theirs for mine, theirs in zip(rounds[name], rounds[to], strict=True))


def cpu_s(pid: int) -> float:
    """Seconds of a core that a process has used, all its threads together, to the nanosecond."""
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) has it
