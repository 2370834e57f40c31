"""Worlds from seeds: faults of all kinds for a while, then calm, in which the run must recover, go on and finish.

That a stall is seen at last, or an opening given up, may hide that something was forgotten. So in the worlds of seeds
from `PROMPT` on nothing hangs that others wait for, and no patience with that ever ends: all must recover without.

python -m simulation.seeds --seed 7            replays one seed, and prints the end of its story if it fails
python -m simulation.seeds --seed 7 --journal FILE    … and writes its lighthouses' journal, for bellrock replay
python -m simulation.seeds --count 500         seeds 0 … 499, on `--jobs` processes
python -m simulation.seeds --first 1000000     those in which no stall is ever seen
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from random import Random

import msgspec

from lighthouse.batch import contributors_of
from lighthouse.core import hold
from lighthouse.core_cold import HOLDS
from lighthouse.core_values import Hold
from lighthouse.values import ROOT, Role
from simulation.checkers import Broken, is_cut_off
from simulation.faults import Faults, draw_spec
from simulation.journals import write_journal
from simulation.world import World

FAULTS_S = 10.0
"""Faults happen for so long (virtual seconds)."""

RECOVER_S = 60.0
"""Once faults stop, everybody is back at full strength and commits within so many virtual seconds: sessions (2 s),
leases (2 s), a start (1 s), heals with back-off after earlier failures, openings that time out (5 s each)."""

FINISH_S = 30.0
"""A run that is asked to stop has finished, and everybody has left with success, within so many virtual seconds."""

PROMPT = 1_000_000
"""Worlds of seeds from here on recover without anybody's patience running out."""

GONE = (0, 2, 3)
"""Exit codes of agents that nobody starts again: left with success, wrongly configured, fenced."""

KEPT = 3
"""Entries in the log of a rank that serves nobody: that of the last step, and of one or two in hand."""


def replay_command(seed: int) -> str:
    """What a person types to see a seed again."""
    return f"PYTHONPATH=.:tests .venv/bin/python -m simulation.seeds --seed {seed}"


def new_world(seed: int) -> tuple[World, Faults, Random]:
    """The world of `seed` at its start, what will harm it, and the chance that fixes the rest."""
    chance = Random(f"{seed}/spec")
    spec = msgspec.structs.replace(draw_spec(chance), skip_poison=Random(f"{seed}/poison").random() < 0.5)
    prompt = seed >= PROMPT
    if prompt:
        spec = msgspec.structs.replace(spec, stall_patience_s=10.0 * RECOVER_S, connect_s=10.0 * RECOVER_S)
    world = World(seed, spec)
    return world, Faults(world, kinds=chance.choice([2, 4, 6, 10]), hanging=not prompt), chance


def run_seed(seed: int) -> World:
    """The world of `seed`, from its start to its end. Raises Broken where a promise was broken."""
    world, faults, chance = new_world(seed)
    live_through(world, faults, chance)
    return world


def live_through(world: World, faults: Faults, chance: Random) -> None:
    """Faults, calm, and the end of the run."""
    world.run(chance.choice([0.5, 2.0]))
    faults.start(chance.choice([0.2, 0.5, 1.5]))
    world.run(FAULTS_S, lambda: world.watch.ended is not None)
    faults.stop()
    recover(world)
    finish(world)


def recover(world: World) -> None:
    """Promise: once faults stop, everyone commits again, and full strength returns; after a cold start, if need be."""
    deadline = world.engine.now + RECOVER_S
    calm_since = world.engine.now
    while world.engine.now < deadline and world.watch.ended is None and not over(world):
        world.run(0.5)
        if not missing(world, calm_since):
            world.run(1.0)
            if leftovers(world):  # of an earlier lighthouse, or since it is away: that has a deadline
                world.run(1.5 * world.spec.connect_s)
            left = leftovers(world)
            if left:
                world.watch.broken("; ".join(left))
                world.watch.raise_broken()
            return
        see_to_poison(world)
        if hopeless(world):
            if world.watch.told_kinds["asked"] or world.beacons[-1].state.hold not in HOLDS:
                return
            world.watch.told_kinds["asked"] += 1
            world.beacons[-1].cold_start()
            deadline = world.engine.now + RECOVER_S
    if world.watch.ended is None and not over(world):
        lacks = missing(world, calm_since)
        world.watch.broken(f"not recovered {RECOVER_S:g} s after the last fault: {'; '.join(lacks)}")
        world.watch.raise_broken()


