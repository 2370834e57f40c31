"""How large a step is, who contributes, and where the data ends, as the agent has it."""

from __future__ import annotations

from agent_script import Script, members, merged_step, source

from lighthouse.values import ROOT, Abandon, Ready, Role, RosterChange, Start, Version
from replica.values import RankOpened

ELASTIC = {"slots_per_group": "2"}


def elastic(**welcome: object) -> Script:
    """An agent in generation 5 of an elastic run, in the first step of which c was lost: three of six slots are its."""
    script = Script().begins(setup=ELASTIC, **welcome)
    script.based(slots=(0, 1, 4), step_slots=6)
    return script


def test_a_step_has_the_size_that_its_base_tells() -> None:
    script = elastic()
    work = script.goes().work
    assert (work.slots, work.step_slots) == ((0, 1, 4), 6)
    script.told(Abandon(number=6))
    assert script.report.step_slots == 6 and script.report.answers == (0, 1, 4)


def test_the_next_step_has_the_size_of_its_contributors() -> None:
    script = elastic()
    commit = script.commits([(0, 1, 4), (2, 3, 5)])
    assert (commit.merged.slots, commit.next.cursor) == (6, 6)
    assert (commit.next.slots, commit.next.step_slots) == ((0, 1), 4)
    script.told(Abandon(number=6))
    assert (script.report.cursor, script.report.step_slots) == (6, 4)


def test_spares_bring_no_slots() -> None:
    script = Script().begins(setup=ELASTIC, contributors_wanted=2)
    script.based(roster=members("a", "b", c=Role.SPARE), step_slots=4)
    commit = script.commits([(0, 1), (2, 3), ()])
    assert commit.next.step_slots == 4


def test_nobody_is_promoted_beyond_what_is_allowed() -> None:
    for allowed, slots in (((), 6), ((1, 2), 4), ((1, 3), 6)):
        script = Script().begins(setup=ELASTIC, allowed_groups=allowed)
        script.based(roster=members("a", "b", c=Role.SPARE), step_slots=4)
        assert script.commits([(0, 1), (2, 3), ()]).next.step_slots == slots


def test_the_last_step_is_what_is_left_of_the_data() -> None:
    script = Script().begins(setup={"data_slots": "10", "drop_last": "False"})
    script.based()
    sizes = [script.commits().next.step_slots for _ in range(2)]
    assert sizes == [4, 2] and script.state.stand.cursor == 8


def test_a_switch_tells_where_the_next_step_begins() -> None:
    script = elastic()
    script.prepared(7, RosterChange(previous=5, joined=members(c=Role.NEWCOMER)))
    script.ranks(RankOpened(number=7))
    script.told(Ready(number=7))
    commit = script.commits([(0, 1, 4), (2, 3, 5)], opened=7)
    assert (commit.next.generation, commit.next.step_slots) == (7, 4), "a newcomer brings nothing yet"
    script.told(Abandon(number=8))
    assert script.report.starts == (Start(number=7, version=Version(1, 5), cursor=6),)


def test_who_applied_an_entry_does_not_know_how_the_next_step_was_dealt() -> None:
    """The base that it levelled to cannot be entered: its roster was told from a generation that is not known here."""
    script = elastic()
    script.told(Abandon(number=6))
    gone = RosterChange(previous=4, left=("z",))
    script.based(number=6, version=Version(1, 5), cursor=6, change=gone, sources=(source("b"),), step_slots=4)
    script.holds(merged_step(ROOT, 5))
    assert script.version == Version(1, 5) and script.report.failed
    assert (script.report.answers, script.report.step_slots) == ((), 0)


def test_the_step_with_which_the_data_is_through_is_the_last() -> None:
    script = Script().begins(setup={"data_slots": "11"})
    script.based()
    assert not script.goes().work.last
    assert script.commits().next.last, "of the three slots that are left after it no step is made"
    commit = script.commits(stop=True)
    assert commit.next.farewell and not commit.next.last


def test_a_step_that_is_dealt_anew_is_the_last_by_its_own_size() -> None:
    """Eleven slots are left: with one after it no step is made, with three one is."""
    for size, last in ((10, True), (8, False)):
        script = Script().begins(setup={**ELASTIC, "data_slots": "11"})
        script.based(step_slots=size)
        assert script.goes().work.last is last
