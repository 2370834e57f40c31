"""The lighthouse's records: what must outlive it, in one SQLite file.

Safety of a run rests on a few facts never being contradicted: which numbers were spent, which generations were claimed
and by whom, where each generation started from, which incarnations were given. Each is written as a compare-and-set in
a transaction that is on disk before `write` returns. Two fences stand behind that: every process that opens the file
becomes its leader by raising a counter, and a write of an older leader raises `Superseded`; and each fact refuses to be
contradicted, whoever writes it. Beside the file lies a lock, so that a second lighthouse waits instead of taking over
(`waits for its lock`); on a file system without working locks the two fences remain.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from lighthouse.core_values import (
    BaseRecord,
    ClaimRecord,
    SlotDeath,
    StoreBase,
    StoreClaim,
    StoreDeaths,
    StoreEffect,
    StoreFinished,
    StoreIncarnation,
    StoreNumber,
    StoreRecord,
    StoreSetup,
)
from lighthouse.values import Member, Version

APPLICATION_ID = 0x42524C31
"""Marks an SQLite file as a store of ours, so that no other file is ever written to."""

_LAYOUT = """
CREATE TABLE leader (id INTEGER PRIMARY KEY CHECK (id = 1), term INTEGER NOT NULL);
INSERT INTO leader VALUES (1, 0);
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, first_number INTEGER NOT NULL DEFAULT 0, last_number INTEGER NOT NULL DEFAULT 0,
    next_incarnation INTEGER NOT NULL DEFAULT 1, setup BLOB, finished_step INTEGER, finished_generation INTEGER,
    deaths BLOB
) WITHOUT ROWID;
CREATE TABLE claims (
    run_id TEXT NOT NULL, number INTEGER NOT NULL, planned INTEGER NOT NULL, roster BLOB NOT NULL,
    PRIMARY KEY (run_id, number)
) WITHOUT ROWID;
CREATE TABLE bases (
    run_id TEXT NOT NULL, number INTEGER NOT NULL, step INTEGER NOT NULL, generation INTEGER NOT NULL,
    cursor INTEGER NOT NULL, set_aside BLOB NOT NULL, PRIMARY KEY (run_id, number)
) WITHOUT ROWID;
"""


class StoreError(Exception):
    """The store cannot be used; the message says which file, why, and what to do. Repair it, then start again."""


class Superseded(Exception):
    """Another lighthouse leads by now, or the write contradicts a stored fact: stop at once, carry nothing more out."""


class StoreLock:
    """The lock beside a store. Whoever holds it may open the store; it ends with the process at the latest."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".lock")
        with failures(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_take(self) -> bool:
        """Takes the lock if it is free."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._sign()
        return True

    def take(self) -> None:
        """Waits until the lock is free, and takes it. Cannot be interrupted: call it on a thread that may be left."""
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._sign()

    def holder(self) -> str:
        """Who holds it, for people: "pid 17 on host", as far as it is known."""
        return os.pread(self._file, 200, 0).decode(errors="replace").strip() or "another process"

    def release(self) -> None:
        """Lets the lock go. Idempotent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _sign(self) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


class Store:
    """The records of all runs of a lighthouse. Methods may be called from any thread, one at a time.

    Opening makes this process the leader. Every method raises StoreError where the file does not do its part.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._db = open_database(path, APPLICATION_ID, _LAYOUT, durable=True)
        try:
            with self._transaction() as db:
                db.execute("UPDATE leader SET term = term + 1")
                self._term = int(db.execute("SELECT term FROM leader").fetchone()[0])
        except BaseException:
            self._db.close()
            raise

    def runs(self) -> tuple[str, ...]:
        """The run ids that the store knows."""
        with self._mutex, failures(self._path):
            return tuple(row[0] for row in self._db.execute("SELECT run_id FROM runs ORDER BY run_id"))

    def read(self, run_id: str) -> StoreRecord:
        """What is stored of a run; an empty record for an unknown one."""
        with self._mutex, failures(self._path):
            row = self._db.execute(
                "SELECT first_number, last_number, next_incarnation, setup, finished_step, finished_generation,"
                " deaths FROM runs WHERE run_id = ?",
                (run_id,),
            ).fetchone()
            if row is None:
                return StoreRecord()
            bases = self._db.execute(
                "SELECT number, step, generation, cursor, set_aside FROM bases WHERE run_id = ? ORDER BY number",
                (run_id,),
            ).fetchall()
            claims = self._db.execute(
                "SELECT number, planned, roster FROM claims WHERE run_id = ? ORDER BY number", (run_id,)
            ).fetchall()
            first, last, incarnation, setup, step, generation, deaths = row
            return StoreRecord(
                first_number=first,
                last_number=last,
                next_incarnation=incarnation,
                claims=tuple(
                    ClaimRecord(number=n, planned=bool(p), roster=msgspec.msgpack.decode(r, type=tuple[Member, ...]))
                    for n, p, r in claims
                ),
                bases=tuple(
                    BaseRecord(number=n, version=Version(s, g), cursor=c, set_aside=_slots(a))
                    for n, s, g, c, a in bases
                ),
                setup={} if setup is None else msgspec.msgpack.decode(setup, type=dict[str, str]),
                finished=None if step is None else Version(step, generation),
                deaths=() if deaths is None else msgspec.msgpack.decode(deaths, type=tuple[SlotDeath, ...]),
            )

    def write(self, run_id: str, effects: Sequence[StoreEffect]) -> None:
        """Writes all of them or none, durably. Raises Superseded where a fact stands against one of them."""
        with self._mutex, self._transaction() as db:
            term = db.execute("SELECT term FROM leader").fetchone()[0]
            if term != self._term:
                raise Superseded(f"another lighthouse took over {self._path} (leader {term}, this one is {self._term})")
            db.execute("INSERT OR IGNORE INTO runs (run_id) VALUES (?)", (run_id,))
            for effect in effects:
                _WRITERS[type(effect)](db, run_id, effect)

    def close(self) -> None:
        """Closes the file. Idempotent."""
        with self._mutex:
            self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with failures(self._path), transaction(self._db) as db:
            yield db


# ---- one function for each kind of fact ----------------------------------------------------------------------------


def _write_number(db: sqlite3.Connection, run_id: str, effect: StoreNumber) -> None:
    last = _last_number(db, run_id)
    if effect.number <= last or effect.number < 1:
        raise Superseded(f"number {effect.number} of run {run_id!r} cannot be spent: {last} was already")
    db.execute(
        "UPDATE runs SET last_number = ?1, first_number = iif(first_number = 0, ?1, first_number) WHERE run_id = ?2",
        (effect.number, run_id),
    )


def _write_claim(db: sqlite3.Connection, run_id: str, effect: StoreClaim) -> None:
    last = _last_number(db, run_id)
    if effect.number != last:
        raise Superseded(f"generation {effect.number} of run {run_id!r} cannot be claimed: {last} is the newest number")
    roster = msgspec.msgpack.encode(effect.roster)
    row = (run_id, effect.number, int(effect.planned), roster)
    _once(db, "claims", row, db.execute("SELECT * FROM claims WHERE run_id = ? AND number = ?", row[:2]).fetchone())


def _write_base(db: sqlite3.Connection, run_id: str, effect: StoreBase) -> None:
    last = _last_number(db, run_id)
    highest = db.execute("SELECT max(number) FROM bases WHERE run_id = ?", (run_id,)).fetchone()[0] or 0
    if effect.number > last:
        raise Superseded(f"generation {effect.number} of run {run_id!r} has no base: its number was never spent")
    if effect.number < last and not effect.reported:
        raise Superseded(f"generation {effect.number} of run {run_id!r} gets no base: number {last} was spent since")
    if effect.number < highest:
        raise Superseded(f"generation {effect.number} of run {run_id!r} gets no base: {highest} has one")
    aside = msgspec.msgpack.encode(effect.set_aside)
    row = (run_id, effect.number, effect.version.step, effect.version.generation, effect.cursor, aside)
    _once(db, "bases", row, db.execute("SELECT * FROM bases WHERE run_id = ? AND number = ?", row[:2]).fetchone())
    db.execute("DELETE FROM claims WHERE run_id = ? AND number < ?", (run_id, effect.number))


def _write_incarnation(db: sqlite3.Connection, run_id: str, effect: StoreIncarnation) -> None:
    done = db.execute(
        "UPDATE runs SET next_incarnation = ?1 WHERE run_id = ?2 AND next_incarnation < ?1", (effect.next, run_id)
    )
    if done.rowcount != 1:
        raise Superseded(f"incarnations of run {run_id!r} below {effect.next} were given already")


def _write_setup(db: sqlite3.Connection, run_id: str, effect: StoreSetup) -> None:
    known = db.execute("SELECT setup FROM runs WHERE run_id = ?", (run_id,)).fetchone()[0]
    if known is not None and msgspec.msgpack.decode(known) != effect.setup:
        raise Superseded(f"run {run_id!r} has another setup")
    db.execute("UPDATE runs SET setup = ? WHERE run_id = ?", (msgspec.msgpack.encode(effect.setup), run_id))


def _write_finished(db: sqlite3.Connection, run_id: str, effect: StoreFinished) -> None:
    known = db.execute("SELECT finished_step, finished_generation FROM runs WHERE run_id = ?", (run_id,)).fetchone()
    here = (effect.version.step, effect.version.generation)
    if known not in ((None, None), here):
        raise Superseded(f"run {run_id!r} is finished at ({known[0]}, {known[1]}), not at {effect.version}")
    db.execute("UPDATE runs SET finished_step = ?, finished_generation = ? WHERE run_id = ?", (*here, run_id))


def _write_deaths(db: sqlite3.Connection, run_id: str, effect: StoreDeaths) -> None:
    db.execute("UPDATE runs SET deaths = ? WHERE run_id = ?", (msgspec.msgpack.encode(effect.deaths), run_id))


_WRITERS: dict[type, Callable[[sqlite3.Connection, str, Any], None]] = {
    StoreNumber: _write_number,
    StoreClaim: _write_claim,
    StoreBase: _write_base,
    StoreIncarnation: _write_incarnation,
    StoreSetup: _write_setup,
    StoreFinished: _write_finished,
    StoreDeaths: _write_deaths,
}


def _slots(data: bytes) -> tuple[int, ...]:
    slots: tuple[int, ...] = msgspec.msgpack.decode(data, type=tuple[int, ...])
    return slots


def _last_number(db: sqlite3.Connection, run_id: str) -> int:
    return int(db.execute("SELECT last_number FROM runs WHERE run_id = ?", (run_id,)).fetchone()[0])


def _once(db: sqlite3.Connection, table: str, row: tuple[Any, ...], known: tuple[Any, ...] | None) -> None:
    """Inserts `row`, or finds that the very same one is there."""
    if known is None:
        db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    elif known != row:
        raise Superseded(f"{table} of run {row[0]!r} already hold another one of generation {row[1]}")


# ---- SQLite, with errors that say what to do -----------------------------------------------------------------------


def open_database(path: Path, application_id: int, layout: str | None, *, durable: bool) -> sqlite3.Connection:
    """An open database of the given kind, made if there is none. durable: a commit is on disk when it returns.

    layout: what to make it with; None: it must be there already. Raises StoreError.
    """
    with failures(path):
        if layout is None and not (path.is_file() and path.stat().st_size):
            raise StoreError(f"{path} is empty" if path.exists() else f"{path} is not there")
        path.parent.mkdir(parents=True, exist_ok=True)
        db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
        try:
            found = db.execute("PRAGMA application_id").fetchone()[0]
            empty = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
            if found != application_id and not (empty and layout is not None):
                raise StoreError(f"{path} is an SQLite file of something else: choose another path")
            damage = db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'OFF'}")
            if empty and layout is not None:
                with transaction(db):
                    for statement in layout.strip().rstrip(";").split(";"):
                        db.execute(statement)
                    db.execute(f"PRAGMA application_id = {application_id}")
        except BaseException:
            db.close()
            raise
        return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """A write transaction: committed at the end of the block, undone if it raises."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield db
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


@contextmanager
def failures(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and the file system into StoreError, with what to do about them."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(_advice(path, error)) from error
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}: make it readable and writable for this user") from error


_ADVICE = {
    "SQLITE_FULL": "the disk is full: make room and start again; nothing was lost",
    "SQLITE_READONLY": "it cannot be written to: give this user the right to write it and its folder",
    "SQLITE_CANTOPEN": "it cannot be opened: its folder must exist and be writable for this user",
    "SQLITE_IOERR": "the disk fails to read or write it (or is full): look at the system's log",
    "SQLITE_BUSY": "another process holds it: no other program may write it",
    "SQLITE_CORRUPT": "it is damaged: move it away and start again; groups still alive are asked what they know",
    "SQLITE_NOTADB": "it is no SQLite file, or damaged: choose another path, or move it away and start again",
}


def _advice(path: Path, error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", None) or "SQLITE_CORRUPT"
    advice = next((text for key, text in _ADVICE.items() if name.startswith(key)), f"SQLite says {name}")
    return f"{path}: {advice} ({error})"
