"""Healing and donating: a group stands on a version with all its shards, or nowhere."""

import pytest
from agent_script import Script, closes, held, members, merged_step, source

from lighthouse.values import (
    ROOT,
    Abandon,
    CaughtUp,
    Heal,
    HealFailed,
    Leave,
    Progress,
    Release,
    Role,
    Stage,
    Version,
)
from replica.agent_state import UNUSABLE
from replica.agent_values import AgentHold
from replica.values import (
    Apply,
    Commit,
    Drop,
    Fetch,
    FetchFailed,
    Go,
    HealCount,
    Load,
    Loaded,
    LoadFailed,
    Moved,
    Quit,
    RankFailed,
    StageFor,
    UpToDate,
)

AT = Version(10, 5)


def loaded(heal: int = 3, version: Version = AT, cursor: int = 40, stop: bool = False) -> Loaded:
    return Loaded(heal=heal, version=version, cursor=cursor, stop=stop, bytes=1, seconds=0.1)


def joiner() -> Script:
    """A newcomer told to heal from b."""
    script = Script().begins(join=True)
    script.told(Heal(heal=3, sources=(source("b"),)))
    return script


def following() -> Script:
    script = joiner()
    script.ranks(loaded())
    return script


# ---- joiner --------------------------------------------------------------------------------------------------------


def test_a_joiner_loads_follows_and_catches_up() -> None:
    script = joiner()
    assert script.downs(Load) == [Load(heal=3, sources=(source("b"),))] and script.hold is AgentHold.HEAL
    script.rank(0, loaded())
    assert not script.downs(Fetch)
    script.rank(1, loaded())
    assert script.downs(Fetch) == [Fetch(version=AT, sources=(source("b"),), heal=3)]
    assert script.report.version == AT, "should all others be lost, the run can go on from here"
    assert next(line for line in script.ledger if line["event"] == "load")["cursor"] == 40
    script.holds(merged_step(AT, 5))
    assert script.downs(Apply)[-1].cursor == 44
    assert script.downs(Fetch)[-1].version == Version(11, 5) == script.version
    script.rank(0, UpToDate(version=script.version))
    assert not script.ups(CaughtUp)
    script.rank(1, UpToDate(version=script.version))
    assert script.ups(CaughtUp) == [CaughtUp(version=Version(11, 5))]
    script.holds(merged_step(script.version, 5))
    script.ranks(UpToDate(version=script.version))
    assert len(script.ups(CaughtUp)) == 1 and script.version == Version(12, 5)


# ---- the way back --------------------------------------------------------------------------------------------------


def left_behind() -> Script:
    """It stood at (1, 5) when it was cut off, and is a member of nothing any more."""
    script = Script().begins()
    script.based(5)
    script.commits()
    closes(script)
    script.waits()
    script.meets(join=True)
    return script


def test_who_stands_in_the_history_follows_entries_and_loads_nothing() -> None:
    script = left_behind()
    here = Version(1, 5)
    script.told(Heal(heal=3, sources=(source("b"),), entries=True))
    assert script.downs(Fetch)[-1] == Fetch(version=here, sources=(source("b"),), heal=3)
    assert (script.report.version, script.report.answers, script.hold) == (here, (), AgentHold.CATCH_UP)
    script.holds(merged_step(here, 6))
    assert script.downs(Apply)[-1].cursor == 8
    script.ranks(UpToDate(version=Version(2, 6)))
    assert script.ups(CaughtUp) == [CaughtUp(version=Version(2, 6))]
    assert not script.downs(Load) and not any(line["event"] == "load" for line in script.ledger)


def test_entries_that_cannot_be_had_are_told_and_cost_no_weights() -> None:
    script = left_behind()
    script.told(Heal(heal=3, sources=(source("b"),), entries=True))
    script.rank(1, FetchFailed(version=Version(1, 5), reason="the log has gone past it"))
    assert script.last_up(HealFailed).heal == 3 and script.version == Version(1, 5)
    script.told(Abandon(number=9))
    assert script.report.version == Version(1, 5), "nothing was written over"


