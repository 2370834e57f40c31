"""The lighthouse's core, rule by rule."""

from __future__ import annotations

import pytest
from lighthouse_script import FIRST, SETUP, Script, entry, nth, roster_of

from lighthouse.core import decide, status, wake_at
from lighthouse.core_values import (
    CloseStream,
    EndRun,
    Hold,
    Said,
    Send,
    StoreBase,
    StoreClaim,
    StoreNumber,
    Tick,
)
from lighthouse.values import (
    ROOT,
    Abandon,
    Base,
    Beat,
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
    Opened,
    Prepare,
    Ready,
    Refused,
    Release,
    Report,
    Role,
    Stage,
    Start,
    Version,
    Welcome,
)


def three(**config: object) -> Script:
    """Three groups in the first generation, at step 5."""
    script = Script(**{"groups_wanted": 3, **config})
    script.forms("g1", "g2", "g3")
    for step in range(1, 6):
        script.commits(step, "g1", *(("g2", "g3") if step == 1 else ()))
    return script


AT_5 = Version(5, FIRST)


# ---- first formation -----------------------------------------------------------------------------------------------


def test_nobody_is_told_a_base_before_enough_groups_are_here() -> None:
    script = Script(groups_wanted=3)
    script.hello("g1")
    script.hello("g2")
    assert script.hold is Hold.FORMING and not script.sent("g1", Abandon)
    script.hello("g3")
    assert script.sent("g1", Abandon)[0].number == FIRST


def test_after_join_wait_s_those_who_are_here_begin() -> None:
    script = Script(groups_wanted=3, join_wait_s=10.0, lease_s=60.0)
    script.hello("g1")
    script.passes(9.0)
    assert not script.sent("g1", Abandon)
    script.passes(2.0)
    script.reports("g1")
    assert roster_of(script.base("g1")) == ["g1"]


def test_what_is_stored_is_stored_before_anybody_is_told() -> None:
    script = Script()
    script.forms("g1", "g2")
    kinds = [type(e.message if isinstance(e, Send) else e) for e in script.last]
    assert kinds.index(StoreClaim) < kinds.index(StoreBase) < kinds.index(Base)


def test_equal_initial_weights_start_as_contributors_and_others_heal_from_them() -> None:
    script = Script(groups_wanted=3)
    for name, digest in (("g1", 7), ("g2", 7), ("g3", 8)):
        script.hello(name, digest=digest)
    for name in ("g1", "g2", "g3"):
        script.reports(name)
    assert roster_of(script.base("g1")) == ["g1", "g2"]
    assert all(m.role is Role.CONTRIBUTOR for m in script.base("g1").roster.joined)
    assert script.heal("g3").sources[0].name in ("g1", "g2")


def test_more_groups_than_wanted_are_spares() -> None:
    script = Script(groups_wanted=3, contributors_wanted=2)
    script.forms("g1", "g2", "g10")
    base = script.base("g1")
    assert [(m.name, m.role) for m in base.roster.joined][2] == ("g10", Role.SPARE)
    assert [script.base(n).slots for n in ("g1", "g2", "g10")] == [(0, 1), (2, 3), ()]


def test_a_group_set_up_otherwise_is_refused_and_told_what_to_change() -> None:
    script = Script()
    script.hello("g1")
    script.hello("g2", setup={**SETUP, "slots": "8"})
    refused = script.sent("g2", Refused)[0]
    assert "slots" in refused.reason and "8" in refused.reason and "4" in refused.reason
    assert script.closed(script.conn_of["g2"])


# ---- incarnations --------------------------------------------------------------------------------------------------


def test_an_older_incarnation_is_fenced_and_changes_nothing_any_more() -> None:
    script = three()
    old_conn, old = script.conn_of["g3"], script.incarnations[script.conn_of["g3"]]
    script.hello("g3")
    assert any(e == Send(conn=old_conn, message=Fenced(by=old + 1)) for e in script.last)
    before = script.state
    script.does(Said(conn=old_conn, name="g3", incarnation=old, message=Failure(number=FIRST, reason="late")))
    assert script.state == before and not script.last


def test_the_hello_of_an_older_incarnation_is_fenced() -> None:
    script = three()
    old = script.incarnations[script.conn_of["g3"]]
    script.hello("g3")
    script.hello("g3", incarnation=old)
    assert script.sent("g3", Fenced)


def test_a_reconnecting_group_keeps_its_incarnation_and_its_place() -> None:
    script = three()
    own = script.incarnations[script.conn_of["g2"]]
    script.ends("g2")
    report = Report(abandoned=FIRST, version=AT_5, cursor=20, generation=FIRST)
    script.hello("g2", incarnation=own, report=report)
    assert script.sent("g2", Welcome)[0].incarnation == own and not script.sent("g2", Welcome)[0].join
    assert not script.sent("g1", Abandon)[1:], "a broken stream alone changes nothing"


