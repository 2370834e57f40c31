"""Members that do not reach each other: no mark shows whose fault it is, so pairs are tried before anybody goes."""

from __future__ import annotations

import pytest
from lighthouse_script import FIRST, SETUP, Script

from lighthouse.core_apart import TRIES
from lighthouse.core_record import APART_TRIES
from lighthouse.core_state import change_group
from lighthouse.core_values import Hold
from lighthouse.deadlines import DEFAULTS
from lighthouse.values import Base, Beat, Died, Drain, Goodbye, Heal, HealFailed, Leave, Probe, Probed, Version

AT_1 = Version(1, FIRST)
WAITS = 1_000_000


def stalled(*names: str, marks: dict[str, int] | None = None, heal: str = "log", **config: object) -> Script:
    """These form, commit a step, and then none for the patience; all have reported, with these marks."""
    script = Script(**{"groups_wanted": len(names), "stall_patience_s": 12.0, "lease_s": 2.0, **config})
    script.forms(*names, setup={**SETUP, "heal": heal})
    script.commits(1, *names)
    while not script.told("abandon")[1:]:
        script.passes(1.0)
        for name in names:
            script.says(name, Beat(version=AT_1))
    for name in names:
        script.reports(name, AT_1, generation=FIRST, mark=(marks or {}).get(name, WAITS))
    return script


def answers(script: Script, **unreached: str) -> None:
    """All members answer; those named do not reach these."""
    number = script.sent(next(iter(unreached), "g1"), Probe)[-1].number
    for name in list(script.state.current.members):
        if script.group(name):
            script.says(name, Probed(number=number, unreached=tuple(unreached.get(name, "").split())))


def members(script: Script) -> list[str]:
    return [member.name for member in script.state.current.roster]


def test_everybody_tries_those_who_follow_it() -> None:
    script = stalled("g1", "g2", "g3")
    assert script.hold is Hold.REPORTS
    for name, peers in (("g1", "g2 g3"), ("g2", "g3 g1"), ("g3", "g1 g2")):
        (probe,) = script.sent(name, Probe)
        assert [target.name for target in probe.targets] == peers.split()
        assert probe.targets[0].weights == (f"{peers[:2]}:2",)


def test_of_many_each_tries_a_few() -> None:
    script = stalled(*(f"g{i}" for i in range(3 * TRIES)))
    assert {len(script.sent(f"g{i}", Probe)[-1].targets) for i in range(3 * TRIES)} == {TRIES}


@pytest.mark.parametrize(
    ("unreached", "out"),
    [
        ({"g2": "g1 g3", "g1": "g2", "g3": "g2"}, "g2"),
        ({"g2": "g1 g3"}, "g2"),  # one who knows is enough
        ({"g1": "g2", "g3": "g2"}, "g2"),
        ({"g1": "g2 g3", "g2": "g1"}, "g1"),
        ({"g1": "g3"}, "g3"),  # of two, the last by name
    ],
)
def test_who_lacks_the_most_others_is_put_out_and_nothing_is_started_again(unreached: dict[str, str], out: str) -> None:
    script = stalled("g1", "g2", "g3")
    answers(script, **unreached)
    assert members(script) == [name for name in ("g1", "g2", "g3") if name != out]
    assert [told.group for told in script.told("apart")] == [out]
    assert not script.sent(out, Leave) and script.group(out).apart
    assert script.sent(out, Heal), "it comes back as joiners do"


def test_two_halves_that_do_not_reach_each_other() -> None:
    script = stalled("g1", "g2", "g3", "g4")
    answers(script, g1="g3 g4", g2="g3 g4")
    assert members(script) == ["g1", "g2"]


def test_is_nobody_apart_the_marks_count() -> None:
    script = stalled("g1", "g2", "g3", marks={"g2": 3})
    answers(script)
    assert members(script) == ["g1", "g3"] and [told.group for told in script.told("evicted")] == ["g2"]
    assert script.sent("g2", Leave)[-1].restart


def test_marks_do_not_count_where_a_cable_is_cut() -> None:
    """Who hears nothing is behind those who hear: that is not its fault."""
    script = stalled("g1", "g2", "g3", marks={"g1": WAITS + 1})
    answers(script, g3="g2")
    assert not script.told("evicted") and members(script) == ["g1", "g2"]


def test_who_does_not_answer_is_not_waited_for_long() -> None:
    script = stalled("g1", "g2", "g3")
    number = script.sent("g1", Probe)[-1].number
    script.says("g1", Probed(number=number, unreached=("g2",)))
    for _ in range(int(DEFAULTS.answers_s) + 1):
        script.passes(1.0)
        for name in ("g1", "g2", "g3"):
            script.says(name, Beat(version=AT_1))
    assert members(script) == ["g1", "g3"]


