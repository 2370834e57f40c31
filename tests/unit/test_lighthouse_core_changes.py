"""The lighthouse's core, rule by rule: changes that nobody planned: who forms the next generation, and from what."""

from __future__ import annotations

import pytest
from lead import Lead, report_of, standing

from lighthouse.core_state import change_group
from lighthouse.core_values import (
    EndRun,
    Hold,
    StoreBase,
    StoreClaim,
    StoreNumber,
)
from lighthouse.values import (
    ROOT,
    Abandon,
    Base,
    Beat,
    Committed,
    Died,
    Drain,
    Goodbye,
    Heal,
    Leave,
    Prepare,
    Role,
    Start,
    Version,
)

THREE = ("g1", "g2", "g3")


def died(lead: Lead, name: str) -> None:
    lead.say(name, Died(reason="signal 9", shard_rank=0, killed=True))


def asked(lead: Lead, name: str) -> int:
    """The newest number that `name` was told to abandon what is below."""
    return max(abandon.number for abandon in lead.told(name, Abandon))


def last_base(lead: Lead, name: str) -> Base:
    return lead.told(name, Base)[-1]


# ---- who forms the next generation ---------------------------------------------------------------------------------


def test_the_first_formation_waits_for_min_groups_and_no_more() -> None:
    lead = Lead(groups_wanted=3, min_groups=2, join_wait_s=1.0)
    lead.hello("g1")
    lead.pass_time(1.5, ("g1",))
    assert lead.state.change is None
    lead.hello("g2")
    assert lead.state.change is not None


def test_only_equal_initial_weights_form() -> None:
    lead = Lead(groups_wanted=3)
    for name, digest in zip(THREE, (1, 2, 1), strict=True):
        lead.hello(name, digest=digest)
    for name in THREE:
        lead.say(name, report_of(asked(lead, name)))
    assert lead.members == ["g1", "g3"]


def test_a_generation_is_claimed_before_it_has_a_base() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    stored = [e for e in lead.effects if isinstance(e, StoreNumber | StoreClaim | StoreBase)]
    assert [type(e) for e in stored] == [StoreNumber, StoreClaim, StoreBase]
    assert {e.number for e in stored} == {version.generation}


def test_the_newest_version_is_the_base_and_who_is_one_behind_levels() -> None:
    lead = Lead(groups_wanted=3, min_groups=2)
    version = lead.form(*THREE)
    died(lead, "g3")
    behind = Version(version.step - 1, version.generation)
    lead.say("g1", standing(behind, abandoned=asked(lead, "g1")))
    lead.say("g2", standing(version, abandoned=asked(lead, "g2")))
    base = last_base(lead, "g1")
    assert base.version == version
    assert [source.name for source in base.sources] == ["g2"]
    assert last_base(lead, "g2").sources == ()


def test_who_is_two_behind_heals() -> None:
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE)
    died(lead, "g3")
    lead.say("g1", standing(Version(1, version.generation), abandoned=asked(lead, "g1")))
    lead.say("g2", standing(version, abandoned=asked(lead, "g2")))
    assert lead.members == ["g2"]
    lead.commit(4, "g2")
    assert len(lead.told("g1", Heal)) == 1


def test_a_version_beside_the_history_is_no_base() -> None:
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE)
    died(lead, "g3")
    lead.say("g1", standing(Version(9, version.generation + 700), abandoned=asked(lead, "g1")))
    lead.say("g2", standing(version, abandoned=asked(lead, "g2")))
    assert lead.members == ["g2"]


def test_who_does_not_report_is_left_out_after_one_lease() -> None:
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE)
    for name in THREE:
        lead.say(name, standing(version, abandoned=version.generation))
    lead.say("g1", standing(version, abandoned=version.generation + 1, failed=True))
    lead.say("g1", standing(version, abandoned=asked(lead, "g1"), failed=True))
    assert lead.state.hold is Hold.REPORTS
    lead.pass_time(2.1, THREE)
    assert lead.members == ["g1"]


