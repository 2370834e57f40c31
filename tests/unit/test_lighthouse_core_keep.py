"""The way back of a group that was left behind alive: entries are kept for it, and it needs no snapshot."""

from __future__ import annotations

import msgspec
import pytest
from lighthouse_script import FIRST, Script, nth

from lighthouse.core_keep import MOST, way_back
from lighthouse.core_values import Hold
from lighthouse.values import Beat, Died, Heal, HealFailed, Release, Report, Source, Stage, Version

AT_5 = Version(5, FIRST)


def left_behind(away: str = "g3", lease_s: float = 2.0, min_groups: int = 1) -> Script:
    """Three groups at step 5; the lease of one runs out, and the others go on."""
    script = Script(groups_wanted=3, lease_s=lease_s, min_groups=min_groups)
    script.forms("g1", "g2", "g3")
    for step in range(1, 6):
        script.commits(step, "g1", *(("g2", "g3") if step == 1 else ()))
    stay = [name for name in ("g1", "g2", "g3") if name != away]
    script.passes(lease_s / 2)
    for name in stay:
        script.says(name, Beat(version=AT_5))
    script.passes(lease_s / 2)
    assert [told.group for told in script.told("lost")] == [away]
    for name in stay:
        script.reports(name, AT_5)
    return script


def back(script: Script, version: Version = AT_5, name: str = "g3", incarnation: int = nth(3)) -> list[object]:
    """It says hello again as the one that it was, standing on `version`."""
    report = Report(abandoned=FIRST + 1, version=version, cursor=4 * version.step, generation=FIRST)
    return list(script.hello(name, report, incarnation=incarnation))


def test_a_member_of_the_next_generation_keeps_entries_for_who_is_left_behind() -> None:
    script = left_behind()
    kept = script.to("g1", Stage)
    assert kept == [Stage(heal=kept[0].heal, joiner="g3", donors=1, place=0, now=True, entries=True)]
    assert not script.to("g2", Stage)
    told = [type(m).__name__ for e in script.last if (m := getattr(e, "message", None)) is not None]
    assert told.index("Stage") < told.index("Base"), "else the entry of the last step may be gone"


def test_who_comes_back_standing_in_the_history_follows_entries() -> None:
    script = left_behind()
    heal = script.sent("g1", Stage)[-1].heal
    script.commits(6, "g1", "g2", start=AT_5)
    back(script)
    assert script.to("g3", Heal) == [
        Heal(heal=heal, sources=(Source(name="g1", weights=("g1:2",)),), entries=True),
    ]
    assert not script.to("g1", Stage), "no snapshot is staged"
    assert script.told("heal")[-1].text == "by entries"
    script.catches_up("g3", Version(6, FIRST + 1))
    assert script.told("prepare")[-1].fields["joins"] == "g3"


def test_in_a_hold_what_it_said_before_it_heard_of_its_way_back_changes_nothing() -> None:
    script = left_behind(min_groups=2)
    script.commits(6, "g1", "g2", start=AT_5)
    script.says("g2", Died(reason="gone", shard_rank=0))
    script.reports("g1", Version(6, FIRST + 1))
    assert script.hold is Hold.TOO_FEW
    back(script)
    script.reports("g3", AT_5)
    assert [heal.entries for heal in script.sent("g3", Heal)] == [True]
    script.reports("g3", Version(6, FIRST + 1), heal=script.heal("g3").heal, generation=FIRST)
    assert {m.name for m in script.state.current.roster} == {"g1", "g3"}


@pytest.mark.parametrize(
    ("version", "incarnation", "why"),
    [
        (Version(6, FIRST), nth(3), "it made a step of its own, which is not in the history"),
        (Version(-1, 0), nth(3), "it stands nowhere"),
        (AT_5, 0, "it is another incarnation"),
    ],
)
def test_anybody_else_loads_a_snapshot(version: Version, incarnation: int, why: str) -> None:
    script = left_behind()
    back(script, version, incarnation=incarnation)
    assert [heal.entries for heal in script.to("g3", Heal)] == [False], why


