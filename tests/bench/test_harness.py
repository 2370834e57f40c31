"""The harness of the benchmarks works: not the figures, and without the peers."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
from bench import control_plane, step_overhead
from bench.machine import machine
from bench.measure import Spread, interleave, ratios
from bench.peers import environment
from bench.recovery import _stall
from bench.sleepers import NAMES, recomputed, samples_per_live_s
from bench.step_breakdown import without_skew
from bench.tables import BEGIN, END, Table, page, replace_section
from bench.turns import Conductor

TABLE = Table(
    number=7,
    title="A title",
    command="make it",
    text="How.",
    columns=["name", "ratio"],
    rows=[["a", Spread.of([1.0, 2.0, 4.0])], ["b", 3]],
    targets=[("low", True), ("lower", False), ("lowest", None)],
    notes=["so it is"],
)


def test_interleaves_and_compares_within_a_round() -> None:
    turns: list[str] = []
    clock = itertools.count(1)

    def contestant(name: str, times: int) -> float:
        turns.append(name)
        return float(next(clock) * times)

    taken = interleave({"a": lambda: contestant("a", 1), "b": lambda: contestant("b", 2)}, 2, warm_up=1)
    assert turns == ["b", "a", "a", "b", "b", "a"]
    assert taken == {"a": [3.0, 6.0], "b": [8.0, 10.0]}
    spread = ratios(taken, "b", "a")
    assert (spread.least, spread.most, spread.count) == (10 / 6, 8 / 3, 2)
    assert str(spread) == "2.17 (1.67 … 2.67)"


def test_what_a_rank_waits_for_others_is_no_part_of_its_gather() -> None:
    early = {"parts": {"gather": [5.0, 1.0], "deal": [1.0, 2.0]}, "entered": [10.000, 20.0]}
    late = {"parts": {"gather": [2.0, 1.5], "deal": [3.0, 4.0]}, "entered": [10.004, 20.0]}
    first, second = without_skew({"g0": early, "g1": late})
    assert first["skew"] == pytest.approx([4.0, 0.0]) and first["gather"] == pytest.approx([1.0, 1.0])
    assert second["skew"] == [0.0, 0.0] and second["gather"] == [2.0, 1.5]
    assert (first["deal"], second["deal"]) == ([1.0, 2.0], [3.0, 4.0])


def test_a_table_as_markdown_and_json() -> None:
    text = TABLE.markdown()
    assert "| a | 2.00 (1.00 … 4.00) |\n| b | 3 |" in text
    assert "- Target: lower: **missed**." in text
    plain = json.loads(json.dumps(TABLE.plain()))
    assert plain["rows"][0]["ratio"] == {"median": 2.0, "least": 1.0, "most": 4.0, "count": 3, "digits": 2}
    with pytest.raises(ValueError, match="1 cells under 2 columns"):
        Table(number=1, title="", command="", text="", columns=["a", "b"], rows=[["x"]])


def test_the_page_has_one_generated_section() -> None:
    section = page([TABLE], machine(None))
    once = replace_section("# Measurements\n\nWords.\n", section)
    assert once.startswith("# Measurements\n\nWords.\n") and once.count(BEGIN) == once.count(END) == 1
    after = once + "\nMore words.\n"
    twice = replace_section(after, section.replace("A title", "Another"))
    assert "Another" in twice and "A title" not in twice and twice.endswith("More words.\n")
    with pytest.raises(ValueError, match="but none"):
        replace_section(f"{BEGIN}\n", section)


def test_a_table_that_was_not_measured_again_stays() -> None:
    other = dataclasses.replace(TABLE, number=12, title="Another")
    both = replace_section("Words.\n", page([other, TABLE], {"machine": "old"}))
    newer = dataclasses.replace(TABLE, title="A newer title")
    after = replace_section(both, page([newer], {"machine": "new"}))
    assert after.index("### 7. A newer title") < after.index("### 12. Another")
    assert "A title" not in after and "old" not in after and "new" in after
    assert replace_section(after, page([newer], {"machine": "new"})) == after


PERFORMER = """
import sys, time
from bench.turns import Performer
turn = Performer(sys.argv[1], sys.argv[2])
done = 0
while turn.next():
    done += 1
    turn.notes = {"done": done, "wish": turn.wishes.get("wish")}
    if turn.wishes.get("wish") == "die":
        raise SystemExit(3)