def test_a_restarted_lighthouse_gives_no_incarnation_twice() -> None:
    script = three()
    given = set(script.incarnations.values())
    script.starts()
    script.hello("g4")
    assert script.sent("g4", Welcome)[0].incarnation not in given


# ---- leases --------------------------------------------------------------------------------------------------------


def test_a_group_not_heard_of_for_a_lease_is_lost_and_the_others_go_on() -> None:
    script = three(lease_s=2.0)
    script.passes(1.5)
    script.says("g1", Beat(version=AT_5))
    script.says("g2", Beat(version=AT_5))
    script.passes(1.0)
    assert script.group("g3") is None and script.closed(script.conn_of["g3"])
    assert script.sent("g1", Abandon)[-1].number == FIRST + 1
    script.reports("g1", AT_5)
    script.reports("g2", AT_5)
    assert script.base("g1").version == AT_5 and script.number == FIRST + 1


def test_a_late_tick_extends_every_lease() -> None:
    script = three(lease_s=2.0)
    script.now += 5.0
    script.does(Tick(late_s=4.0))
    assert script.group("g3") is not None and not script.sent("g1", Abandon)[1:]


def test_nobody_is_judged_before_one_lease_after_the_start() -> None:
    script = three(lease_s=2.0)
    script.starts()
    script.passes(1.0)
    assert not script.told("lost") and wake_at(script.state, script.now) is not None
    script.hello("g1", incarnation=nth(1), report=Report(abandoned=FIRST, version=AT_5, cursor=20, generation=FIRST))
    script.passes(1.5)
    assert "did not come back" in script.told("abandon")[-1].text


# ---- unplanned changes ---------------------------------------------------------------------------------------------


def test_a_death_is_pushed_at_once_and_its_slots_are_taken_over() -> None:
    script = three()
    script.says("g3", Died(reason="signal 9", shard_rank=0))
    assert script.to("g1", Abandon)[0].number == FIRST + 1 == script.to("g2", Abandon)[0].number
    script.reports("g1", AT_5, answers=(0, 1))
    assert script.hold is Hold.REPORTS
    script.reports("g2", AT_5, answers=(2,))
    assert script.base("g1").slots == (0, 1) and script.base("g2").slots == (2, 3)


def test_a_change_is_told_as_a_difference() -> None:
    script = three()
    script.says("g3", Died(reason="signal 9", shard_rank=0))
    script.reports("g1", AT_5)
    script.reports("g2", AT_5)
    change = script.base("g1").roster
    assert (change.previous, change.left, change.joined) == (FIRST, ("g3",), ())


def test_a_member_one_behind_a_holder_is_told_where_the_entry_is() -> None:
    script = three()
    script.says("g3", Died(reason="signal 9", shard_rank=0))
    script.reports("g1", Version(6, FIRST), entries=(entry(AT_5, Version(6, FIRST)),))
    script.reports("g2", AT_5)
    assert script.base("g2").version == Version(6, FIRST)
    assert [s.name for s in script.base("g2").sources] == ["g1"] and not script.base("g1").sources


def test_a_member_one_behind_without_a_holder_heals() -> None:
    script = three()
    script.says("g3", Died(reason="signal 9", shard_rank=0))
    script.reports("g1", Version(6, FIRST))
    script.reports("g2", AT_5)
    assert roster_of(script.base("g1")) == [] and script.base("g1").roster.left == ("g2", "g3")
    assert script.heal("g2").sources[0].name == "g1"


def test_a_silent_member_is_awaited_one_lease_and_no_longer() -> None:
    script = three(lease_s=2.0)
    script.says("g3", Died(reason="signal 9", shard_rank=0))
    script.reports("g1", AT_5)
    for _ in range(3):
        script.says("g2", Beat(version=AT_5))  # it is there, but does not answer
        script.says("g1", Beat(version=AT_5))
        script.passes(0.9)
    assert script.base("g1").roster.left == ("g2", "g3")


def test_fewer_than_min_groups_hold_and_a_joiner_heals_in_the_hold() -> None:
    script = three(min_groups=3)
    script.says("g3", Died(reason="signal 9", shard_rank=0))
    script.reports("g1", AT_5)
    script.reports("g2", AT_5)
    assert script.hold is Hold.TOO_FEW and not script.sent("g1", Base)[1:]
    script.hello("g3")
    script.reports("g3")
    assert script.heal("g3").sources[0].name in ("g1", "g2")
    assert any(stage.now for name in ("g1", "g2") for stage in script.sent(name, Stage))


