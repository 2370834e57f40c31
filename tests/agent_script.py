"""Drives the agent's core by hand: events in, effects sorted by whom they go to, and rules that must always hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from lighthouse.values import (
    ROOT,
    Base,
    Down,
    EntryName,
    Heal,
    Hello,
    Member,
    Prepare,
    Report,
    Role,
    RosterChange,
    Source,
    Up,
    Version,
    Welcome,
)
from replica.agent_core import decide, hold, new_agent, record, wake_at
from replica.agent_values import (
    AgentConfig,
    AgentHold,
    Effect,
    Event,
    Exit,
    Ledger,
    LedgerLine,
    LighthouseSaid,
    OpenSession,
    RankExited,
    RankSaid,
    SessionClosed,
    SessionOpened,
    StartRanks,
    ToLighthouse,
    TookOver,
    ToRank,
    ToRanks,
)
from replica.rollcall import Record, pack
from replica.roster import ordered, share
from replica.values import Attach, Commit, Go, Held, Loaded, Merged, RankDown, RankUp, RollCall

SLOTS = 4
HEALED_AT = Version(10, 5)
T = TypeVar("T")


def members(*names: str, **roles: Role) -> tuple[Member, ...]:
    """A roster of incarnation-1 contributors, and of others with their roles."""
    plain = dict.fromkeys(names, Role.CONTRIBUTOR)
    return ordered(Member(name=name, incarnation=1, role=role) for name, role in {**plain, **roles}.items())


def whole(roster: Sequence[Member]) -> RosterChange:
    """The roster told from nothing."""
    return RosterChange(previous=0, joined=tuple(roster))


def source(name: str) -> Source:
    return Source(name=name, weights=(f"{name}:0", f"{name}:1"))


def merged_step(start: Version, generation: int, **more: Any) -> Merged:
    """A merged roll call of a step that others committed."""
    return Merged(start=start, generation=generation, slots=SLOTS, tokens=40, **more)


def held(merged: Merged) -> Held:
    """A rank holds the entry of `merged`."""
    return Held(name=EntryName(start=merged.start, end=merged.end), merged=merged)


class Script:
    """One agent named "a" with two shards. `now` is set by the test; everything else follows from what it is told."""

    def __init__(self, **config: Any) -> None:
        self.config = AgentConfig(run_id="r", name="a", host="h", shards=2, **config)
        self.state = new_agent(self.config)
        self.now = 100.0
        self.effects: list[Effect] = []
        self.up: list[Up] = []
        self.down: list[list[RankDown]] = [[], []]
        self.ledger: list[LedgerLine] = []

    # -- events

    def does(self, *events: Event) -> list[Effect]:
        """Records the events together, decides, and gives the effects; deciding again must change nothing."""
        for event in events:
            self.state = record(self.state, event, self.now)
        self.state, effects = decide(self.state, self.now)
        again, more = decide(self.state, self.now)
        assert more == () and again is self.state
        wake = wake_at(self.state, self.now)
        assert wake is None or wake > self.now, f"would decide again at once, waiting for {self.hold.value}"
        for effect in effects:
            match effect:
                case ToLighthouse(message=up):
                    self.up.append(up)
                case ToRank(shard_rank=shard_rank, message=down):
                    self.down[shard_rank].append(down)
                case ToRanks(message=down):
                    for queue in self.down:
                        queue.append(down)
                case Ledger(line=line):
                    self.ledger.append(line)
        self.effects.extend(effects)
        return list(effects)

    def told(self, *messages: Down) -> list[Effect]:
        """The lighthouse says something over the present session."""
        number = self.state.session.number
        return self.does(*(LighthouseSaid(session=number, message=message) for message in messages))

    def rank(self, shard_rank: int, message: RankUp) -> list[Effect]:
        return self.does(RankSaid(life=self.state.life.number, shard_rank=shard_rank, message=message))

    def ranks(self, message: RankUp) -> list[Effect]:
        """Both ranks say the same, one after the other."""
        return [*self.rank(0, message), *self.rank(1, message)]

    def exits(self, shard_rank: int, code: int = 1, traceback: str = "") -> list[Effect]:
        life = self.state.life.number
        return self.does(RankExited(life=life, shard_rank=shard_rank, code=code, traceback=traceback))

    def waits(self) -> list[Effect]:
        """Lets time pass until the agent wants to decide again."""
        wake = wake_at(self.state, self.now)
        assert wake is not None
        self.now = wake
        return self.does()

    def waits_for(self, kind: type[T], tries: int = 200) -> T:
        """Lets time pass until an effect of this kind comes."""
        for _ in range(tries):
            for effect in self.waits():
                if isinstance(effect, kind):
                    return effect
        raise AssertionError(f"no {kind.__name__}")

    # -- whole passages

    def attaches(self, **setup: str) -> None:
        """The lock is held and both ranks of the present life attach."""
        if not self.state.locked:
            assert any(isinstance(effect, StartRanks) for effect in self.does(TookOver()))
        for shard_rank in range(2):
            self.rank(shard_rank, attach(shard_rank, **setup))

    def meets(self, join: bool = False, incarnation: int = 1, contributors_wanted: int = 0, **more: Any) -> Hello:
        """The session opens, hello is said and answered."""
        assert isinstance(self.last(OpenSession), OpenSession)
        self.does(SessionOpened(session=self.state.session.number))
        hello = self.last_up(Hello)
        self.told(
            Welcome(
                incarnation=incarnation,
                lease_s=3.0,
                contributors_wanted=contributors_wanted,
                first_number=1,
                join=join,
                **more,
            )
        )
        return hello

    def begins(self, join: bool = False, setup: dict[str, str] | None = None, **welcome: Any) -> Script:
        self.attaches(**setup or {})
        self.meets(join=join, **welcome)
        return self

    def based(
        self,
        number: int = 5,
        roster: Sequence[Member] = (),
        version: Version = ROOT,
        cursor: int = 0,
        slots: tuple[int, ...] = (0, 1),
        **more: Any,
    ) -> list[Effect]:
        """A base is told; by default of a and b, from the very beginning."""
        more.setdefault("rendezvous", ("r:0", "r:1"))
        more.setdefault("step_slots", SLOTS)
        change = more.pop("change", None) or whole(roster or members("a", "b"))
        return self.told(Base(number=number, roster=change, version=version, cursor=cursor, slots=slots, **more))

    def prepared(self, number: int, change: RosterChange) -> list[Effect]:
        return self.told(Prepare(number=number, roster=change, rendezvous=("p:0", "p:1")))

    def calls(self, shard_rank: int, deal: Sequence[tuple[int, ...]] = (), **fields: Any) -> list[Effect]:
        """A rank sends a roll call of the step in work, in which all members say the same `fields`."""
        return self.rank(shard_rank, self.call(deal, **fields))

    def commits(self, deal: Sequence[tuple[int, ...]] = (), **fields: Any) -> Commit:
        """Both ranks send their roll calls; gives the verdict."""
        before = len(self.down[0])
        for shard_rank in range(2):
            self.calls(shard_rank, deal, **fields)
        verdicts = [message for message in self.down[0][before:] if isinstance(message, Commit)]
        assert len(verdicts) == 1, self.state.seat.failed
        return verdicts[0]

    def call(self, deal: Sequence[tuple[int, ...]] = (), **fields: Any) -> RollCall:
        seat = self.state.seat
        assert seat.work is not None
        if not deal:
            deal = [() for _ in seat.roster] if seat.work.farewell else default_deal(seat.roster, seat.work.step_slots)
        record = Record(generation=seat.generation, version=self.version, tokens=10, loss_sum=1.0, grad_sq=4.0)
        record = msgspec.structs.replace(record, **fields)
        rows = [pack(msgspec.structs.replace(record, slots=own), seat.work.step_slots) for own in deal]
        return RollCall(generation=seat.generation, step=self.version.step, records=b"".join(rows))

    def holds(self, merged: Merged) -> list[Effect]:
        """Both ranks hold the entry of `merged`."""
        return self.ranks(held(merged))

    def follows(self, version: Version = HEALED_AT, cursor: int = 40) -> None:
        """A joiner is told to heal from b, has loaded this version, and follows."""
        self.told(Heal(heal=3, sources=(source("b"),)))
        self.ranks(Loaded(heal=3, version=version, cursor=cursor, stop=False, bytes=1, seconds=0.1))

    # -- what came of it

    @property
    def version(self) -> Version:
        return self.state.stand.version

    @property
    def hold(self) -> AgentHold:
        return hold(self.state, self.now)

    def last(self, kind: type[T]) -> T:
        """The last effect of this kind."""
        return next(effect for effect in reversed(self.effects) if isinstance(effect, kind))

    def last_up(self, kind: type[T]) -> T:
        """The last message of this kind to the lighthouse."""
        return next(up for up in reversed(self.up) if isinstance(up, kind))

    def ups(self, kind: type[T]) -> list[T]:
        return [up for up in self.up if isinstance(up, kind)]

    def downs(self, kind: type[T], shard_rank: int = 0) -> list[T]:
        """All messages of this kind to a rank."""
        return [down for down in self.down[shard_rank] if isinstance(down, kind)]

    @property
    def report(self) -> Report:
        return self.last_up(Report)

    @property
    def exit(self) -> Exit:
        return self.last(Exit)

    def goes(self) -> Go:
        """The last Go to shard 0."""
        return self.downs(Go)[-1]


def attach(shard_rank: int, **setup: str) -> Attach:
    return Attach(
        shard_rank=shard_rank,
        pid=1,
        setup={"steps": "100", **({} if "slots_per_group" in setup else {"slots": str(SLOTS)}), **setup},
        rendezvous=f"a:{shard_rank}",
        weights=f"a:{shard_rank}",
        digest=7,
    )


def default_deal(roster: Sequence[Member], slots: int = SLOTS) -> list[tuple[int, ...]]:
    """An even deal of the slots over the contributors."""
    return [share(tuple(roster), place, slots) for place in range(len(roster))]


def closes(script: Script, reason: str = "cut") -> list[Effect]:
    """The session ends."""
    return script.does(SessionClosed(session=script.state.session.number, reason=reason))
