"""The network between agents and the lighthouse: streams that keep order, break, stall and lose their tails.

What is assumed of a stream is what TCP gives: bytes arrive in order, none twice, none missing before a later one. All
else may happen: any delay; a cut, in one direction or both, that ends with everything delivered late; a break that
either side hears of long after the other, and that loses what was under way; two streams of one group at a time, so
that what was said on the older one arrives after what was said on the newer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.engine import Engine

LIGHTHOUSE = "lighthouse"
CLOSED = object()
"""Delivered as the last thing of a direction: the stream is over."""


class Network:
    """Who can reach whom, and how long it takes."""

    def __init__(self, engine: Engine, delay_s: tuple[float, float] = (0.0002, 0.004)) -> None:
        self._engine = engine
        self._delay_s = delay_s
        self._cuts: dict[tuple[str, str], int] = {}
        self._mended: dict[tuple[str, str], float] = {}
        self._streams: list[Stream] = []

    def delay(self) -> float:
        """A delay of one message, seconds; now and then a long one."""
        chance = self._engine.chance("network")
        low, high = self._delay_s
        return chance.uniform(low, high) * (20 if chance.random() < 0.01 else 1)

    def blocked(self, source: str, target: str) -> bool:
        """Whether nothing from `source` arrives at `target` now."""
        return bool(self._cuts.get((source, target)))

    def apart(self, a: str, b: str) -> bool:
        """Whether a and b cannot talk: nothing arrives in one direction at least."""
        return self.blocked(a, b) or self.blocked(b, a)

    def were_apart(self, a: str, b: str, since_s: float) -> bool:
        """Whether a and b could not talk, at the end of a cut at least, at some time since then."""
        return self.apart(a, b) or any(self._mended.get(way, -1.0) > since_s for way in ((a, b), (b, a)))

    def cut(self, source: str, target: str) -> None:
        """From now on nothing from `source` arrives at `target`. Cuts add up."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        """Ends one cut; what was under way arrives now."""
        left = self._cuts.get((source, target), 0) - 1
        self._cuts[source, target] = max(left, 0)
        if left <= 0:
            self._mended[source, target] = self._engine.now
            for stream in list(self._streams):
                stream.mended(source, target)

    def open(self, group: str, up: Callable[[Any], None], down: Callable[[Any], None]) -> Stream:
        """A stream between `group` and the lighthouse: `up` and `down` are given what arrives there, CLOSED at last."""
        stream = Stream(self._engine, self, (_Way(group, LIGHTHOUSE, up), _Way(LIGHTHOUSE, group, down)))
        self._streams.append(stream)
        return stream

    def forget(self, stream: Stream) -> None:
        """Both directions are over."""
        self._streams.remove(stream)


@dataclass
class _Way:
    source: str
    target: str
    deliver: Callable[[Any], None]
    last_s: float = 0.0
    under_way: deque[Any] = field(default_factory=deque)
    waiting: list[Any] = field(default_factory=list)
    lossy: bool = False
    over: bool = False


UP, DOWN = 0, 1


class Stream:
    """One Session stream. Each direction is in order; CLOSED is the last thing that arrives."""

    def __init__(self, engine: Engine, network: Network, ways: tuple[_Way, _Way]) -> None:
        self._engine = engine
        self._network = network
        self._ways = ways

    def send(self, way: int, message: Any) -> None:
        """Sends in direction `way`; lost if that direction is over or breaking."""
        self._put(way, message, self._network.delay())

    def close(self, way: int) -> None:
        """The sender of `way` closes: the other side hears of it after all that was sent, and closes too."""
        self._put(way, CLOSED, self._network.delay())
        self._put(1 - way, CLOSED, self._network.delay())

    def break_off(self, heard_after_s: tuple[float | None, float | None]) -> None:
        """The stream breaks; (lighthouse, agent) hear of it after so long, None: never. Tails may be lost."""
        chance = self._engine.chance("network")
        for way, after_s in zip((UP, DOWN), heard_after_s, strict=True):
            self._ways[way].lossy = chance.random() < 0.6
            if after_s is None:
                self._end(way)
            else:
                self._put(way, CLOSED, after_s)

    def mended(self, source: str, target: str) -> None:
        """A cut ended: what waited arrives."""
        for index, way in enumerate(self._ways):
            if (way.source, way.target) == (source, target):
                waiting, way.waiting = way.waiting, []
                way.under_way.extendleft(reversed(waiting))  # before what was sent after it and has not arrived yet
                for _ in waiting:
                    self._set_arrival(index, self._network.delay())

    def _put(self, index: int, message: Any, delay_s: float) -> None:
        if not self._ways[index].over:
            self._ways[index].under_way.append(message)
            self._set_arrival(index, delay_s)

    def _set_arrival(self, index: int, delay_s: float) -> None:
        """One more message arrives after `delay_s`, after all that arrive already: the first that is under way then."""
        way = self._ways[index]
        arrives = max(way.last_s, self._engine.now + delay_s)
        way.last_s = arrives
        self._engine.after(arrives - self._engine.now, self._arrive, index)

    def _arrive(self, index: int) -> None:
        way = self._ways[index]
        if way.over:
            return
        message = way.under_way.popleft()
        if message is CLOSED:
            self._end(index)
            way.deliver(CLOSED)
        elif way.lossy:
            return
        elif way.waiting or self._network.blocked(way.source, way.target):
            way.waiting.append(message)
        else:
            way.deliver(message)

    def _end(self, index: int) -> None:
        self._ways[index].over = True
        if all(way.over for way in self._ways) and self in self._network._streams:
            self._network.forget(self)
