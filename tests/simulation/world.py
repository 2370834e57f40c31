"""The world: groups, one or more lighthouses, a store, a network, and everybody who watches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from lighthouse.core_values import RunConfig
from replica.agent_values import AgentConfig
from simulation.beacon import Beacon
from simulation.checkers import Watch
from simulation.collectives import Communicator
from simulation.engine import Engine
from simulation.group import Group, default_config
from simulation.network import Network, Stream
from simulation.rank import Rank
from simulation.store import Store
from simulation.weights import Weights


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """What a world is like.

    groups, shards, slots, steps: the run; slots_per_group: if above 0, in place of slots: the global batch is elastic
    data_slots, drop_last: where the data ends (0: nowhere)
    min_groups, groups_wanted, contributors_wanted, allowed_groups: how it is led
    slot_s: compute of one slot; start_s: start of a group's ranks; drift: clocks run faster or slower by this share
    lighthouse_back_s: a crashed lighthouse is back after so long; agent_back_s: so is an agent
    skip_poison: a slot in hand at two deaths is done without; otherwise the run holds for it
    unkind: collectives may fail late, or in part, or never return; terms: the store has a leader's counter
    """

    groups: int = 3
    shards: int = 1
    slots: int = 6
    slots_per_group: int = 0
    data_slots: int = 0
    drop_last: bool = True
    allowed_groups: tuple[int, ...] = ()
    steps: int = 1_000_000
    min_groups: int = 1
    groups_wanted: int = 0
    contributors_wanted: int = 0
    join_wait_s: float = 3.0
    lease_s: float = 2.0
    hold_patience_s: float = 0.0
    cold_start_after_s: float = 0.0
    slot_s: float = 0.05
    start_s: float = 0.3
    stall_patience_s: float = 10.0
    connect_s: float = 15.0
    log_steps: int = 60
    heal: str = "log"
    drift: float = 0.02
    wall_ms: int = 1_000
    lighthouse_back_s: float = 0.5
    agent_back_s: float = 0.7
    marks: bool = True
    skip_poison: bool = False
    unkind: bool = True
    terms: bool = True
    delay_s: tuple[float, float] = (0.0002, 0.004)


class World:
    """One simulated run. Names of groups are g1, g2, … Subclasses give it other parts (`new_…`)."""

    def __init__(self, seed: int, spec: Spec | None = None) -> None:
        self.spec = spec or Spec()
        self.engine = self._new_engine(seed)
        self.network = Network(self.engine, self.spec.delay_s)
        self.weights = Weights(roots=8)
        self.watch = self._new_watch()
        self.store = Store(self.spec.terms)
        self.beacons: list[Beacon] = []
        self.lives: list[Beacon] = []
        self.groups: dict[str, Group] = {}
        self.addresses: dict[str, Rank] = {}
        self.calm = False
        self.poison: set[int] = set()
        """Slots of the run: whoever computes one dies."""
        self._communicators: dict[tuple[int, int, str], Communicator] = {}
        self._births = 0
        self.start_lighthouse()
        for index in range(self.spec.groups):
            self.add_group(f"g{index + 1}")

    def _new_engine(self, seed: int) -> Engine:
        return Engine(seed)

    def _new_watch(self) -> Watch:
        return Watch(self)

    def _new_group(self, name: str, label: str, initial: int) -> Group:
        return Group(self, name, label, initial)

    def _new_communicator(self, number: int, shard_rank: int, size: int) -> Communicator:
        return Communicator(self.engine, size, lambda a, b: not self.network.apart(a, b), self.spec.unkind)

    # ---- who is there ----------------------------------------------------------------------------------------------

    def add_group(self, name: str, initial: int = 0, delay_s: float | None = None, label: str = "") -> Group:
        """A group that starts soon."""
        group = self._new_group(name, label, initial)
        self.groups[group.label] = group
        soon = self.engine.chance("starts").uniform(0.0, 0.3) if delay_s is None else delay_s
        self.engine.after(soon, group.start)
        return group

    def run_config(self) -> RunConfig:
        spec = self.spec
        return RunConfig(
            run_id="sim",
            min_groups=spec.min_groups,
            groups_wanted=max(spec.groups_wanted or spec.groups, spec.min_groups),
            join_wait_s=spec.join_wait_s,
            contributors_wanted=spec.contributors_wanted,
            allowed_groups=spec.allowed_groups,
            lease_s=spec.lease_s,
            hold_patience_s=spec.hold_patience_s,
            cold_start_after_s=spec.cold_start_after_s,
            skip_poison=spec.skip_poison,
            stall_patience_s=spec.stall_patience_s,
            connect_s=spec.connect_s,
        )

    def agent_config(self, group: Group) -> AgentConfig:
        return default_config(self, group)

    def setup(self) -> dict[str, str]:
        spec = self.spec
        found = {"steps": str(spec.steps), "model": "counts", "heal": spec.heal}
        if spec.data_slots:
            found |= {"data_slots": str(spec.data_slots), "drop_last": str(spec.drop_last)}
        if spec.slots_per_group:
            return {**found, "slots_per_group": str(spec.slots_per_group)}
        return {**found, "slots": str(spec.slots)}

    def start_lighthouse(self, store: Store | None = None) -> Beacon:
        """Another lighthouse leads; those that are there do not know."""
        self.store = store or self.store
        beacon = Beacon(self, self.store, self.run_config())
        self.lives.append(beacon)
        if beacon.alive:
            self.beacons.append(beacon)
        return beacon

    def lighthouse_gone(self, beacon: Beacon) -> None:
        """A supervisor starts another unless one is there."""
        if beacon in self.beacons:
            self.beacons.remove(beacon)
        self.engine.after(self.spec.lighthouse_back_s, self._bring_lighthouse_back)

    def _bring_lighthouse_back(self) -> None:
        if not any(b.alive for b in self.beacons):
            self.start_lighthouse()

    def group_failed(self, group: Group, code: int) -> None:
        """An agent gave up with an error; a supervisor starts it again, unless its configuration is wrong."""
        if code not in (2, 3):
            self.engine.after(self.spec.agent_back_s, group.start)

    # ---- what they use ---------------------------------------------------------------------------------------------

    def connect(self, group: Group, to_agent: Callable[[Any], None]) -> Stream | None:
        """A stream from `group` to a lighthouse, None if none answers."""
        alive = [b for b in self.beacons if b.alive]
        if not alive or self.network.apart(group.label, "lighthouse"):
            return None
        beacon = self.engine.chance("network").choice(alive)
        return beacon.accept(group.label, to_agent)

    def communicator(self, number: int, shard_rank: int, size: int, rendezvous: str) -> Communicator:
        """The communicator that everybody meets in who was told this number and this rendezvous."""
        key = (number, shard_rank, rendezvous)
        if key not in self._communicators:
            self._communicators[key] = self._new_communicator(number, shard_rank, size)
        return self._communicators[key]

    def address(self, rank: Rank) -> str:
        """Where a rank's weight server is reached."""
        self._births += 1
        address = f"{rank.group.label}/{self._births}"
        self.addresses[address] = rank
        return address

    def run(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        """Lets so much virtual time pass. Raises Broken where a promise was."""
        self.engine.run(self.engine.now + seconds, lambda: bool(self.watch.wrong) or enough())
        self.watch.raise_broken()
