"""Breadth first over the states of a small world, so that the first story that breaks a promise is a shortest one."""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
from xxhash import xxh3_64_intdigest

from simulation.small_checks import stuck
from simulation.small_host import Spec
from simulation.small_moves import Move, after, faults, moves
from simulation.small_world import State, World

Delayed = tuple[Move, ...]
"""What has been made to wait, with all that comes the same way later, for everything else; the latest goes last."""


@dataclass
class Found:
    """What came of exploring a world.

    ends: how many states in which nothing more can happen, by what they are; wrong, path: a broken promise, and the
    moves that lead to it; complete: every state was seen; cpu_s: processor seconds
    """

    spec: Spec
    states: int = 0
    moves: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    wrong: str = ""
    path: tuple[Move, ...] = ()
    complete: bool = False
    cpu_s: float = 0.0


class Seen:
    """A set of 64-bit numbers in about twelve bytes each."""

    def __init__(self) -> None:
        self._slots = array("Q", bytes(8 << 16))
        self._mask = (1 << 16) - 1
        self.count = 0

    def add(self, key: int) -> bool:
        """Whether `key` is new."""
        slots, mask, key = self._slots, self._mask, key or 1
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
        old, mask = self._slots, self._mask * 2 + 1
        slots = array("Q", bytes(8 * (mask + 1)))
        for key in old:
            if key:
                at = key & mask
                while slots[at]:
                    at = (at + 1) & mask
                slots[at] = key
        self._slots, self._mask = slots, mask


class Ways:
    """How each state was reached: by which move, from which state. Eight bytes a state."""

    def __init__(self) -> None:
        self._before = array("i", [-1])
        self._by = array("i", [-1])
        self._numbers: dict[Move, int] = {}
        self._moves: list[Move] = []

    def add(self, before: int, move: Move) -> int:
        """The number of a new state, reached from state `before` by `move`."""
        number = self._numbers.get(move)
        if number is None:
            number = self._numbers[move] = len(self._moves)
            self._moves.append(move)
        self._before.append(before)
        self._by.append(number)
        return len(self._by) - 1

    def path(self, index: int) -> tuple[Move, ...]:
        """The moves from the first state to state `index`."""
        path = []
        while index > 0:
            path.append(self._moves[self._by[index]])
            index = self._before[index]
        return tuple(reversed(path))


def explore(spec: Spec, most_states: int = 1 << 40, seconds: float = 1e9) -> Found:
    """Every state of the world of `spec`, unless there are more or it takes more processor seconds; up to the first
    broken promise."""
    world, found, ways, seen = World(spec), Found(spec), Ways(), Seen()
    encode = msgspec.msgpack.Encoder().encode
    began_s = time.process_time()
    first = begun(world)
    seen.add(xxh3_64_intdigest(encode(first)))
    queue: deque[tuple[int, State, Delayed]] = deque([(0, first, ())])
    while queue and not found.wrong and seen.count < most_states and time.process_time() < began_s + seconds:
        index, state, delayed = queue.popleft()
        ordinary = moves(world, state)
        if not ordinary:
            _ended(world, state, found)
        if found.wrong:
            found.path = ways.path(index)
            break
        for move, late in _choices(spec, ordinary, faults(world, state), delayed):
            following = after(world, state, move)
            wrong = world.checked(state, following)
            found.moves += 1
            if wrong:
                found.wrong, found.path = wrong[0], (*ways.path(index), move)
                break
            if seen.add(xxh3_64_intdigest(encode((following, late) if late else following))):
                queue.append((ways.add(index, move), following, late))
    found.complete = not queue and not found.wrong
    found.states, found.cpu_s = seen.count, time.process_time() - began_s
    return found


def _choices(spec: Spec, ordinary: list[Move], harm: list[Move], delayed: Delayed) -> list[tuple[Move, Delayed]]:
    """What is tried next, and what is late after it: everything, or what comes first and what `delays` delays allow."""
    if spec.delays < 0:
        return [(move, delayed) for move in ordinary + harm]
    places = {mover: place for place, mover in enumerate(delayed)}
    ranked = sorted(ordinary, key=lambda move: places.get(move[:3], -1))
    chosen, late = [(move, delayed) for move in harm], delayed
    for move in ranked:
        chosen.append((move, late))
        if move[:3] in places or len(late) == spec.delays:
            break
        late = (*late, move[:3])
    return chosen


def begun(world: World) -> State:
    """The first state; in a world that is formed, the one in which the first bases are on their way."""
    state = world.first()
    while world.spec.formed and not world.waits(state.lighthouse).number:
        state = after(world, state, moves(world, state)[0])
        assert not world.checked(state, state)
    return state


def _ended(world: World, state: State, found: Found) -> None:
    spec = world.spec
    harmed = state.faults < spec.faults or state.restarts < spec.restarts
    views = [world.view(h) for h in state.hosts]
    stored = world.stores.values[state.store]
    kind, bad = stuck(views, world.waits(state.lighthouse), stored, spec.groups, spec.min_groups, harmed)
    found.ends[kind] += 1
    if bad:
        found.wrong = f"{kind}, but {bad}"


def replayed(spec: Spec, path: Sequence[Move]) -> list[str]:
    """The story of these moves, a line for each."""
    world = World(spec)
    state = begun(world)
    lines = []
    for move in path:
        line = " ".join(str(word) for word in move) + _carried(world, state, move)
        before, state = state, after(world, state, tuple(move))
        lines += [line, *(f"    BROKEN {wrong}" for wrong in world.checked(before, state))]
    for host in (world.view(h) for h in state.hosts):
        lines.append(
            f"{host.name}: generation {host.generation}, stands on {host.version}, waits for {host.hold or '-'}"
        )
    waits = world.waits(state.lighthouse)
    lines.append(f"lighthouse: generation {waits.number}, hold {waits.hold or '-'}")
    return lines


def _carried(world: World, state: State, move: Move) -> str:
    """What a stream's move brings."""
    if move[0] not in ("up", "down", "amid"):
        return ""
    stream = next((s for s in state.streams if s.conn == move[-1]), None)
    way = () if stream is None else stream.down if move[0] == "down" else stream.up
    return f"  {str(world.things.values[way[0]])[:220]}" if way else ""
