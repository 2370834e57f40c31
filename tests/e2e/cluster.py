"""A whole run under test: real lighthouse, agents and ranks, started by the command line that users have.

Everything that it starts leads a process group of its own and is ended by `close`, whatever happened in between.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
from e2e.network import Network, Proxy

from lighthouse.client import NotAllowed, Unreachable, status_now
from lighthouse.core_values import RunStatus
from replica.ranks import reserved_port
from trainer.evidence import commits, set_aside

JOB = Path(__file__).parent / "job.py"
RUN = "e2e"
AGAIN = {"event": "load", "life": 1}
"""How the ledger of a new agent begins, in short."""
SLOTS = 6


class Cluster:
    """One run with its folder. Flags are those of `bellrock lighthouse` and `bellrock group`.

    network: hosts by name, on which the lighthouse and the groups of these names run, instead of on loopback
    way_in: the lighthouse's address for this process
    """

    def __init__(self, folder: Path, *lighthouse_flags: str, job: Path = JOB, network: Network | None = None) -> None:
        self.folder = folder
        self._network = network
        self._door: Proxy | None = None
        self._job = job
        self.out = folder / "out"
        self.out.mkdir(parents=True)
        self.token_file = folder / "token"
        self._port = reserved_port("127.0.0.1")
        self.address = f"127.0.0.1:{self._port.getsockname()[1]}"
        if network is not None:
            self.address = f"{network.address('lighthouse')}:7000"
            self._door = Proxy(f"unix:{folder}/door", self.address, folder / "cuts", enter=network.enter("lighthouse"))
        self.way_in = self.address if self._door is None else self._door.address
        self._lighthouse_flags = lighthouse_flags
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ledgers: dict[str, JsonLines] = {}
        self._killed: set[str] = set()

    # ---- processes -------------------------------------------------------------------------------------------------

    def lighthouse(self) -> None:
        """Starts the lighthouse, or starts it again; returns when it answers."""
        self.start_lighthouse()
        self.until(
            lambda: self.status() is not None or self.exit_of("lighthouse") is not None, "the lighthouse answers"
        )

    def start_lighthouse(self) -> None:
        """Starts the lighthouse, or starts it again; returns at once."""
        bind, _, port = self.address.rpartition(":")
        flags = [
            "--bind",
            bind,
            "--run-id",
            RUN,
            "--token-file",
            str(self.token_file),
            "--port",
            port,
            "--store",
            str(self.folder / "lighthouse.db"),
        ]
        self._start("lighthouse", "lighthouse", *flags, *self._lighthouse_flags)

    def group(
        self,
        name: str,
        *job_flags: str,
        shards: int = 1,
        flags: tuple[str, ...] = (),
        key: str = "",
        run_id: str = RUN,
        token_file: Path | None = None,
        lighthouse: str = "",
    ) -> None:
        """Starts a group whose ranks run the job; key: another name for the process, where two share a group's name.

        lighthouse: the address at which it reaches the lighthouse, if that is another than the lighthouse's own
        """
        access = ["--run-id", run_id, "--token-file", str(token_file or self.token_file)]
        flags = (*flags, *(() if "--standby" in flags else ("--standby", "none")))
        address = lighthouse or self.address
        own = ["--lighthouse", address, "--name", name, "--shards", str(shards), "--folder", str(self.folder)]
        own += ["--bind", self._network.address(name)] if self._network is not None else []
        command = [sys.executable, str(self._job), "--out", str(self.out), *job_flags]
        self._start(key or name, "group", *access, *own, *flags, "--", *command)

    def byte_model(self, name: str, *flags: str) -> None:
        """Starts a group of one shard that trains the byte model."""
        access = ["--run-id", RUN, "--token-file", str(self.token_file), "--lighthouse", self.address]
        self._start(name, "group", *access, "--name", name, "--folder", str(self.folder), *flags)

    def kill(self, key: str | int, number: int = signal.SIGKILL) -> None:
        """Sends a signal to one child (the lighthouse, or an agent), or to a process of the run."""
        if isinstance(key, str) and number == signal.SIGKILL:
            self._killed.add(key.split()[0])
        os.kill(self.pid(key) if isinstance(key, str) else key, number)

    def pid(self, key: str) -> int:
        """Process id of a child."""
        return self._children[key].pid

    def kill_rank(self, name: str, shard: int = 0, number: int = signal.SIGKILL) -> None:
        """Sends a signal to a rank of a group."""
        os.kill(self.rank_pids(name)[shard], number)

    def rank_pids(self, name: str, *, standby: bool = False) -> dict[int, int]:
        """Process ids of the ranks of a group that run (or of its standbys), by shard_rank."""
        found = {}
        for pid, environ in _environments():
            ours = environ.get("BELLROCK_GROUP") == name and environ.get("E2E_FOLDER") == str(self.folder)
            if ours and _comm(pid).startswith("standby") is standby:
                found[int(environ["BELLROCK_SHARD_RANK"])] = pid
        return found

    def kin(self) -> list[int]:
        """Process ids of whatever runs on behalf of this run's groups, processes of ranks included."""
        mine = [pid for pid, environ in _environments() if environ.get("E2E_FOLDER") == str(self.folder)]
        return [pid for pid in mine if alive(pid) and pid != self._children["lighthouse"].pid]

    def exit_of(self, key: str) -> int | None:
        """Exit code of a child, None while it runs."""
        return self._children[key].poll()

    def wait_exit(self, key: str, timeout_s: float = 240.0) -> int:
        """Exit code of a child, once it has ended."""
        self.until(lambda: self.exit_of(key) is not None, f"{key} ends", timeout_s)
        return self._children[key].returncode

    def close(self) -> None:
        """Ends all that was started, and all that those started."""
        for child in self._children.values():
            if child.poll() is None:
                child.kill()
            child.wait()
        for pid in processes_of(self.folder):
            os.kill(pid, signal.SIGKILL)
        if self._door is not None:
            self._door.close()
        self._port.close()

    # ---- what can be seen ------------------------------------------------------------------------------------------

    def status(self, timeout_s: float = 2.0) -> RunStatus | None:
        """The run as the lighthouse sees it, None if it does not answer."""
        try:
            return status_now(self.way_in, token=self.token_file.read_text().strip(), run_id=RUN, timeout_s=timeout_s)
        except (Unreachable, NotAllowed, FileNotFoundError):
            return None

    def known(self) -> RunStatus:
        """The run as the lighthouse sees it, which is there and answers, be it late."""
        status = self.status(60.0)
        assert status is not None, self.logs()
        return status

    def step(self) -> int:
        """Committed steps, as far as the lighthouse knows; -1 if it does not answer."""
        status = self.status()
        return -1 if status is None else status.version.step

    def log(self, key: str) -> str:
        """What a child and its ranks have printed."""
        return (self.folder / f"{key}.out").read_text(errors="replace")

    def ledger(self, name: str) -> list[dict[str, Any]]:
        """The group's ledger, over all its lives. Cheap to ask for again and again."""
        return self._ledgers.setdefault(name, JsonLines(self.folder / f"{name}.ledger")).lines()

    def ledger_tail(self, name: str, tail_bytes: int = 30_000) -> list[dict[str, Any]]:
        """The last lines of the group's ledger."""
        path = self.folder / f"{name}.ledger"
        if not path.exists():
            return []
        with path.open("rb") as file:
            start = max(0, path.stat().st_size - tail_bytes)
            file.seek(start)
            lines = file.read().split(b"\n")
        return [json.loads(line) for line in lines[bool(start) : -1]]

    def committed(self, name: str) -> int:
        """Steps that the group has committed or applied, by its ledger."""
        return sum(line["event"] in ("commit", "apply") for line in self.ledger(name.split()[0]))

    def commits(self, name: str) -> int:
        """Steps that the group has committed as a member, by its ledger."""
        return sum(line["event"] == "commit" for line in self.ledger(name.split()[0]))

    def generations(self, name: str) -> list[int]:
        """Generations that the group has entered, in order."""
        return [line["generation"] for line in self.ledger(name) if line["event"] == "enter"]

    def recomputed(self, name: str) -> list[tuple[int, int, int, int]]:
        """(life, shard_rank, step, slot) of forward passes that a rank began a second time."""
        begun = [line for line in self.ledger(name) if line["event"] == "slot" and line["mark"] == "begun"]
        counts = Counter((line["life"], line["shard_rank"], line["step"], line["slot"]) for line in begun)
        return [key for key, count in counts.items() if count > 1]

    def lives(self, name: str, *, ended: bool = False) -> int:
        """How often the group's agent has started its ranks; ended: how often it lost them."""
        return self.log(name).count("group_lost") + (not ended)

    def until_contributing(self, name: str, life: int = 1, steps: int = 3) -> None:
        """Waits until the group (in its `life`-th life) has contributed to some steps."""

        def contributed() -> bool:
            lines = self.ledger(name)
            commits = [line for line in lines if line["event"] == "commit" and line.get("life", 1) >= life]
            return sum(bool(line["slots"]) for line in commits) >= steps

        self.until(contributed, f"{name} contributes in its life {life}", 240.0)

    def finish(
        self,
        undisturbed: Callable[[int], numpy.ndarray],
        names: tuple[str, ...] = (),
        *,
        rtol: float = 1e-3,
        atol: float = 1e-4,
    ) -> int:
        """Ends the run and asserts what must hold at the end of every run, whatever happened in it; its last step.

        All groups left have bit-equal weights, close to those of an undisturbed run, and consumed what they should.
        Each commits a step before: one that is still healing when the run is to end has no part in its last step.
        """
        names = names or tuple(key for key in self._children if key != "lighthouse")
        seen = {name: self.commits(name) for name in names}
        for name in names:
            self.until(lambda name=name: self.commits(name) > seen[name], f"{name} is a member")  # type: ignore[misc]
        (self.out / "enough").touch()
        for name in names:
            assert self.wait_exit(name) == 0, self.logs()
        files = sorted(self.out.glob("*.npy"))
        assert {path.name.split(".")[0] for path in files} == {name.split()[0] for name in names}, self.logs()
        weights = [numpy.load(path, allow_pickle=False) for path in files]
        for other in weights[1:]:
            numpy.testing.assert_array_equal(weights[0], other)
        ledgers = {path.stem: self.ledger(path.stem) for path in self.folder.glob("*.ledger")}
        steps = check_consumed(ledgers, self._killed)
        numpy.testing.assert_allclose(weights[0], undisturbed(steps), rtol=rtol, atol=atol)
        return steps

    def until(self, true: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
        """Waits for a condition. Raises AssertionError with all logs if it does not come."""
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout_s} s: {what}\n{self.logs()}")
            time.sleep(0.02)

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(f"---- {key}\n{self.log(key)[-4000:]}" for key in self._children)

    def _start(self, key: str, *arguments: str) -> None:
        host = self._network.enter(key.split()[0]) if self._network is not None else []
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "E2E_FOLDER": str(self.folder)}
        with (self.folder / f"{key}.out").open("ab") as out:
            self._children[key] = subprocess.Popen(
                [*host, sys.executable, "-P", "-m", "trainer.cli", *arguments],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=environment,
            )


