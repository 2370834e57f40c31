"""The lighthouse's core, rule by rule: donors of a joiner, several at a time, and what becomes of it without some."""

from __future__ import annotations

import pytest
from lead import Lead, member, report_of, standing

from lighthouse.core_values import Hold, Tell
from lighthouse.values import (
    ROOT,
    Abandon,
    Base,
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
    Release,
    Stage,
    Start,
    Version,
)

THREE = ("g1", "g2", "g3")
FOUR = (*THREE, "g4")
NOWHERE = Version(-1, 0)


def progress(heal: int, version: Version = NOWHERE) -> Progress:
    return Progress(heal=heal, bytes=1_000_000, total=2_000_000, seconds=2.0, rate=5e5, donors=("g1",), version=version)


def healing(lead: Lead, *names: str, moves: bool = False) -> tuple[Version, Heal]:
    """The named groups have formed and j1 is told to heal; moves: bytes have come."""
    version = lead.form(*names)
    lead.hello("j1")
    (heal,) = lead.told("j1", Heal)
    if moves:
        lead.say("j1", progress(heal.heal))
    return version, heal


def loses(lead: Lead, version: Version, *names: str) -> None:
    """These members die one after another; all others report, and form without them."""
    for name in names:
        lead.say(name, Died(reason="signal 9", shard_rank=0))
    for name in lead.members:
        if name not in names:
            lead.say(name, standing(version, abandoned=lead.state.last_number))


def donors(heal: Heal) -> list[str]:
    return [source.name for source in heal.sources]


def stages(lead: Lead, names: tuple[str, ...]) -> dict[str, Stage]:
    return {name: lead.told(name, Stage)[-1] for name in names}


def test_each_donor_has_its_place_and_knows_how_many_there_are() -> None:
    lead = Lead(groups_wanted=3)
    _, heal = healing(lead, *THREE)
    assert donors(heal) == list(THREE)
    told = stages(lead, THREE)
    assert {(s.heal, s.donors, s.now) for s in told.values()} == {(heal.heal, 3, False)}
    assert [told[name].place for name in THREE] == [0, 1, 2]


def test_no_more_donors_than_wanted_and_joiners_share_them() -> None:
    lead = Lead(groups_wanted=4, donors=2)
    lead.form(*FOUR)
    for name in ("j1", "j2", "j3"):
        lead.hello(name)
    assert [donors(lead.told(name, Heal)[0]) for name in ("j1", "j2", "j3")] == [
        ["g1", "g2"],
        ["g3", "g4"],
        ["g1", "g2"],
    ]


def test_a_joiner_is_told_of_those_that_load_already_and_may_have_the_same_version() -> None:
    lead = Lead(groups_wanted=3, donors=2)
    version = lead.form(*THREE)

    def named(name: str) -> list[str]:
        return [source.name for source in lead.told(name, Heal)[-1].passing]

    for name in ("j1", "j2", "j3", "j4"):
        lead.hello(name)
    assert [named(name) for name in ("j1", "j2", "j3", "j4")] == [[], ["j1"], ["j2", "j1"], ["j3", "j2"]]
    for name in ("j2", "j3", "j4"):
        heal = lead.told(name, Heal)[-1].heal
        lead.say(name, report_of(lead.number, NOWHERE, heal=heal), progress(heal))
    lead.say("j2", report_of(lead.number, version, heal=lead.told("j2", Heal)[-1].heal))
    lead.say("j3", Died(reason="signal 9", shard_rank=0))
    lead.hello("j5")
    assert named("j5") == ["j4", "j1"], "j2 has loaded, j3 is gone"


def test_spares_give_before_contributors() -> None:
    lead = Lead(groups_wanted=4, contributors_wanted=2, donors=2)
    _, heal = healing(lead, *FOUR)
    assert donors(heal) == ["g3", "g4"]


def test_once_bytes_move_one_dead_donor_changes_nothing() -> None:
    lead = Lead(groups_wanted=3)
    version, _ = healing(lead, *THREE, moves=True)
    loses(lead, version, "g2")
    assert lead.members == ["g1", "g3"] and len(lead.told("j1", Heal)) == 1
    assert not lead.told("g1", Release)


