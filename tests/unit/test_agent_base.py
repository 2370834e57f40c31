"""The loss of a group: a base is told, its entry applied where it is needed, and the step goes on."""

import pytest
from agent_script import Script, held, members, merged_step, source

from lighthouse.values import (
    ROOT,
    Abandon,
    Committed,
    Failure,
    Member,
    Prepare,
    Ready,
    Role,
    RosterChange,
    Version,
)
from replica.agent_values import AgentHold
from replica.values import (
    Abandoned,
    Apply,
    Fetch,
    FetchFailed,
    Go,
    Mark,
    MarkKind,
    RankOpened,
)


def in_step(number: int = 5, **more: object) -> Script:
    """A group in generation 5 with b, from the root, that sums slots 0 and 1."""
    script = Script().begins()
    script.based(number, **more)  # type: ignore[arg-type]
    return script


# ---- the loss of a group: base, entry ------------------------------------------------------------------------------


def test_a_survivor_keeps_its_sums_and_takes_slots_over() -> None:
    script = in_step()
    script.told(Abandon(number=6))
    script.based(6, roster=members("a"), slots=(0, 1, 2, 3))
    assert script.goes().work.slots == (0, 1, 2, 3) and script.goes().work.generation == 6
    script.commits([(0, 1, 2, 3)])
    assert script.version == Version(1, 6)
    assert [line["slots"] for line in script.ledger if line["event"] == "commit"] == [[0, 1, 2, 3]]


def test_a_step_is_committed_without_what_its_base_sets_aside() -> None:
    """HOLES L2: the ledger names it, entries tell it, and the next step has all slots again."""
    script = in_step()
    script.told(Abandon(number=6))
    script.based(6, roster=members("a"), slots=(0, 1, 3), set_aside=(2,))
    assert script.goes().work.set_aside == (2,)
    verdict = script.commits([(0, 1, 3)])
    assert verdict.merged.set_aside == (2,) and verdict.merged.slots == 4
    line = [line for line in script.ledger if line["event"] == "commit"][-1]
    assert (line["slots"], line["set_aside"], line["step_slots"]) == ([0, 1, 3], [2], 4)
    assert (verdict.next.cursor, verdict.next.slots, verdict.next.set_aside) == (4, (0, 1, 2, 3), ())
    script.commits([(0, 1, 2, 3)])
    assert script.version == Version(2, 6) and "set_aside" not in script.ledger[-1]


def test_a_base_may_set_slots_of_later_steps_aside_and_plans_pass_that_on() -> None:
    """Slot 5 of the run is slot 1 of the second step, slot 8 slot 0 of the third, which another generation makes."""
    script = in_step()
    script.told(Abandon(number=6))
    script.based(6, roster=members("a"), slots=(0, 1, 2, 3), set_aside=(5, 8))
    assert script.goes().work.set_aside == ()
    second = script.commits([(0, 1, 2, 3)]).next
    assert (second.slots, second.set_aside) == ((0, 2, 3), (1,))
    script.told(Prepare(number=7, roster=RosterChange(previous=6), rendezvous=("p:0", "p:1"), set_aside=(5, 8)))
    script.ranks(RankOpened(number=7))
    script.told(Ready(number=7))
    third = script.commits([(0, 2, 3)], opened=7).next
    assert (third.generation, third.slots, third.set_aside) == (7, (1, 2, 3), (0,))
    assert script.commits([(1, 2, 3)]).next.set_aside == ()


def test_a_set_aside_slot_that_was_summed_all_the_same_is_no_commit() -> None:
    script = in_step()
    script.told(Abandon(number=6))
    script.based(6, roster=members("a"), slots=(0, 1, 3), set_aside=(2,))
    for shard_rank in range(2):
        script.calls(shard_rank, [(0, 1, 2, 3)])
    assert script.version == ROOT and "slot 2 was summed 1 times" in script.last_up(Failure).reason


