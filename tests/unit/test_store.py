"""The lighthouse's records: durable, compared before they are set, fenced, clear about what is wrong with the file."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lighthouse.core_values import (
    BaseRecord,
    ClaimRecord,
    StoreBase,
    StoreClaim,
    StoreFinished,
    StoreIncarnation,
    StoreNumber,
    StoreRecord,
    StoreSetup,
)
from lighthouse.store import Store, StoreError, StoreLock, Superseded
from lighthouse.values import Member, Role, Version

ROSTER = (Member(name="g1", incarnation=1, role=Role.CONTRIBUTOR), Member(name="g2", incarnation=2, role=Role.SPARE))


def claim(number: int, planned: bool = False) -> StoreClaim:
    return StoreClaim(number=number, roster=ROSTER, planned=planned)


def base(number: int, version: Version, reported: bool = False) -> StoreBase:
    return StoreBase(number=number, version=version, cursor=8 * version.step, reported=reported)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lighthouse.db"


def test_what_was_written_is_there_after_reopening(path: Path) -> None:
    store = Store(path)
    assert store.read("run") == StoreRecord()
    store.write("run", [StoreIncarnation(next=3), StoreSetup(setup={"slots": "8"})])
    store.write("run", [StoreNumber(number=1000), claim(1000), base(1000, Version(0, 0))])
    store.write("run", [StoreNumber(number=1001), claim(1001, planned=True)])
    store.close()
    again = Store(path)
    assert again.runs() == ("run",)
    assert again.read("run") == StoreRecord(
        first_number=1000,
        last_number=1001,
        next_incarnation=3,
        claims=(
            ClaimRecord(number=1000, roster=ROSTER, planned=False),
            ClaimRecord(number=1001, roster=ROSTER, planned=True),
        ),
        bases=(BaseRecord(number=1000, version=Version(0, 0), cursor=0),),
        setup={"slots": "8"},
    )
    again.write("run", [StoreFinished(version=Version(9, 1000))])
    assert again.read("run").finished == Version(9, 1000)
    assert again.read("another run") == StoreRecord()
    again.close()


def test_numbers_only_grow(path: Path) -> None:
    store = Store(path)
    store.write("run", [StoreNumber(number=5)])
    for number in (5, 4, 0):
        with pytest.raises(Superseded, match="cannot be spent"):
            store.write("run", [StoreNumber(number=number)])
    store.write("other", [StoreNumber(number=4)])
    assert store.read("run").last_number == 5
    store.close()


def test_a_claim_and_a_base_need_the_newest_number(path: Path) -> None:
    store = Store(path)
    store.write("run", [StoreNumber(number=5), claim(5), StoreNumber(number=6)])
    with pytest.raises(Superseded, match="6 is the newest"):
        store.write("run", [claim(5)])
    with pytest.raises(Superseded, match="number 6 was spent since"):
        store.write("run", [base(5, Version(0, 0))])
    with pytest.raises(Superseded, match="never spent"):
        store.write("run", [base(7, Version(0, 0))])
    store.write("run", [claim(6), base(6, Version(0, 0))])
    store.close()


def test_a_base_that_members_passed_through_is_history_until_a_higher_one_exists(path: Path) -> None:
    store = Store(path)
    store.write("run", [StoreNumber(number=5), claim(5), base(5, Version(0, 0))])
    store.write("run", [StoreNumber(number=6), claim(6, planned=True), StoreNumber(number=7)])
    store.write("run", [base(6, Version(3, 5), reported=True)])
    store.write("run", [claim(7), base(7, Version(4, 6))])
    with pytest.raises(Superseded, match="7 has one"):
        store.write("run", [base(6, Version(3, 5), reported=True)])
    assert [b.number for b in store.read("run").bases] == [5, 6, 7]
    assert [c.number for c in store.read("run").claims] == [7]
    store.close()


def test_the_same_fact_twice_is_no_contradiction_another_is(path: Path) -> None:
    store = Store(path)
    facts = [StoreNumber(number=5), claim(5), base(5, Version(0, 0)), StoreSetup(setup={"a": "1"})]
    store.write("run", facts)
    store.write("run", facts[1:])
    for other, match in (
        (claim(5, planned=True), "another one of generation 5"),
        (base(5, Version(1, 4)), "another one of generation 5"),
        (StoreSetup(setup={"a": "2"}), "another setup"),
        (StoreIncarnation(next=1), "were given already"),
    ):
        with pytest.raises(Superseded, match=match):
            store.write("run", [other])
    store.write("run", [StoreFinished(version=Version(3, 5))])
    with pytest.raises(Superseded, match="is finished at"):
        store.write("run", [StoreFinished(version=Version(4, 5))])
    store.close()


def test_all_effects_of_a_write_or_none(path: Path) -> None:
    store = Store(path)
    with pytest.raises(Superseded):
        store.write("run", [StoreNumber(number=5), claim(4)])
    assert store.read("run").last_number == 0
    store.close()


def test_a_paused_leader_is_superseded(path: Path) -> None:
    paused = Store(path)
    paused.write("run", [StoreNumber(number=5)])
    leader = Store(path)
    with pytest.raises(Superseded, match="another lighthouse took over"):
        paused.write("run", [StoreNumber(number=6)])
    leader.write("run", [StoreNumber(number=6)])
    assert leader.read("run").last_number == 6
    paused.close()
    leader.close()


def test_a_killed_lighthouse_leaves_what_it_had_written(path: Path) -> None:
    """SIGKILL right after each write returned: the store holds exactly what was acknowledged."""
    code = (
        "import sys; from pathlib import Path; from lighthouse.store import Store;"
        "from lighthouse.core_values import StoreNumber\n"
        "store = Store(Path(sys.argv[1]))\n"
        "for number in range(1, 100000):\n"
        "    store.write('run', [StoreNumber(number=number)]); print(number, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(20):
        seen = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    seen = max([seen, *(int(line) for line in process.stdout.read().split("\n")[:-1])])
    process.wait()
    process.stdout.close()
    store = Store(path)
    assert store.read("run").last_number in (seen, seen + 1)
    store.close()


def test_the_lock_is_held_by_one_and_passes_on(path: Path) -> None:
    first, second = StoreLock(path), StoreLock(path)
    assert first.try_take()
    assert not second.try_take()
    assert second.holder() == f"pid {os.getpid()} on {os.uname().nodename}"
    got = threading.Event()
    waiter = threading.Thread(target=lambda: [second.take(), got.set()])
    waiter.start()
    assert not got.is_set()
    first.release()
    assert got.wait(10)
    waiter.join()
    second.release()


def test_a_file_that_is_no_database_says_so(path: Path) -> None:
    path.write_text("this is a letter, not a database, and it is long enough to be read as a header " * 10)
    with pytest.raises(StoreError, match="no SQLite file, or damaged"):
        Store(path)


def test_a_database_of_something_else_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE songs (name TEXT)")
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="SQLite file of something else"):
        Store(path)
    assert path.read_bytes() == before


def test_a_damaged_store_says_what_to_do(path: Path) -> None:
    store = Store(path)
    for number in range(1, 200):
        store.write("run", [StoreNumber(number=number), claim(number)])
    store.close()
    size = path.stat().st_size
    with path.open("r+b") as file:
        for page in range(1, size // 4096):
            file.seek(page * 4096)
            file.write(os.urandom(600))
    with pytest.raises(StoreError, match="it is damaged: move it away"):
        Store(path)


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for make in (StoreLock, Store):
        with pytest.raises(StoreError, match=r"make it readable and writable"):
            make(tmp_path / "file" / "lighthouse.db")


def test_a_full_disk_is_an_error_and_loses_nothing(path: Path) -> None:
    """SQLite's own bound on the number of pages gives the very error of a full disk."""
    store = Store(path)
    store.write("run", [StoreNumber(number=1)])
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    roster = tuple(Member(name=f"g{i}", incarnation=i, role=Role.SPARE) for i in range(1000))
    with pytest.raises(StoreError, match="the disk is full: make room"):
        store.write("run", [StoreNumber(number=2), StoreClaim(number=2, roster=roster, planned=False)])
    assert store.read("run").last_number == 1
    store.close()
    again = Store(path)
    again.write("run", [StoreNumber(number=2)])
    again.close()


def test_another_process_writing_for_long_is_an_error_not_a_hang(path: Path) -> None:
    store = Store(path)
    store._db.execute("PRAGMA busy_timeout = 200")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    begun = time.monotonic()
    with pytest.raises(StoreError, match="another process holds it"):
        store.write("run", [StoreNumber(number=1)])
    assert time.monotonic() - begun < 10
    other.execute("ROLLBACK")
    other.close()
    store.write("run", [StoreNumber(number=1)])
    store.close()
