"""Members that live and beat, but do not reach each other: a cut that the lighthouse cannot see. DESIGN §8.

Nobody's mark tells whose fault such a stall is, and the first to complain is named by all others. So before anybody is
put out for a stall, members try whether they reach each other: each those who follow it in the roster. Of two who do
not, one has to go: whoever lacks the most others, the last by name among equals, until all who are left reach each
other. Nothing is wrong with the processes: they are not started again, and come back as joiners do, once they can.
Where nobody else can go on, they are taken as they are: they may well reach each other by now.
"""

from __future__ import annotations

import msgspec

from lighthouse.core_evidence import release
from lighthouse.core_state import Group, RunState, change_group, member_group, send_all, tell, with_
from lighthouse.names import natural_key
from lighthouse.values import Probe, Source

TRIES = 16
"""Each member tries so many that follow it, so that each pair that is so close is tried, and a host that is cut from
all is named by twice as many."""


def probe(state: RunState, now: float) -> RunState:
    """Has all members that are there try their peers; the change waits for their answers."""
    change = state.change
    assert change is not None
    there = _members(state)
    until_s = max(change.until_s, now + state.config.deadlines.answers_s)
    change = msgspec.structs.replace(change, probed=True, looked=None, until_s=until_s)
    told = ((group, Probe(number=change.number, targets=_targets(there, i))) for i, group in enumerate(there))
    return send_all(with_(state, change=change), told if len(there) > 1 else ())


def awaits(state: RunState, group: Group) -> bool:
    """Whether the answer of a live member is still awaited."""
    change = state.change
    return change is not None and change.probed and change.stalled and group.tried < change.number


def put_out(state: RunState) -> RunState:
    """`state` in which those are apart whom the others are better off without; itself if all reach each other."""
    there = {group.name: group for group in _members(state)}
    lacks: dict[str, set[str]] = {name: set() for name in there}
    for group in there.values():
        if state.change is not None and group.tried == state.change.number:
            for other in group.unreached:
                if other in there:
                    lacks[group.name].add(other)
                    lacks[other].add(group.name)
    while any(lacks.values()):
        name = max(lacks, key=lambda n: (len(lacks[n]), natural_key(n)))
        missing = sorted(lacks.pop(name), key=natural_key)
        for others in lacks.values():
            others.discard(name)
        state = tell(state, "apart", f"{', '.join(missing[:8])} and it do not reach each other", name)
        # Whatever it had caught up with as a joiner, it did not get in with: it begins anew.
        state = release(state, there[name], apart=True, caught=False)
    return state


def taken_back(state: RunState) -> RunState:
    """`state` in which nobody is apart any more, and the change looks anew at who can go on."""
    for group in list(state.groups.values()):
        state = change_group(state, group, apart=False) if group.apart else state
    change = state.change
    assert change is not None
    return with_(state, change=msgspec.structs.replace(change, looked=None))


def _members(state: RunState) -> list[Group]:
    roster = state.current.roster if state.current else ()
    groups = (member_group(state, member) for member in roster)
    return [group for group in groups if group is not None and group.live]


def _targets(there: list[Group], i: int) -> tuple[Source, ...]:
    count = min(TRIES, len(there) - 1)
    peers = (there[(i + 1 + k) % len(there)] for k in range(count))
    return tuple(Source(name=peer.name, weights=peer.weights) for peer in peers)