def test_a_second_failure_spends_another_number() -> None:
    script = three()
    script.says("g3", Failure(number=FIRST, reason="closed by peer"))
    for name in ("g1", "g2", "g3"):
        script.reports(name, AT_5)
    script.says("g1", Failure(number=FIRST + 1, reason="closed by peer"))
    assert script.sent("g1", Abandon)[-1].number == FIRST + 2
    assert [e.number for e in script.effects if isinstance(e, StoreNumber)] == [FIRST, FIRST + 1, FIRST + 2]


def test_no_base_while_nobody_of_the_generation_at_work_has_abandoned_it() -> None:
    script = three(lease_s=2.0)
    script.starts()
    script.passes(2.5)
    script.hello("g9", report=Report(abandoned=FIRST + 9, version=AT_5, cursor=20))
    assert script.hold in (Hold.FENCE, Hold.COLD_START) and not script.sent("g9", Base)


def test_who_comes_back_with_a_version_outside_the_history_heals() -> None:
    """HOLES S1: its step may look ahead. (6, first) was made behind the back of a generation that began at step 4."""
    script = three()
    script.says("g3", Died(reason="signal 9", shard_rank=0))
    script.reports("g1", AT_5)
    script.reports("g2", AT_5)
    strange = Version(7, FIRST)
    script.hello("g4", report=Report(abandoned=FIRST + 1, version=strange, cursor=28, generation=FIRST))
    assert script.sent("g4", Welcome)[0].join and script.heal("g4")
    assert not script.state.history.contains(strange)


# ---- the root ------------------------------------------------------------------------------------------------------


def test_a_restarted_lighthouse_goes_on_with_members_that_still_stand_at_the_root() -> None:
    """It crashed before they heard of their base. They are the members themselves: no step can have been made."""
    script = Script()
    number = script.forms("g1", "g2")
    script.starts()
    for name, incarnation in (("g1", nth(1)), ("g2", nth(2))):
        script.hello(name, incarnation=incarnation, report=Report(abandoned=number, version=ROOT, cursor=0))
        script.reports(name)
    assert script.number == number + 1 and script.base("g1").version == ROOT


def test_a_group_started_anew_does_not_lead_back_to_the_root_while_a_member_lives() -> None:
    script = Script(lease_s=2.0)
    script.forms("g1", "g2")
    script.commits(1, "g1", "g2")
    script.says("g2", Failure(number=FIRST, reason="closed by peer"))
    for _ in range(3):
        script.says("g2", Beat(version=Version(2, FIRST)))
        script.passes(0.9)
    script.hello("g1", report=Report(abandoned=FIRST + 1, version=ROOT, cursor=0))
    assert script.hold is Hold.COLD_START and script.number == FIRST
    script.reports("g2", Version(2, FIRST))
    assert script.base("g2").version == Version(2, FIRST)


def test_all_groups_new_after_a_restart_are_a_cold_start() -> None:
    script = Script(lease_s=2.0)
    script.forms("g1", "g2")
    script.starts()
    script.hello("g1")
    script.hello("g2")
    script.reports("g1")
    script.reports("g2")
    for _ in range(6):
        for name in ("g1", "g2"):
            script.says(name, Beat(version=ROOT))
        script.passes(0.8)
    assert script.number == FIRST and not script.sent("g1", Base)
    assert any(isinstance(e, EndRun) and not e.success for e in script.effects)


# ---- joins ---------------------------------------------------------------------------------------------------------


def joined() -> Script:
    """g4 has caught up at step 7 and is planned."""
    script = three()
    script.hello("g4")
    script.reports("g4", ROOT)
    script.commits(7, "g1")
    script.catches_up("g4", Version(7, FIRST))
    return script


def test_a_newcomer_gets_a_donor_and_the_donor_is_told_to_stage() -> None:
    script = three()
    script.hello("g4")
    heal = script.heal("g4")
    assert script.sent("g4", Welcome)[0].join
    stages = [s for s in script.sent(heal.sources[0].name, Stage) if s.joiner == "g4"]
    assert stages[0].heal == heal.heal and not stages[0].now


def test_two_joiners_get_two_donors() -> None:
    script = three(donors=1)
    script.hello("g4")
    script.hello("g5")
    assert script.heal("g4").sources[0].name != script.heal("g5").sources[0].name


def test_a_joiner_that_caught_up_is_planned_beside_the_generation_at_work() -> None:
    script = joined()
    for name in ("g1", "g2", "g3", "g4"):
        assert script.sent(name, Prepare)[-1].number == FIRST + 1
    assert not script.sent("g1", Abandon)[1:], "nobody stops for it"
    assert [m.role for m in script.sent("g1", Prepare)[-1].roster.joined] == [Role.NEWCOMER]


def test_ready_is_told_once_all_have_opened() -> None:
    script = joined()
    for name in ("g1", "g2", "g3"):
        script.says(name, Opened(number=FIRST + 1))
    assert not script.sent("g1", Ready)
    script.says("g4", Opened(number=FIRST + 1))
    assert all(script.sent(name, Ready)[0].number == FIRST + 1 for name in ("g1", "g2", "g3", "g4"))