def over(world: World) -> bool:
    """Whether the farewell was reported, and everybody has left with success.

    Nothing is left to recover then, even if the store was lost since: what a lighthouse finds there is no run.
    """
    left = all(group.agent is None and group.exit_code == 0 for group in world.groups.values())
    return left and world.watch.finished is not None


def see_to_poison(world: World) -> None:
    """The run rightly holds for a slot at which two groups died: a person has it skipped."""
    if world.beacons and world.beacons[-1].state.hold is Hold.POISON:
        world.beacons[-1].skip_slot()


def leftovers(world: World) -> list[str]:
    """What ranks still hold for others though everybody is at full strength, and nobody heals."""
    if not world.beacons:  # a crash was in store for its next write
        return ["no lighthouse is up"]
    beacon = world.beacons[-1]
    asked = {keeping.heal for keeping in beacon.state.kept} | {g.heal for g in beacon.state.groups.values()}
    ranks = [rank for g in world.groups.values() if g.agent is not None for rank in g.ranks if rank.alive]
    held = [(rank.group.label, heal) for rank in ranks for heal in rank.healing.owed if heal not in asked]
    long = [rank.group.label for rank in ranks if len(rank.healing.log) > KEPT and not rank.healing.owed]
    return [f"{x} holds what heal {h} needed" for x, h in held] + [f"the log of {x} grows" for x in long]


def hopeless(world: World) -> bool:
    """Whether the run rightly waits for an operator: only a cold start can go on.

    That is so after the store was lost; where nobody of a generation that may be at work is there any more; and where
    no live group has weights of the history. Too few groups that are up, or will be, are no defect either: a run that
    all have left before it began has nothing to recover.
    """
    state = world.beacons[-1].state if world.beacons else None
    if state is None:
        return False
    here = sum(g.agent is not None or g.exit_code not in GONE for g in world.groups.values())
    waits_for = hold(state, world.beacons[-1].clock())
    if waits_for in (Hold.TOO_FEW, Hold.FORMING) and here < world.spec.min_groups:
        return True
    if state.hold not in (Hold.COLD_START, Hold.FENCE):
        return False
    up = {(g.name, g.agent.incarnation) for g in world.groups.values() if g.agent is not None}
    unreachable = any(
        not up & set(gen.members.items()) for gen in state.gens if state.hold is Hold.FENCE or not gen.left
    )
    return unreachable or not state.gens or not lasting(world)


def lasting(world: World) -> list[str]:
    """Groups that live and have trained weights of the history: the run can go on from any of them."""
    # Of a heal that failed, some ranks may have loaded theirs: a copy is whole only where all shards have it.
    return [
        group.label
        for group in world.groups.values()
        if group.training
        and all(rank.book.usable and rank.book.version != ROOT for rank in group.ranks)
        and not any(is_cut_off(world.watch, rank.book.version) for rank in group.ranks)
    ]


def missing(world: World, since_s: float) -> list[str]:
    """What full strength lacks: all that are up are members and committed lately, and enough of them contribute."""
    beacon = next((b for b in reversed(world.beacons) if b.alive), None)
    if beacon is None:
        return ["no lighthouse"]
    state = beacon.state
    current = state.current
    if current is None or state.change is not None or state.plan is not None:
        return [f"no settled generation (hold: {state.hold.value} {state.hold_text}, plan {state.plan})"]
    lacks = []
    # A wish to leave dies with the agent that was told, and counts for nothing where none was running.
    here = [g for g in world.groups.values() if g.agent is not None and g.agent.drain_since is None]
    names = {m.name for m in current.roster}
    now = world.engine.now
    lately = {
        who for at, who, end in world.watch.times if at > max(since_s, now - 6.0) and end.generation >= current.number
    }
    for group in here:
        if group.name not in names:
            lacks.append(f"{group.label} is no member")
        elif group.label not in lately:
            lacks.append(f"{group.label} has committed nothing lately")
    wanted = contributors_of(len(current.roster), world.spec.contributors_wanted, world.spec.allowed_groups)
    contributors = sum(m.role is Role.CONTRIBUTOR for m in current.roster)
    if contributors != wanted:
        lacks.append(f"{contributors} of {len(current.roster)} members contribute, {wanted} are wanted")
    if not here:
        lacks.append("no group is up")
    return lacks


