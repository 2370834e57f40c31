"""Planned generations: opened beside, named by all, entered after the very step; and the ways in which that fails."""

import pytest
from agent_script import SLOTS, Script, closes, held, members, merged_step, source, whole

from lighthouse.deadlines import DEFAULTS
from lighthouse.values import (
    ROOT,
    Abandon,
    Committed,
    Drain,
    Failure,
    Leave,
    Opened,
    Ready,
    Report,
    Role,
    RosterChange,
    Start,
    Version,
)
from replica.agent_values import AgentHold, DrainAsked, EndRanks, TookOver
from replica.values import Abandoned, Commit, Go, Open, Quit, RankFailed, RankOpened, ReadyFor, RollCall

JOIN_C = RosterChange(previous=5, joined=members(c=Role.NEWCOMER))
WITHOUT_A = RosterChange(previous=5, left=("a",))
WITHOUT_B = RosterChange(previous=5, left=("b",))


def in_step() -> Script:
    script = Script().begins()
    script.based(5)
    return script


def named(number: int = 7, change: RosterChange = JOIN_C) -> Script:
    """In generation 5, with plan `number` opened, declared ready and so named by the ranks."""
    script = in_step()
    script.prepared(number, change)
    script.ranks(RankOpened(number=number))
    script.told(Ready(number=number))
    return script


def test_a_plan_is_opened_named_and_entered_after_the_step() -> None:
    script = in_step()
    script.prepared(7, JOIN_C)
    assert script.downs(Open) == [Open(number=7, place=0, size=3, rendezvous="p:0")]
    assert script.downs(Open, 1) == [Open(number=7, place=0, size=3, rendezvous="p:1")]
    script.rank(0, RankOpened(number=7))
    assert not script.ups(Opened)
    script.rank(1, RankOpened(number=7))
    assert script.ups(Opened) == [Opened(number=7)] and not script.downs(ReadyFor)
    script.told(Ready(number=7))
    assert script.downs(ReadyFor) == [ReadyFor(number=7)]
    commit = script.commits(opened=7)
    assert commit.merged.switch == 7
    assert (commit.next.generation, commit.next.size, commit.next.slots, commit.next.digest) == (7, 3, (0, 1), True)
    assert script.last_up(Committed).start == Start(number=7, version=Version(1, 5), cursor=SLOTS)
    commit = script.commits([(0, 1), (2, 3), ()], digest=1)
    assert script.version == Version(2, 7) and commit.next.slots == (0, 1)
    assert script.state.seat.roster == members("a", "b", "c")


def test_a_switch_seen_by_one_shard_only_is_no_switch() -> None:
    """HOLES S2a: B's rank 1 had not opened yet when shard 1 called the roll."""
    script = named()
    script.calls(0, opened=7)
    script.calls(1, opened=0)
    commit = script.downs(Commit)[-1]
    assert commit.merged.switch == 0 and commit.next.generation == 5
    assert script.downs(Commit, 1)[-1] == commit


def test_ready_before_the_ranks_have_opened_is_kept_for_later() -> None:
    script = in_step()
    script.prepared(7, JOIN_C)
    script.told(Ready(number=7))
    script.rank(0, RankOpened(number=7))
    assert not script.downs(ReadyFor)
    script.rank(1, RankOpened(number=7))
    assert script.downs(ReadyFor) == [ReadyFor(number=7)]


def test_ready_for_a_plan_never_told_is_nothing() -> None:
    script = in_step()
    script.told(Ready(number=7))
    script.prepared(7, JOIN_C)
    script.ranks(RankOpened(number=7))
    assert not script.downs(ReadyFor)


def test_a_newer_plan_replaces_an_older() -> None:
    script = in_step()
    script.prepared(7, JOIN_C)
    script.rank(0, RankOpened(number=7))
    script.prepared(8, WITHOUT_B)
    script.rank(1, RankOpened(number=7))
    assert not script.ups(Opened)
    script.ranks(RankOpened(number=8))
    script.told(Ready(number=8))
    assert script.commits(opened=8).next.size == 1


def test_an_older_plan_told_late_is_refused() -> None:
    script = in_step()
    script.prepared(8, JOIN_C)
    script.prepared(7, JOIN_C)
    assert [message.number for message in script.downs(Open)] == [8]


