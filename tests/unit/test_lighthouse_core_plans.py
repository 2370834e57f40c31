"""The lighthouse's core, rule by rule: joins, drains and heals, which cost nobody a step."""

from __future__ import annotations

import pytest
from lead import Lead, member, standing

from lighthouse.core import status, wake_at
from lighthouse.core_values import StoreClaim, StoreNumber, StreamEnded, Tell, Tick
from lighthouse.values import (
    ROOT,
    Abandon,
    CaughtUp,
    Died,
    Drain,
    Failure,
    Heal,
    HealFailed,
    Leave,
    Opened,
    Prepare,
    Progress,
    Ready,
    Release,
    Role,
    Stage,
    Start,
    Version,
)

NOWHERE = Version(-1, 0)
TWO, THREE = ("g1", "g2"), ("g1", "g2", "g3")


def planned(lead: Lead) -> list[str]:
    """Members of the newest generation that is not entered."""
    assert len(lead.state.gens) > 1
    return [m.name for m in lead.state.gens[-1].roster]


def heals(lead: Lead, name: str) -> list[str]:
    """The donors that `name` was told of, one after another."""
    return [heal.sources[0].name for heal in lead.told(name, Heal)]


# ---- plans ---------------------------------------------------------------------------------------------------------


def test_a_join_is_planned_once_it_has_caught_up() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form(*TWO)
    lead.hello("j1")
    assert not lead.told("g1", Prepare)
    lead.take()
    effects = lead.catches_up("j1", version)
    stored = [e for e in effects if isinstance(e, StoreNumber | StoreClaim)]
    assert [type(e) for e in stored] == [StoreNumber, StoreClaim]
    assert [e.number for e in stored] == [version.generation + 1] * 2
    assert effects.index(stored[1]) < next(i for i, e in enumerate(effects) if "Prepare" in repr(e))
    assert [(m.name, m.role) for m in lead.state.gens[-1].roster] == [
        ("g1", Role.CONTRIBUTOR),
        ("g2", Role.CONTRIBUTOR),
        ("j1", Role.NEWCOMER),
    ]
    assert lead.told("g1", Prepare)[0].roster.left == ()
    assert [m.name for m in lead.told("g1", Prepare)[0].roster.joined] == ["j1"]
    assert len(lead.told("j1", Prepare)[0].roster.joined) == 3


def test_ready_is_said_when_the_last_has_opened() -> None:
    lead = Lead(groups_wanted=2)
    prepare = lead.join("j1", lead.form(*TWO))
    lead.say("g1", Opened(number=prepare.number))
    lead.say("g1", Opened(number=prepare.number))
    lead.say("j1", Opened(number=prepare.number))
    assert not lead.told("j1", Ready)
    lead.say("g2", Opened(number=prepare.number))
    assert [len(lead.told(name, Ready)) for name in (*TWO, "j1")] == [1, 1, 1]


def test_who_leaves_is_told_of_the_plan_and_is_let_go_after_it() -> None:
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE)
    lead.say("g1", Drain())
    (prepare,) = lead.told("g1", Prepare)
    assert planned(lead) == ["g2", "g3"]
    for name in THREE:
        lead.say(name, Opened(number=prepare.number))
    assert len(lead.told("g1", Ready)) == 1
    start = Start(number=prepare.number, version=Version(4, version.generation))
    lead.commit(4, "g2", start=start)
    assert not lead.told("g1", Leave)
    lead.commit(5, "g2", start=start)
    assert [leave.success for leave in lead.told("g1", Leave)] == [True]


def test_nothing_is_planned_before_roles_have_settled() -> None:
    lead = Lead(groups_wanted=3)
    lead.form(*THREE, steps=0)
    lead.say("g1", Drain())
    assert not lead.told("g2", Prepare)
    lead.commit(1, "g2")
    assert lead.told("g2", Prepare)


@pytest.mark.parametrize(("min_groups", "plans"), [(2, True), (3, False)])
def test_a_drain_below_min_groups_is_not_planned(min_groups: int, plans: bool) -> None:
    lead = Lead(groups_wanted=3, min_groups=min_groups)
    lead.form(*THREE)
    lead.say("g1", Drain())
    assert bool(lead.told("g1", Prepare)) is plans
    assert [leave.after_commit for leave in lead.told("g1", Leave)] == ([] if plans else [True])


