"""The lighthouse's core, rule by rule: what a restarted lighthouse makes of what an earlier one had begun."""

from __future__ import annotations

import pytest
from lead import SETUP, Lead, member, report_of, standing

from lighthouse.core_values import BaseRecord, ClaimRecord, Send, StoreBase, StoreRecord
from lighthouse.values import (
    ROOT,
    Abandon,
    CaughtUp,
    Heal,
    HealFailed,
    Member,
    Prepare,
    Report,
    Role,
    Stage,
    Start,
    Version,
    Welcome,
)

FIRST, SECOND = 1001, 1002
THREE = ("g1", "g2", "g3")
JOINER = 9
NOWHERE = Version(-1, 0)
SWITCH = Version(4, FIRST)


def roster(*names: str) -> tuple[Member, ...]:
    return tuple(member(name, int(name[1])) for name in names)


def restarted(*names: str, planned: tuple[Member, ...] = (), entered: bool = False) -> Lead:
    """A store with a generation of these members, and perhaps with one that is planned, or was entered at SWITCH."""
    claims = [ClaimRecord(number=FIRST, roster=roster(*names), planned=False)]
    bases = [BaseRecord(number=FIRST, version=ROOT, cursor=0)]
    if planned:
        claims.append(ClaimRecord(number=SECOND, roster=planned, planned=True))
    if entered:
        bases.append(BaseRecord(number=SECOND, version=SWITCH, cursor=24))
    last = max(claim.number for claim in claims)
    record = StoreRecord(
        first_number=FIRST,
        last_number=last,
        next_incarnation=JOINER + 1,
        claims=tuple(claims),
        bases=tuple(bases),
        setup=SETUP,
    )
    return Lead(record)


def back(lead: Lead, name: str, report: Report) -> None:
    lead.hello(name, report, incarnation=JOINER if name == "j1" else int(name[1]))


def joins(*names: str) -> tuple[Member, ...]:
    return (*roster(*names), member("j1", JOINER, Role.NEWCOMER))


@pytest.mark.parametrize("last", ["j1", "g3"])
@pytest.mark.parametrize("heard", [("g1", "g2", "g3"), ("g1", "g2"), ("g3",)])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_heal_goes_on_if_all_its_donors_heard_of_it(last: str, heard: tuple[str, ...], loaded: bool) -> None:
    """Whoever says hello last. Has it loaded, then nothing is to be staged any more."""
    lead = restarted(*THREE)
    version = Version(3, FIRST)
    reports = {name: standing(version, generation=FIRST, stagings=(77,) * (name in heard)) for name in THREE}
    reports["j1"] = report_of(FIRST, version if loaded else NOWHERE, heal=77, donors=THREE)
    for name in sorted(reports, key=lambda name: name == last):
        back(lead, name, reports[name])
    anew = not loaded and heard != THREE
    assert len(lead.told("j1", Heal)) == anew
    assert all(len(lead.told(name, Stage)) == anew for name in ("g1", "g2"))


def test_nothing_is_planned_before_all_its_members_are_back() -> None:
    """Where they are reached is not known."""
    lead = restarted("g1", "g2")
    version = Version(3, FIRST)
    back(lead, "g2", standing(version, generation=FIRST, stagings=(77,)))
    report = report_of(FIRST, version, heal=77, donors=("g2",))
    back(lead, "j1", report)
    lead.say("j1", report, CaughtUp(version=version))
    lead.commit(4, "g2")
    assert not lead.told("j1", Prepare)
    back(lead, "g1", standing(SWITCH, generation=FIRST))
    (prepare,) = lead.told("j1", Prepare)
    assert prepare.rendezvous == ("g1:1",) and lead.told("g2", Prepare)


@pytest.mark.parametrize("switch_first", [True, False])
def test_a_joiner_that_loaded_what_the_switch_led_to_is_not_waited_for(switch_first: bool) -> None:
    """No entry will tell it of the switch."""
    lead = restarted("g1", "g2", planned=joins("g1", "g2"))
    for name in ("g1", "g2"):
        back(lead, name, standing(Version(3, FIRST), generation=FIRST, stagings=(77,)))
    report = report_of(FIRST, Version(3, FIRST), heal=77, donors=("g2",))
    back(lead, "j1", report)
    lead.say("j1", report, CaughtUp(version=report.version))
    told = [("g1", None), ("j1", report_of(FIRST, SWITCH, heal=77, donors=("g2",)))]
    for name, said in told if switch_first else reversed(told):
        assert len(lead.told("g1", Abandon)) == 0
        if said is None:
            lead.commit(4, name, start=Start(number=SECOND, version=SWITCH, cursor=24))
        else:
            lead.say(name, said)
    (abandon,) = lead.told("g1", Abandon)
    assert "j1" in abandon.reason and lead.number == SECOND


@pytest.mark.parametrize("stands", [Version(3, FIRST), SWITCH, NOWHERE])
def test_a_joiner_that_cannot_enter_is_not_waited_for_by_the_next_lighthouse_either(stands: Version) -> None:
    """The one that had seen the switch was gone before it could do anything about it."""
    lead = restarted("g1", "g2", planned=joins("g1", "g2"), entered=True)
    back(lead, "g1", standing(SWITCH, generation=SECOND))
    back(lead, "j1", report_of(FIRST, stands, heal=77, donors=("g2",)))
    follows = stands.step == 3
    assert (lead.state.change is None) is follows
    if follows:
        lead.say("j1", HealFailed(heal=77, reason="no source answers"))
    (abandon,) = lead.told("g1", Abandon)
    assert "j1" in abandon.reason


def test_a_base_that_a_hello_brings_is_stored_before_the_welcome() -> None:
    """Who was welcomed does not tell of it again, and a lighthouse may be gone between any two effects."""
    lead = restarted("g1", "g2", planned=roster("g2"))
    start = Start(number=SECOND, version=SWITCH, cursor=24)
    back(lead, "g2", standing(Version(6, SECOND), generation=SECOND, starts=(start,)))
    kinds = [type(e.message if isinstance(e, Send) else e) for e in lead.effects]
    assert kinds.index(StoreBase) < kinds.index(Welcome)
    assert lead.number == SECOND and lead.state.history.contains(Version(6, SECOND))
    back(lead, "g1", standing(SWITCH, abandoned=SECOND + 1, generation=SECOND, starts=(start,)))
    assert len([e for e in lead.effects if isinstance(e, StoreBase)]) == 1


def test_a_joiner_that_follows_is_waited_for_by_the_next_lighthouse() -> None:
    lead = restarted("g1", "g2", planned=joins("g1", "g2"), entered=True)
    for name in ("g1", "g2"):
        back(lead, name, standing(SWITCH, generation=SECOND, stagings=(77,)))
    report = report_of(FIRST, Version(3, FIRST), heal=77, donors=("g2",))
    back(lead, "j1", report)
    lead.say("j1", CaughtUp(version=report.version))
    lead.say("j1", report_of(FIRST, SWITCH, generation=SECOND))
    lead.commit(5, "g1")
    assert lead.state.change is None and not lead.told("g1", Abandon)