def test_before_all_have_staged_the_others_wait_for_a_dead_donor_in_vain() -> None:
    lead = Lead(groups_wanted=3)
    version, heal = healing(lead, *THREE)
    loses(lead, version, "g2")
    (again,) = lead.told("j1", Heal)[1:]
    assert donors(again) == ["g1", "g3"] and again.heal > heal.heal
    assert lead.told("g1", Release) == [Release(heal=heal.heal)]


@pytest.mark.parametrize(
    ("names", "dead", "again"), [(THREE, ("g1", "g2"), True), (FOUR, ("g1", "g2"), True), (FOUR, ("g1", "g3"), False)]
)
def test_two_dead_donors_are_too_many_if_they_were_neighbours(
    names: tuple[str, ...], dead: tuple[str, ...], again: bool
) -> None:
    lead = Lead(groups_wanted=len(names), donors=4)
    version, _ = healing(lead, *names, moves=True)
    loses(lead, version, *dead)
    assert (len(lead.told("j1", Heal)) == 2) is again


def test_who_has_caught_up_in_a_heal_that_is_over_heals_anew() -> None:
    """Nobody owes it entries any more, and that it fell behind is not heard: with it, plans would stall for ever."""
    lead = Lead(groups_wanted=3, donors=2)
    version, heal = healing(lead, *THREE, moves=True)
    late = (standing(version, abandoned=lead.number, heal=heal.heal), CaughtUp(version=version))
    lead.say("j1", HealFailed(heal=heal.heal, reason="no bytes"))
    lead.say("j1", *late)
    assert not lead.told("j1", Prepare), "it is in no heal now"
    lead.pass_time(1.5, beating=(*THREE, "j1"))
    (again,) = lead.told("j1", Heal)[1:]
    lead.say("j1", *late)
    assert not lead.told("j1", Prepare), "it was told of another, which it had not heard of"
    lead.say("j1", standing(version, abandoned=lead.number, heal=again.heal), CaughtUp(version=version))
    assert lead.told("j1", Prepare)


@pytest.mark.parametrize("told", [True, False])
def test_who_has_loaded_at_the_root_has_initial_weights_no_more(told: bool) -> None:
    """j1 has the weights of g1, which dies before it has caught up; g2 has those that j1 began with. told: it said that
    it stood nowhere; else its stream was broken meanwhile."""
    lead = Lead(groups_wanted=2, min_groups=2)
    lead.hello("g1")
    lead.hello("j1", digest=2)
    number = lead.told("g1", Abandon)[0].number
    for name in ("g1", "j1"):
        lead.say(name, report_of(number))
    heal = lead.told("j1", Heal)[-1].heal
    if told:
        lead.say("j1", report_of(number, NOWHERE, heal=heal), report_of(number, heal=heal))
    else:
        lead.hello("j1", report_of(number, heal=heal), incarnation=lead.incarnations["j1"], digest=77)
    lead.say("g1", Died(reason="signal 9", shard_rank=0))
    lead.hello("g2", digest=2)
    lead.say("g2", report_of(number))
    assert not lead.told("g2", Base) and lead.state.hold is Hold.TOO_FEW


def test_one_donor_is_enough_to_follow() -> None:
    lead = Lead(groups_wanted=3)
    version, heal = healing(lead, *THREE, moves=True)
    lead.say("j1", progress(heal.heal, version))
    loses(lead, version, "g1", "g2")
    assert len(lead.told("j1", Heal)) == 1


def test_a_donor_that_was_started_again_is_not_the_donor() -> None:
    lead = Lead(groups_wanted=3)
    version, heal = healing(lead, *THREE, moves=True)
    loses(lead, version, "g1")
    lead.commit(4, "g2", "g3")
    now = Version(4, lead.number)
    lead.hello("g1")
    lead.catches_up("g1", now)
    number = lead.state.last_number
    for name in THREE:
        lead.say(name, Opened(number=number))
    start = Start(number=number, version=now)
    for step in (5, 6):
        for name in THREE:
            lead.commit(step, name, start=start)
    assert lead.members == list(THREE)
    loses(lead, Version(6, number), "g2")
    assert lead.told("j1", Heal)[0] == heal
    assert len(lead.told("j1", Heal)) == 2, "of g1 and g2, neighbours, neither has what it had"


