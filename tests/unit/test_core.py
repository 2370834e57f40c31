"""The lighthouse's core, told one event after another."""

from __future__ import annotations

from typing import Any

from lighthouse.core import decide, new_run, record, wake_at
from lighthouse.core_state import RunState
from lighthouse.core_values import Effect, EndRun, Hold, RunConfig, Said, SaidHello, Send, Started, StoreRecord, Tick
from lighthouse.values import (
    ROOT,
    Base,
    Committed,
    Died,
    Failure,
    Heal,
    Hello,
    Leave,
    Probe,
    Probed,
    Report,
    Start,
    Up,
    Version,
)


class Told:
    """A run of one lighthouse, and all that it did. Groups speak on the stream that has the number of their turn."""

    def __init__(self, **config: Any) -> None:
        self.state: RunState = new_run(RunConfig(run_id="r", lease_s=2.0, **config))
        self.effects: list[Effect] = []
        self.now = 0.0
        self.conns: dict[str, int] = {}
        self._record(Started(record=StoreRecord(), wall_ms=1000))

    def hello(self, name: str) -> None:
        """A new group, with initial weights."""
        self.conns[name] = len(self.conns) + 1
        message = Hello(
            run_id="r",
            name=name,
            incarnation=0,
            host=name,
            took_over=True,
            setup={"slots": "4"},
            rendezvous=("a",),
            weights=("w",),
            digest=1,
            report=Report(abandoned=0, version=ROOT, cursor=0),
        )
        self._record(SaidHello(conn=self.conns[name], message=message))

    def says(self, name: str, message: Up) -> None:
        group = self.state.groups.get(name)
        assert group is not None
        self._record(Said(conn=self.conns[name], name=name, incarnation=group.incarnation, message=message))

    def reports(self, name: str, version: Version, **fields: Any) -> None:
        """The group has abandoned everything that it was asked to."""
        self.says(name, Report(abandoned=self.state.last_number, version=version, cursor=4 * version.step, **fields))

    def commits(self, *names: str, step: int) -> Version:
        """A step of the generation in force, told by these groups."""
        assert self.state.current is not None
        gen = self.state.current
        version = Version(step, gen.number)
        for name in names:
            start = Start(number=gen.number, version=gen.version)
            done = Committed(version=version, start=start, loss=1.0, tokens=4, grad_norm=1.0, step_s=0.1)
            self.says(name, done)
        return version

    def waits(self, seconds: float) -> None:
        """Time passes, with a tick whenever one is due."""
        until = self.now + seconds
        while (due := wake_at(self.state, self.now)) is not None and due <= until:
            self.now = due
            self._record(Tick())
        self.now = until

    def sent(self, name: str, kind: type[Any]) -> list[Any]:
        """Messages of a kind that the group was sent, oldest first."""
        conn = self.conns[name]
        sends = [e.message for e in self.effects if isinstance(e, Send) and e.conn == conn]
        return [message for message in sends if isinstance(message, kind)]

    def _record(self, event: Any) -> None:
        self.state = record(self.state, event, self.now)
        self.state, effects = decide(self.state, self.now)
        self.effects += effects
        assert not decide(self.state, self.now)[1], "deciding twice changes nothing"


def formed(*names: str, **config: Any) -> Told:
    """A run in which these groups have formed the first generation and committed one step."""
    told = Told(groups_wanted=len(names), **config)
    for name in names:
        told.hello(name)
    for name in names:
        told.reports(name, ROOT)
    told.commits(*names, step=1)
    return told


def test_a_run_waits_for_a_joiner_that_may_have_loaded_when_all_others_died() -> None:
    told = formed("g1")
    at = told.commits("g1", step=2)
    told.hello("j1")
    assert told.sent("j1", Heal)
    told.reports("j1", Version(-1, 0))
    told.says("g1", Died(reason="signal 9", shard_rank=0))
    told.reports("j1", Version(-1, 0))
    assert not [e for e in told.effects if isinstance(e, EndRun)]
    told.reports("j1", at)
    assert told.sent("j1", Base)[-1].version == at


def test_a_run_does_not_wait_for_ever_for_a_joiner_that_loads() -> None:
    told = formed("g1")
    told.hello("j1")
    told.reports("j1", Version(-1, 0))
    told.says("g1", Died(reason="signal 9", shard_rank=0))
    told.reports("j1", Version(-1, 0))
    told.waits(1.9)
    told.reports("j1", Version(-1, 0))
    told.waits(1.9)
    told.reports("j1", Version(-1, 0))
    told.waits(0.4)
    assert [e.success for e in told.effects if isinstance(e, EndRun)] == [False]


def stalled(*marks: int) -> Told:
    """Groups of which nobody has committed for long, and that have reported these marks."""
    names = [f"g{i}" for i in range(len(marks))]
    told = formed(*names, stall_patience_s=1.5, connect_s=5.0)
    at = told.commits(*names, step=2)
    told.waits(1.6)
    for name, mark in zip(names, marks, strict=True):
        told.reports(name, at, generation=at.generation, mark=mark)
    for name in names:
        told.says(name, *(Probed(number=probe.number) for probe in told.sent(name, Probe)))
    return told


def evicted(told: Told) -> list[str]:
    """Names of groups that were told to start anew."""
    return [name for name in told.conns if any(leave.restart for leave in told.sent(name, Leave))]


def test_who_the_others_wait_for_is_evicted() -> None:
    told = stalled(1_000_000, 3, 1_000_000)
    assert evicted(told) == ["g1"]
    assert [member.name for member in told.state.current.roster] == ["g0", "g2"]  # type: ignore[union-attr]
    assert len(told.sent("g0", Base)) == 2


def test_in_a_roll_call_that_does_not_end_the_same_members_go_on() -> None:
    told = stalled(1_000_001, 1_000_001, 1_000_001)
    assert not evicted(told) and len(told.sent("g1", Base)) == 2


def test_slow_is_not_stalled_while_nobody_waits() -> None:
    told = stalled(1, 5, 3)
    assert not evicted(told) and len(told.sent("g1", Base)) == 2


def test_steps_are_progress() -> None:
    told = formed("g1", "g2", stall_patience_s=1.5, connect_s=5.0)
    for step in range(2, 8):
        told.waits(1.0)
        told.commits("g1", "g2", step=step)
    assert len(told.sent("g1", Base)) == 1


def test_a_change_does_not_count_against_the_patience() -> None:
    told = formed("g1", "g2", stall_patience_s=1.5, connect_s=5.0)
    at = told.commits("g1", "g2", step=2)
    told.waits(1.0)
    told.says("g1", Failure(number=at.generation, reason="a collective failed"))
    told.waits(0.9)
    for name in told.conns:
        told.reports(name, at, generation=at.generation)
    assert len(told.sent("g1", Base)) == 2, "the same members go on"
    told.waits(0.4)
    assert told.state.change is None
    told.waits(0.2)
    assert told.state.change is not None


def test_an_empty_store_does_not_start_anew_while_somebody_has_been_in_a_generation() -> None:
    told = Told(groups_wanted=2)
    told.hello("j1")
    told.hello("g1")
    told.reports("g1", Version(11, 900), generation=900)
    told.reports("j1", Version(0, 0))
    assert not told.sent("j1", Base) and told.state.hold is Hold.COLD_START
