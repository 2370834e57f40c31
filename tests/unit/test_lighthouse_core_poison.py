"""HOLES L2, DESIGN §4.6: a slot in hand at two deaths is dealt to nobody; a person, or the policy, has it skipped."""

from __future__ import annotations

from typing import Any

import pytest

from lighthouse.core_poison import DEATHS
from lighthouse.core_values import Hold, SkipSlotAsked, SlotDeath, StoreBase, StoreDeaths
from lighthouse.values import ROOT, Base, Beat, Committed, Died, Heal, Prepare, Start, Version
from tests.lighthouse_script import FIRST, Script, nth

ASKED = SkipSlotAsked(by="Ann")
ONE = Version(1, FIRST)


def trains(**config: Any) -> Script:
    """g1 to g4 have committed one step, of four slots; the next one begins at slot 4 of the run."""
    script = Script(groups_wanted=4, **config)
    script.forms("g1", "g2", "g3", "g4")
    script.commits(1, "g1", "g2", "g3", "g4")
    return script


def dies(script: Script, name: str, slot: int, version: Version = ONE) -> None:
    """Its ranks died by themselves with that slot of the run in hand."""
    script.says(name, Beat(version=version), Died(reason="rank 0: signal 9", shard_rank=0, slot=slot, killed=True))


def report(script: Script, **answers: tuple[int, ...]) -> None:
    """These groups stand on step 1 and answer for these slots."""
    for name, slots in answers.items():
        script.reports(name, ONE, answers=slots, step_slots=4, generation=script.number)


def poisoned(**config: Any) -> Script:
    """Slot 2 of step 2 was in hand when g3 died, and when g4 did, which had taken it over."""
    script = trains(**config)
    dies(script, "g3", 6)
    report(script, g1=(0,), g2=(1,), g4=(3,))
    assert 2 in [slot for name in ("g1", "g2", "g4") for slot in script.base(name).slots]
    dies(script, "g4", 6)
    report(script, g1=(0,), g2=(1,))
    return script


def dealt(script: Script, *names: str) -> list[int]:
    return sorted(slot for name in names for slot in script.base(name).slots)


def test_the_run_holds_for_a_person_and_says_why() -> None:
    script = poisoned()
    assert script.hold is Hold.POISON
    why = script.told("hold")[-1].text
    for word in ("run 'run'", "slot 2 of step 2", "g3 and g4", "bellrock skip-slot"):
        assert word in why
    assert not any(isinstance(e, StoreBase) and e.set_aside for e in script.effects)


def test_a_person_has_it_skipped_in_this_step_only() -> None:
    script = poisoned()
    script.does(ASKED)
    assert script.told("skip_slot")[0].fields == {"by": "Ann"}
    assert "slot 2 of step 2" in script.told("set_aside")[0].text
    assert dealt(script, "g1", "g2") == [0, 1, 3]
    assert script.base("g1").set_aside == script.base("g2").set_aside == (2,)
    assert script.store.record.bases[-1].set_aside == (2,)
    script.commits(2, "g1", "g2", start=ONE)
    assert script.state.deaths == () and script.state.skipped == ()
    dies(script, "g2", 8, Version(2, script.number))
    script.reports("g1", Version(2, script.number), step_slots=4)
    assert script.base("g1").set_aside == () and script.base("g1").slots == (0, 1, 2, 3)


def test_by_policy_nobody_is_asked() -> None:
    script = poisoned(skip_poison=True)
    assert script.hold is Hold.NONE
    assert dealt(script, "g1", "g2") == [0, 1, 3] and script.base("g1").set_aside == (2,)


def test_whoever_is_lost_later_in_the_step_does_not_bring_it_back() -> None:
    script = poisoned()
    script.does(ASKED)
    dies(script, "g2", -1)
    report(script, g1=script.base("g1").slots)
    assert script.base("g1").slots == (0, 1, 3) and script.base("g1").set_aside == (2,)
    assert len(script.told("set_aside")) == 1


def test_a_slot_ahead_of_a_base_is_set_aside_too() -> None:
    """g1, alone, dies twice of slot 2 of step 2, and begins at the root again: it would for ever."""
    script = Script(groups_wanted=1, skip_poison=True)
    for _ in range(DEATHS):
        script.hello("g1")
        script.reports("g1")
        number = script.number
        script.commits(1, "g1")
        dies(script, "g1", 6, Version(1, number))
    script.hello("g1")
    script.reports("g1")
    assert script.base("g1").version == ROOT and script.base("g1").set_aside == (6,)
    assert script.base("g1").slots == (0, 1, 2, 3)
    assert "slot 6, in step 2, of run 'run'" in script.told("set_aside")[-1].text

    script.commits(1, "g1")  # and who joins before that step is told
    script.hello("g2")
    script.catches_up("g2", Version(1, script.number))
    prepare = script.sent("g2", Prepare)[-1]
    assert prepare.set_aside == script.sent("g1", Prepare)[-1].set_aside == (6,)
    start = Start(number=prepare.number, version=Version(1, script.number), cursor=4)
    done = Committed(version=start.version, start=start, loss=1.0, tokens=1, grad_norm=1.0, step_s=0.1)
    script.says("g1", done)
    assert script.store.record.bases[-1].set_aside == (2,) and script.state.gens[0].set_aside == (2,)


