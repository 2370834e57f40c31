"""Cold starts: what a person, or a deadline, has a run that holds go on from; and what none of them may do."""

from __future__ import annotations

import pytest

from lighthouse.core import wake_at
from lighthouse.core_values import ColdStartAsked, Hold, StoreBase
from lighthouse.values import ROOT, Abandon, Base, Beat, CaughtUp, Died, Heal, Member, Report, Role, Version
from tests.lighthouse_script import FIRST, Script, nth

ASKED = ColdStartAsked(by="me")


def fenced(**config: float) -> Script:
    """g2 is alone in the generation of the last base and lost; g1, which stands on that base, is back and reports."""
    script = Script(lease_s=2.0, **config)
    script.forms("g1", "g2")
    script.commits(1, "g1", "g2")
    script.ends("g1")
    for _ in range(3):
        script.says("g2", Beat(version=Version(1, FIRST)))
        script.passes(0.9)
    script.reports("g2", Version(1, FIRST))
    assert script.number == FIRST + 1
    script.ends("g2")
    script.passes(4.5)
    script.hello("g1", incarnation=nth(1))
    script.reports("g1", Version(1, FIRST))
    assert script.hold is Hold.FENCE
    return script


def lives(script: Script, seconds: float) -> None:
    """Time passes, in which g1 is heard."""
    for _ in range(int(seconds / 0.5)):
        script.says("g1", Beat(version=Version(1, FIRST)))
        script.passes(0.5)


def test_an_operator_lifts_the_fence() -> None:
    script = fenced()
    lives(script, 30.0)
    assert script.number == FIRST + 1
    script.does(ASKED)
    assert script.base("g1").version == Version(1, FIRST)
    (told,) = script.told("cold_start")
    assert told.fields["by"] == "me" and told.number == script.number
    assert "g2" in told.text


def test_it_happens_by_itself_after_its_deadline_and_not_before() -> None:
    script = fenced(cold_start_after_s=10.0)
    lives(script, 9.0)
    assert not script.told("cold_start")
    lives(script, 2.0)
    assert script.base("g1").version == Version(1, FIRST)
    assert "cold_start_after_s" in script.told("cold_start")[0].fields["by"]


def test_who_was_at_work_meanwhile_is_told_that_it_is_over_and_heals() -> None:
    script = fenced()
    script.does(ASKED)
    grown = Member(name="g1", incarnation=nth(1), role=Role.CONTRIBUTOR, host="host-g1")
    script.commits(2, "g1", start=Version(1, FIRST), promoted=(grown,))
    script.hello("g2", incarnation=nth(2))
    assert script.to("g2", Abandon)[0].number == script.number
    script.reports("g2", Version(9, FIRST + 1), abandoned=script.number)
    assert script.heal("g2").sources[0].name == "g1"
    assert not script.state.history.contains(Version(9, FIRST + 1))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_run_whose_store_was_lost_goes_on_from_the_newest_weights(restarted: bool) -> None:
    old = Version(8, 70)
    script = Script(groups_wanted=3, lease_s=2.0)
    for name, version in (("g1", old), ("g2", old), ("g3", Version(7, 70))):
        script.hello(name)
        script.reports(name, version)
    for name, version in (("g1", old), ("g2", old), ("g3", Version(7, 70))):
        script.reports(name, version)
    assert script.hold is Hold.COLD_START
    script.does(ASKED)
    assert [script.base(name).version for name in ("g1", "g2")] == [old, old]
    assert script.told("cold_start")[0].fields["base"] == str(old)
    assert script.to("g3", Heal) or not script.sent("g3", Base)
    number = script.number
    if restarted:  # what is stored is enough to know the history by
        script.starts()
        script.hello("g1", incarnation=nth(1))
        script.hello("g2", incarnation=nth(2))
    assert script.state.history.contains(old) and script.state.history.contains(Version(9, number))
    assert not script.state.history.contains(Version(7, 70))