def one_behind() -> Script:
    """Told a base one step ahead: b committed (1, 5), this group did not."""
    script = in_step()
    script.told(Abandon(number=6))
    script.based(6, roster=members("a", "b"), version=Version(1, 5), cursor=4, slots=(2, 3), sources=(source("b"),))
    return script


def test_one_step_behind_the_entry_is_fetched_applied_and_then_work_goes_on() -> None:
    script = one_behind()
    assert script.downs(Fetch)[-1] == Fetch(version=ROOT, sources=(source("b"),))
    assert script.hold is AgentHold.LEVEL
    merged = merged_step(ROOT, 5)
    script.holds(merged)
    assert [type(down) for down in script.down[1][-2:]] == [Apply, Go]
    assert script.downs(Apply)[-1].cursor == 4 and script.goes().work.slots == (2, 3)
    assert script.version == Version(1, 5)
    line = next(line for line in script.ledger if line["event"] == "apply")
    assert (line["step"], line["from_step"], line["cursor"]) == (1, 0, 0)


def test_an_entry_that_only_one_shard_holds_is_not_applied() -> None:
    """HOLES S2c: fetched by shard 0, the source died before shard 1 had it."""
    script = one_behind()
    merged = merged_step(ROOT, 5)
    script.rank(0, held(merged))
    script.rank(1, FetchFailed(version=ROOT, reason="source is gone"))
    assert not script.downs(Apply) and script.version == ROOT
    assert script.last_up(Failure).number == 6 and script.report.failed
    assert (script.report.version, script.report.answers, script.report.abandoned) == (ROOT, (0, 1), 7)


def test_the_next_source_is_asked_after_the_first_failed() -> None:
    script = one_behind()
    script.rank(1, FetchFailed(version=ROOT, reason="source is gone"))
    script.told(Abandon(number=7))
    script.based(7, version=Version(1, 5), cursor=4, slots=(2, 3), sources=(source("c"),), roster=members("a", "c"))
    assert script.downs(Fetch)[-1].sources == (source("c"),)
    script.holds(merged_step(ROOT, 5))
    assert script.goes().work.generation == 7


def test_abandon_before_the_verdict_leaves_the_old_version() -> None:
    script = one_behind()
    merged = merged_step(ROOT, 5)
    script.rank(0, held(merged))
    script.told(Abandon(number=7))
    assert (script.report.version, script.report.answers) == (ROOT, (0, 1))
    script.rank(1, held(merged))
    assert script.version == ROOT and not script.downs(Apply)
    # What is held stays held: the next base needs no second fetch to be levelled to.
    script.based(7, version=Version(1, 5), cursor=4, slots=(2, 3), sources=(source("b"),))
    assert script.version == Version(1, 5) and script.goes().work.generation == 7


def test_abandon_after_the_verdict_leaves_the_new_version() -> None:
    script = one_behind()
    script.holds(merged_step(ROOT, 5))
    script.told(Abandon(number=7))
    assert (script.report.version, script.report.cursor, script.report.answers) == (Version(1, 5), 4, (2, 3))


def test_an_entry_that_leads_elsewhere_is_refused() -> None:
    """HOLES S5b: the same step of another generation is another step."""
    script = one_behind()
    script.holds(merged_step(ROOT, 4))
    assert not script.downs(Apply) and "leads to (1, 4), not to (1, 5)" in script.last_up(Failure).reason


def test_shards_that_hold_different_entries_apply_none() -> None:
    script = one_behind()
    for shard_rank, merged in enumerate((merged_step(ROOT, 5), merged_step(ROOT, 5, skip=True))):
        script.rank(shard_rank, held(merged))
    assert not script.downs(Apply) and script.report.failed


@pytest.mark.parametrize("version", [Version(1, 5), Version(3, 5), Version(0, 4)])
def test_a_base_that_no_entry_leads_to_is_reported(version: Version) -> None:
    script = in_step()
    script.told(Abandon(number=6))
    sources = (source("b"),) if version.step == 3 else ()
    script.based(6, version=version, sources=sources)
    assert script.report.failed and script.report.abandoned == 7 and len(script.downs(Go)) == 1
    assert f"the base is {version}" in script.last_up(Failure).reason


