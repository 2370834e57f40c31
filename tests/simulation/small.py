"""Small worlds, explored completely. (draft)"""

from __future__ import annotations

import argparse
import sys
import time
from array import array
from collections import Counter, deque

import msgspec
from xxhash import xxh3_64_intdigest

from simulation.small_checks import stuck
from simulation.small_host import Spec
from simulation.small_moves import after, faults, moves
from simulation.small_world import World


class Found(msgspec.Struct):
    spec: Spec
    states: int = 0
    steps: int = 0
    ends: Counter = msgspec.field(default_factory=Counter)
    wrong: str = ""
    path: tuple = ()
    complete: bool = True
    seconds: float = 0.0
    depth: int = 0


class Seen:
    """A set of 64-bit numbers in eight bytes each."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 << 16))
        self._mask = (1 << 16) - 1
        self.count = 0

    def add(self, key: int) -> bool:
        """Whether `key` (not 0) is new."""
        slots, mask = self._slots, self._mask
        at = key & mask
        while slots[at]:
            if slots[at] == key:
                return False
            at = (at + 1) & mask
        slots[at] = key
        self.count += 1
        if self.count * 3 > mask * 2:
            self._grow()
        return True

    def _grow(self) -> None:
        old = self._slots
        self._mask = mask = self._mask * 2 + 1
        self._slots = slots = array("Q", bytes(8 * (mask + 1)))
        for key in old:
            if key:
                at = key & mask
                while slots[at]:
                    at = (at + 1) & mask
                slots[at] = key


def explore(spec: Spec, limit: int = 1 << 40, seconds: float = 1e9) -> Found:
    world = World(spec)
    found = Found(spec)
    began = time.monotonic()
    encode = msgspec.msgpack.Encoder().encode
    seen = Seen()
    parents = array("q")
    via = array("q")
    numbers: dict = {}
    names: list = []
    first = world.first()
    seen.add(xxh3_64_intdigest(encode(first)) or 1)
    parents.append(-1)
    via.append(-1)
    queue = deque([(0, first)])
    while queue:
        index, state = queue.popleft()
        ordinary = moves(world, state)
        if not ordinary:
            views = [world.view(h) for h in state.hosts]
            kind, bad = stuck(
                views, world.waits(state.lighthouse), world.stores.values[state.store], spec.groups, spec.min_groups
            )
            found.ends[kind] += 1
            if bad:
                found.wrong = f"{kind}, but {bad}"
        for move in [] if found.wrong else ordinary + faults(world, state):
            following = after(world, state, move)
            found.steps += 1
            wrong = world.checked(state, following)
            if wrong:
                found.wrong = wrong[0]
            elif not seen.add(xxh3_64_intdigest(encode(following)) or 1):
                continue
            number = numbers.get(move)
            if number is None:
                number = numbers[move] = len(names)
                names.append(move)
            parents.append(index)
            via.append(number)
            if wrong:
                index = len(parents) - 1
                break
            queue.append((len(parents) - 1, following))
        if found.wrong:
            path = []
            while via[index] >= 0:
                path.append(names[via[index]])
                index = parents[index]
            found.path = tuple(reversed(path))
            break
        if seen.count > limit or time.monotonic() - began > seconds:
            found.complete = False
            break
    found.states = seen.count
    found.seconds = time.monotonic() - began
    return found


def story(spec, path):
    world = World(spec)
    state = world.first()
    lines = []
    for move in path:
        what = " ".join(map(str, move))
        if move[0] in ("up", "down", "amid"):
            conn = move[-1]
            for s in state.streams:
                if s.conn == conn:
                    q = s.down if move[0] == "down" else s.up
                    if q:
                        what += " " + repr(world.things.values[q[0]])[:200]
        state = after(world, state, move)
        wrong = world.checked(state, state)
        lines.append(what + (" WRONG " + "; ".join(wrong) if wrong else ""))
    return lines, world, state


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--groups", type=int, default=2)
    p.add_argument("--shards", type=int, default=1)
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--slots", type=int, default=3)
    p.add_argument("--faults", type=int, default=0)
    p.add_argument("--restarts", type=int, default=0)
    p.add_argument("--min", type=int, default=1)
    p.add_argument("--kinds", default="crash,host,break")
    p.add_argument("--gone", action="store_true")
    p.add_argument("--limit", type=int, default=1 << 40)
    p.add_argument("--seconds", type=float, default=1e9)
    a = p.parse_args()
    spec = Spec(
        name="x",
        groups=a.groups,
        shards=a.shards,
        steps=a.steps,
        slots=a.slots,
        faults=a.faults,
        restarts=a.restarts,
        min_groups=a.min,
        kinds=tuple(a.kinds.split(",")),
        returns=not a.gone,
    )
    found = explore(spec, a.limit, a.seconds)
    print(
        found.states,
        "states",
        found.steps,
        "steps",
        f"{found.seconds:.1f} s",
        dict(found.ends),
        "complete" if found.complete else "cut off",
    )
    if found.wrong:
        lines, world, state = story(spec, found.path)
        print("\n".join(lines))
        print(found.wrong)
        sys.exit(1)
