"""A world for stories: no chance in it, and everything can be held, cut or let go at a named moment.

Delays are equal, slots take equal time, collectives tell of a death at once: so a story reads the same until somebody
changes it on purpose. What a `World` may do by chance, a `Stage` does when it is asked to.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from replica.rollcall import pack, unpack
from replica.values import RollCall
from simulation.collectives import Communicator, Done, Lost, _Operation
from simulation.engine import Engine
from simulation.group import Group
from simulation.rank import Rank
from simulation.story import Story
from simulation.world import Spec, World

REDUCE, ROLL_CALL = "reduce", "roll call"


class Even(Random):
    """Chance that has always the same mind: nothing rare happens, all takes its usual time, the newest is chosen."""

    def random(self) -> float:
        return 0.7

    def choice(self, seq: Any) -> Any:
        return seq[-1]


class EvenEngine(Engine):
    """An engine without chance."""

    def chance(self, kind: str) -> Random:
        return self._chances.setdefault(kind, Even())


class StageGroup(Group):
    """A group whose ranks' words can be held back, or be those of another step."""

    world: Stage

    def rank_says(self, rank: Rank, message: Any) -> None:
        where = (self.label, rank.shard_rank)
        if isinstance(message, RollCall):
            kept = self.world.last_call.get(where, message.records)
            self.world.last_call[where] = message.records
            if where in self.world.stale:
                self.world.stale.discard(where)
                message = msgspec.structs.replace(message, records=kept)
            if where in self.world.wiped:
                self.world.wiped.discard(where)
                message = msgspec.structs.replace(message, records=bytes(len(message.records)))
        if where in self.world.mute:
            self.world.mute[where].append((rank, message))
        else:
            super().rank_says(rank, message)


class StageCommunicator(Communicator):
    """Collectives that complete where, and only where, the stage lets them."""

    def __init__(self, stage: Stage, number: int, shard_rank: int, size: int) -> None:
        super().__init__(stage.engine, size, lambda a, b: not stage.network.apart(a, b), unkind=False)
        self._stage = stage
        self._shard_rank = shard_rank
        self.number = number

    def launch(self, place: int, payload: Any, done: Done, lost: Lost) -> None:
        where = (self.names[place], self._shard_rank)
        doing = self._stage.doing
        if isinstance(payload, bytes):
            payload = self._stage.written(self.names[place], payload)
        doing[where] = (ROLL_CALL if isinstance(payload, bytes) else REDUCE, self._stage.step_of(where))

        def over(then: Any) -> Any:
            def act(answer: Any) -> None:
                doing.pop(where, None)
                then(answer)

            return act

        super().launch(place, payload, over(done), over(lost))

    def fail_at(self, name: str, reason: str) -> None:
        """Whatever `name` waits for here fails there, and only there."""
        for operation in self._operations:
            for place in [p for p in operation.waiting if self.names[p] == name]:
                self._fail(operation, place, operation.waiting[place][1], reason)

    def _complete(self, operation: _Operation, place: int, payloads: tuple[Any, ...]) -> None:
        where = (self.names[place], self._shard_rank)
        if place in operation.waiting and self._stage.withholds(where, operation.launched[place]):
            return  # it never completes here, and nobody says why
        super()._complete(operation, place, payloads)

    def _opened(self, place: int, done: Done) -> None:
        if (self.names[place], self._shard_rank) in self._stage.opens_late:
            self._engine.after(0.01, self._opened, place, done)
        else:
            super()._opened(place, done)


class Stage(World):
    """The world of a story.

    doing: the collective that a rank is in, and the step; mute: what ranks said and their agent has not heard
    only: (kind, step) of collectives that complete at some ranks only; opens_late: ranks whose openings take longer
    stale, wiped: ranks whose next roll call to the agent is not what was gathered; wrong: groups whose digest is wrong
    crash_at: the lighthouse crashes once it has stored an effect of this type; supervised: it is started again
    since_s: when the present wait began; asked_s: from when on pauses are asked about
    """

    def __init__(self, spec: Spec, names: tuple[str, ...]) -> None:
        self.doing: dict[tuple[str, int], tuple[str, int]] = {}
        self.mute: dict[tuple[str, int], list[tuple[Rank, Any]]] = {}
        self.only: dict[tuple[str, int], frozenset[tuple[str, int]]] = {}
        self.opens_late: set[tuple[str, int]] = set()
        self.stale: set[tuple[str, int]] = set()
        self.wiped: set[tuple[str, int]] = set()
        self.wrong: set[str] = set()
        self.last_call: dict[tuple[str, int], bytes] = {}
        self.crash_at = ""
        self.supervised = True
        self.since_s = self.asked_s = 0.0
        super().__init__(0, spec)
        for name in names:
            self.add_group(name, delay_s=0.0)

    # ---- its parts -------------------------------------------------------------------------------------------------

    def _new_engine(self, seed: int) -> Engine:
        return EvenEngine(seed)

    def _new_watch(self) -> Story:
        return Story(self)

    def _new_group(self, name: str, label: str, initial: int) -> Group:
        return StageGroup(self, name, label, initial)

    def _new_communicator(self, number: int, shard_rank: int, size: int) -> Communicator:
        return StageCommunicator(self, number, shard_rank, size)

    @property
    def story(self) -> Story:
        """What is told of this world."""
        assert isinstance(self.watch, Story)
        return self.watch

    def _bring_lighthouse_back(self) -> None:
        if self.supervised:
            super()._bring_lighthouse_back()

    # ---- what its parts ask ----------------------------------------------------------------------------------------

    def step_of(self, where: tuple[str, int]) -> int:
        """The step that a rank works on, counted from 1: the version's step that it would make."""
        return self.groups[where[0]].ranks[where[1]].book.version.step + 1

    def withholds(self, where: tuple[str, int], payload: Any) -> bool:
        """Whether this collective does not complete at this rank."""
        kind = ROLL_CALL if isinstance(payload, bytes) else REDUCE
        only = self.only.get((kind, self.step_of(where)))
        return only is not None and where not in only

    def written(self, name: str, payload: bytes) -> bytes:
        """The record that a group's rank puts into the roll call."""
        said = unpack(payload, self.spec.slots)
        if name not in self.wrong or said.digest is None:
            return payload
        self.wrong.discard(name)
        return pack(msgspec.structs.replace(said, digest=said.digest ^ 1), self.spec.slots)

    # ---- what is done to it ----------------------------------------------------------------------------------------

    def hear_again(self, where: tuple[str, int]) -> None:
        """What a rank said meanwhile reaches its agent."""
        for rank, message in self.mute.pop(where, []):
            self.groups[where[0]].rank_says(rank, message)

    def fail_collectives(self, label: str) -> None:
        """Whatever this group's ranks wait for fails there."""
        for communicator in self._communicators.values():
            assert isinstance(communicator, StageCommunicator)
            communicator.fail_at(label, "a collective failed")
