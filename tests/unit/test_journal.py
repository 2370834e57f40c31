"""The journal can be decided again: after trimming, after a failing disk, and it names what is decided otherwise."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lighthouse.core_values import Effect, Event, Happened, RunConfig, Said, SaidHello, Started, StoreRecord
from lighthouse.journal import Journal, replay, segments
from lighthouse.store import StoreError
from lighthouse.values import ROOT, Beat, Committed, Start, Version
from tests.unit.small_core import CORE, SmallState
from tests.unit.test_service import hello

CONFIG = RunConfig(run_id="run", lease_s=5.0)


class Life:
    """A life of a lighthouse without sockets: turns put into a journal as the owner of a run does."""

    def __init__(self, journal: Journal, config: RunConfig = CONFIG) -> None:
        self.journal, self.config, self.now = journal, config, 100.0
        self.state: SmallState = CORE.new_run(config)

    def turn(self, *events: Event) -> Sequence[Effect]:
        self.now += 0.1
        for event in events:
            self.state = CORE.record(self.state, event, self.now)
        self.state, effects = CORE.decide(self.state, self.now)
        self.journal.put(self.config, [(self.now, event) for event in events], self.now, effects, self.state)
        return effects

    def begin(self) -> None:
        self.turn(Started(record=StoreRecord(), wall_ms=1_700_000_000_000))
        for conn in range(1, 4):
            self.turn(SaidHello(conn=conn, message=hello(f"g{conn}")))

    def go_on(self, turns: int, seed: int = 1) -> None:
        chance = random.Random(seed)
        for step in range(turns):
            conn = chance.randint(1, 3)
            message = (
                Beat(version=ROOT)
                if chance.random() < 0.5
                else Committed(
                    version=Version(step, 5),
                    start=Start(number=5, version=ROOT),
                    loss=chance.random(),
                    tokens=9,
                    grad_norm=1.0,
                    step_s=0.1,
                )
            )
            self.turn(Said(conn=conn, name=f"g{conn}", incarnation=conn, message=message))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lighthouse.db.journal"


def test_a_journal_of_two_lives_is_decided_alike(path: Path) -> None:
    for seed in (1, 2):
        journal = Journal(path, limit_bytes=1 << 20)
        life = Life(journal)
        life.begin()
        life.go_on(200, seed)
        journal.close()
    assert replay(path, CORE) == ()
    turns = [turn for _, _, _, segment in segments(path) for turn in segment.turns]
    assert len(turns) == 2 * 204
    assert sum(len(turn.effects or ()) for turn in turns) > 6


def test_a_core_that_decides_otherwise_is_found(path: Path) -> None:
    journal = Journal(path, limit_bytes=1 << 20)
    life = Life(journal)
    life.begin()
    life.go_on(50)
    journal.close()

    def never_forms(state: SmallState, now: float) -> tuple[SmallState, Sequence[Effect]]:
        return CORE.decide(msgspec.structs.replace(state, number=1), now)

    differences = replay(path, replace(CORE, decide=never_forms))
    assert [d.run_id for d in differences] == ["run"]
    assert "StoreNumber" in differences[0].was
    assert "StoreNumber" not in differences[0].now


def test_anchors_are_compared_with_what_leads_to_them(path: Path) -> None:
    journal = Journal(path, limit_bytes=1 << 24, anchor_events=20)
    life = Life(journal)
    life.begin()
    for _ in range(5):
        life.go_on(30)
        assert journal.flush()
    journal.close()
    assert anchors(path) == [False, True, True, True, True]
    assert replay(path, CORE) == ()

    def clumsy(state: SmallState, event: Event, now: float) -> SmallState:
        state = CORE.record(state, event, now)
        return msgspec.structs.replace(state, wall_ms=state.wall_ms + isinstance(event, Said))

    differences = replay(path, replace(CORE, record=clumsy))
    assert [(d.turn, d.was) for d in differences] == [(-1, "the anchor")] * 4


def test_a_full_journal_drops_the_oldest_and_can_still_be_decided_again(path: Path) -> None:
    journal = Journal(path, limit_bytes=20_000, anchor_events=50)
    life = Life(journal)
    life.begin()
    other = Life(journal, RunConfig(run_id="other"))
    other.begin()
    for seed in range(60):
        life.go_on(60, seed)
        assert journal.flush()
    journal.close()
    assert replay(path, CORE) == ()
    with sqlite3.connect(path) as db:
        size, first = db.execute("SELECT sum(length(bytes)), min(id) FROM segments WHERE run_id = 'run'").fetchone()
        others = db.execute("SELECT count(*) FROM segments WHERE run_id = 'other'").fetchone()[0]
    db.close()
    assert size < 20_000
    assert first > 10
    assert others == 1
    assert anchors(path, "run")[0] is True
    journal = Journal(path, limit_bytes=20_000, anchor_events=50)
    again = Life(journal)
    again.begin()
    journal.close()
    assert replay(path, CORE) == ()


def test_a_disk_that_fails_for_a_while_costs_the_journal_a_gap_only(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal(path, limit_bytes=1 << 24)
    life = Life(journal)
    life.begin()
    assert journal.flush()
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    for seed in range(3):
        life.go_on(500, seed)
        assert journal.flush()
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "the disk is full" in caplog.text
    journal._db.execute("PRAGMA max_page_count = 1000000")
    life.go_on(100)
    assert journal.flush()
    life.go_on(10)
    journal.close()
    assert anchors(path) == [False, True, False]
    assert sum(len(segment.turns) for *_, segment in segments(path)) == 4 + 99 + 10
    assert replay(path, CORE) == ()


def test_turns_that_came_faster_than_the_disk_are_a_gap_too(path: Path) -> None:
    journal = Journal(path, limit_bytes=1 << 24, waiting_turns=50)
    life = Life(journal)
    life.begin()
    for seed in range(5):
        life.go_on(400, seed)
        assert journal.flush()
    journal.close()
    assert sum(len(segment.turns) for *_, segment in segments(path)) < 4 + 5 * 400
    assert any(segment.gap for *_, segment in segments(path))
    assert replay(path, CORE) == ()


def test_what_happened_is_kept_up_to_a_bound(path: Path) -> None:
    journal = Journal(path, limit_bytes=1 << 20, keep=50)
    for i in range(120):
        journal.tell("run", Happened(time_s=float(i), kind="step", fields={"i": str(i)}))
    journal.tell("other", Happened(time_s=0.0, kind="formed"))
    journal.close()
    journal = Journal(path, limit_bytes=1 << 20, keep=50)
    assert [h.time_s for h in journal.history("run")] == [float(i) for i in range(70, 120)]
    assert len(journal.history("other")) == 1
    assert journal.history("unknown") == ()
    journal.close()


def test_effects_too_large_to_keep_are_still_compared(path: Path) -> None:
    journal = Journal(path, limit_bytes=1 << 24)
    life = Life(journal, RunConfig(run_id="run", groups_wanted=400))
    life.turn(Started(record=StoreRecord(), wall_ms=1))
    life.turn(*(SaidHello(conn=conn, message=hello(f"g{conn}")) for conn in range(400)))
    journal.close()
    turns = [turn for *_, segment in segments(path) for turn in segment.turns]
    assert turns[1].effects is None
    assert replay(path, CORE) == ()

    def late(state: SmallState, now: float) -> tuple[SmallState, Sequence[Effect]]:
        state, effects = CORE.decide(state, now)
        return state, effects[:-1]

    assert [d.was for d in replay(path, replace(CORE, decide=late))] == ["too large to keep"]


def test_what_is_no_journal_says_so(path: Path) -> None:
    with pytest.raises(StoreError, match="there is no journal"):
        replay(path, CORE)
    path.write_bytes(b"not a database, just some bytes that lie where a journal should" * 20)
    with pytest.raises(StoreError, match="no SQLite file"):
        replay(path, CORE)


def test_a_damaged_segment_says_so(path: Path) -> None:
    journal = Journal(path, limit_bytes=1 << 20)
    Life(journal).begin()
    journal.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE segments SET bytes = substr(bytes, 1, 100)")
    db.close()
    with pytest.raises(StoreError, match="a segment is damaged"):
        replay(path, CORE)


def anchors(path: Path, run_id: str | None = None) -> list[bool]:
    return [segment.anchor is not None for *_, segment in segments(path, run_id)]