def test_a_person_is_asked_about_a_slot_ahead_of_a_base() -> None:
    script = Script(groups_wanted=1)
    for _ in range(DEATHS):
        script.hello("g1")
        script.reports("g1")
        number = script.number
        script.commits(1, "g1")
        dies(script, "g1", 6, Version(1, number))
    script.hello("g1")
    script.reports("g1")
    assert script.hold is Hold.POISON and not script.to("g1", Base)
    script.does(ASKED)
    assert script.base("g1").set_aside == (6,)


@pytest.mark.parametrize("slot", [-1, 7])
def test_one_death_or_deaths_with_other_slots_are_chance(slot: int) -> None:
    script = trains()
    dies(script, "g3", 6)
    report(script, g1=(0,), g2=(1,), g4=(3,))
    dies(script, "g4", slot)
    report(script, g1=(0,), g2=(1,))
    assert script.hold is Hold.NONE and dealt(script, "g1", "g2") == [0, 1, 2, 3]


def test_a_slot_that_somebody_answers_for_stays() -> None:
    """g1, cut off meanwhile, had been dealt it too and may have summed it: nothing can be taken out of a sum."""
    script = trains(skip_poison=True)
    dies(script, "g3", 6)
    dies(script, "g4", 6)
    report(script, g1=(0, 2), g2=(1,))
    assert script.base("g1").set_aside == () and dealt(script, "g1", "g2") == [0, 1, 2, 3]


def test_a_slot_is_the_same_in_whatever_step_it_comes() -> None:
    """A cold start cut off the history in which it was in step 4; since then it is in step 2."""
    script = trains(skip_poison=True)
    dies(script, "g3", 6, Version(3, 70))
    dies(script, "g4", 6)
    report(script, g1=(0,), g2=(1,))
    assert script.base("g1").set_aside == (2,) and dealt(script, "g1", "g2") == [0, 1, 3]


def test_no_person_is_asked_for_slots_that_were_consumed() -> None:
    script = trains()
    dies(script, "g3", 3)
    dies(script, "g4", 3)
    for name in ("g1", "g2"):
        script.reports(name, ONE, generation=script.number)
    assert script.hold is Hold.NONE and dealt(script, "g1", "g2") == [0, 1, 2, 3]


@pytest.mark.parametrize("skips", [False, True])
def test_another_lighthouse_goes_on_counting(skips: bool) -> None:
    script = trains()
    dies(script, "g3", 6)
    assert script.store.record.deaths == (SlotDeath(step=1, slot=6, group="g3"),)
    report(script, g1=(0,), g2=(1,), g4=(3,))
    number = script.number
    if skips:  # the policy of the next one may be another
        script.config = type(script.config)(**{**_fields(script.config), "skip_poison": True})
    script.starts()
    for name, incarnation, slots in (("g1", nth(1), (0,)), ("g2", nth(2), (1,)), ("g4", nth(4), (2, 3))):
        script.hello(name, incarnation=incarnation)
        script.reports(name, ONE, abandoned=number, answers=slots, step_slots=4, generation=number)
    dies(script, "g4", 6)
    report(script, g1=(0,), g2=(1,))
    assert script.hold is (Hold.NONE if skips else Hold.POISON)
    assert [b.set_aside for b in script.store.record.bases][-1] == ((2,) if skips else ())


def _fields(config: Any) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


def test_another_lighthouse_knows_what_a_person_had_skipped() -> None:
    script = poisoned()
    script.does(ASKED)
    number = script.number
    script.starts()
    for name, incarnation in (("g1", nth(1)), ("g2", nth(2))):
        script.hello(name, incarnation=incarnation)
    dies(script, "g2", -1)
    script.reports("g1", ONE, answers=(0, 3), step_slots=4, generation=number)
    assert script.base("g1").set_aside == (2,) and script.base("g1").slots == (0, 1, 3)


def test_groups_heal_while_a_person_is_waited_for() -> None:
    script = poisoned()
    script.hello("g3")
    assert script.to("g3", Heal) and not script.to("g3", Base)


def test_what_is_kept_is_bounded() -> None:
    script = trains()
    for slot in (4, 5, 6):
        for name in ("g1", "g2", "g3", "g4"):
            script.hello(name)
            dies(script, name, slot)
    assert len(script.state.deaths) <= 3 * DEATHS
    assert all(len(e.deaths) <= 3 * DEATHS for e in script.effects if isinstance(e, StoreDeaths))


def test_nothing_is_skipped_where_nothing_holds() -> None:
    script = trains()
    before = len(script.effects)
    script.does(ASKED)
    assert len(script.effects) == before and script.state.skipped == ()


def test_a_death_in_a_step_that_others_have_committed_does_not_count() -> None:
    script = trains()
    dies(script, "g3", 2, ROOT)
    assert script.state.deaths == ()
