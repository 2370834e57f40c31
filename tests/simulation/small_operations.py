"""What was launched in the collective operations of a small world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulation.small_values import Members
from simulation.small_view import HostView, is_lost

Places = tuple[tuple[int, int], ...]
"""By place: (number of what was launched, number of the record), -1 for nothing."""

Operations = tuple[tuple[tuple[int, int, int], Members, Places], ...]
"""(generation, step, shard), sorted; with the members of the generation."""


def launched(operations: Operations, launches: Sequence[tuple[Any, ...]]) -> tuple[Operations, list[str]]:
    """(the operations after something was launched in them, what is wrong)."""
    after, wrong = {key: (members, places) for key, members, places in operations}, []
    for kind, (generation, step, shard_rank, place, members), what in launches:
        key = generation, step, shard_rank
        known, places = after.get(key, (members, ((-1, -1),) * len(members)))
        if known != members:
            wrong.append(f"generation {generation} has members {known} for some, {members} for others")
            continue
        sums, said = places[place]
        if (sums if kind == "launch" else said) != -1:
            wrong.append(f"place {place} of generation {generation} launches step {step} twice")
        new = (what, said) if kind == "launch" else (sums, what)
        after[key] = members, (*places[:place], new, *places[place + 1 :])
    return tuple((key, *after[key]) for key in sorted(after)), wrong


def settled(operations: Operations, views: list[HostView]) -> Operations:
    """The operations without what nobody can come to hear of: of those that are over, or cannot complete any more."""
    kept = []
    for (generation, step, shard), members, places in operations:
        at_it = [v.ranks[shard] for v in views if shard < len(v.ranks)]
        at_it = [rank for rank in at_it if rank.waiting == (generation, step)]
        lost = [is_lost(views, member, generation) for member in members]
        if any(sums == -1 and gone for (sums, _), gone in zip(places, lost, strict=True)):
            continue  # it will never be reduced
        if not at_it and all(sums != -1 for sums, _ in places):
            continue  # everybody has left it
        if any(said == -1 and gone for (_, said), gone in zip(places, lost, strict=True)):
            places = tuple((sums, -1) for sums, _ in places)
        if all(sums != -1 for sums, _ in places) and all(rank.entered for rank in at_it):
            places = tuple((0, said) for _, said in places)
        kept.append(((generation, step, shard), members, places))
    return tuple(kept)