def test_a_plan_replaced_while_ranks_name_it_can_still_be_entered() -> None:
    """The roll call may be under way already: all the others switch, so this group has to."""
    script = named(7)
    script.prepared(8, JOIN_C)
    assert script.commits(opened=7).next.generation == 7
    # A plan that starts from the roster of 5 is void now; one told from 7 is not.
    script.ranks(RankOpened(number=8))
    assert script.ups(Opened) == [Opened(number=7)]
    script.prepared(9, RosterChange(previous=7, left=("b",)))
    assert script.downs(Open)[-1].size == 2


def test_a_plan_may_be_told_from_one_that_is_not_entered_here_yet() -> None:
    """The first member has told of the switch; the vote of another shard is still on its way here."""
    script = named(7)
    script.calls(0, opened=7)
    script.prepared(8, RosterChange(previous=7, left=("b",)))
    assert script.downs(Open)[-1].size == 2
    script.calls(1, opened=7)
    assert script.state.seat.generation == 7
    script.ranks(RankOpened(number=8))
    script.told(Ready(number=8))
    assert script.commits([(0, 1), (2, 3), ()], opened=8, digest=1).next.size == 2


def test_abandon_kills_the_plan_below_it_only() -> None:
    script = named(7)
    script.told(Abandon(number=8))
    script.told(Ready(number=7))
    assert not script.state.plans and script.downs(Abandoned)[-1].number == 8
    script = named(7)
    script.told(Abandon(number=7))
    assert [plan.number for plan in script.state.plans] == [7]


def test_abandon_kills_the_plan_even_if_ranks_named_it() -> None:
    """HOLES S10: A's roll call completed and A is in 7; here it did not, and 7 is spent and over."""
    script = named(7)
    script.calls(0, opened=7)
    late = script.call(opened=7)
    script.told(Abandon(number=8))
    script.rank(1, late)
    assert script.version == ROOT and script.state.seat.generation == 5
    script.based(8, version=Version(1, 5), cursor=4, slots=(0,), sources=(source("b"),), roster=members("a", "b"))
    script.holds(merged_step(ROOT, 5, switch=7))
    assert script.goes().work.generation == 8 and script.version == Version(1, 5)


def test_a_difference_from_a_plan_entered_elsewhere_only_is_understood() -> None:
    script = named(7)
    change = RosterChange(previous=7, left=("b",))
    script.based(8, change=change, version=Version(1, 5), cursor=4, slots=(), sources=(source("c"),))
    script.holds(merged_step(ROOT, 5, switch=7))
    assert [member.name for member in script.state.seat.roster] == ["a", "c"]


def test_a_plan_that_does_not_open_is_reported_and_never_named() -> None:
    script = in_step()
    script.prepared(7, JOIN_C)
    script.rank(0, RankOpened(number=7))
    script.rank(1, RankFailed(number=7, reason="timed out"))
    assert script.last_up(Failure) == Failure(number=7, reason="rank 1: timed out")
    script.rank(1, RankOpened(number=7))
    script.told(Ready(number=7))
    assert not script.downs(ReadyFor)
    script.commits()
    assert script.version == Version(1, 5)


def test_a_plan_that_breaks_after_it_was_named_is_entered_with_the_others() -> None:
    script = named(7)
    script.rank(1, RankFailed(number=7, reason="closed by peer"))
    assert script.last_up(Failure).number == 7
    assert script.commits(opened=7).next.generation == 7
    script.rank(1, RankFailed(number=7, reason="closed by peer"))
    assert script.state.floor == 8 and script.report.generation == 7


def test_a_plan_from_a_roster_not_known_is_reported() -> None:
    script = in_step()
    script.prepared(7, RosterChange(previous=4, left=("b",)))
    assert script.last_up(Failure).number == 7 and not script.downs(Open)


def test_an_unknown_switch_is_committed_but_not_entered() -> None:
    """Everybody else commits the step and switches; so the step is in the history, and this group must not deny it."""
    script = in_step()
    commit = script.commits(opened=7)
    assert commit.merged.switch == 7 and commit.next.size == 0
    assert script.version == Version(1, 5)
    assert script.report.failed and script.report.starts == (Start(number=7, version=Version(1, 5), cursor=SLOTS),)
    assert script.report.abandoned == 8