def test_weights_that_are_being_written_over_are_no_base() -> None:
    lead = Lead(groups_wanted=2, min_groups=2)
    version = lead.form("g1", "g2")
    died(lead, "g1")
    number = asked(lead, "g2")
    lead.say("g2", standing(version, abandoned=number))
    assert lead.state.hold is Hold.TOO_FEW
    old = Version(1, version.generation)
    for name in ("j1", "j2"):
        lead.hello(name, report_of(number, old))
        assert len(lead.told(name, Heal)) == 1
    died(lead, "g2")
    lead.pass_time(2.5 * lead.state.config.lease_s, ("j1", "j2"))
    assert not lead.told("j1", Base)
    assert any(isinstance(effect, EndRun) for effect in lead.effects), "all live weights are gone"


def test_a_number_is_spent_before_anybody_hears_that_the_run_has_ended() -> None:
    """The store refuses it to a lighthouse that leads no more, and knows nothing of those who live."""
    lead = Lead(groups_wanted=1)
    lead.form("g1")
    lead.hello("j1")
    died(lead, "g1")
    lead.say("j1", report_of(lead.state.last_number))
    lead.take()
    lead.pass_time(2.5 * lead.state.config.lease_s, ("j1",))
    stored, *told, end = lead.effects
    assert stored == StoreNumber(number=lead.state.last_number) and isinstance(end, EndRun)
    assert lead.told("j1", Leave) and told


def test_a_run_does_not_end_while_weights_may_live() -> None:
    lead = Lead(groups_wanted=2)
    lead.form("g1", "g2")
    died(lead, "g1")
    lead.hello("j1")
    lead.pass_time(5.0, ("j1",))
    lead.say("j1", report_of(asked(lead, "j1")))
    assert lead.state.groups.get("g2") is None, "lost, not dead"
    assert lead.state.hold is Hold.COLD_START
    assert not any(isinstance(effect, EndRun) for effect in lead.effects)


def test_a_joiner_that_was_lost_has_time_to_come_back_once_all_members_are_known_to_be_dead() -> None:
    """However long the run has held for a member that might have lived."""
    lead = Lead(groups_wanted=2)
    lead.form("g1", "g2")
    died(lead, "g1")
    lead.hello("j1")
    lead.pass_time(30.0, ("j1",))
    lead.say("j1", report_of(asked(lead, "j1")))
    lead.pass_time(30.0, ("j1",))
    lead.hello("g2", took_over=True)
    patience_s = lead.state.config.deadlines.last_weights_s
    lead.pass_time(0.7 * patience_s, ("j1", "g2"))
    assert lead.state.hold is Hold.COLD_START
    assert not any(isinstance(effect, EndRun) for effect in lead.effects)
    lead.pass_time(0.7 * patience_s, ("j1", "g2"))
    assert any(isinstance(effect, EndRun) for effect in lead.effects)


def test_min_groups_holds_the_run_and_counts_who_levels() -> None:
    lead = Lead(groups_wanted=3, min_groups=2)
    version = lead.form(*THREE)
    died(lead, "g3")
    died(lead, "g2")
    lead.say("g1", standing(version, abandoned=asked(lead, "g1")))
    assert lead.state.hold is Hold.TOO_FEW
    assert len(lead.told("g1", Base)) == 1, "the first formation's"


def test_a_group_that_drains_does_not_wait_out_a_hold() -> None:
    lead = Lead(groups_wanted=2, min_groups=2)
    version = lead.form("g1", "g2")
    died(lead, "g2")
    lead.say("g1", standing(version, abandoned=asked(lead, "g1")))
    assert lead.state.hold is Hold.TOO_FEW
    lead.say("g1", Drain())
    assert [leave.success for leave in lead.told("g1", Leave)] == [True]


def test_steps_that_only_the_silent_may_have_are_not_cut_off() -> None:
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE)
    lead.commit(4, "g3")
    lead.commit(5, "g3")
    lead.pass_time(3.0, ("g1", "g2"))
    assert lead.state.groups.get("g3") is None
    for name in ("g1", "g2"):
        lead.say(name, standing(version, abandoned=asked(lead, name)))
    assert lead.state.hold is Hold.COLD_START


def ahead_of_a_joiner() -> tuple[Lead, Version, Version]:
    """g1 alone made two steps more and switched to a generation with j1, which stands where it had caught up."""
    lead = Lead(groups_wanted=1)
    version = lead.form("g1")
    prepare = lead.join("j1", version)
    lead.commit(4, "g1")
    newest = lead.commit(5, "g1")
    start = Start(number=prepare.number, version=newest, cursor=30)
    lead.say("g1", Committed(version=newest, start=start, loss=1.0, tokens=1, grad_norm=1.0, step_s=0.1))
    assert lead.members == ["g1", "j1"]
    return lead, version, newest


