"""Verdicts of the agent's core: what commits, what never does, and what is told of it."""

import msgspec
import pytest
from agent_script import SLOTS, Script, closes, members, whole

from lighthouse.values import (
    ROOT,
    Abandon,
    Base,
    Committed,
    Failure,
    Finished,
    Goodbye,
    Leave,
    Ready,
    Report,
    RosterChange,
    Start,
    Version,
    Welcome,
)
from replica.agent_values import AgentHold, LighthouseSaid, RankSaid, SessionOpened
from replica.values import (
    Abandoned,
    Commit,
    Go,
    Quit,
    RankFailed,
    RankOpened,
    Work,
)


def in_step(number: int = 5, **more: object) -> Script:
    """A group in generation 5 with b, from the root, that sums slots 0 and 1."""
    script = Script().begins()
    script.based(number, **more)  # type: ignore[arg-type]
    return script


# ---- a step, nothing failing ---------------------------------------------------------------------------------------


def test_a_base_it_stands_on_is_entered_at_once() -> None:
    script = in_step()
    work = Work(generation=5, place=0, size=2, version=ROOT, cursor=0, slots=(0, 1), step_slots=SLOTS)
    assert script.downs(Go) == [Go(work=work, rendezvous="r:0")]
    assert script.downs(Go, 1) == [Go(work=work, rendezvous="r:1")]
    assert script.hold is AgentHold.NOTHING


def test_a_step_commits_when_all_shards_have_voted() -> None:
    script = in_step()
    script.calls(0)
    assert script.version == ROOT and not script.downs(Commit)
    script.calls(1)
    assert script.version == Version(1, 5)
    commit = script.downs(Commit, 1)[-1]
    assert (commit.merged.tokens, commit.next.version, commit.next.cursor) == (40, Version(1, 5), SLOTS)
    assert commit.next.slots == (0, 1) and not commit.leave
    assert script.downs(Commit, 0) == script.downs(Commit, 1)


def test_what_is_told_of_a_commit() -> None:
    script = in_step()
    script.now += 2.0
    script.commits()
    committed = script.last_up(Committed)
    assert committed.version == Version(1, 5) and committed.start == Start(number=5, version=ROOT)
    assert (committed.loss, committed.tokens, committed.step_s) == (4.0 / 40, 40, 2.0)
    line = next(line for line in script.ledger if line["event"] == "commit")
    assert (line["step"], line["generation"], line["cursor"], line["slots"]) == (1, 5, 0, [0, 1])


def test_only_the_first_member_tells_every_commit() -> None:
    script = in_step(roster=members("a", "A"))
    for _ in range(3):
        script.commits()
    assert [committed.version.step for committed in script.ups(Committed)] == [1]


def test_a_second_vote_of_a_shard_changes_nothing() -> None:
    script = in_step()
    script.calls(0)
    script.calls(0, tokens=99)
    assert script.version == ROOT
    script.calls(1)
    assert script.downs(Commit)[0].merged.tokens == 40


def test_votes_of_another_step_or_generation_are_refused() -> None:
    """torchft: a vote left over from step 1, and one for step 7 alone, gave a commit."""
    script = in_step()
    old = script.call()
    script.commits()
    script.rank(0, old)
    script.calls(1)
    assert script.version.step == 1
    script.calls(0)
    assert script.version.step == 2


def test_a_late_vote_of_the_same_step_in_another_generation_fails_nothing() -> None:
    script = in_step()
    late = msgspec.structs.replace(script.call(), generation=script.state.seat.generation - 1)
    before = script.state.seat
    script.ranks(late)
    assert script.state.seat == before
    script.commits()
    assert script.version.step == 1


def test_votes_of_an_earlier_life_are_refused() -> None:
    script = in_step()
    script.does(
        RankSaid(life=0, shard_rank=0, message=script.call()), RankSaid(life=9, shard_rank=1, message=script.call())
    )
    script.calls(1)
    assert script.version == ROOT


