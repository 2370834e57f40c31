"""What one event and one change cost the lighthouse's core with many groups, and a commit the agent's core.

python -m simulation.scale                 128, 1,024 and 10,000 groups, as a table
python -m simulation.scale --groups 512    another number
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from time import process_time
from typing import NamedTuple

from lighthouse.batch import BatchPolicy
from lighthouse.deal import even_share
from lighthouse.values import ROOT, Beat, CaughtUp, Died, Drain, Member, Role, Start, Version
from replica.agent_core import decide, new_agent, record
from replica.agent_plan import entered
from replica.agent_state import AgentState, Life, LifePhase, put
from replica.agent_values import AgentConfig, RankSaid
from replica.rollcall import Record, pack
from replica.values import Attach, RollCall
from simulation.fleet import Fleet

SIZES = (128, 1024, 10_000)
STEPS = 15
"""Commits of an agent that are measured; the median counts."""

_JOINER = "j1"


class Event(NamedTuple):
    """CPU microseconds of one event: its record and its decision."""

    kind: str
    us: float


class Change(NamedTuple):
    """A membership change, end to end: every event until all members made a step in the new generation.

    cpu_us: of all of it, for each member; member_bytes: told to the member that was told most; joiner_bytes: to whom
    comes from outside
    """

    kind: str
    events: int
    cpu_us: float
    member_bytes: int
    joiner_bytes: int = 0


class Scale(NamedTuple):
    """All that was measured with so many groups. commit_us: of a step's verdict in the agent's core."""

    groups: int
    commit_us: float
    events: tuple[Event, ...]
    changes: tuple[Change, ...]

    def event_us(self, kind: str) -> float:
        """Microseconds of one event of that kind."""
        return next(e.us for e in self.events if e.kind == kind)

    def change(self, kind: str) -> Change:
        """The change of that kind."""
        return next(c for c in self.changes if c.kind == kind)


def measure(groups: int, repeats: int = 300) -> Scale:
    """Forms a run of so many groups, and measures."""
    fleet = Fleet(groups)
    formed, *others = CHANGES
    changes = [_change(fleet, formed)]
    events = _events(fleet, fleet.members, repeats)
    changes += [_change(fleet, kind) for kind in others]
    return Scale(groups, commit_us(groups), tuple(events), tuple(changes))


def _change(fleet: Fleet, kind: str) -> Change:
    fleet.bytes_to.clear()
    events, cpu_s = fleet.events, fleet.cpu_s
    CHANGES[kind](fleet)
    told = dict(fleet.bytes_to)
    outside = told.pop(_JOINER, 0)
    return Change(
        kind=kind,
        events=fleet.events - events,
        cpu_us=(fleet.cpu_s - cpu_s) / fleet.groups * 1e6,
        member_bytes=max(told.values(), default=0),
        joiner_bytes=outside,
    )


def _form(fleet: Fleet) -> None:
    names = [f"g{i}" for i in range(fleet.groups)]
    for name in names:
        fleet.hello(name)
    assert len(fleet.members) == fleet.groups
    fleet.commit(*names)


def _kill(fleet: Fleet) -> None:
    name, before = f"g{fleet.groups - 1}", fleet.number
    fleet.say(name, Died(reason="signal 9", shard_rank=0, killed=True))
    assert fleet.number > before
    assert name not in fleet.members
    fleet.commit(*fleet.members)


def _join(fleet: Fleet) -> None:
    name = _JOINER
    fleet.hello(name)
    fleet.say(name, fleet.report(name))
    fleet.say(name, CaughtUp(version=fleet.version))
    members = fleet.members
    fleet.commit(members[0], switch=fleet.prepared.number)
    assert name in fleet.members
    joined = Member(name=name, incarnation=fleet.incarnations[name], role=Role.CONTRIBUTOR, host="")
    fleet.commit(*fleet.members, promoted=(joined,))


def _drain(fleet: Fleet) -> None:
    name = fleet.members[0]
    fleet.say(name, Drain())
    staying = [member for member in fleet.members if member != name]
    fleet.commit(staying[0], switch=fleet.prepared.number)
    assert fleet.members == staying
    fleet.commit(*staying)


def _restart(fleet: Fleet) -> None:
    members = fleet.members
    fleet.lead()
    for name in members:
        fleet.hello(name)
    assert fleet.state.change is None
    fleet.commit(*members)


CHANGES = {"formation": _form, "kill": _kill, "join": _join, "drain": _drain, "lighthouse restart": _restart}
"""In the order in which they are made."""


def _events(fleet: Fleet, names: Sequence[str], repeats: int) -> list[Event]:
    """Of the kinds that come all the time, and of a report that nobody asked for."""

    def step(index: int) -> None:
        fleet.commit(names[0])

    def beat(index: int) -> None:
        fleet.say(names[index * 7 % len(names)], Beat(version=fleet.version))

    def report(index: int) -> None:
        name = names[index * 7 % len(names)]
        fleet.say(name, fleet.report(name))

    found = []
    for kind, act in (("beat", beat), ("committed step", step), ("report", report)):
        cpu_s, events = fleet.cpu_s, fleet.events
        for index in range(repeats):
            act(index)
        found.append(Event(kind, (fleet.cpu_s - cpu_s) / (fleet.events - events) * 1e6))
    return found


# ---- the agent -----------------------------------------------------------------------------------------------------


def commit_us(members: int) -> float:
    """CPU microseconds in which an agent's core merges a roll call of so many members and gives the verdict."""
    slots = 2 * members
    state, taken = _seated(members, slots), []
    for step in range(STEPS):
        version = Version(step, 0 if step == 0 else 1000)
        records = (
            Record(
                generation=1000,
                version=version,
                slots=even_share(slots, members, i),
                loss_sum=2.5,
                tokens=9,
                grad_sq=1.0,
            )
            for i in range(members)
        )
        votes = RollCall(generation=1000, step=step, records=b"".join(pack(record, slots) for record in records))
        began = process_time()
        state, _ = decide(record(state, RankSaid(life=1, shard_rank=0, message=votes), 1.0), 1.0)
        taken.append(process_time() - began)
        assert state.stand.version == Version(step + 1, 1000)
    return sorted(taken)[STEPS // 2] * 1e6


def _seated(members: int, slots: int) -> AgentState:
    """The agent of a member in the middle, in the first step of a generation."""
    roster = tuple(Member(name=f"g{i}", incarnation=i + 1, role=Role.CONTRIBUTOR) for i in range(members))
    me = roster[members // 2]
    state = new_agent(AgentConfig(run_id="r", name=me.name, host="h", shards=1))
    attach = Attach(shard_rank=0, pid=1, setup={}, rendezvous="h:1", weights="h:2", digest=1)
    life = Life(number=1, phase=LifePhase.UP, attached=(attach,), hands=(-1,), marks=(0,))
    state = put(
        state, locked=True, life=life, incarnation=me.incarnation, batch=BatchPolicy(slots=slots), steps=1 << 40
    )
    return entered(state, 1000, roster, members // 2, Start(number=1000, version=ROOT), 0.0)


# ---- for people ----------------------------------------------------------------------------------------------------


def table(scales: Sequence[Scale]) -> str:
    """The measurements as text."""
    head = "".join(f"{scale.groups:>14,}" for scale in scales)
    rows = [f"{'groups':44}{head}"]
    rows.append(_row("an agent's verdict: CPU us of one", [scale.commit_us for scale in scales], "14.1f"))
    rows += [
        _row(f"{event.kind}: CPU us of one", [scale.event_us(event.kind) for scale in scales], "14.1f")
        for event in scales[0].events
    ]
    for change in scales[0].changes:
        each = [scale.change(change.kind) for scale in scales]
        rows.append(_row(f"{change.kind}: CPU us for each member", [c.cpu_us for c in each], "14.1f"))
        rows.append(_row(f"{change.kind}: most bytes told to one member", [c.member_bytes for c in each], "14,d"))
        if change.joiner_bytes:
            rows.append(_row(f"{change.kind}: bytes told to the joiner", [c.joiner_bytes for c in each], "14,d"))
    return "\n".join(rows)


def _row(name: str, values: Sequence[float], form: str) -> str:
    return f"{name:44}" + "".join(format(value, form) for value in values)


def main(argv: Sequence[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="*", default=SIZES)
    options = parser.parse_args(argv)
    began = process_time()
    scales = [measure(groups) for groups in options.groups]
    print(table(scales))
    print(f"{process_time() - began:.0f} s of CPU")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
