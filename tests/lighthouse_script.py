"""A lighthouse core, and groups that say to it what a test wants, in few words. Numbers begin at 1000."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from simulation.store import Store

from lighthouse.core import decide, hold, new_run, record, wake_at
from lighthouse.core_state import Group
from lighthouse.core_values import (
    CloseStream,
    Effect,
    Event,
    Hold,
    RunConfig,
    Said,
    SaidHello,
    Send,
    Started,
    StoreBase,
    StoreClaim,
    StoreDeaths,
    StoreFinished,
    StoreIncarnation,
    StoreNumber,
    StoreSetup,
    StreamEnded,
    Tell,
    Tick,
)
from lighthouse.values import (
    ROOT,
    Abandon,
    Base,
    CaughtUp,
    Committed,
    Down,
    EntryName,
    Heal,
    Hello,
    Report,
    Start,
    Up,
    Version,
)

T = TypeVar("T")
FIRST = 1000
SETUP = {"slots": "4", "steps": "100"}


def nth(n: int) -> int:
    """The number of the n-th incarnation that is given."""
    return FIRST + n - 1


STORED = (StoreNumber, StoreClaim, StoreBase, StoreIncarnation, StoreSetup, StoreFinished, StoreDeaths)


class Script:
    """One run. `effects` is everything that was ever decided, `last` what the last event led to."""

    def __init__(self, **config: Any) -> None:
        self.config = RunConfig(**{"run_id": "run", "groups_wanted": 2, **config})
        self.store = Store()
        self.now = 0.0
        self.conns = 0
        self.conn_of: dict[str, int] = {}
        self.incarnations: dict[int, int] = {}
        self.effects: list[Effect] = []
        self.last: list[Effect] = []
        self.starts()

    def starts(self) -> None:
        """A lighthouse reads the store: the first one, or the next after a crash."""
        self._term = self.store.lead()
        self.state = new_run(self.config)
        self.conn_of = {}
        self.does(Started(record=self.store.record, wall_ms=FIRST))

    def does(self, *events: Event) -> list[Effect]:
        """These happen at once; gives what is decided."""
        for event in events:
            self.state = record(self.state, event, self.now)
        self.state, effects = decide(self.state, self.now)
        self.last = list(effects)
        for effect in effects:
            if isinstance(effect, STORED):
                self.store.write(self._term, effect)
            elif isinstance(effect, Send) and hasattr(effect.message, "incarnation"):
                self.incarnations[effect.conn] = effect.message.incarnation
        self.effects += effects
        return self.last

    def passes(self, seconds: float) -> list[Effect]:
        """Time passes, and every deadline in it as the shell would see it."""
        until, effects = self.now + seconds, []
        while (due := wake_at(self.state, self.now)) is not None and due <= until:
            self.now = due
            effects += self.does(Tick())
        self.now = until
        self.last = effects
        return effects

    # ---- groups ----------------------------------------------------------------------------------------------------

    def hello(self, name: str, report: Report | None = None, digest: int = 1, **fields: Any) -> list[Effect]:
        """A new stream of the group begins with this hello."""
        self.conns += 1
        self.conn_of[name] = self.conns
        message = Hello(
            **{
                "run_id": "run",
                "name": name,
                "incarnation": 0,
                "host": f"host-{name}",
                "took_over": True,
                "setup": SETUP,
                "rendezvous": (f"{name}:1",),
                "weights": (f"{name}:2",),
                "digest": digest,
                "report": report or Report(abandoned=0, version=ROOT, cursor=0),
                **fields,
            }
        )
        return self.does(SaidHello(conn=self.conns, message=message))

    def says(self, name: str, *messages: Up) -> list[Effect]:
        """The group says this on its newest stream."""
        conn = self.conn_of[name]
        incarnation = self.incarnations[conn]
        said = [Said(conn=conn, name=name, incarnation=incarnation, message=message) for message in messages]
        return self.does(*said)

    def ends(self, name: str) -> list[Effect]:
        """The group's stream ends."""
        return self.does(StreamEnded(conn=self.conn_of[name]))

    def reports(self, name: str, version: Version = ROOT, abandoned: int = 0, **fields: Any) -> list[Effect]:
        """The group has abandoned what it was told to, and stands on `version`."""
        told = max([a.number for a in self.sent(name, Abandon)], default=0)
        generation = fields.pop("generation", version.generation)
        report = Report(
            abandoned=abandoned or told,
            version=version,
            cursor=4 * version.step,
            generation=generation,
            **{"step_slots": 4 if fields.get("answers") else 0, **fields},
        )
        return self.says(name, report)

    def commits(self, step: int, *names: str, number: int = 0, start: Version = ROOT, **fields: Any) -> None:
        """These groups tell of the commit of `step` in generation `number` (that of the last base)."""
        number = number or self.number
        done = Committed(
            version=Version(step, number),
            start=Start(number=number, version=start),
            loss=1.0,
            tokens=10,
            grad_norm=1.0,
            step_s=0.1,
            **fields,
        )
        for name in names:
            self.says(name, done)

    def forms(self, *names: str, **fields: Any) -> int:
        """These groups form the first generation; its number."""
        for name in names:
            self.hello(name, **fields)
        for name in names:
            self.reports(name)
        return self.number

    def catches_up(self, name: str, version: Version) -> list[Effect]:
        """A group that was told to heal has loaded `version`, and has all that there is."""
        told = self.heal(name).heal
        report = Report(abandoned=self.number, version=version, cursor=4 * version.step, heal=told)
        return self.says(name, report, CaughtUp(version=version))

    # ---- what came of it -------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """The generation with the newest base."""
        return max((b.number for b in self.store.record.bases), default=0)

    @property
    def hold(self) -> Hold:
        return hold(self.state, self.now)

    def sent(self, name: str, kind: type[T]) -> list[T]:
        """All messages of this kind on the group's newest stream."""
        conn = self.conn_of[name]
        sent = [e.message for e in self.effects if isinstance(e, Send) and e.conn == conn]
        return [message for message in sent if isinstance(message, kind)]

    def to(self, name: str, kind: type[T]) -> list[T]:
        """Those of them that the last event led to."""
        conn = self.conn_of[name]
        return [e.message for e in self.last if isinstance(e, Send) and e.conn == conn and isinstance(e.message, kind)]

    def base(self, name: str) -> Base:
        """The newest base that the group was told."""
        return self.sent(name, Base)[-1]

    def heal(self, name: str) -> Heal:
        """The newest heal that the group was told."""
        return self.sent(name, Heal)[-1]

    def told(self, kind: str) -> list[Tell]:
        """Everything of this kind that people were told."""
        return [e for e in self.effects if isinstance(e, Tell) and e.kind == kind]

    def closed(self, conn: int) -> bool:
        return CloseStream(conn=conn) in self.effects

    def group(self, name: str) -> Group | None:
        return self.state.groups.get(name)


def roster_of(base: Base) -> Sequence[str]:
    """Names of those who join by this base (all, where it is told whole)."""
    return [m.name for m in base.roster.joined]


def entry(start: Version, end: Version) -> EntryName:
    return EntryName(start=start, end=end)


def same_but_outbox(one: Any, two: Any) -> bool:
    """Whether two states are equal in everything that counts."""
    return bool(_settled(one) == _settled(two))


def _settled(state: Any) -> Any:
    """Without what only says that there is something to look at."""
    change = state.change and msgspec.structs.replace(state.change, heard=0)
    return msgspec.structs.replace(state, dirty=False, change=change)


__all__ = ["Down", "Script", "entry", "roster_of", "same_but_outbox"]