def test_a_donor_that_did_not_hear_of_the_heal_is_told_of_another() -> None:
    lead = Lead(groups_wanted=3)
    version, heal = healing(lead, *THREE)
    lead.hello("g2", standing(version, abandoned=lead.number), incarnation=lead.incarnations["g2"])
    assert len(lead.told("j1", Heal)) == 2
    report = standing(version, abandoned=lead.number, stagings=(lead.told("j1", Heal)[1].heal,))
    lead.hello("g2", report, incarnation=lead.incarnations["g2"])
    assert len(lead.told("j1", Heal)) == 2


def test_a_joiner_whose_stream_broke_goes_on_with_its_heal() -> None:
    lead = Lead(groups_wanted=3)
    _, heal = healing(lead, *THREE)
    report = report_of(lead.number, NOWHERE, heal=heal.heal, donors=THREE)
    lead.hello("j1", report, incarnation=lead.incarnations["j1"])
    assert len(lead.told("j1", Heal)) == 1
    lead.hello("j1", report_of(lead.number, NOWHERE), incarnation=lead.incarnations["j1"])
    assert len(lead.told("j1", Heal)) == 2, "it never heard of it"


def test_what_donors_stage_for_nobody_is_released() -> None:
    """A release is lost with the stream that it was sent on."""
    lead = Lead(groups_wanted=3)
    version, heal = healing(lead, *THREE)
    lead.pass_time(3.0, beating=(*THREE, "j1"))
    report = standing(version, abandoned=lead.number, stagings=(heal.heal, 7))
    lead.hello("g1", report, incarnation=lead.incarnations["g1"])
    assert lead.told("g1", Release) == [Release(heal=7)]


def test_whoever_falls_behind_starts_over_and_is_then_held_off_with_the_figures() -> None:
    lead = Lead(groups_wanted=3, lease_s=50.0)
    version, _ = healing(lead, *THREE)
    for times in (1, 2, 3):
        heal = lead.told("j1", Heal)[-1]
        assert len(lead.told("j1", Heal)) == times, "it starts over at once"
        lead.say("j1", progress(heal.heal, version))
        lead.say("j1", HealFailed(heal=heal.heal, reason="the log has gone past it", behind=True))
    assert len(lead.told("j1", Heal)) == 3
    (failed,) = [e for e in lead.effects if isinstance(e, Tell) and e.kind == "heal_failed"]
    assert "1.0 MB came in 2.0 s, at 0.5 MB/s, and the others make a step in 0.100 s" in failed.text
    assert failed.fields["held_off_s"] == "1"
    lead.pass_time(1.5)
    assert len(lead.told("j1", Heal)) == 4
    lead.say("j1", HealFailed(heal=lead.told("j1", Heal)[-1].heal, reason="gone past it", behind=True))
    lead.pass_time(1.5)
    assert len(lead.told("j1", Heal)) == 4, "the second time it is held off longer"
    lead.pass_time(1.0)
    assert len(lead.told("j1", Heal)) == 5


@pytest.mark.parametrize("heir", [True, False])
def test_the_last_who_has_the_weights_stays_to_give_them(heir: bool) -> None:
    """Too few are left, and g1 drains: it leaves at once unless somebody could load from it."""
    lead = Lead(groups_wanted=2, min_groups=2)
    version = lead.form("g1", "g2")
    if heir:
        lead.hello("j1")
    lead.say("g2", Died(reason="signal 9", shard_rank=0))
    number = lead.state.last_number
    lead.say("g1", Drain(), standing(version, abandoned=number))
    assert lead.state.hold is Hold.TOO_FEW
    if not heir:
        assert lead.told("g1", Leave)
        return
    assert not lead.told("g1", Leave)
    lead.say("j1", report_of(number))
    heal = lead.told("j1", Heal)[-1]
    assert donors(heal) == ["g1"] and lead.told("g1", Stage)[-1].now
    lead.say("j1", report_of(number, NOWHERE, heal=heal.heal), report_of(number, version, heal=heal.heal))
    assert lead.members == ["g1", "j1"]
    lead.say("j1", CaughtUp(version=version))
    lead.commit(4, "g1", "j1", promoted=(member("j1", lead.incarnations["j1"]),))
    assert [leave.after_commit for leave in lead.told("g1", Leave)] == [True]