def test_the_switch_is_stored_as_a_base_that_was_reported() -> None:
    script = joined()
    for name in ("g1", "g2", "g3", "g4"):
        script.says(name, Opened(number=FIRST + 1))
    switch = Committed(
        version=Version(9, FIRST),
        start=Start(number=FIRST + 1, version=Version(9, FIRST), cursor=36),
        loss=1.0,
        tokens=1,
        grad_norm=1.0,
        step_s=0.1,
    )
    script.says("g1", switch)
    base = next(e for e in script.last if isinstance(e, StoreBase))
    assert base.reported and (base.number, base.version, base.cursor) == (FIRST + 1, Version(9, FIRST), 36)


def test_a_plan_that_is_not_opened_in_time_is_given_up_and_nobody_stops_for_it() -> None:
    script = joined()
    for _ in range(15):
        for name in ("g1", "g2", "g3", "g4"):
            script.says(name, Beat(version=Version(7, FIRST)))
        script.passes(1.5)
    assert script.told("plan_cancelled") and not script.sent("g1", Abandon)[1:]


def test_a_joiner_that_fails_to_load_is_told_another_way_later() -> None:
    script = three()
    script.hello("g4")
    heal = script.heal("g4")
    script.says("g4", HealFailed(heal=heal.heal, reason="the donor went away"))
    assert script.sent(heal.sources[0].name, Release)[-1].heal == heal.heal
    assert len(script.sent("g4", Heal)) == 1
    script.passes(1.1)
    assert len(script.sent("g4", Heal)) == 2


# ---- drains and the end --------------------------------------------------------------------------------------------


def test_a_draining_member_is_planned_out_and_told_of_the_plan_too() -> None:
    script = three()
    script.says("g3", Drain())
    assert script.sent("g1", Prepare)[-1].roster.left == ("g3",) == script.sent("g3", Prepare)[-1].roster.left
    assert not script.sent("g3", Leave)


def test_a_drain_below_min_groups_leaves_after_its_commit() -> None:
    script = three(min_groups=3)
    script.says("g3", Drain())
    assert script.sent("g3", Leave)[0].after_commit and not script.sent("g1", Prepare)


def test_finished_lets_everybody_leave_with_success() -> None:
    script = three()
    script.says("g2", Finished(version=AT_5))
    assert all(script.sent(name, Leave)[0].success for name in ("g1", "g2", "g3"))
    assert script.hold is Hold.FINISHED and script.store.record.finished == AT_5
    for name in ("g1", "g2", "g3"):
        script.says(name, Goodbye(reason="the run is finished"))
    assert any(isinstance(e, EndRun) and e.success for e in script.effects)


def test_who_says_hello_to_a_finished_run_may_leave() -> None:
    script = three()
    script.says("g2", Finished(version=AT_5))
    script.starts()
    script.hello("g1", incarnation=nth(1))
    assert script.sent("g1", Leave)[0].success


def test_a_hold_has_patience_and_then_says_what_it_waited_for() -> None:
    script = three(min_groups=3, hold_patience_s=30.0, lease_s=2.0)
    script.says("g3", Died(reason="signal 9", shard_rank=0))
    script.reports("g1", AT_5)
    script.reports("g2", AT_5)
    for _ in range(30):
        script.passes(1.5)
        for name in ("g1", "g2"):
            script.says(name, Beat(version=AT_5))
    ended = [e for e in script.effects if isinstance(e, EndRun)]
    assert len(ended) == 1 and "min_groups" in ended[0].reason


# ---- all of it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["calm", "change", "hold", "plan"])
def test_deciding_twice_changes_nothing(at: str) -> None:
    script = joined() if at == "plan" else three(min_groups=3 if at == "hold" else 1)
    if at in ("change", "hold"):
        script.says("g3", Died(reason="signal 9", shard_rank=0))
    if at == "hold":
        script.reports("g1", AT_5)
        script.reports("g2", AT_5)
    state, effects = decide(script.state, script.now)
    assert state == script.state and not effects


def test_status_says_who_is_what() -> None:
    script = three()
    script.hello("g4")
    states = {g.name: g.state for g in status(script.state, script.now).groups}
    assert states == {"g1": "contributor", "g2": "contributor", "g3": "contributor", "g4": "joiner"}


def test_a_stream_that_is_closed_carries_nothing_more() -> None:
    script = three(lease_s=2.0)
    script.passes(2.5)
    assert script.last.count(CloseStream(conn=script.conn_of["g3"])) == 1
    before = script.state
    script.does(Said(conn=script.conn_of["g3"], name="g3", incarnation=nth(3), message=Beat(version=AT_5)))
    assert script.state == before