def test_steps_that_only_the_dead_had_are_not_waited_for_though_a_member_lives() -> None:
    lead, version, _ = ahead_of_a_joiner()
    died(lead, "g1")
    lead.say("j1", standing(version, abandoned=asked(lead, "j1"), generation=0))
    assert last_base(lead, "j1").version == version and lead.members == ["j1"]


def test_a_lost_member_that_may_have_steps_is_waited_for() -> None:
    lead, version, _ = ahead_of_a_joiner()
    lead.pass_time(3.0, ("j1",))
    assert lead.state.groups.get("g1") is None
    lead.say("j1", standing(version, abandoned=asked(lead, "j1"), generation=0))
    assert lead.state.hold is Hold.COLD_START and not lead.told("j1", Base)


@pytest.mark.parametrize("apart", [False, True])
def test_a_joiner_that_has_the_steps_of_the_dead_is_heard_first(apart: bool) -> None:
    lead, version, newest = ahead_of_a_joiner()
    lead.hello("j2")
    lead.catches_up("j2", newest)
    if apart:
        lead.state = change_group(lead.state, lead.state.groups.get("j2"), apart=True)
    died(lead, "g1")
    if not apart:
        lead.say("j1", standing(version, abandoned=asked(lead, "j1"), generation=0))
        assert lead.state.hold is Hold.COLD_START and not lead.told("j1", Base)
    lead.say("j2", standing(newest, abandoned=asked(lead, "j2"), generation=0))
    if apart:
        lead.say("j1", standing(version, abandoned=asked(lead, "j1"), generation=0))
    assert last_base(lead, "j2").version == newest and lead.members == ["j2"]


# ---- the fence -----------------------------------------------------------------------------------------------------


def test_nobody_goes_on_while_a_generation_may_be_at_work() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    lead.join("j1", version)
    lead.pass_time(3.0, ("j1",))
    assert lead.state.groups.get("g1") is None and lead.state.groups.get("g2") is None
    lead.say("j1", standing(version, abandoned=asked(lead, "j1"), generation=0))
    assert lead.state.hold is Hold.FENCE
    assert not lead.told("j1", Base)


def test_a_planned_generation_is_fenced_too() -> None:
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE)
    lead.say("g1", Drain())
    (prepare,) = lead.told("g1", Prepare)
    assert [m.name for m in lead.state.gens[-1].roster] == ["g2", "g3"]
    lead.pass_time(3.0, ("g1",))
    lead.say("g1", standing(version, abandoned=asked(lead, "g1")))
    assert asked(lead, "g1") > prepare.number
    assert lead.state.hold is Hold.FENCE, "g2 and g3 may have switched"


def test_a_report_of_the_present_generation_does_not_leave_it() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    lead.say("g1", standing(version, abandoned=version.generation))
    assert not lead.state.gens[0].left
    lead.say("g1", standing(version, abandoned=version.generation + 1))
    assert lead.state.gens[0].left


def test_an_older_report_does_not_count() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    newer = standing(version, abandoned=version.generation)
    lead.say("g1", newer)
    lead.say("g1", standing(Version(1, version.generation), abandoned=0))
    group = lead.state.groups.get("g1")
    assert group is not None and group.report == newer


def test_a_failed_generation_is_over_for_all() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    lead.take()
    effects = lead.say("g1", standing(version, abandoned=version.generation, failed=True, reason="gloo"))
    assert StoreNumber(number=version.generation + 1) in effects
    assert effects.index(StoreNumber(number=version.generation + 1)) == 0, "stored before anybody hears of it"
    assert asked(lead, "g1") == asked(lead, "g2") == version.generation + 1


# ---- what the base says --------------------------------------------------------------------------------------------


