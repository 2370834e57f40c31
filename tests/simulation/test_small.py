"""Small worlds, explored completely (see `small`): `python -m simulation.small` prints the numbers of states too."""

from __future__ import annotations

import os

import msgspec
import pytest

from lighthouse.core import record
from lighthouse.core_values import BaseRecord, Said, SaidHello, Started, StoreRecord
from lighthouse.values import ROOT, Died, EntryName, Finished, Hello, Report, Version
from simulation.small import NORMAL, PROOF, explore_all, story, told
from simulation.small_checks import broken_by_commit
from simulation.small_explore import explore, replayed
from simulation.small_host import Spec
from simulation.small_lighthouse import broken_by_the_past, first_state, turn
from simulation.small_values import NOW, Numbers


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_promises_hold_in_every_state_of_every_small_world() -> None:
    for found in explore_all(NORMAL, jobs=min(2, os.cpu_count() or 1)):
        print(told(found))
        assert not found.wrong, story(found)
        assert found.complete and found.ends["finished"] > 0
        assert found.states > 1000, "so few states prove nothing"


def test_every_world_has_a_name_of_its_own() -> None:
    names = [spec.name for spec in (*NORMAL, *PROOF)]
    assert len(set(names)) == len(names)


def test_what_may_wait_decides_how_much_is_seen() -> None:
    spec = Spec(name="two", groups=2, steps=1, restarts=1, kinds=())
    states = [explore(msgspec.structs.replace(spec, delays=delays)).states for delays in (0, 1, -1)]
    assert states == sorted(states)
    assert states[0] < states[1] < states[2]


def test_an_exploration_that_is_cut_short_says_so() -> None:
    found = explore(NORMAL[0], most_states=100)
    assert not found.complete
    assert "ONLY THE FIRST 1" in told(found)


def test_a_story_is_told_again_move_by_move() -> None:
    spec = Spec(name="two", groups=2, steps=1, faults=1, kinds=("crash",))
    lines = replayed(spec, [("down", 1001), ("down", 2001), ("crash", 1, 0)])
    assert lines[0].startswith("down 1001  Base(number=1")
    assert lines[-3].startswith("g1: generation 1, stands on (0, 0)")
    assert not [line for line in lines if "BROKEN" in line]


def test_a_step_beyond_a_later_base_is_a_second_history() -> None:
    stored = StoreRecord(
        bases=(BaseRecord(number=1, version=ROOT, cursor=0), BaseRecord(number=2, version=ROOT, cursor=0))
    )
    one, two = Version(1, 1), Version(2, 1)
    assert not broken_by_commit(stored, EntryName(start=ROOT, end=one)), "one step more may happen behind its back"
    assert broken_by_commit(stored, EntryName(start=one, end=two))


def test_the_past_may_say_only_that_the_run_is_finished() -> None:
    """g1 is a member, its host is started again; then what its older incarnation said arrives."""
    numbers = Numbers()
    spec = Spec(name="two", groups=1, steps=1, slots=1)
    state = record(first_state(spec, StoreRecord(), 0), Started(record=StoreRecord(), wall_ms=1), NOW - 50.0)
    hello = Hello(
        run_id="small",
        name="g1",
        incarnation=0,
        host="h",
        took_over=False,
        setup={"slots": "1", "steps": "1"},
        rendezvous=("a",),
        weights=("w",),
        digest=1,
        report=Report(abandoned=0, version=ROOT, cursor=0),
    )
    state, _, wrong = turn(state, ("hello", 1, numbers.of(hello), 1), numbers)
    assert not wrong
    asked = Report(abandoned=1, version=ROOT, cursor=0)
    state, _, wrong = turn(state, ("said", 1, "g1", 1, numbers.of(asked)), numbers)
    assert not wrong and state.current is not None
    state = record(state, SaidHello(conn=2, message=hello), NOW)
    said = Said(conn=1, name="g1", incarnation=1, message=Finished(version=Version(1, 1)))
    done = record(state, said, NOW)
    assert done.finished == Version(1, 1)
    assert not broken_by_the_past(state, done, said)
    died = Said(conn=1, name="g1", incarnation=1, message=Died(reason="", shard_rank=0))
    assert not broken_by_the_past(state, record(state, died, NOW), died)
    assert broken_by_the_past(state, done, died), "nothing else may finish it"
    assert broken_by_the_past(state, state, said), "and it has to be believed"
    assert broken_by_the_past(state, msgspec.structs.replace(done, gens=()), said), (
        "and nothing else may change with it"
    )
