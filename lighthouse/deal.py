"""Who computes which slots of a global batch: pure functions that every group evaluates alike. DESIGN §3, §4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def even_deal(slots: int, contributors: int) -> tuple[tuple[int, ...], ...]:
    """Slots 0 … `slots` - 1 in contiguous ranges, as even as they go; the i-th is the i-th contributor's.

    Raises ValueError if there is no contributor.
    """
    if contributors < 1:
        raise ValueError("slots can be dealt only to contributors, and there are none")
    bounds = [i * slots // contributors for i in range(contributors + 1)]
    return tuple(tuple(range(a, b)) for a, b in zip(bounds, bounds[1:], strict=False))


def lost_deal(
    slots: Sequence[int], kept: Mapping[str, tuple[int, ...]], members: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """Who answers for what after a loss: everybody keeps what is in `kept`; the rest goes to `members` by least load.

    Ties go to the earlier of `members`. Gives sorted slots by name, for everybody in `kept` or `members`.
    Raises ValueError if two keep the same slot, or one that is not in `slots`.
    """
    load: dict[str, list[int]] = {name: [] for name in members}
    taken: set[int] = set()
    for name, answers in kept.items():
        if not taken.isdisjoint(answers) or not set(answers) <= set(slots):
            raise ValueError(f"{name} keeps slots {answers}, some of which are another's or not in the step")
        taken.update(answers)
        load[name] = list(answers)
    order = {name: place for place, name in enumerate(members)}
    for slot in slots:
        if slot not in taken:
            name = min(members, key=lambda n: (len(load[n]), order[n]))
            load[name].append(slot)
    return {name: tuple(sorted(mine)) for name, mine in load.items()}