def finish(world: World) -> None:
    """Promise: asked to stop, all finish at one version with equal weights and leave with success.

    A person asks, as with the trainer's stop file: ranks that are started later find that they are asked, too. (A wish
    of one rank goes with it: nothing keeps that but the roll call of a committed step.)
    """
    if world.watch.ended is not None or over(world) or hopeless(world):
        return
    world.watch.stop_asked = True
    for group in world.groups.values():
        for rank in group.ranks:
            rank.wants_stop = True
    deadline = world.engine.now + FINISH_S
    while world.engine.now < deadline and world.watch.ended is None:
        world.run(0.5, lambda: world.watch.ended is not None)
        see_to_poison(world)
    if hopeless(world):
        return
    if world.watch.ended is None or not world.watch.ended.success:
        world.watch.broken(f"the run was asked to stop and did not finish: {world.watch.ended}")
        world.watch.raise_broken()


def attempt(seed: int) -> tuple[int, str, dict[str, int], float]:
    """(seed, what broke or "", counts of what happened, seconds it took)."""
    began = time.perf_counter()
    try:
        world = run_seed(seed)
    except Broken as broken:
        return seed, str(broken), {}, time.perf_counter() - began
    except Exception:
        return seed, traceback.format_exc(limit=-3), {}, time.perf_counter() - began
    counts = Counter(world.watch.told_kinds)
    counts["events"] = world.engine.happened
    counts["commits"] = len(world.watch.times)
    counts["recomputed"] = len(world.watch.recomputed)
    counts["ended"] = not (world.watch.ended is not None and world.watch.ended.success)
    return seed, "", dict(counts), time.perf_counter() - began


def run_seeds(seeds: range, jobs: int) -> tuple[dict[int, str], Counter[str]]:
    """Failures by seed, and what happened in all worlds together."""
    failures: dict[int, str] = {}
    counts: Counter[str] = Counter()
    with ProcessPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(attempt, seed) for seed in seeds]):
            seed, broken, seen, _ = done.result()
            counts.update(seen)
            if broken:
                failures[seed] = broken
    return failures, counts


def until_failure(seeds: range) -> tuple[dict[int, str], Counter[str]]:
    """As `run_seeds`, in this process and only up to the first failure."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        _, broken, seen, _ = attempt(seed)
        counts.update(seen)
        if broken:
            return {seed: broken}, counts
    return {}, counts


def main(argv: list[str]) -> int:
    """Runs the seeds asked for. 0 if all promises held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, with its story")
    parser.add_argument("--story", action="store_true", help="print the story even if the seed holds")
    parser.add_argument("--journal", type=Path, help="with --seed: write its lighthouses' journal, for bellrock replay")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--until-failure", action="store_true", help="one after another, up to the first that fails")
    options = parser.parse_args(argv)
    if options.seed is not None:
        return tell_story(options.seed, options.story, options.journal)
    began = time.perf_counter()
    seeds = range(options.first, options.first + options.count)
    failures, counts = until_failure(seeds) if options.until_failure else run_seeds(seeds, options.jobs)
    for seed, broken in sorted(failures.items()):
        print(f"seed {seed}: {broken}\n    {replay_command(seed)}")
    print(f"{options.count} seeds, {len(failures)} failed, {time.perf_counter() - began:.1f} s: {dict(counts)}")
    return 1 if failures else 0


def tell_story(seed: int, always: bool, journal: Path | None = None) -> int:
    """Runs one seed and prints what happened; `journal` takes what its lighthouses heard and decided."""
    world, faults, chance = new_world(seed)
    try:
        live_through(world, faults, chance)
    except Exception as broken:
        print("\n".join(world.watch.notes))
        print(world.spec, faults.kinds)
        if not isinstance(broken, Broken):
            traceback.print_exc()
        print(f"seed {seed}: {broken}")
        return 1
    finally:
        if journal is not None:
            print(f"{write_journal(world, journal)} turns of {len(world.lives)} lighthouses are in {journal}")
    if always:
        print("\n".join(world.watch.notes))
    print(f"seed {seed} holds: {dict(world.watch.told_kinds)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
