"""The cores with many groups: an event costs the same, a change O(N), and members hear of changes only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from lighthouse.table import Table
from simulation.fleet import Fleet
from simulation.scale import CHANGES, Scale, commit_us, measure

FEW, MANY = 48, 768


@pytest.fixture(scope="module")
def scales() -> tuple[Scale, Scale]:
    return measure(FEW, repeats=200), measure(MANY, repeats=200)


@pytest.mark.parametrize("kind", ["beat", "committed step", "report"])
def test_an_event_costs_the_same_with_sixteen_times_the_groups(scales: tuple[Scale, Scale], kind: str) -> None:
    few, many = (scale.event_us(kind) for scale in scales)
    assert many < few * 5, f"{few:.1f} us with {FEW} groups, {many:.1f} us with {MANY}"


@pytest.mark.parametrize("kind", ["formation", "kill", "join", "drain", "lighthouse restart"])
def test_a_change_costs_each_member_the_same(scales: tuple[Scale, Scale], kind: str) -> None:
    few, many = (scale.change(kind) for scale in scales)
    assert many.cpu_us < few.cpu_us * 5
    assert many.events / MANY < few.events / FEW * 1.5


def test_a_change_looks_at_each_member_so_many_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the hellos of a restart asked all groups whose donor had come back: 50 ns are not seen at few groups."""
    looked = 0
    values = Table.values

    def counted(table: Table[Any]) -> Iterator[Any]:
        nonlocal looked
        for value in values(table):
            looked += 1
            yield value

    monkeypatch.setattr(Table, "values", counted)
    each: dict[str, list[float]] = {}
    for groups in (FEW, MANY):
        fleet = Fleet(groups)
        for kind, change in CHANGES.items():
            looked = 0
            change(fleet)
            each.setdefault(kind, []).append(looked / groups)
    assert all(many <= few * 1.5 for few, many in each.values()), each


@pytest.mark.parametrize("kind", ["kill", "join", "drain", "lighthouse restart"])
def test_a_member_hears_of_the_change_and_not_of_all_members(scales: tuple[Scale, Scale], kind: str) -> None:
    few, many = (scale.change(kind) for scale in scales)
    assert 0 < many.member_bytes < few.member_bytes * 1.5
    assert many.member_bytes < 300
    assert many.joiner_bytes < 100 * MANY


def test_a_verdict_costs_no_more_than_its_members() -> None:
    assert commit_us(64 * 16) < max(commit_us(64), 50.0) * 16 * 2
