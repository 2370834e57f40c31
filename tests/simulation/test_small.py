"""Small worlds, explored completely (see `small`): `python -m simulation.small` prints the numbers of states too."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np
import pytest

from lighthouse.core import record
from lighthouse.core_state import RunState
from lighthouse.core_values import BaseRecord, Said, SaidHello, Started, StoreRecord
from lighthouse.values import ROOT, Committed, Died, EntryName, Finished, Hello, Report, Version
from simulation.small import (
    CONFLUENCE,
    COVER,
    COVER_PROOF,
    MERGED,
    NORMAL,
    PROOF,
    confluence,
    explore_all,
    merge,
    story,
    told,
)
from simulation.small_checks import broken_by_commit, broken_in, in_history, made_by
from simulation.small_confluence import Confluence
from simulation.small_cover import Cover
from simulation.small_explore import Explorer, explore, replayed
from simulation.small_host import Spec
from simulation.small_lighthouse import broken_by_the_past, first_state, turn
from simulation.small_merge import Merge
from simulation.small_moves import Heard, Moves
from simulation.small_tables import Seen, Table, packed, unpacked
from simulation.small_values import NOW, Host, Numbers
from simulation.small_view import HostView, view
from simulation.small_world import Site, Stream


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_promises_hold_in_every_state_of_every_small_world() -> None:
    for found in explore_all(NORMAL, jobs=min(2, os.cpu_count() or 1)):
        print(told(found))
        assert not found.wrong, story(found)
        assert found.complete and found.ends["finished"] > 0
        assert found.states > 1000, "so few states prove nothing"


def test_every_world_has_a_name_of_its_own() -> None:
    names = [spec.name for spec in (*NORMAL, *PROOF, *COVER, *COVER_PROOF)]
    assert len(set(names)) == len(names)


def test_what_may_wait_decides_how_much_is_seen() -> None:
    spec = Spec(name="two", groups=2, steps=1, restarts=1, kinds=())
    states = [explore(msgspec.structs.replace(spec, delays=delays)).states for delays in (0, 1, -1)]
    assert states == sorted(states)
    assert states[0] < states[1] < states[2]


def test_who_comes_back_heals_and_enters_by_a_switch() -> None:
    explorer = Explorer(Spec(name="two", groups=2, faults=1, kinds=("crash",)))
    assert explorer.run(1 << 40, 1e9).complete
    told = [word for word in explorer.world.things.values if isinstance(word, Committed)]
    assert any(word.start.version == word.version for word in told), "a step that nobody switches after proves little"


def test_an_exploration_that_is_cut_short_says_so() -> None:
    found = explore(NORMAL[0], most_states=100)
    assert not found.complete
    assert 100 <= found.states < 300
    assert f"ONLY THE FIRST {found.states} states" in told(found)


def test_a_story_is_told_again_move_by_move() -> None:
    spec = Spec(name="two", groups=2, steps=1, faults=1, kinds=("crash",))
    lines = replayed(spec, [("down", 1001), ("down", 2001), ("crash", 1, 0)])
    assert lines[0].startswith("down 1001  Base(number=1")
    assert lines[-3].startswith("g1: generation 1, stands on (0, 0)")
    assert not [line for line in lines if "BROKEN" in line]
    assert replayed(spec, [("restart",)])[-1].strip() == "this cannot happen here"


@pytest.mark.parametrize("spec", COVER[:2], ids=lambda spec: spec.name)
def test_what_is_not_tried_in_every_order_hides_nothing(spec: Spec) -> None:
    cover = Cover(spec)
    assert not cover.hidden, str(cover)
    assert cover.reduced < cover.states and cover.turns > 100, "so little proves nothing"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("spec", COVER[2:], ids=lambda spec: spec.name)
def test_what_is_not_tried_in_every_order_hides_nothing_with_more_faults(spec: Spec) -> None:
    cover = Cover(spec)
    assert not cover.hidden, str(cover)


@pytest.mark.parametrize("spec", CONFLUENCE[:2], ids=lambda spec: spec.name)
def test_what_is_not_tried_twice_hides_nothing(spec: Spec) -> None:
    asked = Confluence(spec)
    assert not asked.wrong()
    assert asked.asked > 1000, "so few pairs prove nothing"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("spec", CONFLUENCE[2:], ids=lambda spec: spec.name)
def test_what_is_not_tried_twice_hides_nothing_with_more_faults(spec: Spec) -> None:
    assert confluence(spec).endswith("nothing is hidden")


@pytest.mark.parametrize("spec", CONFLUENCE[:4], ids=lambda spec: spec.name)
def test_states_that_are_one_do_alike(spec: Spec) -> None:
    asked = Merge(spec)
    assert not asked.wrong()
    assert 1000 < asked.merged < asked.states, "so few prove nothing"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("spec", CONFLUENCE[4:MERGED], ids=lambda spec: spec.name)
def test_states_that_are_one_do_alike_with_more_faults(spec: Spec) -> None:
    assert merge(spec).endswith("nothing is told apart")


class Mute(Merge):
    """As if it made no difference what a host is, but only what it has said and not heard yet."""

    def host(self, host: Host) -> Host:
        return Host(name=host.name, index=host.index, returns=host.returns)


class Unled(Merge):
    """As if it made no difference what the lighthouse knows, but only its store."""

    def leader(self, lighthouse: RunState) -> Any:
        return None


@pytest.mark.parametrize("merge", [Mute, Unled])
def test_what_is_left_out_and_matters_is_found(merge: type[Merge]) -> None:
    assert merge(Spec(name="two", groups=2, steps=1, faults=1, kinds=("crash",))).wrong()


class Careless(Moves):
    """As if nothing could come to a site before what it may hear, and nobody saw what it becomes."""

    def _is_closed(self, site: Site) -> bool:
        return True

    def _is_private(self, this: int, other: int) -> bool:
        return True


class Impatient(Moves):
    """As if nothing that a lighthouse hears could be lost, or come after what the same group has said elsewhere."""

    def heard(self, site: int) -> list[Heard]:
        return [heard._replace(alone=1) for heard in super().heard(site)]


@pytest.mark.parametrize("rules", [Careless, Impatient])
def test_a_rule_that_hides_something_is_found(rules: type[Moves]) -> None:
    spec = Spec(name="two", groups=2, steps=1, faults=1, kinds=("host",), returns=False)
    assert Confluence(spec, rules=rules).wrong()


class Blind(Moves):
    """As if collectives, transfers and openings brought a host nothing that matters."""

    def is_settled(self, operations: int, hosts: list[int]) -> list[int]:
        return [2] * len(hosts)


class Selfish(Moves):
    """As if others asked nothing of a host, whatever it hears."""

    def _is_content(self, site: Site) -> bool:
        return True

    def _heals(self, host: HostView, stream: Stream) -> bool:
        return not stream.flags and bool(stream.down)


@pytest.mark.parametrize("rules", [Blind, Selfish])
def test_what_is_met_no_more_is_found(rules: type[Moves]) -> None:
    assert Cover(Spec(name="two", groups=2, steps=1, faults=1, kinds=("crash",)), rules).hidden


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


def test_weights_follow_from_the_bases() -> None:
    stored = StoreRecord(
        bases=(BaseRecord(number=1, version=ROOT, cursor=0), BaseRecord(number=4, version=Version(2, 1), cursor=6))
    )
    assert made_by(stored, Version(3, 4)) == (1, 1, 4)
    assert made_by(stored, Version(3, 5)) is None, "a planned generation whose base was not told yet"
    assert not in_history(stored, Version(3, 1)), "above the step at which the history leaves it"
    assert all(in_history(stored, v) for v in (ROOT, Version(1, 1), Version(2, 1), Version(9, 4)))


def _standing(name: str, weights: tuple[int, ...]) -> HostView:
    empty = view(Host(name=name, index=0, returns=True))
    return empty._replace(stands=((Version(len(weights), weights[-1]), weights),))


def test_weights_that_do_not_follow_from_the_bases_are_wrong() -> None:
    stored = StoreRecord(
        bases=(BaseRecord(number=1, version=ROOT, cursor=0), BaseRecord(number=2, version=Version(1, 1), cursor=3))
    )
    assert not broken_in([_standing("g1", (1, 2))], stored)
    assert broken_in([_standing("g1", (3, 2))], stored)
    assert broken_in([_standing("g1", (1, 9)), _standing("g2", (3, 9))], StoreRecord()), "or differ among hosts"


def test_a_set_of_states_knows_each_once() -> None:
    random = np.random.default_rng(5)
    keys = random.integers(0, 1 << 18, 400_000).astype(np.uint64)
    seen, known = Seen(), set[int]()
    for part in np.split(keys, 40):
        new = part[seen.add(part)].tolist()
        assert len(new) == len(set(new)) and not known & set(new)
        known |= set(new)
        assert known >= set(part.tolist()) - {0}
    assert seen.count == len(known)


def test_a_table_asks_once_for_each_key() -> None:
    asked: list[int] = []

    def rows(key: int) -> list[tuple[int, int]]:
        asked.append(key)
        return [(key, place) for place in range(key % 3)]

    table = Table(2, rows)
    keys = np.random.default_rng(7).integers(0, 5000, 50_000).astype(np.uint64)
    for part in np.split(keys, 10):
        which, places = table.rows(part)
        found = list(
            zip(which.tolist(), table.columns[0][places].tolist(), table.columns[1][places].tolist(), strict=True)
        )
        assert found == [(i, key, place) for i, key in enumerate(part.tolist()) for place in range(key % 3)]
    assert len(asked) == len(set(asked)) == table.count


def test_a_key_that_does_not_fit_is_refused() -> None:
    key = packed((np.array([5, 6]), 3), (np.array([1, 2]), 8))
    assert [unpacked(int(k), 3, 8) for k in key] == [[5, 1], [6, 2]]
    with pytest.raises(OverflowError):
        packed((np.array([8]), 3))
