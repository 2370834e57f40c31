"""Any number of groups that do what agents do when nothing fails, led by the real core: to see what its size costs.

No network and no clock: whatever a group is told, it answers at once. The CPU time of the core alone is counted, and
the bytes of what is said, as they are on the wire.
"""

from __future__ import annotations

from collections import Counter, deque
from time import process_time
from typing import Any

from lighthouse.core import decide, new_run, record
from lighthouse.core_values import (
    Effect,
    Event,
    RunConfig,
    Said,
    SaidHello,
    Send,
    Started,
    StoreEffect,
)
from lighthouse.deal import even_share
from lighthouse.values import (
    ROOT,
    Abandon,
    Base,
    Committed,
    EntryName,
    Heal,
    Hello,
    Member,
    Opened,
    Prepare,
    Report,
    Start,
    Up,
    Version,
    Welcome,
)
from lighthouse.wire import DOWN
from simulation.store import Store

_PATIENT = {"lease_s": 1000.0, "stall_patience_s": 1000.0, "connect_s": 1000.0}


class Fleet:
    """Groups g0, g1, … and their lighthouse. `cpu_s`: of the core; `bytes_to`: told to those watched."""

    def __init__(self, groups: int) -> None:
        self.groups = groups
        self.now = 100.0
        self.cpu_s = 0.0
        self.events = 0
        self.watched = {"g1", f"g{groups // 2}", f"g{groups - 2}", "j1"}
        self.bytes_to: Counter[str] = Counter()
        self.version = ROOT
        self.number = 0
        self.answers: dict[str, tuple[int, ...]] = {}
        self.incarnations: dict[str, int] = {}
        self.abandoned: dict[str, int] = {}
        self.heals: dict[str, int] = {}
        self._store = Store()
        self._term = self._store.lead()
        self._names: dict[int, str] = {}
        self._conns: dict[str, int] = {}
        self._waiting: deque[Event] = deque()
        self._prepared: Prepare | None = None
        self._dealt: object = None
        self._setup = {"slots": str(groups), "steps": "1000000"}
        self.lead()

    def lead(self) -> None:
        """A lighthouse begins to lead from what is stored."""
        config = RunConfig(run_id="r", groups_wanted=self.groups, **_PATIENT, hold_patience_s=0.0)
        self.state = new_run(config)
        self._conns.clear()
        self._names.clear()
        self.event(Started(record=self._store.record, wall_ms=1000))

    def event(self, event: Event) -> None:
        """One event, alone, and all that follows from it."""
        self._waiting.append(event)
        while self._waiting:
            event = self._waiting.popleft()
            self.now += 1e-6
            self.events += 1
            began = process_time()
            self.state, effects = decide(record(self.state, event, self.now), self.now)
            self.cpu_s += process_time() - began
            for effect in effects:
                self._carry_out(effect)

    def say(self, name: str, message: Up) -> None:
        """`name` says something, now."""
        self.event(self._said(name, message))

    def _said(self, name: str, message: Up) -> Said:
        return Said(conn=self._conns[name], name=name, incarnation=self.incarnations[name], message=message)

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Send):
            name = self._names.get(effect.conn)
            if name is not None:
                if name in self.watched:
                    self.bytes_to[name] += DOWN.wrap(effect.message).ByteSize()
                self._hear(name, effect.message)
        elif isinstance(effect, StoreEffect):
            self._store.write(self._term, effect)

    def _hear(self, name: str, message: Any) -> None:
        match message:
            case Welcome():
                self.incarnations[name] = message.incarnation
            case Abandon():
                self.abandoned[name] = max(self.abandoned.get(name, 0), message.number)
                self._waiting.append(self._said(name, self.report(name)))
            case Heal():
                self.heals[name] = message.heal
            case Base():
                self.number, self.version = message.number, message.version
                self.abandoned[name] = message.number
                self.answers[name] = message.slots
            case Heal():
                self.heals[name] = message.heal
            case Prepare():
                self._prepared = message
                self._waiting.append(self._said(name, Opened(number=message.number)))

    # ---- what groups say -------------------------------------------------------------------------------------------

    def report(self, name: str) -> Report:
        """What `name` stands for: everybody stands on the version of the last commit."""
        version, before = self.version, self.version.step - 1
        start = Version(before, version.generation) if before else ROOT
        return Report(
            abandoned=self.abandoned.get(name, 0),
            version=version,
            cursor=version.step * self.groups,
            generation=self.number if name in self.answers else 0,
            answers=self.answers.get(name, ()),
            step_slots=self.groups if name in self.answers else 0,
            entries=(EntryName(start=start, end=version),) if version.step else (),
            heal=self.heals.get(name, 0),
        )

    def hello(self, name: str) -> None:
        """`name` opens a session; in its old incarnation if it has one."""
        conn = len(self._names) + 1
        self._names[conn], self._conns[name] = name, conn
        message = Hello(
            run_id="r",
            name=name,
            incarnation=self.incarnations.get(name, 0),
            host=f"host-of-{name}.cluster.example",
            took_over=True,
            setup=self._setup,
            rendezvous=("10.0.0.1:29500",),
            weights=("10.0.0.1:29501",),
            digest=7,
            report=self.report(name),
        )
        self.event(SaidHello(conn=conn, message=message))

    def commit(self, *names: str, switch: int = 0, promoted: tuple[Member, ...] = ()) -> None:
        """One step more, told by `names`; switch: its roll call named that planned generation."""
        current = self.state.current
        assert current is not None
        self.version = Version(self.version.step + 1, self.number)
        start = Start(number=switch, version=self.version) if switch else Start(number=self.number, version=ROOT)
        done = Committed(
            version=self.version, start=start, loss=2.5, tokens=1000, grad_norm=1.0, step_s=0.1, promoted=promoted
        )
        self.number = switch or self.number
        for name in names:
            self.say(name, done)
        if current is not self._dealt:
            self._dealt = current
            places = enumerate(current.roster)
            self.answers = {m.name: even_share(self.groups, len(current.roster), place) for place, m in places}

    @property
    def members(self) -> list[str]:
        """Names of the present generation, in roster order."""
        assert self.state.current is not None
        return [member.name for member in self.state.current.roster]

    @property
    def prepared(self) -> Prepare:
        """The newest plan."""
        assert self._prepared is not None
        return self._prepared