def test_entries_do_not_lead_on_from_an_unfinished_load() -> None:
    script = joiner()
    script.rank(0, LoadFailed(heal=3, reason="chunk does not verify"))
    script.told(Heal(heal=4, sources=(source("b"),), entries=True))
    assert script.last_up(HealFailed).heal == 4 and not script.downs(Fetch)


def test_a_donor_keeps_entries_without_a_snapshot_even_amid_a_step() -> None:
    script = Script().begins()
    script.based(5)
    script.told(Stage(heal=3, joiner="c", donors=1, place=0, now=True, entries=True))
    assert script.downs(StageFor) == [StageFor(heal=3, now=True, place=0, donors=1, entries=True)]
    assert script.commits(heals=(3,)).stage == ()
    script.told(Release(heal=3))
    assert script.downs(Drop) == [Drop(heal=3)]


def test_up_to_date_with_another_version_is_not_caught_up() -> None:
    script = following()
    script.rank(0, UpToDate(version=AT))
    script.holds(merged_step(AT, 5))
    script.rank(1, UpToDate(version=AT))
    script.rank(1, UpToDate(version=script.version))
    assert not script.ups(CaughtUp)


def test_caught_up_is_told_again_over_a_new_session() -> None:
    script = following()
    script.ranks(UpToDate(version=AT))
    closes(script)
    script.waits()
    script.meets(join=True)
    assert len(script.ups(CaughtUp)) == 2 and script.hold is AgentHold.CATCH_UP


def test_where_nothing_is_replayed_a_loaded_group_waits_for_a_base() -> None:
    script = Script().begins(join=True, setup={"heal": "pause"})
    script.told(Heal(heal=3, sources=(source("b"),)))
    script.ranks(loaded())
    assert script.report.version == AT and script.ups(CaughtUp) == [CaughtUp(version=AT)] and not script.downs(Fetch)
    script.based(7, roster=members("a", "b"), version=AT, cursor=40)
    assert script.goes().work.version == AT


def test_ranks_load_from_donors_and_from_joiners_but_follow_donors_alone() -> None:
    script = Script().begins()
    script.told(Heal(heal=3, sources=(source("b"),), passing=(source("d"),)))
    assert script.downs(Load) == [Load(heal=3, sources=(source("b"),), passing=(source("d"),))]
    script.ranks(loaded())
    assert script.downs(Fetch)[-1].sources == (source("b"),) and script.report.donors == ("b",)


def test_a_joiner_that_loads_stands_nowhere() -> None:
    """Half a snapshot over the initial weights is no version, whatever it was before."""
    script = joiner()
    script.told(Abandon(number=6))
    assert script.report.version == UNUSABLE and script.report.entries == ()
    script.based(7, roster=members("a", "b"))
    assert script.report.failed and not script.downs(Go)


def test_a_failed_load_is_told_once_and_may_be_tried_again() -> None:
    script = joiner()
    script.rank(0, loaded())
    script.rank(1, LoadFailed(heal=3, reason="chunk does not verify"))
    script.rank(0, LoadFailed(heal=3, reason="too"))
    assert script.ups(HealFailed) == [HealFailed(heal=3, reason="rank 1: chunk does not verify")]
    script.told(Abandon(number=6))
    assert script.report.version == UNUSABLE
    script.told(Heal(heal=4, sources=(source("c"),)))
    script.ranks(loaded(heal=3))
    assert script.version == ROOT
    script.ranks(loaded(heal=4))
    assert script.version == AT and script.downs(Fetch)[-1].sources == (source("c"),)