def test_who_drained_and_is_out_gives_what_only_it_has() -> None:
    """g2 and g3 went on without it, and died."""
    lead = Lead(groups_wanted=3, min_groups=2)
    version = lead.form(*THREE)
    lead.say("g1", Drain())
    plan = lead.state.last_number
    for name in THREE:
        lead.say(name, Opened(number=plan))
    start = Start(number=plan, version=Version(4, version.generation))
    lead.commit(4, "g2", start=start)
    lead.say("g1", standing(start.version, abandoned=plan + 1, generation=plan))
    for name in ("g2", "g3"):
        lead.say(name, Died(reason="signal 9", shard_rank=0))
    lead.hello("j1")
    number = lead.state.last_number
    lead.say("g1", standing(start.version, abandoned=number, generation=plan))
    lead.say("j1", report_of(number))
    assert lead.state.hold is Hold.TOO_FEW and not lead.told("g1", Leave)
    assert [donors(heal) for heal in lead.told("j1", Heal)] == [["g1"]]


def test_a_heal_that_waits_for_a_roll_call_is_begun_anew_in_a_hold() -> None:
    lead = Lead(groups_wanted=3, min_groups=3)
    version, heal = healing(lead, *THREE)
    lead.say("g3", Died(reason="signal 9", shard_rank=0))
    for name in ("g1", "g2"):
        lead.say(name, standing(version, abandoned=lead.told(name, Abandon)[-1].number))
    (again,) = lead.told("j1", Heal)[1:]
    assert donors(again) == ["g1", "g2"] and all(s.now for s in stages(lead, ("g1", "g2")).values())


def test_who_caught_up_in_a_heal_that_is_over_heals_again() -> None:
    """Its donor is gone, and nobody keeps a log for it: it would never learn of the switch."""
    lead = Lead(groups_wanted=1)
    version = lead.form("g1")
    for name in ("j1", "j2"):
        lead.hello(name)
    lead.catches_up("j1", version)
    late = lead.told("j2", Heal)[0].heal
    lead.say("j2", report_of(lead.number, NOWHERE, heal=late))
    lead.say("g1", Died(reason="signal 9", shard_rank=0))
    lead.say("j1", report_of(lead.state.last_number, version))
    assert lead.members == ["j1"] and "heal_again" in lead.kinds()
    lead.say("j2", report_of(lead.number, version, heal=late), CaughtUp(version=version))
    assert len(lead.told("j2", Heal)) == 1, "a newcomer is no donor"
    grown = member("j1", lead.incarnations["j1"])
    lead.commit(4, "j1", promoted=(grown,))
    assert not lead.told("j2", Prepare)
    assert [donors(heal) for heal in lead.told("j2", Heal)] == [["g1"], ["j1"]]


# ---- at the root, where equal versions say nothing of weights --------------------------------------------------------


def loads_at_the_root(lead: Lead, name: str) -> None:
    """It was told to heal, and all its ranks have loaded: it has not caught up yet."""
    number = lead.state.last_number
    heal = lead.told(name, Heal)[-1].heal
    lead.say(name, report_of(number, NOWHERE, heal=heal), progress(heal, ROOT), report_of(number, ROOT, heal=heal))


def begins(lead: Lead, *digests: int) -> None:
    """g1, g2 and so on came with these initial weights, and have reported; too few of them are equal."""
    for i, digest in enumerate(digests, 1):
        lead.hello(f"g{i}", digest=digest)
    for i in range(len(digests)):
        lead.say(f"g{i + 1}", report_of(lead.state.last_number))
    assert lead.state.hold is Hold.TOO_FEW


def test_who_has_loaded_has_not_the_weights_any_more_that_it_began_with() -> None:
    lead = Lead(groups_wanted=2, min_groups=2)
    begins(lead, 1, 2)
    loads_at_the_root(lead, "g2")
    lead.say("g1", Died(reason="signal 9", shard_rank=0))
    lead.hello("g3", report_of(lead.state.last_number), digest=2)
    assert not lead.told("g3", Base), "it has what g2 had before it loaded"
    assert donors(lead.told("g3", Heal)[-1]) == ["g2"]