def test_a_leaver_sees_a_switch_that_it_is_not_in() -> None:
    """It names the plan without opening it, applies the step, is over with everything, and stays to be asked."""
    script = in_step()
    script.prepared(7, WITHOUT_A)
    assert script.downs(Open) == [Open(number=7, place=-1, size=0, rendezvous="")]
    assert script.ups(Opened) == [Opened(number=7)]
    script.told(Ready(number=7))
    assert script.downs(ReadyFor)
    commit = script.commits(opened=7)
    assert (commit.next.size, commit.next.version, commit.leave) == (0, Version(1, 5), False)
    assert script.report.abandoned == 8 and script.report.starts == (
        Start(number=7, version=Version(1, 5), cursor=SLOTS),
    )
    assert script.last_up(Committed).start.number == 7
    assert script.hold is AgentHold.VERDICT
    script.rank(0, RollCall(generation=7, step=1, records=b""))
    script.told(Leave(reason="drained", success=True))
    assert script.downs(Quit)[-1] == Quit(success=True, reason="drained")


def test_a_leaver_may_be_taken_back_into_a_base() -> None:
    script = in_step()
    script.prepared(7, WITHOUT_A)
    script.told(Ready(number=7))
    script.commits(opened=7)
    script.told(Abandon(number=8))
    script.based(8, roster=members("a", "b"), version=Version(1, 5), cursor=4)
    assert script.goes().work.generation == 8 and script.goes().work.version == Version(1, 5)


def test_a_switch_with_stop_brings_the_farewell_in_the_new_generation() -> None:
    script = named(7, WITHOUT_B)
    commit = script.commits(opened=7, stop=True)
    assert commit.next.farewell and commit.next.generation == 7
    assert script.commits().leave


def test_the_last_opened_is_told_again_over_a_new_session() -> None:
    script = named(7)
    closes(script)
    script.waits()
    script.meets()
    assert script.ups(Opened) == [Opened(number=7)] * 2


def test_a_switch_needs_no_lighthouse() -> None:
    script = named(7, WITHOUT_B)
    closes(script)
    script.commits(opened=7)
    script.commits()
    script.waits()
    assert script.meets().report.starts == (Start(number=7, version=Version(1, 5), cursor=SLOTS),)


def test_votes_of_the_old_generation_after_the_switch_are_refused() -> None:
    script = named(7)
    old = script.call(opened=7)
    script.commits(opened=7)
    script.ranks(old)
    assert script.version == Version(1, 5)


# ---- drain ---------------------------------------------------------------------------------------------------------


def drained(script: Script) -> Script:
    script.does(DrainAsked())
    return script


def test_a_drain_is_told_and_told_again_over_a_new_session() -> None:
    script = drained(in_step())
    drained(script)
    assert len(script.ups(Drain)) == 1
    closes(script)
    script.waits()
    script.meets()
    assert len(script.ups(Drain)) == 2


def test_who_is_let_go_after_a_commit_leaves_with_it() -> None:
    script = drained(in_step())
    script.told(Leave(reason="drained", success=True, after_commit=True))
    script.calls(0)
    assert not script.downs(Quit)
    script.calls(1)
    commit = script.downs(Commit)[-1]
    assert (commit.leave, commit.success, commit.reason) == (True, True, "drained")
    assert script.version == Version(1, 5) and script.last_up(Committed).version == Version(1, 5)
    script.exits(0, 0)
    script.exits(1, 0)
    assert script.exit.code == 0


def test_a_drain_with_the_lighthouse_away_leaves_after_the_commit_that_follows_its_deadline() -> None:
    """HOLES L7: before the scheduler's KILL."""
    script = in_step()
    closes(script)
    drained(script)
    start = script.now
    script.commits()
    while script.now < start + DEFAULTS.drain_s:
        script.waits()
    assert not script.downs(Quit)
    assert script.commits().leave
    script.exits(0, 0)
    script.exits(1, 0)
    assert script.exit.code == 0


def test_a_drain_in_a_step_that_never_commits_leaves_all_the_same() -> None:
    script = in_step()
    closes(script)
    drained(script)
    start = script.now
    while not script.downs(Quit):
        script.waits()
    assert script.now <= start + DEFAULTS.drain_s + DEFAULTS.quit_s