def test_shards_that_loaded_different_versions_have_not_healed() -> None:
    """torchft: ranks were told to heal from different donors."""
    script = joiner()
    script.rank(0, loaded())
    script.rank(1, loaded(version=Version(11, 5), cursor=44))
    assert "different versions" in script.last_up(HealFailed).reason and not script.downs(Fetch)


def test_a_newer_heal_replaces_one_under_way() -> None:
    script = joiner()
    script.rank(0, loaded())
    script.told(Heal(heal=4, sources=(source("c"),)))
    script.rank(1, loaded())
    assert not script.downs(Fetch)
    script.ranks(loaded(heal=4))
    assert script.downs(Fetch)[-1].version == AT


def test_a_source_that_dies_while_following_fails_the_heal_but_not_the_weights() -> None:
    script = following()
    script.rank(1, FetchFailed(version=AT, reason="gone"))
    assert script.ups(HealFailed)[-1].heal == 3
    script.told(Abandon(number=6))
    assert script.report.version == AT
    script.based(6, roster=members("b", a=Role.NEWCOMER), version=AT, cursor=40, slots=())
    assert script.goes().work.version == AT


def test_entries_with_a_gap_or_of_another_line_are_not_applied() -> None:
    """HOLES S5b: it ships (11, 6) to (12, 6) to who stands on (11, 5)."""
    script = following()
    script.holds(merged_step(Version(11, 5), 5))
    script.holds(merged_step(Version(10, 6), 6))
    assert not script.downs(Apply) and script.version == AT


def test_an_entry_that_contradicts_itself_is_not_applied() -> None:
    script = following()
    message = held(merged_step(AT, 5))
    script.ranks(type(message)(name=message.name, merged=merged_step(AT, 6)))
    assert not script.downs(Apply) and script.ups(HealFailed)


def test_abandon_does_not_disturb_a_heal() -> None:
    """Promise 4, the other way round: who heals is in no generation."""
    script = following()
    script.told(Abandon(number=9))
    script.holds(merged_step(AT, 5))
    assert script.version == Version(11, 5)


def test_a_joiner_is_taken_into_a_base_on_its_version() -> None:
    script = following()
    script.based(9, roster=members("b", a=Role.NEWCOMER), version=AT, cursor=40, slots=(1,))
    assert script.goes().work.slots == (1,) and script.hold is AgentHold.NOTHING


def test_a_joiner_is_taken_into_a_base_one_ahead() -> None:
    script = following()
    script.rank(0, held(merged_step(AT, 5)))
    script.based(
        9, roster=members("b", a=Role.NEWCOMER), version=Version(11, 5), cursor=44, slots=(), sources=(source("b"),)
    )
    assert len(script.downs(Fetch)) == 2
    script.rank(1, held(merged_step(AT, 5)))
    assert script.goes().work.generation == 9 and script.version == Version(11, 5)


def test_a_joiner_too_far_behind_a_base_says_so() -> None:
    script = following()
    script.based(9, version=Version(13, 5), cursor=52, sources=(source("b"),))
    assert script.report.failed and script.report.version == AT and not script.downs(Go)
    script.told(Heal(heal=4, sources=(source("b"),)))
    assert script.downs(Load)[-1].heal == 4


def test_a_stop_is_learned_from_the_snapshot_and_from_entries() -> None:
    script = following()
    script.holds(merged_step(AT, 5, stop=True))
    script.based(9, roster=members("b", a=Role.NEWCOMER), version=script.version, cursor=44, slots=())
    assert script.goes().work.farewell
    script = joiner()
    script.ranks(loaded(stop=True))
    script.based(9, roster=members("b", a=Role.NEWCOMER), version=AT, cursor=40, slots=())
    assert script.goes().work.farewell


def test_a_group_in_a_step_does_not_write_over_its_weights() -> None:
    script = Script().begins()
    script.based()
    script.told(Heal(heal=3, sources=(source("b"),)))
    assert not script.downs(Load) and script.last_up(HealFailed).heal == 3
    script.commits()


