"""The lighthouse as a process: its one line, its standby, its exit codes, its errors."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lighthouse.client import open_session, status, status_now
from lighthouse.journal import replay
from lighthouse.program import LighthouseOptions
from lighthouse.store import Store
from lighthouse.values import ROOT, Base, Beat, Finished, Leave, Version, Welcome
from tests.unit.small_core import CORE
from tests.unit.test_service import TOKEN, hello

CODE = """
import asyncio, sys
from pathlib import Path, PosixPath
from lighthouse.program import LighthouseOptions, run_lighthouse
from tests.unit.small_core import CORE
options = LighthouseOptions(store=Path(sys.argv[1]), port=int(sys.argv[2]), **eval(sys.argv[3]))
sys.exit(asyncio.run(run_lighthouse(options, CORE)))
"""


@contextmanager
def program(store: Path, port: int = 0, before: str = "", **options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", before + CODE, str(store), str(port), repr(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def listening(process: subprocess.Popen[str]) -> str:
    said = line(process)
    match = re.fullmatch(r"lighthouse listening on (127\.0\.0\.1:\d+)", said)
    assert match, said
    return match[1]


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, and what the program itself said was wrong.

    Others write to standard error too; a traceback counts.
    """
    _, errors = process.communicate(timeout=20)
    if "Traceback" in errors:
        return process.returncode, errors
    return process.returncode, "".join(text + "\n" for text in errors.splitlines() if text.startswith("lighthouse:"))


def test_it_says_where_it_listens_and_ends_on_sigterm(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        with program(tmp_path / "lighthouse.db", run_id="run") as process:
            address = listening(process)
            assert status_now(address).hold == "waits for the first groups"
            process.send_signal(number)
            assert outcome(process) == (0, "")
    assert replay(tmp_path / "lighthouse.db.journal", CORE) == ()


def test_a_standby_says_that_it_waits_and_takes_over(tmp_path: Path) -> None:
    store = tmp_path / "lighthouse.db"
    with program(store) as first:
        listening(first)
        with program(store) as second, program(store) as third:
            for standby in (second, third):
                assert f"is held by pid {first.pid} on {socket.gethostname()}" in line(standby)
            third.terminate()
            assert outcome(third) == (0, "")
            first.kill()
            listening(second)


def test_a_lighthouse_that_was_stopped_for_long_loses_nobody_who_went_on_beating(tmp_path: Path) -> None:
    with program(tmp_path / "lighthouse.db", lease_s=2.0) as process:
        address = listening(process)

        async def group() -> None:
            async with await open_session(address) as session:
                await session.send(hello("g1"))
                assert isinstance(await session.receive(), Welcome)

                async def beat() -> None:
                    while True:
                        await session.send(Beat(version=ROOT))
                        await asyncio.sleep(0.1)

                beating = asyncio.create_task(beat())
                for stopped_s in (2.5, 5.0):
                    process.send_signal(signal.SIGSTOP)
                    await asyncio.sleep(stopped_s)
                    process.send_signal(signal.SIGCONT)
                    since = time.monotonic()
                    while time.monotonic() - since < 1.0:
                        (standing,) = (await status(address, run_id="run")).groups
                        assert standing.state == "contributor"
                        await asyncio.sleep(0.05)
                beating.cancel()
                while (await status(address, run_id="run")).groups[0].state != "lost":
                    await asyncio.sleep(0.05)

        asyncio.run(asyncio.wait_for(group(), 30))


def test_more_sessions_than_a_process_may_open_files_at_first(tmp_path: Path) -> None:
    few = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (64, r.getrlimit(r.RLIMIT_NOFILE)[1]))"
    with program(tmp_path / "lighthouse.db", before=few, lease_s=30.0) as process:
        address = listening(process)

        async def groups() -> None:
            sessions = [await open_session(address) for _ in range(80)]
            for number, session in enumerate(sessions):
                await session.send(hello(f"g{number}"))
                assert isinstance(await session.receive(), Welcome)
            for session in sessions:
                await session.close()

        asyncio.run(asyncio.wait_for(groups(), 30))