def test_who_leaves_and_who_has_caught_up_swap_in_one_plan() -> None:
    """Without the joiner too few would stay."""
    lead = Lead(groups_wanted=3, min_groups=3)
    version = lead.form(*THREE)
    lead.join("j1", version)
    lead.say("g1", Drain())
    prepare = lead.told("g1", Prepare)[-1]
    assert (prepare.roster.left, [m.name for m in prepare.roster.joined]) == (("g1",), ["j1"])
    assert not lead.told("g1", Leave)


def test_the_last_member_leaves_once_somebody_else_has_the_weights_and_computes() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form(*TWO)
    lead.hello("j1")
    for name in TWO:
        lead.say(name, Drain())
    first = lead.state.last_number
    assert planned(lead) == ["g2"], "g1 may go, and is not kept by what is asked of g2 later"
    for name in TWO:
        lead.say(name, Opened(number=first))
    start = Start(number=first, version=Version(4, version.generation))
    lead.commit(4, "g2", start=start)
    lead.commit(5, "g2", start=start)
    assert heals(lead, "j1")[-1] == "g2" and not lead.told("g2", Leave)
    lead.catches_up("j1", Version(5, first))
    number = lead.state.last_number
    assert planned(lead) == ["g2", "j1"]
    for name in ("g2", "j1"):
        lead.say(name, Opened(number=number))
    start = Start(number=number, version=Version(6, first))
    lead.commit(6, "g2", start=start)
    assert lead.state.last_number == number, "it has not computed yet"
    lead.commit(7, "g2", start=start, promoted=(member("j1", lead.incarnations["j1"], Role.SPARE),))
    assert planned(lead) == ["j1"] and not lead.told("g2", Leave)


def test_the_last_member_leaves_at_once_if_nobody_is_there_to_have_the_weights() -> None:
    lead = Lead(groups_wanted=1)
    lead.form("g1")
    lead.say("g1", Drain())
    assert [leave.after_commit for leave in lead.told("g1", Leave)] == [True]


def test_a_plan_is_replaced_when_a_member_may_have_missed_it() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form(*TWO)
    first = lead.join("j1", version)
    lead.hello("g2", standing(version, abandoned=version.generation), incarnation=lead.incarnations["g2"])
    (second,) = lead.told("g2", Prepare)[1:]
    assert second.number > first.number


def test_a_plan_is_replaced_when_who_leaves_with_it_may_have_missed_it() -> None:
    """Its records have to name it, too."""
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE)
    lead.say("g3", Drain())
    (first,) = lead.told("g3", Prepare)
    lead.hello("g3", standing(version, abandoned=version.generation), incarnation=lead.incarnations["g3"])
    lead.say("g3", Drain())
    (second,) = lead.told("g3", Prepare)[1:]
    assert second.number > first.number and lead.told("g1", Prepare)[-1].number == second.number


def test_an_opening_that_failed_is_tried_again_later() -> None:
    lead = Lead(groups_wanted=2)
    prepare = lead.join("j1", lead.form(*TWO))
    lead.say("g1", Failure(number=prepare.number, reason="no route"))
    assert len(lead.told("g1", Prepare)) == 1
    assert lead.state.change is None
    lead.pass_time(1.0, (*TWO, "j1"))
    assert [p.number for p in lead.told("g1", Prepare)] == [prepare.number, prepare.number + 1]


def test_a_change_cancels_the_plan() -> None:
    lead = Lead(groups_wanted=2)
    prepare = lead.join("j1", lead.form(*TWO))
    for name in (*TWO, "j1"):
        lead.say(name, Opened(number=prepare.number))
        if name == "g1":
            lead.say("g2", Failure(number=prepare.number - 1, reason="closed by peer"))
    assert lead.state.plan is None
    assert not lead.told("g1", Ready)
    assert lead.told("g1", Abandon)[-1].number == prepare.number + 1


def test_nothing_is_planned_amid_a_change() -> None:
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE)
    lead.say("g3", Died(reason="signal 9", shard_rank=0))
    lead.say("g1", Drain())
    assert not lead.told("g1", Prepare)
    assert lead.state.last_number == version.generation + 1


def test_a_member_whose_digest_differs_has_to_heal() -> None:
    lead = Lead(groups_wanted=3)
    lead.form(*THREE)
    lead.commit(4, "g1", mismatched=("g3",))
    assert planned(lead) == ["g1", "g2"]


