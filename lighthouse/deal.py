"""Who sums which slots of a step: pure functions, known to the lighthouse and to every member alike.

A step that follows a commit is dealt evenly over its contributors. A step that is broken off by the loss of a group
is dealt once more: whoever stands on the base keeps what it answers for, so that no sum is thrown away, and the rest
goes to the members with the least to do.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence


def even_deal(slots: int, contributors: int) -> tuple[tuple[int, ...], ...]:
    """Slots 0…`slots`-1 in `contributors` contiguous runs whose lengths differ by one at most, longer ones first.

    Raises ValueError without a contributor.
    """
    return tuple(even_share(slots, contributors, i) for i in range(_some(contributors)))


def even_share(slots: int, contributors: int, index: int) -> tuple[int, ...]:
    """What `even_deal` deals to the contributor at `index`, without making the whole deal."""
    least, longer = divmod(slots, _some(contributors))
    start = index * least + min(index, longer)
    return tuple(range(start, start + least + (index < longer)))


def lost_deal(
    slots: int, kept: Mapping[str, tuple[int, ...]], members: Sequence[str], set_aside: Collection[int] = ()
) -> dict[str, tuple[int, ...]]:
    """The deal of a step that goes on with other members: by name, ascending slots; together 0…`slots`-1.

    `kept` says what members standing on the base answer for; of a slot that two of them claim, the first in the order
    of `members` keeps it. The rest is dealt in ascending order, each slot to the member with the fewest so far, the
    first one among equals. Slots `set_aside` are dealt to nobody. Raises ValueError without a member.
    """
    _some(len(members))
    left = set(range(slots)) - set(set_aside)
    dealt: dict[str, list[int]] = {}
    for name in members:
        keeps = left.intersection(kept.get(name, ()))
        left -= keeps
        dealt[name] = sorted(keeps)
    loads = [(len(dealt[name]), place) for place, name in enumerate(members)]
    heapq.heapify(loads)
    for slot in sorted(left):
        load, place = loads[0]
        dealt[members[place]].append(slot)
        heapq.heapreplace(loads, (load + 1, place))
    return {name: tuple(sorted(own)) for name, own in dealt.items()}


def _some(count: int) -> int:
    if count < 1:
        raise ValueError("a deal needs somebody to deal to")
    return count
