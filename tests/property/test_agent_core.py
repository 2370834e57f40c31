"""The agent's core under arbitrary interleavings: what the lighthouse, two ranks and the shell might say, in any order.

The rest of the fleet and the lighthouse say nearly anything; what the agent does about it is checked as it comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from agent_checks import Checked, Rank
from agent_script import SLOTS, attach, source, whole
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lighthouse.deal import lost_deal
from lighthouse.values import (
    Abandon,
    Base,
    EntryName,
    Fenced,
    Heal,
    Leave,
    Member,
    Prepare,
    Ready,
    Release,
    Role,
    RosterChange,
    Stage,
    Version,
    Welcome,
)
from replica.agent_state import LifePhase, SessionPhase, attached
from replica.agent_values import (
    DrainAsked,
    RankExited,
    RankSaid,
    SessionClosed,
    SessionOpened,
    TookOver,
)
from replica.rollcall import pack
from replica.roster import ordered
from replica.values import (
    FetchFailed,
    Held,
    Loaded,
    LoadFailed,
    Mark,
    MarkKind,
    Merged,
    Raised,
    RankFailed,
    RankOpened,
    RollCall,
    UpToDate,
    Work,
)
from replica.work import begun, done, loaded, opened
from replica.work import record as record_of

shards = st.integers(0, 1)
often = st.integers(0, 9).map(lambda n: n != 6)
seldom = st.integers(0, 9).map(lambda n: n == 6)


ROSTERS = st.tuples(*[st.sampled_from([Role.CONTRIBUTOR, Role.CONTRIBUTOR, Role.SPARE, Role.NEWCOMER, None])] * 3).map(
    list
)


class Agent(Checked, RuleBasedStateMachine):
    def __init__(self) -> None:
        Checked.__init__(self)
        RuleBasedStateMachine.__init__(self)
        self.number = 4
        self.heal = 0
        self.incarnation = 0
        self.others: dict[Any, Any] = {}
        self.plans: list[int] = []

    @initialize(started=often, roles=ROSTERS)
    def begin(self, started: bool, roles: list[Role | None]) -> None:
        """Mostly the interesting part begins where the ranks are up and the group is in a generation."""
        if started:
            self.does(TookOver())
            self.comes_up(roles)

    @precondition(lambda self: not attached(self.script.state))
    @rule(roles=ROSTERS)
    def comes_up(self, roles: list[Role | None]) -> None:
        for shard_rank in range(2):
            if self.script.state.life.phase is LifePhase.ENDING:
                self.is_reaped(shard_rank)
        self.time_passes(70.0)
        for shard_rank in range(2):
            self.attach(shard_rank)
        self.does(SessionOpened(session=self.script.state.session.number))
        if self.script.state.session.phase is SessionPhase.GREETED:
            self.welcome(join=False)
            self.base(roles, "here", True)

    # ---- the ordinary course of things, broken off at any point

    def burst(self, data: st.DataObject, *actions: Callable[[], None]) -> None:
        for action in actions[: data.draw(st.sampled_from([len(actions), *range(len(actions))]))]:
            action()

    def both(self, act: Callable[..., None], *args: Any) -> Callable[[], None]:
        return lambda: [act(shard_rank, *args) for shard_rank in range(2)] and None

    def a_step(self, data: st.DataObject) -> list[Callable[[], None]]:
        return [self.both(self.rank_acts, 9), self.both(self.rank_sums), self.both(self.rank_votes, data)]

    @rule(times=st.integers(1, 3), data=st.data())
    def steps(self, times: int, data: st.DataObject) -> None:
        self.burst(data, *(self.a_step(data) * times))

    @rule(roles=ROSTERS, out=seldom, difference=st.booleans(), data=st.data())
    def plan_and_switch(self, roles: list[Role | None], out: bool, difference: bool, data: st.DataObject) -> None:
        follow = self.both(self.rank_fetches, "held", data)
        self.burst(
            data,
            lambda: self.prepare(roles, out, difference),
            self.both(self.rank_acts, 9),
            self.both(self.rank_opened),
            self.ready,
            *self.a_step(data),
            *self.a_step(data),
            follow,
        )

    @rule(roles=ROSTERS, data=st.data())
    def lose_and_go_on(self, roles: list[Role | None], data: st.DataObject) -> None:
        at = data.draw(st.sampled_from(["here", "ahead", "ahead"]))
        self.burst(
            data,
            lambda: self.abandon(2),
            *self.a_step(data),
            lambda: self.base(roles, at, True),
            self.both(self.rank_acts, 9),
            self.both(self.rank_fetches, "held", data),
            *self.a_step(data),
        )

    @rule(sure=seldom, step=st.integers(1, 4), data=st.data())
    def heal_and_follow(self, sure: bool, step: int, data: st.DataObject) -> None:
        if not sure:
            return
        follow = [self.both(self.rank_acts, 9), self.both(self.rank_fetches, "held", data)]
        up_to_date = self.both(self.rank_fetches, "none", data)
        self.burst(
            data,
            lambda: self.abandon(2),
            self.heal_it,
            self.both(self.rank_acts, 9),
            self.both(self.rank_loads, True, step),
            *follow,
            *follow,
            self.both(self.rank_acts, 9),
            up_to_date,
        )

    # ---- the shell

    @rule()
    def lock(self) -> None:
        self.does(TookOver())

    @rule(seconds=st.sampled_from([0.0, 0.3, 2.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.script.now += seconds
        self.does(TookOver())

    @rule(late=seldom)
    def session_opens(self, late: bool) -> None:
        self.does(SessionOpened(session=self.script.state.session.number - late))

    @rule(sure=seldom)
    def session_ends(self, sure: bool) -> None:
        if sure:
            self.does(SessionClosed(session=self.script.state.session.number, reason="cut"))

    @rule(sure=seldom)
    def drain(self, sure: bool) -> None:
        if sure:
            self.does(DrainAsked())

    @rule(shard_rank=shards)
    def attach(self, shard_rank: int) -> None:
        rank = self.ranks[shard_rank]
        if not rank.gone:
            rank.attached = True
            self.rank_says(rank, attach(shard_rank, steps="6"))

    @rule(shard_rank=shards, code=st.sampled_from([1, -9, 0]), sure=seldom)
    def dies(self, shard_rank: int, code: int, sure: bool) -> None:
        rank = self.ranks[shard_rank]
        down = rank.gone or self.script.state.life.phase is LifePhase.DOWN
        if (sure or rank.book.leaving) and not down:
            rank.gone = True
            life = self.script.state.life.number
            self.does(RankExited(life=life, shard_rank=shard_rank, code=0 if rank.book.leaving else code))

    @precondition(lambda self: self.script.state.life.phase is LifePhase.ENDING)
    @rule(shard_rank=shards)
    def is_reaped(self, shard_rank: int) -> None:
        self.ranks[shard_rank].gone = True
        self.does(RankExited(life=self.script.state.life.number, shard_rank=shard_rank, code=-9))

    @rule(shard_rank=shards)
    def a_rank_of_an_earlier_life_speaks(self, shard_rank: int) -> None:
        self.does(
            RankSaid(
                life=self.script.state.life.number - 1, shard_rank=shard_rank, message=RankFailed(number=5, reason="")
            )
        )

    # ---- the ranks

    @rule(shard_rank=shards, many=st.integers(1, 4))
    def rank_acts(self, shard_rank: int, many: int) -> None:
        """Works off its inbox in order; verdicts only where it waits for one."""
        rank = self.ranks[shard_rank]
        for _ in range(many):
            rank.act(self.script.down[shard_rank])

    @rule(shard_rank=shards)
    def rank_sums(self, shard_rank: int) -> None:
        rank = self.ranks[shard_rank]
        while rank.speaks and rank.book.pending:
            slot = rank.book.pending[0]
            step = rank.book.version.step
            rank.book = begun(rank.book, slot)
            self.rank_says(rank, Mark(kind=MarkKind.SLOT_BEGUN, step=step, slot=slot))
            rank.book = done(rank.book)
            self.rank_says(rank, Mark(kind=MarkKind.SLOT_DONE, step=step, slot=slot))

    @rule(shard_rank=shards, data=st.data())
    def rank_votes(self, shard_rank: int, data: st.DataObject) -> None:
        rank = self.ranks[shard_rank]
        work = rank.book.work
        if not rank.speaks or work is None or rank.book.pending or rank.voted == (work.generation, work.version):
            return
        rank.voted = (work.generation, work.version)
        self.votes.add((self.script.state.life.number, work.generation, work.version, shard_rank))
        key = (self.script.state.life.number, work.generation, work.version)
        if key not in self.others:
            self.others[key] = data.draw(
                st.fixed_dictionaries(
                    {
                        "switch": often,
                        "stop": seldom,
                        "digest": st.sampled_from([1, 1, None]),
                        "heals": st.sets(st.integers(1, 3)).map(tuple),
                        "lost": seldom,
                    }
                )
            )
        records = self.records(rank, work, **self.others[key])
        self.rank_says(rank, RollCall(generation=work.generation, step=work.version.step, records=records))

    def records(
        self, rank: Rank, work: Work, switch: bool, stop: bool, digest: Any, heals: tuple[int, ...], lost: bool
    ) -> bytes:
        own = record_of(rank.book, rank.book.heals, tokens=5, loss_sum=1.0, grad_sq=1.0, digest=digest, stop=stop)
        missing = () if work.farewell or lost else tuple(sorted(set(range(SLOTS)) - set(own.slots)))
        rows = []
        for place in range(work.size):
            row = own
            if place != work.place:
                row = msgspec.structs.replace(own, slots=missing, opened=own.opened if switch else 0, heals=heals)
                missing = ()
            rows.append(pack(row, SLOTS))
        return b"".join(rows)

    @rule(shard_rank=shards, plan=st.booleans(), sure=seldom)
    def rank_fails(self, shard_rank: int, plan: bool, sure: bool) -> None:
        rank = self.ranks[shard_rank]
        number = rank.opens[-1] if plan and rank.opens else rank.book.work.generation if rank.book.work else 0
        if sure and rank.speaks:
            self.rank_says(rank, RankFailed(number=number, reason="closed by peer"))

    @rule(shard_rank=shards)
    def rank_opened(self, shard_rank: int) -> None:
        rank = self.ranks[shard_rank]
        if rank.speaks and rank.opens:
            number = rank.opens.pop(0)
            rank.book = opened(rank.book, number)
            self.rank_says(rank, RankOpened(number=number))

    @rule(shard_rank=shards, outcome=st.sampled_from(["held", "held", "held", "none", "failed"]), data=st.data())
    def rank_fetches(self, shard_rank: int, outcome: str, data: st.DataObject) -> None:
        rank = self.ranks[shard_rank]
        if not rank.speaks or rank.fetch is None or rank.fetch.version != rank.book.version:
            return
        version = rank.fetch.version
        if outcome == "none":
            self.rank_says(rank, UpToDate(version=version))
            return
        rank.fetch = None
        if outcome == "failed":
            self.rank_says(rank, FetchFailed(version=version, reason="gone"))
            return
        if ("entry", version) not in self.others:
            generation = data.draw(st.integers(max(1, self.number - 2), self.number))
            switch = data.draw(st.sampled_from([0, 0, *self.plans[-1:]]))
            self.others["entry", version] = Merged(
                start=version, generation=generation, slots=SLOTS, switch=switch, stop=data.draw(seldom)
            )
        merged = self.others["entry", version]
        rank.held = EntryName(start=merged.start, end=merged.end)
        self.rank_says(rank, Held(name=rank.held, merged=merged))

    @rule(shard_rank=shards, good=often, step=st.integers(1, 4))
    def rank_loads(self, shard_rank: int, good: bool, step: int) -> None:
        rank = self.ranks[shard_rank]
        if not rank.speaks or rank.load is None:
            return
        heal, rank.load = rank.load.heal, None
        if not good:
            self.rank_says(rank, LoadFailed(heal=heal, reason="torn"))
            return
        version = self.others.setdefault(("load", heal), Version(step, self.number))
        message = Loaded(heal=heal, version=version, cursor=SLOTS * version.step, stop=False, bytes=0, seconds=0.0)
        rank.book = loaded(rank.book, message)
        before = self.script.state.stand.usable
        if self.script.state.joining is not None and self.script.state.joining.heal == heal:
            self.loads.append(message)
        if len(self.loads) == 2 and all(m.heal == heal for m in self.loads) and not before:
            self.version, self.usable = version, True
        self.rank_says(rank, message)
        if not self.script.state.stand.usable:
            self.usable = False

    @rule(shard_rank=shards, sure=seldom)
    def rank_raises(self, shard_rank: int, sure: bool) -> None:
        if sure and self.ranks[shard_rank].speaks:
            self.rank_says(self.ranks[shard_rank], Raised(traceback="RuntimeError: no"))

    # ---- the lighthouse

    def roster(self, roles: list[Role | None]) -> tuple[Member, ...]:
        own = Member(name="a", incarnation=self.script.state.incarnation, role=roles[0] or Role.CONTRIBUTOR)
        named = zip("bc", roles[1:], strict=True)
        return ordered([own, *(Member(name=n, incarnation=1, role=role) for n, role in named if role is not None)])

    @precondition(lambda self: self.script.state.session.phase is SessionPhase.GREETED)
    @rule(join=st.booleans())
    def welcome(self, join: bool) -> None:
        incarnation = self.script.state.incarnation
        if not incarnation:
            self.incarnation += 1
            incarnation = self.incarnation
        self.says(Welcome(incarnation=incarnation, lease_s=3.0, contributors_wanted=2, first_number=1, join=join))

    @rule(sure=seldom, step=st.integers(0, 3))
    def abandons(self, sure: bool, step: int) -> None:
        if sure:
            self.abandon(step)

    def abandon(self, step: int) -> None:
        self.number += step > 1
        self.says(Abandon(number=self.number - (step == 0)))

    @rule(
        sure=seldom, roles=ROSTERS, at=st.sampled_from(["here", "here", "here", "ahead", "ahead", "far"]), spent=often
    )
    def bases(self, sure: bool, roles: list[Role | None], at: str, spent: bool) -> None:
        if sure:
            self.base(roles, at, spent)

    def base(self, roles: list[Role | None], at: str, spent: bool) -> None:
        self.number += spent
        stand = self.script.state.stand
        version = stand.version
        if at != "here":
            merged = Merged(start=version, generation=max(1, self.number - 1), slots=SLOTS)
            version = self.others.setdefault(("entry", version), merged).end
        if at == "far":
            version = Version(version.step + 2, version.generation)
        roster = self.roster(roles)
        kept = {"a": stand.answers} if at == "here" else {}
        deal = lost_deal(SLOTS, kept, [member.name for member in roster])
        self.says_base(version, stand.cursor + (SLOTS if at != "here" else 0), deal["a"], roster)

    def says_base(self, version: Version, cursor: int, slots: tuple[int, ...], roster: tuple[Member, ...]) -> None:
        self.says(
            Base(
                number=self.number,
                roster=whole(roster),
                version=version,
                cursor=cursor,
                slots=slots,
                step_slots=SLOTS,
                rendezvous=("r:0", "r:1"),
                sources=() if version == self.script.state.stand.version else (source("b"),),
            )
        )

    @rule(roles=ROSTERS, out=seldom, difference=st.booleans())
    def prepare(self, roles: list[Role | None], out: bool, difference: bool) -> None:
        self.number += 1
        self.plans.append(self.number)
        seat = self.script.state.seat
        change = whole([member for member in self.roster(roles) if member.name != "a" or not out])
        if difference and seat.generation:
            left = ("a",) if out else ()
            change = RosterChange(
                previous=seat.generation, left=left, joined=(Member(name="d", incarnation=1, role=Role.NEWCOMER),)
            )
        self.says(Prepare(number=self.number, roster=change, rendezvous=("p:0", "p:1")))

    @rule()
    def ready(self) -> None:
        if self.plans:
            self.says(Ready(number=self.plans[-1]))

    @rule(now=st.booleans(), donors=st.integers(1, 3))
    def stage(self, now: bool, donors: int) -> None:
        self.heal += 1
        self.says(Stage(heal=self.heal, joiner="c", donors=donors, place=0, now=now))

    @rule(heal=st.integers(0, 3))
    def release(self, heal: int) -> None:
        self.says(Release(heal=self.heal - heal))

    @rule(sure=seldom)
    def heals(self, sure: bool) -> None:
        if sure:
            self.heal_it()

    def heal_it(self) -> None:
        self.heal += 1
        self.says(Heal(heal=self.heal, sources=(source("b"),)))

    @rule(sure=seldom, success=st.booleans(), after_commit=st.booleans(), restart=st.booleans())
    def leave(self, sure: bool, success: bool, after_commit: bool, restart: bool) -> None:
        if sure:
            self.says(Leave(reason="go", success=success, after_commit=after_commit, restart=restart))

    @rule(first=seldom, second=seldom)
    def fence(self, first: bool, second: bool) -> None:
        if first and second:
            self.says(Fenced(by=99))

    # ---- what must always hold

    @invariant()
    def everything_holds(self) -> None:
        self.check_state()

    def teardown(self) -> None:
        self.check_replay()


Agent.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAgent = Agent.TestCase