# ---- heals ---------------------------------------------------------------------------------------------------------


def test_donors_are_balanced_and_are_no_newcomers() -> None:
    lead = Lead(groups_wanted=2, donors=1)
    version = lead.form(*TWO)
    prepare = lead.join("a", version)
    for name in (*TWO, "a"):
        lead.say(name, Opened(number=prepare.number))
    start = Start(number=prepare.number, version=Version(4, version.generation))
    for name in (*TWO, "a"):
        lead.commit(4, name, start=start)
    assert lead.members == ["a", "g1", "g2"]
    for name in ("j1", "j2", "j3"):
        lead.hello(name)
    donors = [heals(lead, name)[0] for name in ("j1", "j2", "j3")]
    assert set(donors) == {"g1", "g2"}


def test_a_joiner_whose_donor_is_gone_gets_another() -> None:
    lead = Lead(groups_wanted=2, donors=1)
    version = lead.form(*TWO)
    lead.hello("j1")
    (donor,) = heals(lead, "j1")
    (other,) = set(TWO) - {donor}
    lead.say(donor, Died(reason="signal 9", shard_rank=0))
    lead.say(other, standing(version, abandoned=lead.told(other, Abandon)[-1].number))
    assert heals(lead, "j1") == [donor, other]
    assert len(lead.told(other, Stage)) == 1


def test_a_donor_is_told_when_nobody_needs_it_any_more() -> None:
    lead = Lead(groups_wanted=2, donors=1)
    lead.form(*TWO)
    lead.hello("j1")
    (donor,) = heals(lead, "j1")
    (stage,) = lead.told(donor, Stage)
    lead.say("j1", Died(reason="signal 9", shard_rank=0))
    assert lead.told(donor, Release) == [Release(heal=stage.heal)]


def test_a_caught_up_joiner_is_told_to_people_once() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form(*TWO)
    lead.join("j1", version)
    lead.say("j1", CaughtUp(version=version))
    assert len([e for e in lead.effects if isinstance(e, Tell) and e.kind == "caught_up"]) == 1


def progress(heal: int, count: int, version: Version = NOWHERE) -> Progress:
    return Progress(heal=heal, bytes=count, total=2_000_000, seconds=1.0, rate=5e6, donors=("g1",), version=version)


def test_how_far_a_joiner_is_can_be_seen() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form(*TWO)
    lead.hello("j1")
    (heal,) = lead.told("j1", Heal)
    lead.say("j1", progress(heal.heal - 1, 1))
    assert "progress" not in lead.kinds()
    lead.say("j1", progress(heal.heal, 1_000_000))
    (joiner,) = [g for g in status(lead.state, lead.now).groups if g.name == "j1"]
    assert joiner.detail == "loads 1.0 of 2.0 MB at 5.0 MB/s from g1"
    lead.commit(5, *TWO)
    lead.say("j1", progress(heal.heal, 2_000_000, version))
    lead.say("j1", progress(heal.heal, 2_000_000, Version(4, version.generation)))
    assert [k for k in lead.kinds() if k in ("progress", "loaded")] == ["progress", "loaded", "progress", "progress"]
    tells = [e for e in lead.effects if isinstance(e, Tell) and e.kind == "progress"]
    assert [e.fields["lag"] for e in tells] == ["-1", "2", "1"]
    (joiner,) = [g for g in status(lead.state, lead.now).groups if g.name == "j1"]
    assert joiner.detail == "loaded 2.0 MB, 1 steps behind"


def test_a_joiner_that_is_to_heal_later_is_woken_for() -> None:
    lead = Lead(groups_wanted=2, lease_s=50.0)
    lead.form("g1", "g2")
    lead.hello("j1")
    (heal,) = lead.told("j1", Heal)
    lead.say("j1", HealFailed(heal=heal.heal, reason="no bytes"))
    assert len(lead.told("j1", Heal)) == 1
    due = wake_at(lead.state, lead.now)
    assert due is not None and due <= lead.now + 1.0
    lead.now = due
    lead.event(Tick())
    assert len(lead.told("j1", Heal)) == 2
    lead.say("j1", HealFailed(heal=heal.heal, reason="the old one, late"))
    group = lead.state.groups.get("j1")
    assert group is not None and group.heal == lead.told("j1", Heal)[1].heal
    lead.say("j1", CaughtUp(version=ROOT))
    lead.event(StreamEnded(conn=lead.conns["j1"]))
