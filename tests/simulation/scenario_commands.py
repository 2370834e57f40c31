"""What a scenario can say: one sentence each, with what it does to the stage.

Sentences are matched whole. NAME is a group's label; NAME.n its rank of shard n (NAME alone means shard 0 for a
condition, all its shards for an act). Steps count from 1: step 3 leads from version step 2 to version step 3.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from lighthouse.values import Version
from simulation.seeds import missing
from simulation.stage import REDUCE, ROLL_CALL, Stage
from simulation.store import Store

Act = Callable[..., None]
Holds = Callable[..., bool]

ACTS: list[tuple[re.Pattern[str], Act]] = []
CONDITIONS: list[tuple[re.Pattern[str], Holds]] = []

_WORDS = {
    "NAME": r"([A-Za-z][\w-]*)",
    "RANK": r"([A-Za-z][\w-]*(?:\.\d+)?)",
    "RANKS": r"([A-Za-z][\w-]*(?:\.\d+)?(?: [A-Za-z][\w-]*(?:\.\d+)?)*)",
    "N": r"(\d+)",
    "SECONDS": r"([\d.]+) s",
    "TEXT": r'"([^"]*)"',
    "SIDE": r"(lighthouse|[A-Za-z][\w-]*)",
    "KIND": r"([a-z_]+)",
}


class NotSo(Exception):
    """A scenario says something that is not so, or that cannot be done."""


def _pattern(sentence: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"[A-Z]{2,}|\bN\b", lambda m: _WORDS.get(m[0], m[0]), sentence))


def act(sentence: str) -> Callable[[Act], Act]:
    """Declares what `sentence` does."""

    def declare(function: Act) -> Act:
        ACTS.append((_pattern(sentence), function))
        return function

    return declare


def condition(sentence: str) -> Callable[[Holds], Holds]:
    """Declares when `sentence` is true; it is asked between any two events after `until`."""

    def declare(function: Holds) -> Holds:
        CONDITIONS.append((_pattern(sentence), function))
        return function

    return declare


def ranks_of(stage: Stage, words: str) -> frozenset[tuple[str, int]]:
    """(label, shard) of every rank named: "A" is all ranks of A, "A.1" one."""
    found = []
    for word in words.split():
        name, _, shard = word.partition(".")
        if name not in stage.groups:
            raise NotSo(f"there is no group {name}")
        found += [(name, int(shard))] if shard else [(name, i) for i in range(stage.spec.shards)]
    return frozenset(found)


def _stand(stage: Stage, name: str) -> Version | None:
    agent = stage.groups[name].agent
    return agent.stand.version if agent is not None and agent.stand.usable else None


def _committed(stage: Stage, name: str) -> int:
    return max((end.step for _, who, end in stage.watch.times if who == name), default=0)


# ---- conditions ----------------------------------------------------------------------------------------------------


@condition("NAME commits step N")
def _(stage: Stage, name: str, step: str) -> bool:
    return _committed(stage, name) >= int(step)


@condition("all commit step N")
def _(stage: Stage, step: str) -> bool:
    members = [g for g in stage.groups.values() if g.agent is not None and g.agent.seat.work is not None]
    return bool(members) and all(_committed(stage, g.label) >= int(step) for g in members)


@condition("NAME stands at step N")
def _(stage: Stage, name: str, step: str) -> bool:
    stand = _stand(stage, name)
    return stand is not None and stand.step >= int(step)


@condition("RANK is in the (reduce|roll call) of step N")
def _(stage: Stage, rank: str, kind: str, step: str) -> bool:
    where = min(ranks_of(stage, rank))
    return stage.doing.get(where) == (REDUCE if kind == "reduce" else ROLL_CALL, int(step))


@condition("RANK computes slot N of step N")
def _(stage: Stage, rank: str, slot: str, step: str) -> bool:
    name, shard = min(ranks_of(stage, rank))
    ranks = stage.groups[name].ranks
    book = ranks[shard].book if ranks else None
    return book is not None and book.version.step + 1 == int(step) and book.in_hand == int(slot)


@condition("RANK has voted on step N")
def _(stage: Stage, rank: str, step: str) -> bool:
    name, shard = min(ranks_of(stage, rank))
    return any(m.step + 1 == int(step) for _, m in stage.mute.get((name, shard), []) if hasattr(m, "records"))


@condition("NAME is loading")
def _(stage: Stage, name: str) -> bool:
    ranks = stage.groups[name].ranks
    return bool(ranks) and not ranks[0].book.usable


@condition("NAME enters a generation")
def _(stage: Stage, name: str) -> bool:
    agent = stage.groups[name].agent
    return agent is not None and agent.seat.work is not None and agent.seat.generation >= agent.floor


@condition("NAME has abandoned everything")
def _(stage: Stage, name: str) -> bool:
    agent = stage.groups[name].agent
    return agent is not None and agent.floor > agent.seat.generation


@condition("NAME may switch")
def _(stage: Stage, name: str) -> bool:
    agent = stage.groups[name].agent
    return agent is not None and any(plan.ready_told for plan in agent.plans)


@condition("NAME has left")
def _(stage: Stage, name: str) -> bool:
    return stage.groups[name].agent is None


@condition("the lighthouse says KIND(?: of NAME)?")
def _(stage: Stage, kind: str, name: str | None) -> bool:
    return any(t.kind == kind and name in (None, t.group) for t in stage.story.tells)


@condition("all are at work again")
def _(stage: Stage) -> bool:
    return not missing(stage, stage.since_s)


@condition("the run is over")
def _(stage: Stage) -> bool:
    return stage.watch.ended is not None


# ---- processes -----------------------------------------------------------------------------------------------------


@act("kill rank RANK")
def _(stage: Stage, rank: str) -> None:
    for name, shard in sorted(ranks_of(stage, rank))[:1]:
        stage.groups[name].rank_dies(stage.groups[name].ranks[shard], -9, "")


@act("rank RANK raises TEXT")
def _(stage: Stage, rank: str, text: str) -> None:
    name, shard = min(ranks_of(stage, rank))
    stage.groups[name].rank_dies(stage.groups[name].ranks[shard], 1, text)


@act("kill the agent of NAME")
def _(stage: Stage, name: str) -> None:
    stage.groups[name].kill_agent()


@act("kill the host of NAME")
def _(stage: Stage, name: str) -> None:
    stage.groups[name].kill_host()


@act("start NAME")
def _(stage: Stage, name: str) -> None:
    if name in stage.groups:
        stage.groups[name].start()
    else:
        stage.add_group(name, delay_s=0.0)


@act("start NAME with other initial weights")
def _(stage: Stage, name: str) -> None:
    stage.add_group(name, initial=1, delay_s=0.0)


@act("start NAME on another host as NAME")
def _(stage: Stage, name: str, label: str) -> None:
    stage.add_group(name, label=label, delay_s=0.0)


@act("stop RANK for SECONDS")
def _(stage: Stage, rank: str, seconds: str) -> None:
    for name, shard in sorted(ranks_of(stage, rank)):
        stage.groups[name].ranks[shard].stop_for(float(seconds))


@act("stop the agent of NAME for SECONDS")
def _(stage: Stage, name: str, seconds: str) -> None:
    stage.groups[name].pause_agent(float(seconds))


@act("NAME is N times slower")
def _(stage: Stage, name: str, factor: str) -> None:
    stage.groups[name].slowness = float(factor)


@act("drain NAME")
def _(stage: Stage, name: str) -> None:
    stage.groups[name].drain()


@act("NAME wants the run to stop")
def _(stage: Stage, name: str) -> None:
    for rank in stage.groups[name].ranks:
        rank.wants_stop = True


# ---- network -------------------------------------------------------------------------------------------------------


@act("cut SIDE (->|<->) SIDE")
def _(stage: Stage, one: str, way: str, other: str) -> None:
    for source, target in _ways(one, way, other):
        stage.network.cut(source, target)


@act("mend SIDE (->|<->) SIDE")
def _(stage: Stage, one: str, way: str, other: str) -> None:
    for source, target in _ways(one, way, other):
        stage.network.mend(source, target)


def _ways(one: str, way: str, other: str) -> list[tuple[str, str]]:
    return [(one, other), (other, one)] if way == "<->" else [(one, other)]


@act("break the session of NAME")
def _(stage: Stage, name: str) -> None:
    stage.groups[name].break_session()


# ---- the lighthouse ------------------------------------------------------------------------------------------------


@act("the lighthouse crashes( and stays down)?")
def _(stage: Stage, stays: str | None) -> None:
    stage.supervised = stage.supervised and not stays
    stage.beacons[-1].crash()


@act("the lighthouse will crash once it stores a (number|claim|base)")
def _(stage: Stage, what: str) -> None:
    stage.crash_at = "Store" + what.capitalize()


@act("the lighthouse starts")
def _(stage: Stage) -> None:
    stage.supervised = True
    stage.start_lighthouse()


@act("the lighthouse stands still for SECONDS")
def _(stage: Stage, seconds: str) -> None:
    stage.beacons[0].pause(float(seconds))


@act("an operator asks for a cold start")
def _(stage: Stage) -> None:
    stage.beacons[-1].cold_start()


@act("the store is lost")
def _(stage: Stage) -> None:
    stage.store = Store(stage.spec.terms)


# ---- collectives, votes, weights -----------------------------------------------------------------------------------


@act("the (reduce|roll call) of step N completes (?:at RANKS only|nowhere)")
def _(stage: Stage, kind: str, step: str, ranks: str | None) -> None:
    stage.only[REDUCE if kind == "reduce" else ROLL_CALL, int(step)] = ranks_of(stage, ranks or "")


@act("collectives work again")
def _(stage: Stage) -> None:
    stage.only.clear()


@act("what NAME waits for fails")
def _(stage: Stage, name: str) -> None:
    stage.fail_collectives(name)


@act("RANK is not heard by its agent")
def _(stage: Stage, rank: str) -> None:
    for where in ranks_of(stage, rank):
        stage.mute.setdefault(where, [])


@act("RANK is heard by its agent")
def _(stage: Stage, rank: str) -> None:
    for where in sorted(ranks_of(stage, rank)):
        stage.hear_again(where)


@act("RANK opens late")
def _(stage: Stage, rank: str) -> None:
    stage.opens_late |= ranks_of(stage, rank)


@act("RANK opens")
def _(stage: Stage, rank: str) -> None:
    stage.opens_late -= ranks_of(stage, rank)


@act("the next roll call of RANK is that of the step before")
def _(stage: Stage, rank: str) -> None:
    stage.stale |= ranks_of(stage, rank)


@act("the next roll call of RANK was never written")
def _(stage: Stage, rank: str) -> None:
    stage.wiped |= ranks_of(stage, rank)


@act("the next digest of NAME is wrong")
def _(stage: Stage, name: str) -> None:
    stage.wrong.add(name)


@act("NAME never loads")
def _(stage: Stage, name: str) -> None:
    stage.groups[name].never_loads = True


@act("NAME can load")
def _(stage: Stage, name: str) -> None:
    stage.groups[name].never_loads = False


# ---- questions -----------------------------------------------------------------------------------------------------


@act("nobody has computed a slot twice")
def _(stage: Stage) -> None:
    if stage.watch.recomputed:
        raise NotSo("; ".join(stage.watch.recomputed[:4]))


@act("NAME has not paused for SECONDS")
def _(stage: Stage, name: str, seconds: str) -> None:
    times = [at for at, who, _ in stage.watch.times if who == name and at >= stage.asked_s]
    times.append(stage.engine.now)
    worst = max((b - a for a, b in zip(times, times[1:], strict=False)), default=0.0)
    if worst >= float(seconds):
        raise NotSo(f"{name} paused for {worst:.3f} s")


@act("from here on")
def _(stage: Stage) -> None:
    stage.asked_s = stage.engine.now


@act("NAME is not a member")
def _(stage: Stage, name: str) -> None:
    current = stage.beacons[-1].state.current
    if current is not None and name in current.members:
        raise NotSo(f"{name} is a member of generation {current.number}")


def find(table: list[tuple[re.Pattern[str], Any]], sentence: str) -> tuple[Any, tuple[Any, ...]]:
    """The function declared for `sentence`, and what it is given. Raises NotSo."""
    for pattern, function in table:
        match = pattern.fullmatch(sentence)
        if match:
            return function, match.groups()
    raise NotSo(f"nobody knows what {sentence!r} means")