"""


def test_jobs_take_turns(tmp_path: Path) -> None:
    names = ["a/0", "a/1", "b/0"]
    with Conductor(tmp_path / "turns") as turns:
        children = [
            subprocess.Popen([sys.executable, "-c", PERFORMER, turns.path, name], env=environment()) for name in names
        ]
        try:
            turns.wait_for(set(names), 60.0)
            answers = turns.turn("a", 3, wish="x")
            assert {name: (answer["done"], answer["wish"]) for name, answer in answers.items()} == {
                "a/0": (3, "x"),
                "a/1": (3, "x"),
            }
            assert turns.turn("b", 1)["b/0"]["done"] == 1
            assert turns.seconds("a", 2) > 0
            with pytest.raises(RuntimeError, match="b/0 went away"):
                turns.turn("b", 1, wish="die")
            turns.stop()
            assert [child.wait(30) for child in children] == [0, 0, 3]
        finally:
            for child in children:
                child.kill()
                child.wait()


def test_a_performer_that_never_comes_is_named(tmp_path: Path) -> None:
    with Conductor(tmp_path / "turns") as turns, pytest.raises(TimeoutError, match="a/0"):
        turns.wait_for({"a/0"}, 0.1)
    with (
        Conductor(tmp_path / "others", lambda: "a.out") as turns,
        pytest.raises(RuntimeError, match=r"a\.out has ended"),
    ):
        turns.wait_for({"a/0"}, 60.0)


def _line(time_s: float, event: str, **fields: object) -> dict[str, object]:
    return {"time_s": time_s, "pid": -1, "event": event, **fields}


def test_diaries_are_read() -> None:
    steps = [_line(float(t), "committed", step=t, microbatches=2) for t in range(10)]
    late = [_line(10.0 + t, "committed", step=10 + t, microbatches=3) for t in (1.5, 2.5, 3.5)]
    stall_s, taken_s = _stall([*steps, *late], 9.5, 0.25)
    assert (stall_s, taken_s) == (pytest.approx(1.25), pytest.approx(0.25))
    again = [_line(1.0, "begun", step=1, slot=0), _line(1.1, "begun", step=1, slot=0)]
    assert recomputed(again, 0.0) == 1
    assert recomputed([*again, _line(1.2, "discarded", step=1, microbatches=2)], 0.0) == 2
    diary = [_line(0.0, "started"), _line(2.0, "ready"), *steps[2:6]]
    diaries = dict.fromkeys(NAMES, diary)
    assert samples_per_live_s(diaries, 0.0, 5.0, "started") == pytest.approx(8 / 5)
    assert samples_per_live_s(diaries, 0.0, 5.0, "ready") == pytest.approx(8 / 3)


@pytest.mark.slow
def test_a_plain_job_and_a_run_of_bellrock_take_turns() -> None:
    taken = step_overhead.measure("1M", 1, step_overhead.Plan(rounds=1, steps=1, warm_up=1), None)
    assert set(taken) == {"plain", "bellrock"} and all(len(seconds) == 1 for seconds in taken.values())


@pytest.mark.slow
def test_simulated_sessions_go_through_a_change() -> None:
    taken, used, shares = control_plane.measure(4, 1, 0.5, None)
    assert set(taken) == set(used) == {"bellrock"} and len(shares) == 2
    assert taken["bellrock"][0] > 0 and used["bellrock"][0] > 0