@pytest.mark.parametrize("reachable", [True, False])
def test_a_drain_in_no_step_waits_only_for_a_lighthouse_that_is_there(reachable: bool) -> None:
    script = in_step()
    script.told(Abandon(number=6))
    if not reachable:
        closes(script)
    drained(script)
    assert bool(script.downs(Quit)) is not reachable
    start = script.now
    while not script.downs(Quit):
        script.waits()
    assert script.now <= start + DEFAULTS.drain_s
    assert script.downs(Quit)[-1].success


def test_a_drain_before_the_ranks_are_up_ends_them() -> None:
    script = Script()
    script.does(TookOver())
    drained(script)
    assert script.last(EndRanks).life == 1
    script.exits(0, -9)
    script.exits(1, -9)
    assert script.exit.code == 0


def test_a_drain_before_anything_just_ends() -> None:
    assert drained(Script()).exit.code == 0


# ---- the joiner's side ---------------------------------------------------------------------------------------------


def test_a_joiner_is_switched_by_the_entry() -> None:
    script = Script().begins(join=True)
    script.follows()
    script.prepared(9, whole(members("b", a=Role.NEWCOMER)))
    assert script.downs(Open)[-1].place == 0
    script.ranks(RankOpened(number=9))
    script.told(Ready(number=9))
    script.holds(merged_step(script.version, 5, switch=9))
    go = script.goes()
    assert (go.work.generation, go.work.slots, go.work.digest, go.rendezvous) == (9, (), True, "p:0")
    assert go.work.version == Version(11, 5) == script.version
    script.commits([(), (0, 1, 2, 3)], digest=4)
    assert script.state.seat.roster == members("a", "b")


def test_a_switch_that_a_joiner_is_not_in_goes_by() -> None:
    script = Script().begins(join=True)
    script.follows()
    script.holds(merged_step(script.version, 5, switch=8))
    assert not script.downs(Go) and script.hold is AgentHold.CATCH_UP
    script.prepared(9, whole(members("b", a=Role.NEWCOMER)))
    script.told(Abandon(number=10))
    script.holds(merged_step(script.version, 8, switch=9))
    assert not script.downs(Go) and script.version == Version(12, 8)


def test_a_joiner_with_one_shard_behind_is_not_switched() -> None:
    script = Script().begins(join=True)
    script.follows()
    script.prepared(9, whole(members("b", a=Role.NEWCOMER)))
    script.ranks(RankOpened(number=9))
    merged = merged_step(script.version, 5, switch=9)
    script.rank(0, held(merged))
    assert not script.downs(Go) and script.version == Version(10, 5)
    script.rank(1, held(merged))
    assert script.goes().work.generation == 9


@pytest.mark.parametrize("told_ready", [True, False])
def test_a_plan_replaced_after_a_joiner_opened_it_can_still_be_entered(told_ready: bool) -> None:
    """The others may have been told that it is ready, though the joiner was not."""
    script = Script().begins(join=True)
    script.follows()
    script.prepared(9, whole(members("b", a=Role.NEWCOMER)))
    script.ranks(RankOpened(number=9))
    assert script.ups(Opened) == [Opened(number=9)]
    if told_ready:
        script.told(Ready(number=9))
    script.prepared(10, whole(members("b", a=Role.NEWCOMER)))
    script.ranks(RankOpened(number=10))
    script.holds(merged_step(script.version, 5, switch=9))
    assert script.goes().work.generation == 9


def test_a_plan_replaced_before_a_joiner_opened_it_is_forgotten() -> None:
    """Nobody can have been told that it is ready."""
    script = Script().begins(join=True)
    script.follows()
    script.prepared(9, whole(members("b", a=Role.NEWCOMER)))
    script.rank(0, RankOpened(number=9))
    script.prepared(10, whole(members("b", a=Role.NEWCOMER)))
    assert [plan.number for plan in script.state.plans] == [10]


def test_reports_come_whenever_asked_even_in_a_plan() -> None:
    script = named(7)
    script.told(Abandon(number=6))
    assert script.last_up(Report).abandoned == 6 and [plan.number for plan in script.state.plans] == [7]