def test_another_lighthouse_does_not_know_whose_weights_were_loaded() -> None:
    """The donor was started anew since, with other initial weights."""
    lead = Lead(groups_wanted=2, min_groups=2)
    lead.hello("g1", digest=2)
    lead.hello("g2", report_of(0, heal=5, donors=("g1",)), incarnation=7, digest=77)
    number = lead.state.last_number
    lead.say("g1", report_of(number))
    lead.say("g2", report_of(number, heal=5), progress(5, ROOT), CaughtUp(version=ROOT))
    assert not lead.told("g2", Base)
    assert donors(lead.told("g2", Heal)[-1]) == ["g1"]


def test_nobody_heals_from_whom_it_is_the_donor_of() -> None:
    lead = Lead(groups_wanted=2, min_groups=2)
    begins(lead, 1, 2)
    loads_at_the_root(lead, "g2")
    lead.say("g1", Died(reason="signal 9", shard_rank=0))
    lead.hello("g1", report_of(lead.state.last_number, NOWHERE), digest=1)
    assert donors(lead.told("g1", Heal)[-1]) == ["g2"]
    loads_at_the_root(lead, "g1")
    assert len(lead.told("g2", Heal)) == 1, "the one that was begun before g1 died"
    lead.say("g1", CaughtUp(version=ROOT))
    assert lead.members == ["g1", "g2"]


# ---- what the joiner knows, and the lighthouse does not --------------------------------------------------------------


def test_who_entered_with_a_heal_of_its_own_and_fell_out_heals_again() -> None:
    lead = Lead(groups_wanted=2, min_groups=2)
    version = lead.form("g1", "g2")
    loses(lead, version, "g2")
    lead.hello("j1")
    number = lead.state.last_number
    heal = lead.told("j1", Heal)[-1].heal
    lead.say("j1", report_of(number, NOWHERE, heal=heal), progress(heal), report_of(number, version, heal=heal))
    assert lead.members == ["g1", "j1"]
    lead.say("j1", CaughtUp(version=version))
    ahead = Version(version.step + 1, number)
    lead.say("j1", Failure(number=lead.number, reason="connection closed by peer"))
    lead.say("g1", standing(ahead, abandoned=number + 1, entries=()))  # what led there is gone
    lead.say("j1", report_of(number + 1, version, generation=number))
    assert lead.state.hold is Hold.TOO_FEW and len(lead.told("j1", Base)) == 1
    assert len(lead.told("j1", Heal)) == 2


@pytest.mark.parametrize("one_by_one", [True, False])
def test_who_hears_of_its_generation_when_the_others_have_left_it_heals_again(one_by_one: bool) -> None:
    """Nothing that is said after that is about its heal, which it is not in any more."""
    lead = Lead(groups_wanted=3)
    version, heal = healing(lead, *THREE, moves=True)
    lead.say("j1", report_of(lead.number, NOWHERE, heal=heal.heal), progress(heal.heal, version))
    lead.say("g3", Died(reason="signal 9", shard_rank=0))
    for name in ("j1", "g1", "g2"):
        own = {"heal": heal.heal} if name == "j1" else {}
        lead.say(name, standing(version, abandoned=lead.state.last_number, **own))
    first = lead.number
    assert lead.members == ["g1", "g2", "j1"]
    lead.say("g1", Failure(number=first, reason="a member left while it opened"))
    for name in ("g1", "g2"):
        lead.say(name, standing(version, abandoned=first + 1))
    lead.pass_time(lead.state.config.lease_s, beating=("g1", "g2", "j1"))  # it is heard, and hears nothing
    assert lead.members == ["g1", "g2"] and len(lead.told("j1", Heal)) == 1
    lead.say("j1", report_of(first + 1, version, generation=first if one_by_one else 0))
    assert [heal.entries for heal in lead.told("j1", Heal)] == [False, True]


def test_a_generation_that_was_left_before_a_heal_was_told_does_not_end_it() -> None:
    """Its report of that crosses the heal: it does not name what it has not heard of yet."""
    lead = Lead(groups_wanted=3)
    lead.form(*THREE)
    version = lead.commit(4, "g1", mismatched=("g3",))
    plan = lead.told("g3", Prepare)[-1].number
    for name in THREE:
        lead.say(name, Opened(number=plan))
    lead.commit(5, "g1", start=Start(number=plan, version=version))
    (heal,) = lead.told("g3", Heal)
    lead.say("g3", report_of(plan + 1, version, generation=plan))
    lead.say("g3", report_of(plan + 1, NOWHERE, heal=heal.heal))
    assert len(lead.told("g3", Heal)) == 1
