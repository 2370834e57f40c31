"""What is to go wrong in a soak, when and to whom: a pure function of the seed.

A schedule is a row of *batches*; each names a keeper, a group that nothing of this batch happens to, so that weights
stay alive. A batch begins when its keeper trains, whatever became of the others by then: faults meet groups that heal.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

LIGHTHOUSE = "lighthouse"
GUEST = "g4"
"""The group that joins and leaves on purpose."""

WEIGHTS = {
    "kill_rank": 6,
    "kill_agent": 3,
    "stop_rank": 2,
    "stop_agent": 2,
    "stop_host": 3,
    "drain": 3,
    "guest": 3,
    "kill_lighthouse": 3,
    "stop_lighthouse": 1,
}
"""How often each kind of act comes, relative to the others; in the act's `for_s`:

kill_rank: SIGKILL. kill_agent, kill_lighthouse: SIGKILL, started again after `for_s`. stop_rank, stop_agent,
stop_host (an agent with its ranks), stop_lighthouse: SIGSTOP for so long. drain: SIGTERM, started again so long after
its end. guest: the guest joins, or leaves for good if it is there.
"""


@dataclass(frozen=True, kw_only=True)
class Act:
    """One fault, `after_s` after the beginning of its batch."""

    after_s: float
    kind: str
    target: str
    for_s: float = 0.0
    shard: int = 0

    def __str__(self) -> str:
        return f"+{self.after_s:.2f} {self.kind} {self.target}/{self.shard} for {self.for_s:.2f} s"


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Acts that happen close together, not before `pause_s` after the batch before."""

    pause_s: float
    keeper: str
    acts: tuple[Act, ...]

    def __str__(self) -> str:
        return f"after {self.pause_s:.1f} s, while {self.keeper} trains: " + "; ".join(map(str, self.acts))


def schedule(seed: int, *, batches: int, groups: int, shards: int, lease_s: float) -> tuple[Batch, ...]:
    """The first so many batches of a seed; a longer schedule begins with the shorter one."""
    random = Random(seed)
    names = [f"g{i}" for i in range(groups)]
    made = []
    guest_here = False
    for _ in range(batches):
        keeper = random.choice(names)
        kinds = random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=random.choice((1, 1, 1, 2, 2, 3)))
        free = [name for name in (*names, *([GUEST] if guest_here else [])) if name != keeper]
        random.shuffle(free)
        acts: list[Act] = []
        for kind in kinds:
            target = _target(kind, free)
            if not target or any(act.target == target for act in acts):
                continue
            if kind == "guest":
                guest_here = not guest_here
            acts.append(
                Act(
                    after_s=random.choice((0.0, random.uniform(0.0, 2.0))),
                    kind=kind,
                    target=target,
                    for_s=_for_s(kind, random, lease_s),
                    shard=random.randrange(shards),
                )
            )
        pause_s = random.choice((random.uniform(0.0, 1.0), random.uniform(1.0, 12.0)))
        made.append(Batch(pause_s=pause_s, keeper=keeper, acts=tuple(sorted(acts, key=lambda act: act.after_s))))
    return tuple(made)


def _target(kind: str, free: list[str]) -> str:
    """Whom an act of this kind happens to; "" for nobody."""
    if kind.endswith("lighthouse"):
        return LIGHTHOUSE
    if kind == "guest":
        if GUEST in free:
            free.remove(GUEST)
        return GUEST
    return free.pop() if free else ""


def _for_s(kind: str, random: Random, lease_s: float) -> float:
    if kind == "stop_rank":
        return random.choice((random.uniform(0.1, 3.0), random.uniform(18.0, 26.0)))
    if kind in ("stop_agent", "stop_host", "stop_lighthouse"):
        return random.choice((random.uniform(0.1, 0.5), random.uniform(0.5, 2.5))) * lease_s
    return random.choice((0.0, random.uniform(0.0, 6.0)))