def test_an_answer_of_an_earlier_change_says_nothing() -> None:
    script = stalled("g1", "g2", "g3")
    number = script.sent("g1", Probe)[-1].number
    for name in ("g1", "g2", "g3"):
        script.says(name, Probed(number=number - 1, unreached=("g2",)))
    assert script.hold is Hold.REPORTS
    answers(script)
    assert members(script) == ["g1", "g2", "g3"]


def test_who_is_apart_is_not_taken_back_by_the_next_change_but_as_a_joiner() -> None:
    script = stalled("g1", "g2", "g3")
    answers(script, g2="g1 g3")
    number = script.number
    script.commits(2, "g1", "g3", start=AT_1)
    script.ends("g3")
    for _ in range(3):
        script.passes(1.0)
        script.says("g1", Beat(version=Version(2, number)))
        script.says("g2", Beat(version=AT_1))
    script.reports("g2", AT_1)
    script.reports("g1", Version(2, number))
    assert members(script) == ["g1"] and not script.to("g2", Base)
    here = Version(2, number)
    script.catches_up("g2", here)
    assert not script.group("g2").apart


def test_who_is_apart_goes_on_where_nobody_else_can() -> None:
    """g1 was the only one left who was not apart, too few alone, and wanted to leave."""
    script = stalled("g1", "g2", "g3", min_groups=2)
    script.says("g1", Drain())
    answers(script, g1="g2 g3", g2="g3")
    assert [told.group for told in script.told("apart")] == ["g3", "g2"] and script.hold is Hold.TOO_FEW
    assert not script.to("g2", Base) and not script.to("g3", Base)
    script.says("g1", Goodbye(reason="drained"))
    assert script.hold is Hold.NONE and members(script) == ["g2", "g3"]


def test_who_is_apart_in_a_hold_does_not_load_what_it_has() -> None:
    """Those that it would load from may be out of its reach, and die: then it goes on from where it stands."""
    script = stalled("g1", "g2", "g3", min_groups=2)
    answers(script, g1="g2 g3", g2="g3")
    for name in ("g2", "g3"):
        assert script.heal(name).entries
    for failures in range(1, APART_TRIES + 3):
        script.says("g2", HealFailed(heal=script.heal("g2").heal, reason="no source answers"))
        for _ in range(1 + 2 ** min(failures, 6)):
            script.passes(1.0)
            for name in ("g1", "g2", "g3"):
                script.says(name, Beat(version=AT_1))
        assert (
            script.hold is Hold.TOO_FEW and len(script.sent("g2", Heal)) == failures + 1 and script.heal("g2").entries
        )
    script.says("g1", Died(reason="signal 9", shard_rank=0))
    assert script.hold is Hold.NONE and members(script) == ["g2", "g3"]


def test_who_is_apart_loads_where_entries_cannot_be_replayed() -> None:
    script = stalled("g1", "g2", "g3", heal="pause", min_groups=3)
    answers(script, g2="g1 g3")
    assert script.hold is Hold.TOO_FEW and not script.heal("g2").entries


def test_entries_are_kept_for_who_is_apart_though_it_cannot_get_them_yet() -> None:
    script = stalled("g1", "g2", "g3", lease_s=20.0)
    answers(script, g2="g1 g3")
    step = 1
    for failures in range(1, APART_TRIES + 2):
        heal = script.heal("g2")
        assert heal.entries, f"after {failures - 1} failures"
        script.says("g2", HealFailed(heal=heal.heal, reason="no source answers"))
        for _ in range(1 + 2**failures // 4):
            step += 1
            script.passes(4.0)
            script.commits(step, "g1", "g3", start=AT_1)
            script.says("g2", Beat(version=AT_1))
    assert not script.heal("g2").entries, "not for ever"


def test_one_alone_tries_nobody() -> None:
    script = stalled("g1")
    assert not script.sent("g1", Probe) and members(script) == ["g1"]


def test_who_is_put_out_as_a_joiner_heals_anew() -> None:
    """It had caught up, and did not get in with that."""
    script = stalled("g1", "g2", "g3")
    script.state = change_group(script.state, script.group("g2"), caught=True)
    answers(script, g2="g1 g3")
    assert script.group("g2").apart and not script.group("g2").caught
    assert script.heal("g2")


def test_what_was_not_reached_in_an_earlier_change_says_nothing() -> None:
    script = stalled("g1", "g2", "g3")
    number = script.sent("g1", Probe)[-1].number
    script.state = change_group(script.state, script.group("g1"), tried=number - 1, unreached=("g2",))
    for name in ("g2", "g3"):
        script.says(name, Probed(number=number))
    for _ in range(8):
        script.passes(1.0)
        for name in ("g1", "g2", "g3"):
            script.says(name, Beat(version=AT_1))
    assert not script.told("apart")
