"""The lighthouse's core, rule by rule: runs that pause while a joiner loads, since their updates cannot be replayed."""

from __future__ import annotations

from typing import Any

import pytest
from lead import SETUP, Lead, report_of, standing

from lighthouse.core import hold, wake_at
from lighthouse.core_values import Hold, Tell
from lighthouse.values import (
    Abandon,
    Base,
    Beat,
    CaughtUp,
    Drain,
    Failure,
    Goodbye,
    Heal,
    Leave,
    Prepare,
    Progress,
    Stage,
    Version,
)

TWO = ("g1", "g2")
PAUSES = {**SETUP, "heal": "pause"}
NOWHERE = Version(-1, 0)


def paused(**config: Any) -> tuple[Lead, Version, Heal]:
    """g1 and g2 were at work; j1 came, and they have reported: the run pauses, and j1 is told to load."""
    lead = Lead(groups_wanted=2, lease_s=50.0, **config)
    version = lead.form(*TWO, setup=PAUSES)
    lead.hello("j1", setup=PAUSES)
    assert not lead.told("j1", Heal), "not before all have abandoned what they were in"
    number = lead.state.last_number
    for name in TWO:
        lead.say(name, standing(version, abandoned=number, answers=(0, 1, 2) if name == "g1" else (3, 4, 5)))
    lead.say("j1", report_of(number))
    (heal,) = lead.told("j1", Heal)
    return lead, version, heal


def moves(lead: Lead, heal: Heal, count: int) -> None:
    told = Progress(heal=heal.heal, bytes=count, total=9, seconds=1.0, rate=1.0, donors=TWO, version=NOWHERE)
    lead.say("j1", told)


def test_the_others_wait_until_it_has_loaded_and_keep_what_they_answer_for() -> None:
    lead, version, _ = paused()
    assert hold(lead.state, lead.now) is Hold.PAUSE and all(lead.told(name, Stage)[-1].now for name in TWO)
    number = lead.state.last_number
    lead.say("j1", report_of(number, version))
    assert lead.members == list(TWO), "what it says before it has begun to load does not count"
    lead.say("j1", report_of(number, NOWHERE), report_of(number, version))
    assert lead.members == ["g1", "g2", "j1"] and not lead.told("j1", Prepare)
    assert [lead.told(name, Base)[-1].slots for name in (*TWO, "j1")] == [(0, 1, 2), (3, 4, 5), ()]


@pytest.mark.parametrize(("leaving", "donors"), [((), TWO), (("g1",), ("g2",)), (TWO, TWO)])
def test_who_is_about_to_leave_gives_if_nobody_else_can(leaving: tuple[str, ...], donors: tuple[str, ...]) -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form(*TWO, setup=PAUSES)
    lead.hello("j1", setup=PAUSES)
    number = lead.state.last_number
    for name in leaving:
        lead.say(name, Drain())
    lead.say("j1", report_of(number))
    for name in TWO:
        lead.say(name, standing(version, abandoned=number))
    (heal,) = lead.told("j1", Heal)
    assert tuple(source.name for source in heal.sources) == donors
    assert not any(lead.told(name, Leave) for name in TWO)


def given_up(lead: Lead) -> list[str]:
    return [e.group for e in lead.effects if isinstance(e, Tell) and e.kind == "heal_failed"]


def test_nobody_waits_longer_than_bytes_may_stay_away_and_it_is_held_off() -> None:
    lead, _, heal = paused()
    beating = (*TWO, "j1")
    patience_s = lead.state.config.deadlines.heal_s
    lead.pass_time(0.6 * patience_s, beating)
    moves(lead, heal, 3)
    lead.pass_time(0.6 * patience_s, beating)
    assert hold(lead.state, lead.now) is Hold.PAUSE and not given_up(lead), "bytes move"
    due = wake_at(lead.state, lead.now)
    assert due is not None and due <= lead.now + patience_s
    lead.pass_time(0.5 * patience_s, beating)
    assert lead.members == list(TWO) and given_up(lead) == ["j1"]


def test_who_was_given_up_is_not_waited_for_again_at_once() -> None:
    lead, _, _ = paused()
    beating = (*TWO, "j1")
    while not given_up(lead):
        lead.pass_time(0.5, beating)
    before = len(lead.told("g1", Abandon))
    lead.commit(4, *TWO)
    lead.pass_time(0.3, beating)
    assert len(lead.told("g1", Abandon)) == before and hold(lead.state, lead.now) is Hold.NONE
    lead.pass_time(1.2, beating)
    assert len(lead.told("g1", Abandon)) == before + 1, "they pause for it again"


def test_no_entry_leads_anybody_on() -> None:
    lead, version, _ = paused(min_groups=1)
    ahead = Version(version.step + 1, version.generation)
    number = lead.state.last_number
    lead.say("g1", standing(ahead, abandoned=number))
    lead.say("j1", report_of(number, NOWHERE))
    assert lead.told("g2", Heal), "one behind a holder of the entry, it loads"


def test_a_joiner_that_entered_and_is_one_behind_loads_again() -> None:
    lead, version, heal = paused(min_groups=2)
    number = lead.state.last_number
    lead.say("j1", report_of(number, NOWHERE, heal=heal.heal), report_of(number, version, heal=heal.heal))
    assert lead.members == ["g1", "g2", "j1"]
    lead.say("j1", CaughtUp(version=version))
    lead.say("j1", Failure(number=lead.number, reason="connection closed by peer"))
    ahead, number = Version(version.step + 1, number), lead.state.last_number
    lead.say("g2", Beat(version=ahead), Goodbye(reason="drained"))
    lead.say("g1", standing(ahead, abandoned=number))
    lead.say("j1", report_of(number, version, generation=ahead.generation))
    assert hold(lead.state, lead.now) is Hold.TOO_FEW
    assert len(lead.told("j1", Heal)) == 2


@pytest.mark.parametrize("back", [0, 1])
def test_who_has_loaded_in_an_earlier_pause_loads_again_unless_nothing_was_made_since(back: int) -> None:
    """It is back amid a pause, out of a heal that an earlier lighthouse had begun."""
    lead, version, _ = paused(min_groups=2)
    stood = Version(version.step - back, version.generation)
    report = report_of(lead.state.last_number, stood, heal=77, donors=("g1",))
    lead.hello("j2", report, setup=PAUSES)
    lead.say("j2", report, CaughtUp(version=stood))
    assert len(lead.told("j2", Heal)) == back
    number = lead.state.last_number
    lead.say("j1", report_of(number, NOWHERE), report_of(number, version))
    assert ("j2" in lead.members) is (back == 0)


@pytest.mark.parametrize("setup", [SETUP, PAUSES])
def test_only_runs_that_say_so_pause(setup: dict[str, str]) -> None:
    lead = Lead(groups_wanted=2)
    lead.form(*TWO, setup=setup)
    before = len(lead.told("g1", Abandon))
    lead.hello("j1", setup=setup)
    assert (len(lead.told("g1", Abandon)) > before) is (setup is PAUSES)


def test_nobody_is_a_donor_while_nobody_pauses() -> None:
    lead = Lead(groups_wanted=2)
    lead.form(*TWO, steps=0, setup=PAUSES)
    lead.hello("j1", setup=PAUSES)
    assert not lead.told("j1", Heal), "roles have not settled: no pause yet"
    lead.commit(1, *TWO)
    assert len(lead.told("g1", Abandon)) == 2