def test_a_new_incarnation_ends_what_was_kept_for_the_old_one() -> None:
    script = left_behind()
    heal = script.sent("g1", Stage)[-1].heal
    back(script, incarnation=0)
    assert Release(heal=heal) in script.to("g1", Release)
    assert script.state.kept == ()


def test_entries_that_do_not_lead_on_are_not_tried_twice() -> None:
    script = left_behind()
    script.commits(6, "g1", "g2", start=AT_5)
    back(script)
    heal = script.heal("g3").heal
    script.says("g3", HealFailed(heal=heal, reason="the log has gone past it"))
    assert Release(heal=heal) in script.to("g1", Release)
    script.passes(1.0)
    assert [heal.entries for heal in script.to("g3", Heal)] == [False]


def test_a_stream_that_breaks_on_the_way_back_costs_nothing() -> None:
    script = left_behind()
    script.commits(6, "g1", "g2", start=AT_5)
    back(script)
    heal = script.heal("g3").heal
    script.ends("g3")
    back(script)
    assert [(h.heal, h.entries) for h in script.to("g3", Heal)] == [(heal, True)]


def test_without_the_keeper_it_loads_a_snapshot() -> None:
    script = left_behind()
    script.says("g1", Died(reason="gone", shard_rank=0))
    script.reports("g2", AT_5, generation=FIRST + 1)
    script.commits(6, "g2", start=AT_5)
    back(script)
    assert [(heal.entries, heal.sources[0].name) for heal in script.to("g3", Heal)] == [(False, "g2")]


def test_nothing_is_kept_for_the_dead() -> None:
    script = Script(groups_wanted=3)
    script.forms("g1", "g2", "g3")
    script.commits(1, "g1", "g2", "g3")
    script.says("g3", Beat(version=Version(1, FIRST)), Died(reason="gone", shard_rank=0))
    for name in ("g1", "g2"):
        script.reports(name, Version(1, FIRST))
    assert script.number == FIRST + 1 and not script.sent("g1", Stage) and script.state.kept == ()


def test_who_is_a_member_again_is_owed_nothing() -> None:
    script = left_behind()
    heal = script.sent("g1", Stage)[-1].heal
    script.commits(6, "g1", "g2", start=AT_5)
    back(script)
    script.catches_up("g3", Version(6, FIRST + 1))
    script.says("g2", Died(reason="gone", shard_rank=0))
    here = Version(6, FIRST + 1)
    script.reports("g1", here)
    script.reports("g3", here, heal=heal)
    assert {m.name for m in script.state.current.roster} == {"g1", "g3"}
    assert Release(heal=heal) in script.to("g1", Release) and {k.name for k in script.state.kept} <= {"g2"}


def test_what_is_kept_is_bounded() -> None:
    script = Script(groups_wanted=MOST + 10, lease_s=2.0)
    names = [f"g{i}" for i in range(MOST + 10)]
    script.forms(*names)
    script.commits(1, *names)
    script.passes(1.0)
    for name in names[:2]:
        script.says(name, Beat(version=Version(1, FIRST)))
    script.passes(1.0)
    for name in names[:2]:
        script.reports(name, Version(1, FIRST))
    assert len(script.state.kept) == MOST
    staged = len(script.to("g0", Stage)) + len(script.to("g1", Stage))
    released = len(script.to("g0", Release)) + len(script.to("g1", Release))
    assert (staged, staged - released) == (MOST + 8, MOST)


def test_the_way_back_is_one_incarnations_and_its_keepers() -> None:
    script = left_behind()
    script.commits(6, "g1", "g2", start=AT_5)
    back(script)
    group, donors = script.group("g3"), {"g1": script.group("g1")}
    assert way_back(script.state, group, donors)
    assert not way_back(script.state, msgspec.structs.replace(group, incarnation=group.incarnation + 1), donors)
    assert not way_back(script.state, group, {"g2": script.group("g2")})