class JsonLines:
    """A file that grows by lines of JSON, of which each is read once; anew if another file has taken its place."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = 0
        self._read_bytes = 0
        self._lines: list[dict[str, Any]] = []

    def lines(self) -> list[dict[str, Any]]:
        """All that is there by now; none while there is no file, nor of a line that is half written."""
        if self._path.exists():
            with self._path.open("rb") as file:
                if (inode := os.fstat(file.fileno()).st_ino) != self._inode:
                    self._inode, self._read_bytes, self._lines = inode, 0, []
                file.seek(self._read_bytes)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._lines += map(json.loads, whole.split(b"\n"))
                self._read_bytes += len(whole) + 1
        return list(self._lines)


def check_consumed(ledgers: dict[str, list[dict[str, Any]]], killed: Collection[str] = ()) -> int:
    """Asserts that every step of the surviving history consumed each of its slots exactly once; the last step.

    ledgers: by group. A step that exists twice is told apart by the generation that committed it; the history is the
    chain that leads to the newest version.
    killed: groups whose agent was. It took with it what it was still to write: of one step, what its ranks had done
    """
    made, aside = commits(ledgers), set_aside(ledgers)
    sizes = {
        (line["step"], line["generation"]): line["step_slots"]
        for lines in ledgers.values()
        for line in lines
        if line["event"] in ("commit", "apply")
    }
    parent = {
        (line["step"], line["generation"]): (line["from_step"], line["from_generation"])
        for lines in ledgers.values()
        for line in lines
        if line["event"] in ("commit", "apply")
    }
    last = version = max(parent)
    while version[0] > 0:
        dealt = made.get(version, {})
        counted = sorted(slot for own in dealt.values() for slot in own)
        wanted = [slot for slot in range(sizes[version]) if slot not in aside.get(version, ())]
        if counted != wanted and any(breaks_off(ledgers[name], version[0] - 1) for name in dealt if name in killed):
            counted = sorted([*counted, *set(wanted).difference(counted)])
        assert counted == wanted, f"{version}: slots were not consumed exactly once: {dealt}"
        version = parent[version]
    return last[0]


def breaks_off(lines: list[dict[str, Any]], step: int) -> bool:
    """Whether an agent's ledger ends amid the step after `step`, and goes on, if at all, with another agent's."""
    return any(
        one.get("step") == step and then["event"] == "load" and then["life"] <= one["life"]
        for one, then in pairwise([*lines, AGAIN])
    )


def processes_of(folder: Path) -> list[int]:
    """Process ids of all that a run with this folder started, and that still runs."""
    return [pid for pid, environ in _environments() if environ.get("E2E_FOLDER") == str(folder)]


def alive(pid: int) -> bool:
    """Whether a process is there (and no zombie)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _environments() -> Iterator[tuple[int, dict[str, str]]]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            raw = (entry / "environ").read_bytes()
        except OSError:
            continue
        pairs = (item.partition(b"=") for item in raw.split(b"\0") if b"=" in item)
        yield int(entry.name), {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}
