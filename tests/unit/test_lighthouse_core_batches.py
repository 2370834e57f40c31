"""How large a step is after a change, and who contributes: elastic batches and allowed counts, in the lighthouse."""

from __future__ import annotations

from lead import Lead, standing

from lighthouse.values import Base, Died, Drain, Member, Opened, Prepare, Report, Role, Start, Version

TWO, THREE = ("g1", "g2"), ("g1", "g2", "g3")
ELASTIC = {"slots_per_group": "2", "steps": "100"}
C, S = Role.CONTRIBUTOR, Role.SPARE


def based(lead: Lead, name: str) -> Base:
    return lead.told(name, Base)[-1]


def slots(lead: Lead, *names: str) -> list[tuple[int, ...]]:
    return [based(lead, name).slots for name in names]


def roles(lead: Lead) -> list[Role]:
    assert lead.state.current is not None
    return [member.role for member in lead.state.current.roster]


def dies(lead: Lead, name: str) -> int:
    """It is dead; the number that the others are told."""
    lead.say(name, Died(reason="signal 9", shard_rank=0))
    return lead.state.last_number


def of_elastic(version: Version, **fields: object) -> Report:
    """A report in an elastic run of three groups, whose cursor has moved by six slots a step."""
    return standing(version, **{"step_slots": 6, **fields})


def test_an_elastic_step_keeps_its_size_when_a_group_is_lost_in_it() -> None:
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE, setup=ELASTIC)
    assert slots(lead, *THREE) == [(0, 1), (2, 3), (4, 5)]
    assert {based(lead, name).step_slots for name in THREE} == {6}
    number = dies(lead, "g3")
    lead.say("g1", of_elastic(version, abandoned=number, answers=(0, 1)))
    lead.say("g2", of_elastic(version, abandoned=number, answers=(2, 3)))
    assert slots(lead, *TWO) == [(0, 1, 4), (2, 3, 5)]
    assert {based(lead, name).step_slots for name in TWO} == {6}


def test_the_size_is_that_of_who_knows_it() -> None:
    """g1 has got to the version by an entry, and does not know how the step that follows was dealt."""
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE, setup=ELASTIC)
    number = dies(lead, "g3")
    lead.say("g1", of_elastic(version, abandoned=number, step_slots=0))
    lead.say("g2", of_elastic(version, abandoned=number, answers=(2, 3)))
    assert based(lead, "g2").step_slots == 6
    assert slots(lead, *TWO) == [(0, 1, 4), (2, 3, 5)]


def test_a_step_that_nobody_knows_is_dealt_anew() -> None:
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE, setup=ELASTIC)
    number = dies(lead, "g3")
    for name in TWO:
        lead.say(name, of_elastic(version, abandoned=number, step_slots=0))
    assert slots(lead, *TWO) == [(0, 1), (2, 3)] and based(lead, "g1").step_slots == 4


def test_of_a_step_of_another_size_only_the_slots_that_are_left_are_kept() -> None:
    """g1 was cut off in a step of six slots; meanwhile the others dealt it anew, as one of four."""
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE, setup=ELASTIC)
    number = dies(lead, "g3")
    lead.say("g1", of_elastic(version, abandoned=number, answers=(1, 4)))
    later = {"step_slots": 4, "generation": version.generation + 1, "answers": (0,)}
    lead.say("g2", of_elastic(version, abandoned=number, **later))
    assert based(lead, "g2").step_slots == 4
    assert slots(lead, *TWO) == [(1, 2), (0, 3)], "slot 4 is of a later step now"


def test_who_is_one_too_many_is_a_spare() -> None:
    lead = Lead(groups_wanted=3, allowed_groups=(1, 2))
    version = lead.form(*THREE)
    assert roles(lead) == [C, C, S] and slots(lead, *THREE) == [(0, 1, 2), (3, 4, 5), ()]
    number = dies(lead, "g1")
    for name, answers in (("g2", (3, 4, 5)), ("g3", ())):
        lead.say(name, standing(version, abandoned=number, answers=answers))
    assert roles(lead) == [C, S], "it is promoted by the roll call that follows"
    assert slots(lead, "g2", "g3") == [(3, 4, 5), (0, 1, 2)], "but takes over at once"


def test_a_role_that_grew_and_is_taken_back_is_told() -> None:
    """g4 was a spare when the roster was told; since then it has grown, which the lighthouse learns from a report."""
    lead = Lead(groups_wanted=4, allowed_groups=(1, 3))
    version = lead.form(*THREE, "g4")
    assert roles(lead) == [C, C, C, S]
    number = dies(lead, "g1")
    grown = (Member(name="g4", incarnation=lead.incarnations["g4"], role=C, host="g4.example"),)
    lead.say("g2", standing(version, abandoned=number, promoted=grown))
    dies(lead, "g3")
    lead.say("g4", standing(version, abandoned=number, promoted=grown))
    assert lead.members == ["g2", "g4"] and roles(lead) == [C, S]
    assert [(m.name, m.role) for m in based(lead, "g4").roster.joined] == [("g4", S)]


def test_a_planned_generation_has_an_allowed_count_too() -> None:
    lead = Lead(groups_wanted=3, allowed_groups=(1, 3))
    version = lead.form(*THREE)
    lead.say("g2", Drain())
    (prepare,) = lead.told("g1", Prepare)
    assert [(m.name, m.role) for m in prepare.roster.joined] == [("g3", S)]
    for name in THREE:
        lead.say(name, Opened(number=prepare.number))
    lead.commit(4, "g1", start=Start(number=prepare.number, version=Version(4, version.generation), cursor=24))
    assert roles(lead) == [C, S]


def test_a_spare_has_the_place_of_who_leaves() -> None:
    lead = Lead(groups_wanted=3, contributors_wanted=2)
    lead.form(*THREE)
    lead.say("g1", Drain())
    (prepare,) = lead.told("g2", Prepare)
    assert [(m.name, m.role) for m in prepare.roster.joined] == [("g3", C)]