def test_a_group_put_out_of_its_generation_heals_again() -> None:
    """A newcomer whose digest differed: taken out by a plan, then told to heal."""
    script = Script().begins()
    script.based()
    script.told(Abandon(number=6), Heal(heal=3, sources=(source("b"),)))
    assert script.downs(Load)
    script.ranks(loaded())
    script.told(Abandon(number=7))
    assert (script.report.generation, script.report.version, script.report.failed) == (0, AT, False)


def test_a_late_failure_of_the_generation_left_does_not_harm_a_heal() -> None:
    script = Script().begins()
    script.based()
    script.told(Abandon(number=6), Heal(heal=3, sources=(source("b"),)))
    script.rank(0, RankFailed(number=5, reason="late"))
    script.ranks(loaded())
    assert script.version == AT


def test_a_joiner_told_to_leave_leaves() -> None:
    script = joiner()
    script.told(Leave(reason="the run is finished", success=True))
    assert script.downs(Quit)
    script.ranks(loaded())
    assert not script.downs(Fetch)


# ---- progress ------------------------------------------------------------------------------------------------------


def moved(count: int, *sources: str, heal: int = 3) -> Moved:
    return Moved(heal=heal, bytes=count, total=100, seconds=1.0, rate=10.0, sources=sources)


def test_progress_is_that_of_all_shards_and_is_told_twice_a_second() -> None:
    script = joiner()
    script.rank(0, moved(10, "b"))
    script.rank(1, moved(20, "c"))
    script.rank(1, moved(30, "c"))
    assert [(p.bytes, p.total, p.donors) for p in script.ups(Progress)] == [(10, 100, ("b",))]
    while not script.ups(Progress)[1:]:
        script.waits()
    told = script.ups(Progress)[1]
    assert (told.bytes, told.total, told.rate, told.donors) == (40, 200, 20.0, ("b", "c"))
    assert script.now == pytest.approx(100.5)


def test_that_it_has_loaded_is_told_at_once_and_then_how_far_it_follows() -> None:
    script = joiner()
    script.rank(0, moved(10, "b"))
    script.ranks(loaded())
    assert script.ups(Progress)[-1].version == AT
    script.holds(merged_step(AT, 5))
    script.holds(merged_step(script.version, 5))
    assert script.ups(Progress)[-1].version == AT
    while script.ups(Progress)[-1].version == AT:
        script.waits()
    assert script.ups(Progress)[-1].version == script.version and script.now <= 100.5


def test_what_an_older_heal_moves_is_not_progress() -> None:
    script = joiner()
    script.rank(0, moved(10, "b", heal=2))
    assert not script.ups(Progress)


# ---- donor ---------------------------------------------------------------------------------------------------------


def donor(donors: int = 1) -> Script:
    script = Script().begins()
    script.based()
    script.told(Stage(heal=3, joiner="c", donors=donors, place=0))
    return script


def test_donors_stage_after_the_step_in_which_all_of_them_named_the_heal() -> None:
    script = donor(donors=2)
    assert script.downs(StageFor) == [StageFor(heal=3, now=False, place=0, donors=2)]
    script.calls(0, heals=(3,))
    script.calls(1, heals=())
    assert script.downs(Commit)[-1].stage == ()
    assert script.commits(heals=(3,)).stage == (3,)
    assert script.commits(heals=(3,)).stage == ()


def test_several_joiners_are_staged_for_after_one_step() -> None:
    """So they load the same version, and there is one snapshot for all of them."""
    script = donor(donors=2)
    script.told(Stage(heal=4, joiner="d", donors=2, place=1), Stage(heal=5, joiner="e", donors=2, place=0))
    assert script.commits(heals=(3, 4)).stage == (3, 4)
    assert script.commits(heals=(5,)).stage == (5,)