def test_any_shards_wish_to_stop_brings_the_farewell() -> None:
    script = in_step()
    script.calls(0)
    commit_before = len(script.downs(Commit))
    script.calls(1, stop=True)
    commit = script.downs(Commit)[commit_before]
    assert commit.merged.stop and commit.next.farewell and commit.next.slots == ()
    script.told(Abandon(number=6))
    assert script.report.stop


def test_the_farewell_ends_the_run_with_success() -> None:
    script = in_step()
    script.commits(stop=True)
    commit = script.commits()
    assert (commit.leave, commit.success, commit.merged.slots) == (True, True, 0)
    assert script.version == Version(1, 5) and script.last_up(Finished).version == Version(1, 5)
    assert script.hold is AgentHold.LEAVING
    script.exits(0, 0)
    script.exits(1, 0)
    script.told(Leave(reason="the run is finished", success=True))
    assert script.exit.code == 0 and isinstance(script.up[-1], Goodbye)
    assert sum(line["event"] == "commit" for line in script.ledger) == 1


def test_the_last_step_is_followed_by_the_farewell() -> None:
    script = Script()
    script.attaches(steps="2")
    script.meets()
    script.based()
    assert not script.commits().next.farewell
    assert script.commits().next.farewell
    assert script.commits().leave


def test_who_is_told_finished_before_its_own_farewell_leaves_with_success() -> None:
    """HOLES S10: C dies in the farewell; A has finished; B stands on the same version and must not recompute."""
    script = in_step()
    script.commits(stop=True)
    script.rank(0, RankFailed(number=5, reason="closed by peer"))
    script.told(Abandon(number=6), Leave(reason="the run is finished", success=True))
    assert script.downs(Quit)[-1].success
    script.exits(0, 0)
    script.exits(1, 0)
    assert script.exit.code == 0


def test_a_rank_that_fails_while_it_leaves_makes_the_agent_fail() -> None:
    script = in_step()
    script.commits(stop=True)
    script.commits()
    script.told(Leave(reason="the run is finished", success=True))
    script.exits(0, 0)
    script.exits(1, 1, "Traceback\nOSError: disk full")
    assert script.exit.code == 1 and "disk full" in script.exit.reason


# ---- what does not commit ------------------------------------------------------------------------------------------


def test_abandon_between_two_votes_is_final() -> None:
    """HOLES S2b: the report is fixed the moment the lighthouse asks; a vote that comes later changes nothing."""
    script = in_step()
    script.calls(0)
    late = script.call()
    script.told(Abandon(number=6))
    assert (script.report.abandoned, script.report.version, script.report.answers) == (6, ROOT, (0, 1))
    script.rank(1, late)
    assert script.version == ROOT and not script.downs(Commit)
    assert script.downs(Abandoned)[-1].number == 6 and script.hold is AgentHold.VERDICT


@pytest.mark.parametrize("abandon_first", [True, False])
def test_a_vote_and_an_abandon_in_one_breath_agree_with_the_report(abandon_first: bool) -> None:
    script = in_step()
    script.calls(0)
    vote = RankSaid(life=1, shard_rank=1, message=script.call())
    abandon = LighthouseSaid(session=1, message=Abandon(number=6))
    script.does(*((abandon, vote) if abandon_first else (vote, abandon)))
    assert script.report.version == script.version == ROOT
    assert not script.downs(Commit)


def test_a_commit_before_the_abandon_is_in_the_report() -> None:
    script = in_step()
    script.commits()
    script.told(Abandon(number=6))
    assert (script.report.version, script.report.cursor, script.report.answers) == (Version(1, 5), SLOTS, (0, 1))
    assert [entry.end for entry in script.report.entries] == [Version(1, 5)]


def test_every_abandon_is_answered() -> None:
    script = in_step()
    for number, floor in ((6, 6), (6, 6), (3, 6), (9, 9)):
        script.told(Abandon(number=number))
        assert script.report.abandoned == floor
    assert len(script.ups(Report)) == 4
    assert [message.number for message in script.downs(Abandoned)] == [5, 6, 9]


