"""Faults drawn from a seed. A seed chooses some kinds and does them often, so that rare meetings are not rare."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from simulation.group import Group
from simulation.network import LIGHTHOUSE
from simulation.store import Store
from simulation.world import Spec, World


def draw_spec(chance: Random) -> Spec:
    """A world of a size and kind that the seed fixes."""
    groups = chance.choice([2, 3, 3, 4, 5])
    spec = Spec(
        groups=groups,
        shards=chance.choice([1, 1, 1, 2]),
        slots=chance.choice([3, 6, 7]),
        min_groups=chance.choice([1, 1, 2, max(1, groups - 1)]),
        groups_wanted=groups,
        contributors_wanted=chance.choice([0, 0, 0, max(1, groups - 1)]),
        slot_s=chance.choice([0.02, 0.08, 0.2]),
        terms=chance.random() < 2,
        drift=chance.choice([0.0, 0.05]),
        delay_s=chance.choice([(0.0002, 0.004), (0.001, 0.05)]),
        marks=chance.random() < 0.5,
        stall_patience_s=chance.choice([3.0, 5.0, 10.0]),
        cold_start_after_s=chance.choice([0.0, 0.0, 0.0, 0.0, 3.0]),
    )
    least = min(spec.min_groups, spec.contributors_wanted or spec.min_groups)
    allowed = [counts for counts in ((1, 2, 4), (1, 3), (2, 4), (2,)) if min(counts) <= least]
    return msgspec.structs.replace(
        spec,
        slots_per_group=chance.choice([0, 0, 1, 2, 3]),
        allowed_groups=chance.choice([(), *allowed]),
        data_slots=chance.choice([0, 0, 0, 200, 501, 1500]),
        drop_last=chance.random() < 0.5,
        heal=chance.choice(["log", "log", "log", "log", "pause"]),
    )


HANGING = ("cut_peers", "never_load")
"""What is only noticed because nothing goes on."""


class Faults:
    """Does harm to a world for a while. hanging: of the kinds `HANGING`, too."""

    def __init__(self, world: World, kinds: int = 5, hanging: bool = True) -> None:
        self._world = world
        self._chance = world.engine.chance("faults")
        self._all: dict[str, Callable[[], None]] = {
            "kill_rank": self._kill_rank,
            "kill_agent": self._kill_agent,
            "kill_host": self._kill_host,
            "stop_ranks": self._stop_ranks,
            "stop_agent": self._stop_agent,
            "break_session": self._break_session,
            "cut": self._cut,
            "cut_one_way": self._cut_one_way,
            "cut_peers": self._cut_peers,
            "slow": self._slow,
            "lighthouse_crash": self._lighthouse_crash,
            "lighthouse_crash_amid": self._lighthouse_crash_amid,
            "lighthouse_pause": self._lighthouse_pause,
            "second_lighthouse": self._second_lighthouse,
            "join": self._join,
            "never_load": self._never_load,
            "drain": self._drain,
            "move_name": self._move_name,
            "lost_store": self._lost_store,
            "cold_start": self._cold_start,
            "poison": self._poison,
        }
        never = () if hanging else HANGING
        often = [k for k in self._all if k not in ("lost_store", "move_name", "cold_start", "poison", *never)]
        chosen = self._chance.sample(often, min(kinds, len(often)))
        for rare in ("lost_store", "move_name"):
            if self._chance.random() < 0.04:
                chosen.append(rare)
        if self._chance.random() < 0.1:
            chosen.append("cold_start")
        if world.spec.marks and world.engine.chance("poison").random() < 0.3:  # nobody knows of a slot without
            chosen.append("poison")
        self.kinds = chosen
        self._over = False
        self._cuts: list[tuple[str, str]] = []
        self._joined = 0

    def start(self, every_s: float) -> None:
        """One fault after another, each about `every_s` after the last, until `stop`."""
        self._every_s = every_s
        self._next()

    def stop(self) -> None:
        """No more faults; what was cut is mended, who is gone comes back."""
        self._over = True
        for source, target in self._cuts:
            self._world.network.mend(source, target)
        self._cuts.clear()
        self._world.poison.intersection_update(self._world.watch.deaths)  # no new ones
        for older in self._world.beacons[:-1]:  # their lock is somebody else's
            older.crash()
        for group in self._world.groups.values():
            group.slowness = 1.0
            group.never_loads = False
            if group.agent is None and group.exit_code not in (0, 3):
                group.drained = False
                group.start()

    def _next(self) -> None:
        if self._over:
            return
        kind = self._chance.choice(self.kinds)
        self._world.watch.note(f"--- {kind}")
        self._all[kind]()
        self._world.engine.after(self._chance.expovariate(1 / self._every_s), self._next)

    # ---- kinds -----------------------------------------------------------------------------------------------------

    def _group(self) -> Group:
        return self._chance.choice(list(self._world.groups.values()))

    def _later(self, low_s: float, high_s: float, act: Callable[[], None]) -> None:
        self._world.engine.after(self._chance.uniform(low_s, high_s), lambda: None if self._over else act())

    def _kill_rank(self) -> None:
        group = self._group()
        if group.ranks:
            rank = self._chance.choice(group.ranks)
            code, text = self._chance.choice([(-9, ""), (1, "RuntimeError: bad luck")])
            group.rank_dies(rank, code, text)

    def _kill_agent(self) -> None:
        group = self._group()
        group.kill_agent()
        self._later(0.1, 3.0, group.start)

    def _kill_host(self) -> None:
        group = self._group()
        group.kill_host()
        self._later(0.5, 6.0, group.start)

    def _stop_ranks(self) -> None:
        group = self._group()
        for rank in group.ranks:
            rank.stop_for(self._chance.choice([self._chance.uniform(0.05, 3.0), self._chance.uniform(3.0, 12.0)]))

    def _stop_agent(self) -> None:
        self._group().pause_agent(self._chance.uniform(0.05, 5.0))

    def _break_session(self) -> None:
        self._group().break_session()

    def _cut_ways(self, ways: list[tuple[str, str]], low_s: float, high_s: float) -> None:
        for way in ways:
            self._world.network.cut(*way)
            self._cuts.append(way)
        self._later(low_s, high_s, lambda: self._mend(ways))

    def _mend(self, ways: list[tuple[str, str]]) -> None:
        for way in ways:
            if way in self._cuts:
                self._cuts.remove(way)
                self._world.network.mend(*way)

    def _cut(self) -> None:
        group = self._group()
        self._cut_ways([(group.label, LIGHTHOUSE), (LIGHTHOUSE, group.label)], 0.1, 6.0)
        if self._chance.random() < 0.5:
            self._later(0.5, 4.0, group.break_session)

    def _cut_one_way(self) -> None:
        group = self._group()
        way = self._chance.choice([(group.label, LIGHTHOUSE), (LIGHTHOUSE, group.label)])
        self._cut_ways([way], 0.1, 6.0)

    def _cut_peers(self) -> None:
        one, other = self._group(), self._group()
        if one is not other:
            self._cut_ways([(one.label, other.label)], 0.05, 3.0)

    def _slow(self) -> None:
        self._group().slowness = self._chance.choice([0.3, 1.0, 4.0])

    def _beacon_do(self, act: str, *args: float) -> None:
        if self._world.beacons:
            getattr(self._chance.choice(self._world.beacons), act)(*args)

    def _lighthouse_crash(self) -> None:
        self._beacon_do("crash")

    def _lighthouse_crash_amid(self) -> None:
        if self._world.beacons:
            self._chance.choice(self._world.beacons).crash_after = self._chance.randint(0, 12)

    def _lighthouse_pause(self) -> None:
        self._beacon_do("pause", self._chance.uniform(0.05, 5.0))

    def _second_lighthouse(self) -> None:
        if len(self._world.beacons) < 2:
            if self._chance.random() < 0.5:
                self._beacon_do("pause", self._chance.uniform(0.05, 3.0))
            self._world.start_lighthouse()

    def _lost_store(self) -> None:
        self._beacon_do("crash")
        self._world.store = Store(self._world.spec.terms)

    def _cold_start(self) -> None:
        """An operator is wrong: those that the run waits for may be alive."""
        for beacon in self._world.beacons:
            beacon.cold_start()

    def _poison(self) -> None:
        """Soon, whoever computes a certain slot dies; a few of them in the life of a world."""
        if len(self._world.poison) < 3:
            newest = max(self._world.watch.cursor_of.values())
            self._world.poison.add(newest + self._world.engine.chance("poison").randint(0, 12))

    def _join(self) -> None:
        if self._joined < 3:
            self._joined += 1
            self._world.add_group(f"j{self._joined}", initial=self._chance.choice([0, 0, 1]))

    def _never_load(self) -> None:
        group = self._group()
        group.never_loads = not group.never_loads

    def _drain(self) -> None:
        staying = [g for g in self._world.groups.values() if not g.drained]
        if len(staying) > self._world.spec.min_groups:
            self._chance.choice(staying).drain()

    def _move_name(self) -> None:
        """The scheduler starts a name again on another host; the old one may still be there."""
        group = self._group()
        if group.label == group.name:
            label = f"{group.name}-moved{group.born}"
            if label not in self._world.groups:
                self._world.add_group(group.name, label=label)
