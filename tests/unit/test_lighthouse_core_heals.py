"""A donor hears when a heal is over, whatever ends it; and what it serves, when it comes back."""

from __future__ import annotations

from lead import Lead

from lighthouse.values import Beat, Heal, Opened, Release, Stage, Start, Version, Welcome

TWO = ("g1", "g2")


def switched(lead: Lead) -> tuple[int, Start]:
    """j1 has healed from g1 and enters with a plan: (its heal, the start of that generation)."""
    version = lead.form(*TWO)
    prepare = lead.join("j1", version)
    for name in (*TWO, "j1"):
        lead.say(name, Opened(number=prepare.number))
    (stage,) = lead.told("g1", Stage)
    return stage.heal, Start(number=prepare.number, version=Version(4, version.generation))


def test_a_joiner_that_entered_needs_its_donor_no_more() -> None:
    lead = Lead(groups_wanted=2)
    heal, start = switched(lead)
    lead.commit(4, "g1", start=start)
    assert not lead.told("g1", Release)
    lead.commit(5, "g1", start=start)
    assert [release.heal for release in lead.told("g1", Release)] == [heal]


def test_nor_does_one_whose_digest_differed() -> None:
    lead = Lead(groups_wanted=2)
    heal, start = switched(lead)
    lead.commit(4, "g1", start=start)
    lead.commit(5, "g1", start=start, mismatched=("j1",))
    assert [release.heal for release in lead.told("g1", Release)] == [heal]


def test_a_donor_that_comes_back_is_told_whom_it_serves() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form(*TWO)
    assert lead.told("g1", Welcome)[-1].heals == ()
    lead.hello("j1")
    (heal,) = lead.told("j1", Heal)
    lead.say("g1", Beat(version=version))
    lead.hello("g1", incarnation=1)
    lead.hello("g2", incarnation=2)
    assert lead.told("g1", Welcome)[-1].heals == (heal.heal,)
    assert lead.told("g2", Welcome)[-1].heals == ()
    assert lead.told("g1", Welcome)[-1].first_heal <= heal.heal