def test_a_failed_collective_gives_the_generation_up_for_all_shards() -> None:
    script = in_step()
    script.calls(0)
    script.rank(1, RankFailed(number=5, reason="closed by peer"))
    assert script.last_up(Failure) == Failure(number=5, reason="rank 1: closed by peer")
    assert script.report.failed and script.report.version == ROOT and script.report.abandoned == 6
    assert script.downs(Abandoned)[-1].number == 6
    script.rank(0, RankFailed(number=5, reason="again"))
    assert len(script.ups(Failure)) == 1


def test_a_failure_in_an_old_generation_is_of_no_interest() -> None:
    script = in_step()
    script.told(Abandon(number=6))
    script.based(6)
    script.rank(1, RankFailed(number=5, reason="late"))
    script.commits()
    assert script.version == Version(1, 6) and not script.ups(Failure)


def test_a_roll_call_that_does_not_add_up_is_a_failure() -> None:
    script = in_step()
    for shard_rank in range(2):
        script.calls(shard_rank, [(0, 1), (1, 2, 3)])
    assert "slot 1 was summed 2 times" in script.last_up(Failure).reason
    assert script.version == ROOT and script.report.failed


def test_a_wiped_record_never_commits() -> None:
    """HOLES S3: an aborted collective that looks complete."""
    script = in_step()
    script.calls(0)
    call = script.call()
    wiped = call.records[: len(call.records) // 2] + bytes(len(call.records) // 2)
    script.rank(1, type(call)(generation=5, step=0, records=wiped))
    assert "missing" in script.last_up(Failure).reason and script.version == ROOT


# ---- lost and returned ---------------------------------------------------------------------------------------------


def test_a_group_that_was_lost_abandons_when_it_returns() -> None:
    """HOLES L3: lost is not fenced: it stands where it stood, and is healed or based anew."""
    script = in_step()
    script.commits()
    closes(script)
    script.waits()
    hello = script.meets(join=True)
    assert hello.incarnation == 1 and hello.report.version == Version(1, 5) and hello.report.abandoned <= 5
    assert script.report.abandoned == 6 and script.downs(Abandoned)[-1].number == 6
    script.based(8, roster=members("a", "b"), version=Version(1, 5), cursor=4)
    assert script.goes().work.generation == 8


def test_a_group_that_is_still_a_member_goes_on() -> None:
    script = in_step()
    script.calls(0)
    closes(script)
    script.waits()
    script.meets(join=False)
    script.calls(1)
    assert script.version == Version(1, 5)


def test_training_goes_on_without_the_lighthouse_and_the_next_hello_tells() -> None:
    script = in_step()
    closes(script)
    for _ in range(3):
        script.commits()
    assert script.version.step == 3 and not script.ups(Committed)
    script.rank(0, RankFailed(number=5, reason="closed by peer"))
    script.waits()
    report = script.meets().report
    assert (report.version, report.failed, report.abandoned, report.generation) == (Version(3, 5), True, 6, 5)


def test_a_start_passed_between_hello_and_welcome_is_not_forgotten() -> None:
    script = in_step()
    script.prepared(7, RosterChange(previous=5, left=("b",)))
    script.ranks(RankOpened(number=7))
    script.told(Ready(number=7))
    closes(script)
    script.waits()
    script.does(SessionOpened(session=2))
    script.commits(opened=7)
    script.told(Welcome(incarnation=1, lease_s=3.0, contributors_wanted=0, first_number=1, join=False))
    script.told(Abandon(number=8))
    assert script.report.starts == (Start(number=7, version=Version(1, 5), cursor=SLOTS),)


def test_base_while_leaving_is_refused() -> None:
    script = in_step()
    script.told(Leave(reason="evicted", success=False))
    script.told(
        Base(
            number=8, roster=whole(members("a")), version=ROOT, cursor=0, slots=(), step_slots=4, rendezvous=("x", "y")
        )
    )
    assert len(script.downs(Go)) == 1 and script.downs(Quit)[-1].success is False
