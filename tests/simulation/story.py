"""What happened in a world, as lines that a person reads.

Everything that the checkers are told is told here too, in the words of the protocol. Generations are counted from 1;
what repeats is said once: steps that the same members commit with the same deal are one line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lighthouse.core_values import EndRun, Tell
from lighthouse.values import Role, Version
from replica.agent_values import Say
from replica.rollcall import Record
from replica.values import Work
from simulation.checkers import Watch
from simulation.store import Store

if TYPE_CHECKING:
    from simulation.beacon import Beacon
    from simulation.group import Group
    from simulation.rank import Entry, Rank, Snapshot
    from simulation.world import World

_SAID = ("vote_refused", "generation_failed", "base_refused", "prepare_refused", "out_of_roster")
"""What agents log of it is part of the story; the rest the lighthouse tells as well."""


@dataclass
class Step:
    """A version that was committed: by whom, and who summed what."""

    version: Version
    deal: tuple[tuple[str, tuple[int, ...]], ...]
    by: list[str] = field(default_factory=list)
    upto: int = 0

    def follows(self, other: object) -> bool:
        """Whether it is the next step of the same kind, and all members committed both."""
        return (
            isinstance(other, Step)
            and other.version.generation == self.version.generation
            and other.upto + 1 == self.version.step
            and other.deal == self.deal
            and other.whole()
            and self.whole()
        )

    def whole(self) -> bool:
        """Whether all who took part have committed it."""
        return {name for name, _ in self.deal} == set(self.by)


@dataclass
class Entered:
    """Members that entered a generation: name, role and slots."""

    number: int
    start: Version
    who: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)


@dataclass
class Followed:
    """Entries that a group applied one after the other."""

    who: str
    generation: int
    first: int
    last: int


class Story(Watch):
    """The checkers, and a teller beside them."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.tells: list[Tell] = []
        self._items: list[str | Step | Entered | Followed] = []
        self._steps: dict[Version, Step] = {}
        self._slots: dict[tuple[int, int], tuple[tuple[str, tuple[int, ...]], ...]] = {}
        self._sat: dict[str, int] = {}

    def take(self) -> list[str]:
        """The lines since the last call."""
        items, self._items = self._items, []
        lines: list[str | Step | Entered | Followed] = []
        for item in items:
            if not _absorbed(lines, item):
                lines.append(item)
        return [self._line(item) for item in lines]

    def note(self, text: str) -> None:
        super().note(text)
        if text.startswith("a lighthouse is superseded"):
            self.say(text)

    def say(self, text: str) -> None:
        """Adds a line."""
        self._items.append(_counted(text))

    # ---- lines -----------------------------------------------------------------------------------------------------

    def _line(self, item: str | Step | Entered | Followed) -> str:
        if isinstance(item, str):
            return item
        if isinstance(item, Entered):
            who = ", ".join(_dealt(name, slots, role) for name, role, slots in item.who)
            return _counted(f"generation {item.number} is entered at {item.start}: {who}")
        if isinstance(item, Followed):
            return _counted(f"{item.who} applies {_range(item.first, item.last)} of generation {item.generation}")
        deal = ", ".join(_dealt(name, slots) for name, slots in item.deal)
        by = "" if item.whole() else f"; committed by {' '.join(item.by)} only"
        return _counted(f"{_range(item.version.step, item.upto)} of generation {item.version.generation}: {deal}{by}")

    # ---- what is told ----------------------------------------------------------------------------------------------

    def gathered(self, rank: Rank, work: Work, records: Sequence[Record]) -> None:
        super().gathered(rank, work, records)
        names = [m[0] for m in self.rosters[work.generation]]
        self._slots[work.generation, work.version.step] = tuple(
            (name, r.slots) for name, r in zip(names, records, strict=True)
        )

    def applied(self, rank: Rank, entry: Entry, before: int, cursor: int, committed: bool) -> None:
        super().applied(rank, entry, before, cursor, committed)
        if rank.shard_rank:
            return
        end, who = entry.name.end, rank.group.label
        if committed:
            self._commits(who, rank.group.name, end)
        else:
            self._items.append(Followed(who, end.generation, end.step, end.step))

    def _commits(self, who: str, name: str, end: Version) -> None:
        step = self._steps.get(end)
        if step is None:
            deal = self._slots[end.generation, end.step - 1]
            step = self._steps[end] = Step(version=end, deal=deal, upto=end.step)
            self._items.append(step)
        elif not any(item is step for item in self._items):
            self.say(f"{who} commits {end} too")
        step.by.append(name)

    def loaded(self, rank: Rank, snapshot: Snapshot) -> None:
        super().loaded(rank, snapshot)
        if rank.shard_rank == 0:
            self.say(f"{rank.group.label} loads {snapshot.version}")

    def agent_exited(self, group: Group, code: int, reason: str) -> None:
        super().agent_exited(group, code, reason)
        self.say(f"{group.label} exits: {reason} ({code})")

    def agent_decided(self, group: Group, events: Sequence[Any], effects: Sequence[Any], now: float) -> None:
        super().agent_decided(group, events, effects, now)
        for effect in effects:
            if isinstance(effect, Say) and effect.event in _SAID:
                words = ", ".join(f"{k} {v}" for k, v in effect.fields.items())
                self.say(f"{group.label}: {effect.event.replace('_', ' ')}, {words}")
        assert group.agent is not None
        seat = group.agent.seat
        if seat.work is not None and seat.generation and self._sat.get(group.label) != seat.generation:
            self._sat[group.label] = seat.generation
            self._enters(group.label, seat)

    def _enters(self, label: str, seat: Any) -> None:
        entered = next((i for i in self._items if isinstance(i, Entered) and i.number == seat.generation), None)
        if entered is None:
            entered = Entered(seat.generation, seat.start.version)
            self._items.append(entered)
        role = seat.roster[seat.place].role
        entered.who.append((label, "" if role is Role.CONTRIBUTOR else role.value, seat.work.slots))

    def told(self, event: Tell) -> None:
        super().told(event)
        self.tells.append(event)
        if event.kind in ("step", "contributes", "progress", "loaded"):  # told otherwise; times
            return
        words = [event.kind.replace("_", " ")] + [event.group] * bool(event.group)
        more = [event.text] * bool(event.text) + [f"{k} {v}" for k, v in event.fields.items() if v]
        self.say(f"lighthouse: {' '.join(words)}{', ' if more else ''}{', '.join(more)}")

    def stored(self, store: Store, effect: Any) -> None:
        super().stored(store, effect)
        stage: Any = self._world
        if stage.crash_at and type(effect).__name__ == stage.crash_at:
            stage.crash_at = ""
            self.say("the lighthouse crashes")
            stage.beacons[-1].crash()

    def run_ended(self, beacon: Beacon, effect: EndRun) -> None:
        super().run_ended(beacon, effect)
        self.say(f"the run is over: {effect.reason}")


def _absorbed(lines: list[str | Step | Entered | Followed], item: str | Step | Entered | Followed) -> bool:
    """Whether `item` only goes on with what a line says, with nothing but steps and entries between them."""
    for line in reversed(lines):
        if not isinstance(line, Step | Followed):
            return False
        if isinstance(item, Step) and isinstance(line, Step):
            if item.follows(line):
                line.upto = item.upto
                return True
            return False
        if isinstance(item, Followed) and isinstance(line, Followed) and line.who == item.who:
            if (line.generation, line.last + 1) == (item.generation, item.first):
                line.last = item.last
                return True
            return False
    return False


def _range(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _dealt(name: str, slots: tuple[int, ...], role: str = "") -> str:
    what = " ".join(map(str, slots)) or "nothing"
    return f"{name}{f' ({role})' if role else ''} sums {what}"


def _counted(text: str) -> str:
    """`text` with generations counted from 1; the world's first one is 1000."""
    return re.sub(r"\b[1-9][0-9]{3,}\b", lambda m: str(int(m[0]) - 999), text)