def test_it_ends_with_its_only_run(tmp_path: Path) -> None:
    with program(tmp_path / "lighthouse.db", run_id="run", until_ended=True) as process:
        address = listening(process)

        async def group() -> None:
            async with await open_session(address) as session:
                await session.send(hello("g1"))
                assert isinstance(await session.receive(), Welcome)
                base = await session.receive()
                assert isinstance(base, Base)
                await session.send(Finished(version=Version(3, base.number)))
                assert isinstance(await session.receive(), Leave)

        asyncio.run(asyncio.wait_for(group(), 20))
        assert outcome(process) == (0, "")


def test_what_cannot_be_started_says_why_and_exits_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with program(tmp_path / "a.db", port) as process:
            code, errors = outcome(process)
            assert code == 2
            assert errors == (
                f"lighthouse: cannot listen on 127.0.0.1:{port}: it is taken, or not an address of this host:"
                " choose another\n"
            )
    (tmp_path / "b.db").write_text("no database, but long enough to look like one at first sight" * 20)
    with program(tmp_path / "b.db") as process:
        code, errors = outcome(process)
        assert code == 2
        assert "it is no SQLite file, or damaged" in errors
    (tmp_path / "empty").write_text("\n")
    for token_file, match in ((tmp_path / "none", "No such file"), (tmp_path / "empty", "holds no token")):
        with program(tmp_path / "c.db", token_file=token_file) as process:
            code, errors = outcome(process)
            assert code == 2
            assert match in errors


def test_a_lighthouse_whose_store_was_taken_over_exits_3(tmp_path: Path) -> None:
    store = tmp_path / "lighthouse.db"
    with program(store) as process:
        address = listening(process)
        with sqlite3.connect(store) as db:
            db.execute("UPDATE leader SET term = term + 1")
        db.close()

        async def group() -> None:
            async with await open_session(address) as session:
                await session.send(hello("g1"))
                assert await session.receive() is None

        asyncio.run(asyncio.wait_for(group(), 20))
        code, errors = outcome(process)
        assert code == 3
        assert "another lighthouse took over" in errors


def test_a_store_that_fails_stops_it_before_anything_is_sent(tmp_path: Path) -> None:
    store = tmp_path / "lighthouse.db"
    with program(store, run_id="run") as process:
        address = listening(process)
        assert status_now(address).run_id == "run"  # so that it has read the store
        with sqlite3.connect(store) as db:
            db.execute("DROP TABLE runs")
        db.close()

        async def group() -> None:
            async with await open_session(address) as session:
                await session.send(hello("g1"))
                assert await session.receive() is None

        asyncio.run(asyncio.wait_for(group(), 20))
        code, errors = outcome(process)
        assert code == 2
        assert str(store) in errors


def test_a_store_that_cannot_be_read_is_told_before_anybody_is_told_to_come(tmp_path: Path) -> None:
    store = tmp_path / "lighthouse.db"
    Store(store).close()
    with sqlite3.connect(store) as db:
        db.execute("DROP TABLE runs")
    db.close()
    with program(store, run_id="run") as process:
        assert line(process) == ""
        code, errors = outcome(process)
        assert code == 2
        assert str(store) in errors


def test_it_asks_for_the_token_in_its_file(tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN + "\n")
    with program(tmp_path / "lighthouse.db", token_file=token_file, run_id="run") as process:
        address = listening(process)
        assert status_now(address, token=TOKEN).run_id == "run"
        with pytest.raises(Exception, match="carries no token"):
            status_now(address)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"port": 70000}, "use 0 to 65535"),
        ({"bind": "0.0.0.0"}, "give a token_file, or bind to"),
        ({"until_ended": True}, "needs a run_id"),
        ({"lease_s": 0.0}, "lease_s is 0: give a number of seconds above 0"),
        ({"min_groups": 0}, "min_groups must be at least 1"),
        ({"hold_patience_s": 1.0}, "hold_patience_s .* is below lease_s"),
        ({"journal_mib": 0}, "journal_mib must be at least 1"),
    ],
)
def test_options_that_contradict_each_other_say_what_to_change(options: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        LighthouseOptions(**options)  # type: ignore[arg-type]


def test_options_need_no_token_on_loopback() -> None:
    for bind in ("127.0.0.1", "localhost", "::1"):
        assert LighthouseOptions(bind=bind).bind == bind
