"""What ledgers and events prove: each finding is shown on records that have it and on records that do not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lighthouse.core_values import Happened
from lighthouse.values import Version
from trainer.evidence import Tempo, amid_step, back, microbatches, not_exactly_once, parse_ledger

Line = dict[str, Any]


def commit(step: int, slots: list[int], generation: int = 1, of: int = 4) -> Line:
    return {"event": "commit", "step": step, "generation": generation, "cursor": (step - 1) * of, "slots": slots}


def done(cursor: int, shard_rank: int = 0, mark: str = "done", step: int = 0) -> Line:
    return {"event": "slot", "cursor": cursor, "shard_rank": shard_rank, "mark": mark, "step": step}


def test_a_whole_run_has_nothing_wrong() -> None:
    ledgers = {"a": [commit(1, [0, 1]), commit(2, [0, 1, 2, 3], 2)], "b": [commit(1, [2, 3])]}
    assert not_exactly_once(ledgers, slots=4, steps=2) == []


@pytest.mark.parametrize(
    ("ledgers", "says"),
    [
        ({"a": [commit(1, [0, 1])], "b": [commit(1, [3])]}, "slots [2] missing"),
        ({"a": [commit(1, [0, 1, 2])], "b": [commit(1, [2, 3])]}, "[2] twice"),
        ({"a": []}, "committed by nobody"),
        ({"a": [commit(1, [0, 1, 2, 3])], "b": [commit(1, [0, 1, 2, 3], 2)]}, "in generations [1, 2]"),
        ({"a": [{**commit(1, [0, 1, 2, 3]), "cursor": 4}]}, "began at slot 4 of the run in a"),
    ],
)
def test_what_is_wrong_with_the_samples_is_named(ledgers: dict[str, list[Line]], says: str) -> None:
    assert any(says in complaint for complaint in not_exactly_once(ledgers, slots=4, steps=1))


def test_who_died_between_roll_call_and_commit_is_in_the_sum() -> None:
    entered = {"event": "enter", "generation": 1, "life": 1}
    died = [entered, {**done(2, step=0), "slot": 2, "life": 1}, {**done(3, step=0), "slot": 3, "life": 1}]
    assert not_exactly_once({"a": [entered, commit(1, [0, 1])], "b": died}, slots=4, steps=1) == []
    # But not in the sum of a generation that it was no member of, where others took its slots over.
    taken_over = [entered, {**entered, "generation": 2}, commit(1, [0, 1, 2, 3], 2)]
    assert not_exactly_once({"a": taken_over, "b": died}, slots=4, steps=1) == []
    assert not_exactly_once({"a": [entered, commit(1, [0, 1])], "b": died[:2]}, slots=4, steps=1) != []


def test_slots_computed_twice_are_counted_by_shard() -> None:
    assert microbatches({"a": [done(0), done(0, 1), done(1)], "b": [done(2)]}) == (4, 0)
    assert microbatches({"a": [done(0), done(0, 1), done(0, 1)], "b": [done(0)]}) == (4, 2)
    assert microbatches({"a": [done(0), done(0, mark="begun")]}) == (1, 0)


def test_amid_a_step_is_in_a_slot_behind_the_first() -> None:
    begun, first, again = done(6, mark="begun", step=1), done(6, step=1), done(7, mark="begun", step=1)
    assert amid_step([]) is None
    assert amid_step([commit(1, [0]), begun]) is None
    assert amid_step([commit(1, [0]), begun, first]) is None
    assert amid_step([commit(1, [0]), begun, first, again]) == 1
    assert amid_step([begun, first, again, done(7, step=1), commit(2, [2])]) is None
    assert amid_step([begun, first, commit(2, [2]), done(8, mark="begun", step=2)]) is None


def test_a_torn_last_line_is_left_out() -> None:
    assert parse_ledger('{"event": "load"}\n{"event": "com') == [{"event": "load"}]


def test_back_is_the_first_commit_with_slots_after_a_heal() -> None:
    lines = [commit(1, [0]), commit(2, [1]), {"event": "load"}, commit(5, []), commit(6, [3]), commit(7, [3])]
    assert back(lines) == lines[4]
    assert back(lines[:4]) is None
    assert back([commit(1, [0]), commit(2, [0])]) is None


def test_tempo() -> None:
    def step(number: int, time_s: float) -> Happened:
        return Happened(time_s=time_s, kind="step", version=Version(number, 1), fields={"loss": f"{1 / number:.3f}"})

    tempo = Tempo.of([step(1, 1.0), step(2, 2.0), step(3, 3.0), step(4, 6.0), step(4, 9.0), step(5, 7.0)])
    assert tempo.usual_step_s(3.5) == 1.0
    assert tempo.cost_s(3.5) == 2.0
    assert tempo.losses[4] == 0.25
    assert math.isnan(Tempo.of([]).cost_s(1.0))
