"""What was launched in the collective operations of a small world."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulation.small_view import HostView, Members

Places = tuple[tuple[int, int], ...]
"""By place: (number of what was launched, number of the record), -1 for nothing."""

Operations = tuple[tuple[tuple[int, int, int], Places], ...]
"""By (generation, step, shard), sorted."""


def launched(operations: Operations, launches: Sequence[tuple[Any, ...]]) -> tuple[Operations, list[str]]:
    """(the operations after something was launched in them, what is wrong)."""
    after, wrong = dict(operations), []
    for kind, (generation, step, shard_rank, place, size), what in launches:
        places = after.get((generation, step, shard_rank), ((-1, -1),) * size)
        if len(places) != size:
            wrong.append(f"generation {generation} has {len(places)} members for some, {size} for others")
            continue
        sums, said = places[place]
        if (sums if kind == "launch" else said) != -1:
            wrong.append(f"place {place} of generation {generation} launches step {step} twice")
        new = (what, said) if kind == "launch" else (sums, what)
        after[generation, step, shard_rank] = (*places[:place], new, *places[place + 1 :])
    return tuple(sorted(after.items())), wrong


def settled(operations: Operations, views: list[HostView]) -> Operations:
    """The operations without what nobody can come to hear of: of those that are over, or cannot complete any more."""
    kept = []
    for (generation, step, shard), places in operations:
        at_it = [v.ranks[shard] for v in views if shard < len(v.ranks)]
        at_it = [rank for rank in at_it if rank.waiting == (generation, step)]
        members = next((v.members[generation] for v in views if generation in v.members), None)
        lost = [_cannot_come(views, members, place, generation) for place in range(len(places))]
        if any(sums == -1 and gone for (sums, _), gone in zip(places, lost, strict=True)):
            continue  # it will never be reduced
        if not at_it and all(sums != -1 for sums, _ in places):
            continue  # everybody has left it
        if any(said == -1 and gone for (_, said), gone in zip(places, lost, strict=True)):
            places = tuple((sums, -1) for sums, _ in places)
        if all(sums != -1 for sums, _ in places) and all(rank.entered for rank in at_it):
            places = tuple((0, said) for _, said in places)
        kept.append(((generation, step, shard), places))
    return tuple(kept)


def _cannot_come(views: list[HostView], members: Members | None, place: int, generation: int) -> bool:
    """Whether the member at `place` will launch nothing more in that generation, ever."""
    if members is None:  # nobody is in it: perhaps somebody is still to hear of it
        return all(_is_beyond(view, generation) for view in views)
    name, incarnation = members[place]
    view = next(view for view in views if view.name == name)
    return _is_beyond(view, generation) or view.incarnation > incarnation


def _is_beyond(view: HostView, generation: int) -> bool:
    return not view.alive or view.floor > generation or view.generation > generation