def test_no_deadline_begins_at_the_root_again_but_a_person_may() -> None:
    script = Script(lease_s=2.0, cold_start_after_s=1.0)
    script.forms("g1", "g2")
    script.commits(1, "g1", "g2")
    script.commits(2, "g1")
    for name in ("g1", "g2"):
        script.hello(name)
        script.reports(name)
    assert script.hold is Hold.COLD_START
    script.passes(1.5)
    assert not script.told("cold_start")
    script.does(ASKED)
    assert script.base("g1").version == ROOT and len(script.told("cold_start")) == 1


def test_min_groups_hold_in_a_cold_start_too_and_others_heal_for_it() -> None:
    """The store was lost; g2, of the two that are needed, has only initial weights."""
    old = Version(8, 70)
    script = Script(min_groups=2)
    script.hello("g1")
    script.hello("g2")
    script.reports("g1", old)
    script.reports("g2")
    script.does(ASKED)
    assert script.hold is Hold.TOO_FEW and not script.told("cold_start")
    assert script.heal("g2").sources[0].name == "g1"
    script.says("g2", Report(abandoned=FIRST, version=old, cursor=32, heal=script.heal("g2").heal))
    script.says("g2", CaughtUp(version=old))
    assert script.base("g2").version == script.base("g1").version == old
    assert len(script.told("cold_start")) == 1 and not script.state.cold


def test_nothing_is_changed_where_nothing_holds() -> None:
    script = Script()
    script.forms("g1", "g2")
    before = len(script.effects)
    script.does(ASKED)
    assert len(script.effects) == before and not script.state.cold


def test_it_is_woken_for_its_deadline() -> None:
    script = fenced(cold_start_after_s=10.0)
    lives(script, 9.0)
    assert wake_at(script.state, script.now) == script.state.hold_since_s + 10.0


def test_a_wish_that_comes_too_early_is_not_kept() -> None:
    script = Script(min_groups=2, join_wait_s=1.0)
    script.forms("g1", "g2")
    script.says("g2", Died(reason="", shard_rank=0))
    script.reports("g1")
    assert script.hold is Hold.TOO_FEW
    script.does(ASKED)
    assert not script.state.cold


def test_weights_that_are_being_written_over_are_no_base_of_a_cold_start_either() -> None:
    script = Script(min_groups=2)
    script.hello("g1")
    script.hello("g2")
    script.reports("g1", Version(8, 70))
    script.reports("g2", Version(7, 70))
    script.does(ASKED)
    assert script.heal("g2")
    script.says("g1", Died(reason="", shard_rank=0))
    assert script.hold is Hold.COLD_START, "and not: one of two stands"


def test_the_base_of_a_cold_start_is_stored_like_any_other() -> None:
    script = fenced()
    script.does(ASKED)
    (base,) = [e for e in script.last if isinstance(e, StoreBase)]
    assert base == StoreBase(number=script.number, version=Version(1, FIRST), cursor=4)


@pytest.mark.parametrize("loaded", [True, False])
def test_a_member_that_loads_is_not_waited_for_to_say_how_far_it_had_come(loaded: bool) -> None:
    """It was one behind, and another lighthouse had it load; the others have died since. loaded: a joiner has."""
    script = Script(lease_s=2.0, groups_wanted=3)
    script.forms("g1", "g2", "g3")
    script.commits(1, "g1", "g2", "g3")
    script.starts()
    loads = Report(abandoned=FIRST + 1, version=Version(-1, 0), cursor=0, heal=7, donors=("g1",))
    script.hello("g2", loads, incarnation=nth(2))
    version = Version(2, FIRST) if loaded else Version(-1, 0)
    script.hello("g4", Report(abandoned=FIRST + 1, version=version, cursor=8, heal=8, donors=("g1",)))
    names = {"g1": ROOT, "g2": loads.version, "g3": ROOT, "g4": version}
    for name in ("g1", "g3"):
        script.hello(name)
    for _ in range(10):
        script.passes(0.5)
        for name, stands in names.items():
            script.says(name, Beat(version=stands))
    if loaded:
        assert script.base("g4").version == version and script.hold is Hold.NONE
    else:
        assert script.hold is Hold.ENDED, "no weights are left"