def test_a_donor_that_levels_by_an_entry_stages_where_the_others_did() -> None:
    script = donor(donors=2)
    start = script.version
    merged = merged_step(start, 5, heals=(HealCount(heal=3, records=4),))
    script.told(Abandon(number=6))
    script.based(6, roster=members("a", "b"), version=merged.end, sources=(source("b"),))
    script.holds(merged)
    assert script.downs(Apply)[-1].stage == (3,)
    assert script.report.stagings == (3,)
    assert script.commits(heals=(3,)).stage == ()


def test_a_report_says_who_heals_from_whom() -> None:
    script = joiner()
    script.told(Abandon(number=6))
    assert (script.report.heal, script.report.donors) == (3, ("b",))
    script.rank(0, LoadFailed(heal=3, reason="no bytes"))
    assert script.report.heal == 3, "the failure is told apart"


def test_falling_behind_is_told_apart_from_failing() -> None:
    script = following()
    script.rank(0, FetchFailed(version=AT, reason="the log has gone past it", behind=True))
    assert script.last_up(HealFailed).behind


def test_with_fewer_donors_named_nobody_stages() -> None:
    script = donor(donors=3)
    assert script.commits(heals=(3,)).stage == ()


def test_who_is_no_donor_does_not_stage() -> None:
    script = Script().begins()
    script.based()
    assert script.commits(heals=(3,)).stage == ()


def test_in_a_hold_donors_stage_at_once() -> None:
    """HOLES L1: two groups, one dies, min_groups 2: there is no roll call to agree in."""
    script = donor()
    script.told(Abandon(number=6))
    script.told(Stage(heal=3, joiner="c", donors=1, place=0, now=True))
    assert script.downs(StageFor)[-1] == StageFor(heal=3, now=True, place=0, donors=1)
    script.based(6, roster=members("a", "b"))
    assert script.commits(heals=(3,)).stage == ()


def test_who_stands_elsewhere_by_now_stages_nothing() -> None:
    """The joiner would have two versions to choose from, and nobody else's donor has this one."""
    script = donor()
    script.told(Abandon(number=6))
    script.told(Stage(heal=4, joiner="c", donors=2, place=0, now=True, version=Version(9, 5)))
    assert all(said.heal != 4 for said in script.downs(StageFor))
    script.based(6, roster=members("a", "b"))
    assert script.commits(heals=(4, 4)).stage == ()


def test_told_to_stage_at_once_in_a_step_it_names_the_heal_instead() -> None:
    """Ranks in a step may stand on two versions; the verdict is where they agree."""
    script = Script().begins()
    script.based()
    script.told(Stage(heal=3, joiner="c", donors=2, place=0, now=True))
    assert script.downs(StageFor) == [StageFor(heal=3, now=False, place=0, donors=2)]
    assert script.commits(heals=(3,)).stage == (3,)


def test_a_released_heal_is_dropped() -> None:
    script = donor()
    script.told(Release(heal=3))
    assert script.downs(Drop) == [Drop(heal=3)]
    assert script.commits(heals=(3,)).stage == ()


def test_forgotten_heals_do_not_pile_up() -> None:
    script = Script().begins()
    script.based()
    for heal in range(100):
        script.told(Stage(heal=heal, joiner="c", donors=1, place=0))
    assert len(script.state.stagings) == 32 and len(script.downs(Drop)) == 68


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_donor_that_is_lost_forgets_its_heals(when: str) -> None:
    script = donor()
    if when == "after":
        script.commits(heals=(3,))
    script.exits(0)
    script.exits(1)
    assert script.state.stagings == ()


def test_a_base_ends_the_heal_that_led_there() -> None:
    """Or the heal's entries would be fetched, and a catching up told, by a group that is in a generation by now."""
    script = Script().begins(join=True)
    script.follows()
    script.based(number=90, version=AT, cursor=40)
    assert script.goes().work.version == AT
    assert script.state.joining is None
    script.told(Abandon(number=91))
    assert script.state.fetching is None
    assert script.ups(CaughtUp) == []
