"""The lighthouse's core under arbitrary interleavings: what groups might say, in any order, and what it decides then.

Groups say nearly anything that is well formed: they report versions that nobody else has, catch up without a heal, fail
and die at any time. What the lighthouse stores and tells is checked as it comes, from the messages alone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from lighthouse_script import Script, entry, same_but_outbox

from lighthouse.core import decide, hold, record, status, wake_at
from lighthouse.core_values import (
    CloseStream,
    EndRun,
    Hold,
    Said,
    Send,
    SkipSlotAsked,
    StoreBase,
    StoreClaim,
    StoreFinished,
    StoreNumber,
    Tick,
)
from lighthouse.values import (
    ROOT,
    Abandon,
    Base,
    Beat,
    CaughtUp,
    Committed,
    Died,
    Drain,
    Failure,
    Fenced,
    Finished,
    Goodbye,
    Heal,
    HealFailed,
    Leave,
    Member,
    Opened,
    Prepare,
    Ready,
    Report,
    Start,
    Version,
    Welcome,
)

names = st.sampled_from(["g1", "g2", "g3", "g10"])
seldom = st.integers(0, 9).map(lambda n: n == 6)


@dataclass
class Life:
    """One incarnation of a group, as far as its own words and what it was told go."""

    name: str
    incarnation: int
    conn: int
    report: Report
    abandoned: int = 0
    loading: bool = False
    ended: bool = False


class Lighthouse(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.script = Script()
        self.lives: dict[str, Life] = {}
        self.dead: list[Life] = []
        self.open: set[int] = set()
        self.claims: dict[int, tuple[Member, ...]] = {}
        self.at_work: dict[int, tuple[Member, ...]] = {}
        self.left: set[int] = set()
        self.numbers = [0]
        self.bases = {0: ROOT}
        self.hands: Counter[int] = Counter()
        self.over = False

    @initialize(
        minimum=st.integers(1, 2), wanted=st.integers(2, 3), contributors=st.integers(0, 2), skips=st.booleans()
    )
    def begin(self, minimum: int, wanted: int, contributors: int, skips: bool) -> None:
        self.script = Script(
            min_groups=minimum,
            groups_wanted=wanted,
            contributors_wanted=contributors,
            join_wait_s=1.0,
            skip_poison=skips,
        )
        for name in ("g1", "g2", "g3")[:wanted]:
            self.new_life(name, True)
        for name in list(self.lives):
            self.reports(name, 0, 0, (), False)

    # ---- what is checked as it comes -------------------------------------------------------------------------------

    def checked(self, effects: list[Any]) -> None:
        """Notes what is stored and told, and that it may be."""
        for effect in effects:
            match effect:
                case StoreNumber(number=number):
                    assert number > self.numbers[-1], "numbers grow"
                    self.numbers.append(number)
                case StoreClaim(number=number, roster=roster):
                    assert number == self.numbers[-1]
                    assert len(roster) >= self.script.config.min_groups
                    self.claims[number] = roster
                    if effect.planned:
                        self.at_work[number] = roster
                case StoreBase():
                    self.base_is_stored(effect)
                case Send(conn=conn, message=message):
                    self.told(conn, message)
                case CloseStream(conn=conn):
                    assert conn in self.open, "closed once"
                    self.script.does_not_hear(conn) if hasattr(self.script, "does_not_hear") else None
                case EndRun() | StoreFinished():
                    self.over = True
        groups = self.script.state.groups.values()
        assert all(group.heal for group in groups if group.caught), "who has caught up is owed what comes next"

    def base_is_stored(self, base: StoreBase) -> None:
        assert base.number > max(self.bases), "bases grow"
        assert base.number in self.claims
        assert all(self.hands[base.cursor + slot] > 1 for slot in base.set_aside), "set aside after two deaths"
        if not base.reported:
            for number in self.at_work:
                assert number in self.left, f"nobody of {number}, which may be at work, has abandoned it"
            assert base.number == self.numbers[-1]
        self.bases[base.number] = base.version
        later = {n: r for n, r in self.at_work.items() if n > base.number}
        self.at_work = {base.number: self.claims[base.number], **later}

    def told(self, conn: int, message: Any) -> None:
        life = next((one for one in self.lives.values() if one.conn == conn), None)
        if life is None:
            assert isinstance(message, Fenced | Leave | Abandon), f"{message} is said to nobody"
            return
        if isinstance(message, Heal):
            life.loading = True
        elif isinstance(message, Abandon):
            life.abandoned = max(life.abandoned, message.number)
        elif isinstance(message, Base):
            report = life.report
            assert report.abandoned >= message.number and not life.loading, "only who reported is a member"
            if report.version != message.version:
                wanted = entry(report.version, message.version)
                sources = [self.lives[s.name] for s in message.sources]
                assert sources and all(wanted in s.report.entries for s in sources), "one behind, with holders"
            life.abandoned = max(life.abandoned, message.number)

    def says(self, life: Life, *messages: Any) -> None:
        if life.ended:
            return
        said = [
            Said(conn=life.conn, name=life.name, incarnation=life.incarnation, message=message) for message in messages
        ]
        self.checked(self.script.does(*said))

    # ---- what groups say -------------------------------------------------------------------------------------------

    @rule(name=names, took_over=st.booleans())
    def new_life(self, name: str, took_over: bool) -> None:
        old = self.lives.pop(name, None)
        if old is not None:
            old.ended = True
            self.dead.append(old)
            if took_over:
                self.leaves_for_good(old)
        for number, roster in self.at_work.items():  # of a life that was lost before, too
            if took_over and any(m.name == name for m in roster):
                self.left.add(number)
        self.greets(name, 0, Report(abandoned=0, version=ROOT, cursor=0), took_over)

    def greets(self, name: str, incarnation: int, report: Report, took_over: bool) -> None:
        script = self.script
        conn = script.conns + 1
        self.open.add(conn)
        life = Life(name, incarnation, conn, report)
        self.lives[name] = life
        effects = script.hello(name, report=report, incarnation=incarnation, took_over=took_over)
        welcomes = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Welcome)]
        life.incarnation = welcomes[0].incarnation if welcomes else 0
        self.reported(life, report)
        self.checked(effects)

    def leaves_for_good(self, life: Life) -> None:
        for number, roster in self.at_work.items():
            if any((m.name, m.incarnation) == (life.name, life.incarnation) for m in roster):
                self.left.add(number)

    def reported(self, life: Life, report: Report) -> None:
        life.report = report
        if report.version.step >= 0:
            life.loading = False
        for number, roster in self.at_work.items():
            if report.abandoned > number and any(
                (m.name, m.incarnation) == (life.name, life.incarnation) for m in roster
            ):
                self.left.add(number)

    @rule(name=names, ahead=st.integers(0, 2), back=st.integers(0, 1), kept=st.tuples(), failed=seldom)
    def reports(self, name: str, ahead: int, back: int, kept: tuple[()], failed: bool) -> None:
        """It has abandoned what it was told to, and stands on a version made by one of the last generations."""
        life = self.lives.get(name)
        if life is None or life.ended:
            return
        number = sorted(self.bases)[max(-1 - back, -len(self.bases))]
        base = self.bases[number]
        version = Version(base.step + ahead, number) if ahead else base
        before = Version(version.step - 1, number) if ahead > 1 else base
        report = Report(
            abandoned=max(life.abandoned, life.report.abandoned),
            version=version,
            cursor=4 * version.step,
            generation=number,
            failed=failed,
            entries=(entry(before, version),) if ahead else (),
            answers=(0, 1) if name == "g1" else (2,),
            step_slots=4,
        )
        self.reported(life, report)
        self.says(life, report)

    @precondition(lambda self: len(self.bases) > 1)
    @rule(name=names, step=st.integers(1, 3), switched=seldom)
    def commits(self, name: str, step: int, switched: bool) -> None:
        """It tells of a commit in the newest generation; seldom, that the step switched to a plan that was ready."""
        life = self.lives.get(name)
        number = max(self.bases)
        if life is None or not any(m.name == name for m in self.claims[number]):
            return
        version = Version(self.bases[number].step + step, number)
        start = Start(number=number, version=self.bases[number])
        planned = [n for n in self.at_work if n > number]
        if switched and planned and self.script.sent(name, Ready):
            start = Start(number=self.script.sent(name, Ready)[-1].number, version=version)
            if start.number not in planned:
                return
        done = Committed(version=version, start=start, loss=1.0, tokens=1, grad_norm=1.0, step_s=0.1)
        self.says(life, done)

    @rule(name=names, kind=st.sampled_from(["failure", "plan", "drain", "caught", "heal", "opened", "beat", "nowhere"]))
    def says_something(self, name: str, kind: str) -> None:
        life = self.lives.get(name)
        if life is None:
            return
        number = max(self.bases)
        told = self.script.sent(name, Prepare)
        planned = told[-1].number if told else number + 1
        heals = self.script.sent(name, Heal)
        messages: dict[str, list[Any]] = {
            "failure": [Failure(number=number, reason="lost")],
            "plan": [Failure(number=planned, reason="lost")],
            "drain": [Drain()],
            "heal": [HealFailed(heal=heals[-1].heal if heals else 0, reason="no bytes")],
            "opened": [Opened(number=planned)],
            "beat": [Beat(version=life.report.version)],
        }
        if kind in ("caught", "nowhere"):
            heal = heals[-1].heal if heals else 0
            here = Version(-1, 0) if kind == "nowhere" else self.bases[number]
            report = Report(abandoned=life.abandoned, version=here, cursor=4 * max(here.step, 0), heal=heal)
            self.reported(life, report)
            self.says(life, report, *([CaughtUp(version=here)] if kind == "caught" else []))
        else:
            self.says(life, *messages[kind])

    @rule()
    def a_person_has_slots_skipped(self) -> None:
        self.checked(self.script.does(SkipSlotAsked()))
        assert self.script.hold is not Hold.POISON

    @rule(
        name=names,
        how=st.sampled_from(["died", "goodbye", "silent", "reconnects", "reconnects"]),
        slot=st.sampled_from([-1, 0, 0, 1]),
    )
    def goes(self, name: str, how: str, slot: int) -> None:
        life = self.lives.get(name)
        if life is None or life.ended:
            return
        if how in ("died", "goodbye"):
            self.leaves_for_good(life)
            self.lives.pop(name)
            self.dead.append(life)
            slot = life.report.cursor + slot if slot >= 0 else -1
            self.hands[slot] += how == "died"
            died = Died(reason="x", shard_rank=0, slot=slot)
            self.says(life, died if how == "died" else Goodbye(reason="x"))
            life.ended = True
        if life.conn in self.open and self.group_has(life):
            self.open.discard(life.conn)
            self.checked(self.script.ends(name))
        if how == "reconnects":
            abandoned = max(life.abandoned, life.report.abandoned)
            report = Report(abandoned=abandoned, version=life.report.version, cursor=life.report.cursor)
            self.greets(name, life.incarnation, report, False)

    def group_has(self, life: Life) -> bool:
        return self.script.conn_of.get(life.name) == life.conn

    @rule(name=names, sure=seldom)
    def finishes(self, name: str, sure: bool) -> None:
        life = self.lives.get(name)
        if life is not None and sure and len(self.bases) > 1:
            self.says(life, Finished(version=life.report.version))

    # ---- time, and the lighthouse itself ---------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.3, 1.1, 2.5, 30.0]), beats=st.booleans())
    def time_passes(self, seconds: float, beats: bool) -> None:
        script = self.script
        until = script.now + seconds
        while (due := wake_at(script.state, script.now)) is not None and due <= until:
            script.now = due
            self.checked(script.does(Tick()))
            for life in list(self.lives.values()) if beats else ():
                self.says(life, Beat(version=life.report.version))
        script.now = until

    @rule(sure=seldom)
    def the_lighthouse_is_restarted(self, sure: bool) -> None:
        if not sure:
            return
        for life in self.lives.values():
            life.ended = True
        self.dead += self.lives.values()
        self.lives.clear()
        self.open.clear()
        self.script.starts()

    @precondition(lambda self: self.dead)
    @rule(index=st.integers(0, 99), failure=st.booleans())
    def a_dead_life_speaks(self, index: int, failure: bool) -> None:
        """What comes of an incarnation that is over changes nothing."""
        life = self.dead[index % len(self.dead)]
        present = self.script.group(life.name)
        if present is not None and present.incarnation == life.incarnation:
            return
        report = Report(abandoned=max(self.numbers) + 1, version=ROOT, cursor=0)
        message = Failure(number=max(self.bases), reason="late") if failure else report
        said = Said(conn=life.conn, name=life.name, incarnation=life.incarnation, message=message)
        assert same_but_outbox(record(self.script.state, said, self.script.now), self.script.state)

    # ---- what always holds -----------------------------------------------------------------------------------------

    @invariant()
    def deciding_twice_changes_nothing(self) -> None:
        state, effects = decide(self.script.state, self.script.now)
        assert not effects and state == self.script.state

    @invariant()
    def it_never_wants_to_wake_in_the_past(self) -> None:
        due = wake_at(self.script.state, self.script.now)
        assert due is None or due > self.script.now

    @invariant()
    def its_state_is_bounded(self) -> None:
        state = self.script.state
        assert len(state.groups) <= 4 and len(state.conns) <= len(self.open)
        assert not state.outbox and len(state.history.links) <= len(self.bases)
        assert all(gen.number >= max(self.bases) for gen in state.gens) or len(self.bases) == 1

    @invariant()
    def it_can_always_say_how_things_stand(self) -> None:
        assert status(self.script.state, self.script.now).hold == "" or hold(self.script.state, self.script.now).value


TestLighthouse = Lighthouse.TestCase
TestLighthouse.settings = settings(
    max_examples=250, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