def test_who_came_back_keeps_no_slot_that_another_answers_for() -> None:
    lead = Lead(groups_wanted=4)
    version = lead.form(*THREE, "g4")
    number = version.generation
    lead.pass_time(3.0, ("g2", "g3", "g4"))  # g1 is cut off
    for name, answers in (("g2", (2, 3)), ("g3", (4,)), ("g4", (5,))):
        lead.say(name, standing(version, abandoned=asked(lead, name), answers=answers))
    dealt = {name: last_base(lead, name).slots for name in ("g2", "g3", "g4")}
    assert dealt == {"g2": (2, 3), "g3": (0, 4), "g4": (1, 5)}
    died(lead, "g4")
    new = lead.state.last_number
    lead.hello("g1", standing(version, abandoned=new, answers=(0, 1)), incarnation=lead.incarnations["g1"])
    for name in ("g2", "g3"):
        lead.say(name, standing(version, abandoned=new, generation=number + 1, answers=dealt[name]))
    assert lead.members == ["g1", "g2", "g3"]
    assert {name: last_base(lead, name).slots for name in ("g2", "g3")} == {"g2": (1, 2, 3), "g3": (0, 4, 5)}


def test_the_cursor_is_that_of_who_was_in_the_newest_generation() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    died(lead, "g2")
    lead.hello("a", standing(version, abandoned=asked(lead, "g1"), cursor=0, generation=0))
    lead.say("g1", standing(version, abandoned=asked(lead, "g1")))
    assert last_base(lead, "g1").cursor == version.step * 6


def test_who_comes_from_outside_is_a_newcomer_and_is_dealt_nothing() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    died(lead, "g2")
    lead.hello("a", standing(version, abandoned=asked(lead, "g1"), generation=0))
    lead.say("g1", standing(version, abandoned=asked(lead, "g1"), answers=(0, 1, 2)))
    assert [m.role for m in lead.state.gens[0].roster] == [Role.NEWCOMER, Role.CONTRIBUTOR]
    assert (last_base(lead, "a").slots, last_base(lead, "g1").slots) == ((), (0, 1, 2, 3, 4, 5))


def test_a_committed_wish_to_stop_outlives_a_change() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    died(lead, "g2")
    lead.say("g1", standing(version, abandoned=asked(lead, "g1"), stop=True))
    assert (last_base(lead, "g1").stop, last_base(lead, "g1").slots) == (True, ())


# ---- what is told of commits ---------------------------------------------------------------------------------------


def test_a_late_word_of_a_commit_moves_nothing_back() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    lead.take()
    lead.commit(2, "g2")
    assert lead.state.newest == version
    assert lead.kinds() == []


def test_a_word_of_a_commit_on_a_stream_that_was_replaced_does_not_put_a_group_back() -> None:
    """Else its death would say that nobody is more than one step above where it stood long before."""
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2", steps=1)
    old, incarnation = lead.conns["g2"], lead.incarnations["g2"]
    far = Version(5, version.generation)
    lead.hello("g2", standing(far, abandoned=version.generation), incarnation=incarnation)
    done = Committed(
        version=version,
        start=Start(number=version.generation, version=ROOT),
        loss=1.0,
        tokens=60,
        grad_norm=1.0,
        step_s=0.1,
    )
    lead.say("g2", Beat(version=far))
    lead.say("g2", done, conn=old)
    died(lead, "g2")
    assert lead.state.gens[0].left_at == far.step


def test_a_switch_is_history_with_its_cursor() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    prepare = lead.join("j1", version)
    start = Start(number=prepare.number, version=Version(4, version.generation), cursor=24)
    lead.take()
    effects = lead.say(
        "g1", Committed(version=start.version, start=start, loss=1.0, tokens=1, grad_norm=1.0, step_s=0.1)
    )
    assert StoreBase(number=prepare.number, version=start.version, cursor=24, reported=True) in effects
    assert lead.members == ["g1", "g2", "j1"]


def test_who_saw_the_old_generation_fail_where_others_saw_the_switch_starts_a_change() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    prepare = lead.join("j1", version)
    lead.commit(4, "g1", start=Start(number=prepare.number, version=Version(4, version.generation), cursor=24))
    assert lead.state.change is None
    lead.say("g2", standing(version, abandoned=version.generation + 1, failed=True))
    assert lead.state.change is not None


def test_a_dead_joiner_cannot_be_switched_to() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    prepare = lead.join("j1", version)
    lead.say("j1", Goodbye(reason="ended"))
    lead.commit(4, "g1", start=Start(number=prepare.number, version=Version(4, version.generation), cursor=24))
    assert lead.state.change is not None
