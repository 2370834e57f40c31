"""`bellrock replay`: journals of real lighthouses, of simulated ones and of agents, and files that are none."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from simulation.journals import write_journal
from simulation.seeds import run_seed

from lighthouse.client import Session, open_session
from lighthouse.journal import Segment, segments
from lighthouse.values import ROOT, Base, Beat, Committed, Died, Down, Hello, Report, Start, Version
from replica.agent_core import decide, new_agent, record
from replica.agent_journal import Journal
from replica.agent_values import AgentConfig, DrainAsked, Event, RankExited, TookOver
from trainer.launcher import bellrock_argv
from trainer.replay import replay_journal

TOKEN = "0123456789abcdef0123456789abcdef"


def replayed(path: Path, turns: bool = False) -> tuple[int, str]:
    """The exit code of `bellrock replay`, and what it printed."""
    console = Console(record=True, width=200, highlight=False, file=open(os.devnull, "w"))  # noqa: SIM115
    code = replay_journal(path, turns, console)
    console.file.close()
    return code, console.export_text()


# ---- a lighthouse --------------------------------------------------------------------------------------------------


@contextmanager
def lighthouse(store: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`bellrock lighthouse` as people start it, and its address."""
    token_file = store.with_name("token")
    token_file.write_text(TOKEN)
    options = {"store": store, "port": 0, "run-id": "r", "groups-wanted": 3, "token-file": token_file}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    process = subprocess.Popen(bellrock_argv("lighthouse", *flags), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = iter(process.stdout.readline, "")
        found = next(
            filter(None, (re.match(r"lighthouse listening on (127\.0\.0\.1:\d+)", line) for line in said)), None
        )
        assert found
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def report(abandoned: int, **fields: object) -> Report:
    return Report(abandoned=abandoned, version=ROOT, cursor=0, **fields)  # type: ignore[arg-type]


async def hear(session: Session, kind: type[Down]) -> Down:
    """The next message of that kind; whoever is told to abandon reports at once."""
    while True:
        message = await session.receive()
        assert message is not None, f"the stream ended before {kind}"
        number = getattr(message, "number", 0)
        if type(message).__name__ == "Abandon":
            await session.send(report(number))
        if isinstance(message, kind):
            return message


async def live_through(address: str) -> None:
    """Three groups form, commit a step, one dies, and the others form again."""
    sessions = []
    for name in ("g1", "g2", "g3"):
        session = await open_session(address, token=TOKEN)
        setup = {"slots": "6", "steps": "10"}
        one = Hello(
            run_id="r",
            name=name,
            incarnation=0,
            host=f"{name}.example",
            took_over=True,
            setup=setup,
            rendezvous=("h:1",),
            weights=("h:2",),
            digest=1,
            report=report(0),
        )
        await session.send(one)
        sessions.append(session)
    bases = await asyncio.gather(*(hear(session, Base) for session in sessions))
    number = {base.number for base in bases if isinstance(base, Base)}.pop()
    start, version = Start(number=number, version=ROOT), Version(1, number)
    done = Committed(version=version, start=start, loss=1.0, tokens=60, grad_norm=1.0, step_s=0.1)
    for session in sessions:
        await session.send(done)
        await session.send(Beat(version=version))
    await sessions[2].send(Died(reason="signal 9", shard_rank=0, killed=True))
    await asyncio.gather(*(hear(session, Base) for session in sessions[:2]))
    for session in sessions:
        await session.close()


def test_a_run_of_a_real_lighthouse_is_decided_alike(tmp_path: Path) -> None:
    store = tmp_path / "lighthouse.db"
    with lighthouse(store) as (process, address):
        asyncio.run(asyncio.wait_for(live_through(address), 30))
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    with lighthouse(store) as (process, _):  # a second life, in the same journal
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    journal = tmp_path / "lighthouse.db.journal"
    done = subprocess.run(bellrock_argv("replay", str(journal)), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* turns, 0 of them decided otherwise today", done.stdout)
    code, told = replayed(journal, turns=True)
    assert code == 0
    for word in ("Started(", "SaidHello(", "Died(", "-> StoreBase(", "-> Send("):
        assert word in told


def test_a_seeds_journal_is_decided_alike(tmp_path: Path) -> None:
    world = run_seed(1)
    path = tmp_path / "seed.journal"
    count = write_journal(world, path)
    assert len(world.lives) > 1, "seed 1 has lighthouses that crash"
    assert replayed(path) == (0, f"{count} turns, 0 of them decided otherwise today\n")
    turns = [turn for *_, segment in segments(path) for turn in segment.turns]
    assert [turn.events for turn in turns] == [turn.events for life in world.lives for turn in life.turns]
    assert [turn.effects for turn in turns] == [turn.effects for life in world.lives for turn in life.turns]


def test_what_is_decided_otherwise_is_told(tmp_path: Path) -> None:
    path = tmp_path / "seed.journal"
    write_journal(run_seed(1), path)
    with sqlite3.connect(path) as db:
        number, blob = db.execute("SELECT id, bytes FROM segments ORDER BY id").fetchone()
        segment = msgspec.msgpack.decode(zlib.decompress(blob), type=Segment)
        place = next(i for i, turn in enumerate(segment.turns) if turn.effects)
        turns = list(segment.turns)
        turns[place] = msgspec.structs.replace(turns[place], effects=(), digest=b"")
        segment = msgspec.structs.replace(segment, turns=tuple(turns))
        blob = zlib.compress(msgspec.msgpack.encode(segment))
        db.execute("UPDATE segments SET bytes = ? WHERE id = ?", (blob, number))
    db.close()
    code, told = replayed(path)
    assert code == 1
    assert "then: ()\n" in told and f"turn {place} of segment {number}" in told
    assert "1 of them decided otherwise" in told


# ---- an agent ------------------------------------------------------------------------------------------------------


def agents_journal(path: Path) -> None:
    """Of an agent whose ranks die at once, twice, and that is asked to leave."""
    journal = Journal(path)
    state = new_agent(AgentConfig(run_id="r", name="g", host="h", shards=1))
    died = RankExited(life=1, shard_rank=0, code=1, traceback="")
    turns: list[tuple[Event, ...]] = [(TookOver(),), (died,), (), (died, DrainAsked()), ()]
    for now, events in enumerate(turns):
        before = state
        for event in events:
            state = record(state, event, float(now))
        state, effects = decide(state, float(now))
        journal.note(before, float(now), events, effects)
    journal.close(10.0)


def test_an_agents_journal_is_decided_alike(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    agents_journal(path)
    assert replayed(path) == (0, "5 turns, 0 of them decided otherwise today\n")
    _, told = replayed(path, turns=True)
    assert "RankExited(" in told and "-> StartRanks(life=1)" in told
    with path.open("ab") as file:
        file.write(b'[5.0, {"type": "Took')  # as a killed agent leaves it
    assert replayed(path)[0] == 0


def test_what_an_agent_decides_otherwise_is_told(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    agents_journal(path)
    lines = path.read_bytes().splitlines(keepends=True)
    now, events, digest = msgspec.json.decode(lines[1])
    lines[1] = msgspec.json.encode([now, events, digest + 1]) + b"\n"
    path.write_bytes(b"".join(lines))
    code, told = replayed(path)
    assert code == 1
    assert "it was decided otherwise then" in told and "5 turns, 1 of them" in told


# ---- no journal ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "there is no journal"),
        (b"", "is empty: nothing was journalled yet"),
        (b"step,loss\n1,2.0\n", "is neither the journal of a lighthouse nor that of an agent"),
        (b"\x00\xff" * 5000, "is neither the journal"),
        (b'{"loss": 1}\n', "not a journal of an agent of this version"),
        (b'[1.0, null, 0]\n[2.0, {"type": "Nonsense"}, 0]\n', "not a journal of an agent of this version"),
        (b'{"anchor": {"conf', "its first line is torn"),
    ],
)
def test_what_is_no_journal_says_so(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    code, told = replayed(path)
    assert code == 2
    assert says in told
    assert content is None or path.read_bytes() == content


def test_a_folder_a_store_and_a_torn_journal_say_so(tmp_path: Path) -> None:
    assert "Is a directory" in replayed(tmp_path)[1]
    journal = tmp_path / "run.db.journal"
    write_journal(run_seed(1), journal)
    whole = journal.read_bytes()
    journal.write_bytes(whole[: len(whole) // 2])
    code, told = replayed(journal)
    assert code == 2
    assert "damaged" in told
    foreign = tmp_path / "run.db"
    with sqlite3.connect(foreign) as db:
        db.execute("CREATE TABLE steps (loss REAL)")
    db.close()
    assert f"is a store; its journal is {journal}" in replayed(foreign)[1]
    journal.unlink()
    before = foreign.read_bytes()
    assert "is an SQLite file of something else" in replayed(foreign)[1]
    assert foreign.read_bytes() == before
