"""The lighthouse's core, led by hand: groups say what a test has them say, and the test looks at what they are told."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from lighthouse.core import decide, new_run, record, wake_at
from lighthouse.core_values import Effect, Event, RunConfig, Said, SaidHello, Send, Started, StoreRecord, Tell, Tick
from lighthouse.values import (
    ROOT,
    Abandon,
    Base,
    Beat,
    CaughtUp,
    Committed,
    EntryName,
    Heal,
    Hello,
    Member,
    Prepare,
    Report,
    Role,
    Start,
    Up,
    Version,
    Welcome,
)

T = TypeVar("T")
SETUP = {"slots": "6", "steps": "100"}


class Lead:
    """One lighthouse at virtual time `now`. `effects`: all so far; `take` empties them."""

    def __init__(self, record_: StoreRecord | None = None, now: float = 100.0, **config: object) -> None:
        self.now = now
        self.state = new_run(RunConfig(run_id="r", **config))  # type: ignore[arg-type]
        self.effects: list[Effect] = []
        self.conns: dict[str, int] = {}
        self.incarnations: dict[str, int] = {}
        self._last_conn = 0
        self._owner: dict[int, str] = {}
        self.event(Started(record=record_ or StoreRecord(), wall_ms=1000))

    def event(self, *events: Event) -> list[Effect]:
        """Records, decides, and gives what followed."""
        for event in events:
            self.state = record(self.state, event, self.now)
        self.state, effects = decide(self.state, self.now)
        assert decide(self.state, self.now)[1] == ()
        self.effects += effects
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Welcome):
                name = self.state.conns.get(str(effect.conn))
                if name is not None:
                    self.incarnations[name] = effect.message.incarnation
        return list(effects)

    def take(self) -> list[Effect]:
        """The effects since the last time."""
        taken, self.effects = self.effects, []
        return taken

    def told(self, name: str, kind: type[T]) -> list[T]:
        """Messages of that kind that were sent to `name`, on any of its streams so far."""
        sends = [e for e in self.effects if isinstance(e, Send) and self._owner.get(e.conn) == name]
        return [e.message for e in sends if isinstance(e.message, kind)]

    def kinds(self) -> list[str]:
        """What people were told."""
        return [e.kind for e in self.effects if isinstance(e, Tell)]

    # ---- what groups say -------------------------------------------------------------------------------------------

    def hello(self, name: str, report: Report | None = None, **fields: object) -> list[Effect]:
        """A new stream of `name`; a new incarnation unless `incarnation` is given."""
        self._last_conn += 1
        self._owner[self._last_conn] = name
        self.conns[name] = self._last_conn
        message = Hello(
            run_id="r",
            name=name,
            incarnation=0,
            host=f"{name}.example",
            took_over=True,
            setup=SETUP,
            rendezvous=(f"{name}:1",),
            weights=(f"{name}:2",),
            digest=1,
            report=report or report_of(0),
        )
        return self.event(SaidHello(conn=self._last_conn, message=msgspec.structs.replace(message, **fields)))

    def say(self, name: str, *messages: Up, conn: int = 0, incarnation: int = 0) -> list[Effect]:
        """`name` says something on its stream (or on another, or as another incarnation)."""
        conn, incarnation = conn or self.conns[name], incarnation or self.incarnations[name]
        return self.event(*(Said(conn=conn, name=name, incarnation=incarnation, message=m) for m in messages))

    def pass_time(self, seconds: float, beating: tuple[str, ...] = ()) -> list[Effect]:
        """Time passes; whoever beats does so often enough; the lighthouse is woken when it asked to be."""
        until, said = self.now + seconds, []
        while True:
            due = wake_at(self.state, self.now)
            self.now = min(until, self.now + 0.5, due if due is not None else until)
            groups = [g for name in beating if (g := self.state.groups.get(name)) is not None]
            said += self.event(Tick(), *(_beat(self, g.name, g.version) for g in groups))
            if self.now >= until:
                return said

    # ---- whole stories ---------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The generation with the newest base."""
        assert self.state.current is not None
        return self.state.current.number

    @property
    def members(self) -> list[str]:
        assert self.state.current is not None
        return [m.name for m in self.state.current.roster]

    def form(self, *names: str, steps: int = 3, **fields: object) -> Version:
        """Groups say hello, form the first generation, and commit so many steps: the version they stand on."""
        for name in names:
            self.hello(name, **fields)
        for name in names:
            (abandon,) = self.told(name, Abandon)
            self.say(name, report_of(abandon.number))
        assert all(len(self.told(name, Base)) == 1 for name in names)
        version = ROOT
        for step in range(1, steps + 1):
            version = self.commit(step, *names)
        return version

    def commit(self, step: int, *names: str, start: Start | None = None, **fields: object) -> Version:
        """Members tell of a step that the present generation made."""
        current = self.state.current
        assert current is not None
        version = Version(step, self.number if start is None else start.number)
        done = Committed(
            version=version,
            start=start or Start(number=self.number, version=current.version),
            loss=1.0,
            tokens=60,
            grad_norm=1.0,
            step_s=0.1,
        )
        for name in names:
            self.say(name, msgspec.structs.replace(done, **fields))
        return version

    def catch_up(self, name: str, version: Version) -> list[Effect]:
        """`name`, which was told to heal, has done so, up to `version`."""
        heal = self.told(name, Heal)[-1].heal
        return self.say(name, standing(version, abandoned=self.number, heal=heal), CaughtUp(version=version))

    def join(self, name: str, version: Version) -> Prepare:
        """`name` says hello, heals, has caught up at `version`: what it is told to prepare."""
        self.hello(name)
        self.catch_up(name, version)
        return self.told(name, Prepare)[-1]


def _beat(lead: Lead, name: str, version: Version) -> Said:
    return Said(conn=lead.conns[name], name=name, incarnation=lead.incarnations[name], message=Beat(version=version))


def report_of(abandoned: int, version: Version = ROOT, **fields: object) -> Report:
    """A report of a group that stands on `version`, whose cursor is that of 6 slots a step."""
    fields = {"cursor": version.step * 6, **fields}
    return Report(abandoned=abandoned, version=version, **fields)  # type: ignore[arg-type]


def standing(version: Version, abandoned: int = 0, **fields: object) -> Report:
    """A report of a member of the generation that made `version`, with the entry that led there."""
    before = version.step - 1
    start = ROOT if before == 0 else Version(before, version.generation)
    entries = (EntryName(start=start, end=version),) if version.step else ()
    known = {"generation": version.generation, "entries": entries, "step_slots": int(SETUP["slots"])}
    return report_of(abandoned, version, **{**known, **fields})


def member(name: str, incarnation: int, role: Role = Role.CONTRIBUTOR) -> Member:
    """As rosters have it."""
    return Member(name=name, incarnation=incarnation, role=role, host=f"{name}.example")


__all__ = ["SETUP", "Lead", "member", "report_of", "standing"]
