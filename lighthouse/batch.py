"""How many slots a step has, who of the members is dealt some, and where the data ends.

Pure functions of the setup that all groups have in common, of the lighthouse's configuration, and of values that all
members of a generation agree on; so the lighthouse and every agent come to the same answer.

*Fixed*: the global batch never changes, however many groups there are. *Elastic*: each contributor brings its own
slots. The size of a step is fixed when the step is dealt and stays if somebody is lost in it. Slots are numbered
through the run: a step takes the next ones after its cursor, so what a slot stands for depends on nothing that
happened before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

import msgspec

from lighthouse.values import Member, Role, Value


class BatchPolicy(Value, frozen=True):
    """The global batch, in slots.

    slots: of a step; if `elastic`, of each contributor
    data_slots: whole slots that the data has; 0: it has no end
    drop_last: a last batch (elastic: a last contributor's part of one) that the data does not fill is left out;
    otherwise the last step is shorter
    """

    slots: int
    elastic: bool = False
    data_slots: int = 0
    drop_last: bool = True

    def step_slots(self, contributors: int, cursor: int) -> int:
        """Slots of a step that begins at `cursor` with so many contributors; at least 1."""
        whole = self.slots * max(contributors, 1) if self.elastic else self.slots
        return max(1, min(whole, self.data_slots - cursor)) if self.data_slots else whole

    def through(self, cursor: int) -> bool:
        """Whether the data is through at `cursor`, so that no step follows."""
        return self.data_slots > 0 and self.data_slots - cursor < (self.slots if self.drop_last else 1)


def batch_policy(setup: Mapping[str, str]) -> BatchPolicy:
    """The policy in a group's setup. Raises ValueError, naming the field, if there is none."""
    names = [name for name in ("slots", "slots_per_group") if name in setup]
    if len(names) != 1:
        raise ValueError("the setup must have either 'slots' or 'slots_per_group'")
    for name in names + [name for name in ("data_slots",) if name in setup]:
        if not re.fullmatch("[0-9]+", setup[name]) or int(setup[name]) < 1:
            raise ValueError(f"'{name}' is {setup[name]!r} in the setup: it must be a number from 1")
    return BatchPolicy(
        slots=int(setup[names[0]]),
        elastic=names[0] == "slots_per_group",
        data_slots=int(setup.get("data_slots", "0")),
        drop_last=setup.get("drop_last", "True") == "True",
    )


def contributors_of(able: int, wanted: int, allowed: Collection[int]) -> int:
    """How many of `able` members contribute: up to `wanted` (0: all), and a count that is `allowed` (empty: any is).

    If none of the allowed counts is small enough, all of them: how few may go on is `min_groups`.
    """
    most = min(able, wanted or able)
    return max((count for count in allowed if count <= most), default=most)


def limited(roster: Sequence[Member], wanted: int, allowed: Collection[int]) -> tuple[Member, ...]:
    """The roster at a base: contributors that are too many, the last ones, are spares now. Nobody is promoted."""
    roles = [member.role for member in roster]
    most = contributors_of(len(roles) - roles.count(Role.NEWCOMER), wanted, allowed)
    over = roles.count(Role.CONTRIBUTOR) - most
    found = []
    for member in reversed(roster):
        if over > 0 and member.role is Role.CONTRIBUTOR:
            member, over = msgspec.structs.replace(member, role=Role.SPARE), over - 1
        found.append(member)
    return tuple(reversed(found))


def filled(roster: Sequence[Member], wanted: int, allowed: Collection[int]) -> tuple[Member, ...]:
    """The roster in which spares, in order, have become contributors until there are enough. Nobody is demoted."""
    roles = [member.role for member in roster]
    free = contributors_of(len(roles) - roles.count(Role.NEWCOMER), wanted, allowed) - roles.count(Role.CONTRIBUTOR)
    found = []
    for member in roster:
        if free > 0 and member.role is Role.SPARE:
            member, free = msgspec.structs.replace(member, role=Role.CONTRIBUTOR), free - 1
        found.append(member)
    return tuple(found)
