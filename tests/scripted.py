"""A lighthouse that follows a script, and agents as processes, for tests of the agent: real gRPC, real signals."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc

from lighthouse.auth import carries_token
from lighthouse.values import (
    Base,
    Down,
    Drain,
    Finished,
    Hello,
    Leave,
    Member,
    Role,
    RosterChange,
    Up,
    Welcome,
)
from lighthouse.wire import DOWN, UP, Steps, unfold
from lighthouse.wire_pb2_grpc import LighthouseServicer, add_LighthouseServicer_to_server

ROOT_FOLDER = Path(__file__).resolve().parent.parent
TOKEN = "0123456789abcdef"
DEADLINE_S = 30.0
M = TypeVar("M")


class ScriptedLighthouse(LighthouseServicer):
    """Welcomes one group, gives it a base with all slots at whatever it stands on, and lets it go when it asks.

    said: everything a group said, with its session's number; written: as it was on the wire
    """

    def __init__(self) -> None:
        self.written: list[Up | Steps] = []
        self.said: list[tuple[int, Up]] = []
        self.streams: dict[int, Any] = {}
        self._changed = asyncio.Event()
        self._conns = itertools.count(1)
        self._incarnations = itertools.count(1)
        self._numbers = itertools.count(1)
        self._server: Any = None
        self.address = ""

    async def start(self, port: int = 0) -> None:
        """Listens on loopback; `address` says where."""
        options = (("grpc.http2.max_ping_strikes", 0), ("grpc.so_reuseport", 0))
        self._server = grpc.aio.server(options=options)
        add_LighthouseServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{port}')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def send(self, message: Down) -> None:
        """Says something on the newest session."""
        await self.streams[max(self.streams)].write(DOWN.wrap(message))

    async def heard(self, kind: type[M], wanted: Callable[[M], bool] = lambda _: True) -> M:
        """The first message of this kind that is as wanted, waiting for it."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                for _, message in self.said:
                    if isinstance(message, kind) and wanted(message):
                        return message
                self._changed.clear()
                await self._changed.wait()

    async def Session(self, _: Any, context: Any) -> None:
        if not carries_token(context.invocation_metadata(), TOKEN):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the call carries no token")
        conn = next(self._conns)
        self.streams[conn] = context
        while (request := await context.read()) is not grpc.aio.EOF:
            self.written.append(UP.unwrap(request))
            for message in unfold(self.written[-1]):
                self.said.append((conn, message))
                self._changed.set()
                for reply in self._replies(message):
                    await context.write(DOWN.wrap(reply))

    def _replies(self, message: Up) -> Iterator[Down]:
        if isinstance(message, Hello):
            number = message.incarnation or next(self._incarnations)
            yield Welcome(incarnation=number, lease_s=1.0, contributors_wanted=0, first_number=1, join=False)
            if not message.report.generation or message.report.failed:
                yield self._base(message, number)
        elif isinstance(message, Drain):
            yield Leave(reason="drained", success=True)
        elif isinstance(message, Finished):
            yield Leave(reason="finished", success=True)

    def _base(self, hello: Hello, incarnation: int) -> Base:
        member = Member(name=hello.name, incarnation=incarnation, role=Role.CONTRIBUTOR)
        slots = tuple(range(int(hello.setup["slots"])))
        return Base(
            number=max(hello.report.abandoned, next(self._numbers)),
            roster=RosterChange(previous=0, joined=(member,)),
            version=hello.report.version,
            cursor=hello.report.cursor,
            slots=slots,
            step_slots=len(slots),
            rendezvous=("",) * len(hello.rendezvous),
        )


class AgentProcess:
    """`run_agent` in a process of its own, with `plain_rank.py` as its ranks. Everything it shows is in `shown()`."""

    def __init__(self, folder: Path, lighthouse: str, behaviour: str, **options: Any) -> None:
        self.folder = folder
        self.steps = options.pop("steps", 3)
        rank = [sys.executable, str(ROOT_FOLDER / "tests" / "plain_rank.py"), str(folder), behaviour, str(self.steps)]
        self._options = {
            "lighthouse": lighthouse,
            "token": TOKEN,
            "run_id": "r",
            "name": "g1",
            "shards": 2,
            "command": rank,
            "ledger": str(folder / "ledger"),
            "journal": str(folder / "journal"),
            "lock_folder": str(folder / "locks"),
            **options,
        }
        self.process: Any = None

    async def start(self) -> AgentProcess:
        with open(self.folder / f"shown-{len(list(self.folder.glob('shown-*')))}", "wb") as shown:
            self._shown = Path(shown.name)
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__)),
                json.dumps(self._options),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=shown,
                stderr=shown,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT_FOLDER)},
            )
        return self

    def shown(self) -> str:
        return self._shown.read_text()

    def ledger(self, event: str) -> list[dict[str, Any]]:
        """The ledger's lines of this event; "" means all."""
        path = self.folder / "ledger"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if event in ("", line["event"])]

    async def rank(self, life: int, shard_rank: int) -> int:
        """The pid of a rank, once it has attached."""
        path = self.folder / f"{life}-{shard_rank}.pid"
        await until(path.exists, lambda: f"rank {shard_rank} of life {life} is not there:\n{self.shown()}")
        return int(path.read_text())

    async def ended(self) -> int:
        """Its exit code, waiting for it."""
        async with asyncio.timeout(DEADLINE_S):
            return int(await self.process.wait())

    async def close(self) -> None:
        """Ends it, if it has not; the keeper ends its ranks."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def all_gone(self) -> None:
        """Waits for the end of every process that wrote its pid in the folder. For when all agents are closed."""
        paths = (*self.folder.glob("*.pid"), *self.folder.glob("*.kin"))
        pids = [int(pid) for path in paths for pid in path.read_text().split()]
        await until(lambda: not any(map(is_there, pids)), lambda: f"{[*filter(is_there, pids)]} are still there")


def is_there(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def until(true: Callable[[], bool], why: Callable[[], str] = lambda: "", deadline_s: float = DEADLINE_S) -> None:
    """Waits for a condition; an AssertionError saying `why` if it does not become true."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_s
    while not true():
        assert loop.time() < end, why() or "the condition did not become true in time"
        await asyncio.sleep(0.002)


def _main() -> None:
    from replica.agent import AgentOptions, run_agent

    options = json.loads(sys.argv[1])
    for name in ("ledger", "journal", "lock_folder"):
        options[name] = Path(options[name])
    options["command"] = tuple(options["command"])
    sys.exit(asyncio.run(run_agent(AgentOptions(environ=dict(os.environ), **options))))


if __name__ == "__main__":
    _main()