def test_a_base_below_the_floor_is_refused() -> None:
    script = in_step()
    script.told(Abandon(number=9))
    script.based(8)
    assert len(script.downs(Go)) == 1
    script.based(9)
    assert script.goes().work.generation == 9


def test_a_base_told_twice_is_entered_once() -> None:
    script = in_step()
    script.based()
    assert len(script.downs(Go)) == 1
    script.commits()
    script.based()
    assert script.version == Version(1, 5) and len(script.downs(Go)) == 1


def test_a_base_abandons_what_is_below_it() -> None:
    script = in_step()
    script.calls(0)
    late = script.call()
    script.based(7)
    script.rank(1, late)
    assert script.version == ROOT
    assert [type(down) for down in script.down[0][-2:]] == [Abandoned, Go]


def test_a_base_for_another_incarnation_is_not_entered() -> None:
    script = Script().begins()
    script.based(roster=[Member(name="a", incarnation=2, role=Role.CONTRIBUTOR)])
    assert not script.downs(Go) and script.report.failed


def test_a_roster_from_an_unknown_generation_is_reported() -> None:
    script = in_step()
    script.told(Abandon(number=6))
    script.based(6, change=RosterChange(previous=4, left=("b",)))
    assert "generation 4" in script.last_up(Failure).reason and len(script.downs(Go)) == 1


def test_a_roster_is_told_as_a_difference_with_roles_by_now() -> None:
    script = in_step(roster=members("a", "b", c=Role.SPARE), slots=(0, 1))
    script.commits([(0, 1), (2, 3), ()])
    assert [m.role for m in script.state.seat.roster] == [Role.CONTRIBUTOR] * 3
    script.told(Abandon(number=6))
    assert script.report.promoted == members("c")
    script.based(6, change=RosterChange(previous=5, left=("b",)), version=Version(1, 5), cursor=4, slots=(0, 1))
    assert script.state.seat.roster == members("a", "c")


def test_an_entry_promotes_before_the_roster_changes() -> None:
    script = in_step(roster=members("a", "b", c=Role.SPARE), slots=(0, 1))
    script.told(Abandon(number=6))
    change = RosterChange(previous=5, left=("b",))
    script.based(6, change=change, version=Version(1, 5), cursor=4, slots=(0, 1), sources=(source("c"),))
    script.holds(merged_step(ROOT, 5))
    assert script.state.seat.roster == members("a", "c")


def test_newcomers_are_compared_and_promoted_together() -> None:
    script = in_step(roster=members("a", b=Role.NEWCOMER, c=Role.NEWCOMER), slots=(0, 1, 2, 3))
    assert script.goes().work.digest
    commit = script.commits([(0, 1, 2, 3), (), ()], digest=3)
    assert commit.merged.digested and commit.next.slots == (0, 1) and not commit.next.digest
    assert script.last_up(Committed).promoted == members("b", "c")


def test_a_moved_cursor_is_taken_over_from_the_base() -> None:
    script = in_step()
    script.told(Abandon(number=6))
    script.based(6, cursor=400)
    assert script.commits().next.cursor == 404


def test_slots_begun_and_done_are_in_the_ledger() -> None:
    script = in_step()
    script.commits()
    script.rank(1, Mark(kind=MarkKind.SLOT_BEGUN, step=1, slot=2))
    line = script.ledger[-1]
    assert (line["mark"], line["slot"], line["cursor"], line["shard_rank"], line["life"]) == ("begun", 2, 6, 1, 1)
    script.rank(1, Mark(kind=MarkKind.SLOT_DONE, step=1, slot=2))
    assert script.ledger[-1]["mark"] == "done"
    script.told(Abandon(number=6))
    assert script.report.mark == 0
    script.rank(0, Mark(kind=MarkKind.ROLL_CALL, step=1))
    script.told(Abandon(number=6))
    assert script.report.mark == 2
