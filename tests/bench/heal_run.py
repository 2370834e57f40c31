"""A run that heals a large state again and again: what it costs the healthy, and where a joiner's time goes.

Some groups train; one more is killed (SIGKILL) and heals from them, in cold starts and in warm ones. A step's compute
is a sleep, as a GPU would leave the CPU free. Everything is read from the groups' ledgers. After each heal as many
bytes go over a bare connection between two other processes, for comparison.
"""

from __future__ import annotations

import statistics
import threading
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.children import pinned
from bench.heal_transfer import BarePair
from e2e.cluster import Cluster

JOB = Path(__file__).with_name("heal_job.py")
JOINER = "joiner"
PARTS = ("start_s", "import_s", "build_s", "transfer_s", "replay_s", "switch_s")
PATIENCE_S = 300.0


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How large the state is, how long a step, how many groups train, and how often the joiner heals, cold and warm.

    apart: the joiner with its agent has one core, everybody else another, as if it had a host of its own
    """

    mb: int
    trained_mb: int
    sleep_s: float
    quiet_steps: int
    healthy: int
    cold: int
    warm: int
    apart: bool = False

    def core(self, place: int) -> AbstractContextManager[None]:
        """Whoever is started meanwhile has this core alone, if they are apart."""
        return pinned(place) if self.apart else nullcontext()


@dataclass(kw_only=True)
class Outcome:
    """What was seen.

    before, during, after: seconds of the healthy groups' steps; loading, joined: those of `during` without the joiner
    and with it as a member; three: with it as a member while nothing heals; ways: of joiners, by kind of start
    rates: GB/s of a bare connection and of the heal before it; donor_extra: bytes
    """

    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    loading: list[float] = field(default_factory=list)
    joined: list[float] = field(default_factory=list)
    three: list[float] = field(default_factory=list)
    ways: dict[str, list[dict[str, float]]] = field(default_factory=lambda: {"cold": [], "warm": []})
    rates: list[tuple[float, float]] = field(default_factory=list)
    donor_extra: int = 0


class Memory:
    """Watches the memory of the healthy groups' ranks that is theirs alone."""

    def __init__(self, run: Cluster, names: list[str]) -> None:
        self._pids = [pid for name in names for pid in run.rank_pids(name).values()]
        self._before = [self._of(pid) for pid in self._pids]
        self.extra = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> int:
        """The most that any of them took above what it had at first, in bytes."""
        self._over.set()
        self._thread.join()
        return self.extra

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            for pid, before in zip(self._pids, self._before, strict=True):
                self.extra = max(self.extra, self._of(pid) - before)

    def _of(self, pid: int) -> int:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon")), 0)


def run_heals(folder: Path, shape: Shape) -> Outcome:
    """Carries out the whole run, and reads what it cost."""
    names = [f"g{i}" for i in range(shape.healthy)]
    wanted = str(shape.healthy)
    run = Cluster(folder, "--lease-s", "5", "--groups-wanted", wanted, "--stall-patience-s", "120", job=JOB)
    bare = BarePair(shape.mb * 1_000_000)
    outcome = Outcome()
    try:
        flags = ("--mb", str(shape.mb), "--trained-mb", str(shape.trained_mb), "--sleep-s", str(shape.sleep_s))
        with shape.core(0):
            run.lighthouse()
            for name in names:
                run.group(name, *flags)
        windows = [_quiet(run, shape)]
        memory = Memory(run, names)
        own: list[float] = []
        for kind in ("cold", "warm"):
            bares = _heal(run, kind, shape, bare, flags)
            outcome.rates += list(zip(bares, _loads(run), strict=True))
            for way in _ways(run):
                outcome.ways["warm" if way["warm"] else "cold"].append(way)
            run.kill(f"{JOINER} {kind}")
            run.wait_exit(f"{JOINER} {kind}")
            run.until(lambda: JOINER not in _members(run), "the joiner is gone", PATIENCE_S)
            own += _commits(run, JOINER)
            (folder / f"{JOINER}.ledger").rename(folder / f"{JOINER}.{kind}")
            windows.append(_quiet(run, shape))
        outcome.donor_extra = memory.close()
        (run.out / "enough").touch()
        for name in names:
            assert run.wait_exit(name) == 0, run.logs()
        _sort_steps(run, names, outcome, windows, own)
        return outcome
    finally:
        bare.close()
        run.close()


def _heal(run: Cluster, kind: str, shape: Shape, bare: BarePair, flags: tuple[str, ...]) -> list[float]:
    """The joiner comes, and is killed and comes back as often as it should; after each heal the bare rate."""
    with shape.core(1):
        run.group(JOINER, *flags, flags=("--standby", "warm" if kind == "warm" else "none"), key=f"{JOINER} {kind}")
    _until_ways(run, 1)
    rates = [bare.rate()]
    for number in range(2, 1 + shape.cold if kind == "cold" else 2 + shape.warm):
        if kind == "warm":
            ready = lambda number=number: run.log(f"{JOINER} warm").count("standby_ready") >= number - 1  # noqa: E731
            run.until(ready, "a standby is ready", PATIENCE_S)
        run.kill_rank(JOINER)
        _until_ways(run, number)
        rates.append(bare.rate())
    return rates


def _members(run: Cluster) -> set[str]:
    status = run.status()
    return {JOINER} if status is None else {group.name for group in status.groups if group.state != "lost"}


def _ways(run: Cluster) -> list[dict[str, Any]]:
    return [line for line in run.ledger(JOINER) if line["event"] == "split"]


def _loads(run: Cluster) -> list[float]:
    """GB/s of the loads, from the first offer of a donor on."""
    loads = [line for line in run.ledger(JOINER) if line["event"] == "load"]
    return [line["bytes"] / line["seconds"] / 1e9 for line in loads]


def _until_ways(run: Cluster, count: int) -> None:
    run.until(lambda: len(_ways(run)) >= count, f"{JOINER} has come back {count} times", PATIENCE_S)


def _commits(run: Cluster, name: str) -> list[float]:
    return [line["time_s"] for line in run.ledger(name) if line["event"] == "commit"]


def _quiet(run: Cluster, shape: Shape) -> tuple[float, float]:
    """Waits for steps of the healthy groups alone; the window in which they were made."""
    settled = len(_commits(run, "g0")) + 3
    count = settled + shape.quiet_steps
    run.until(lambda: len(_commits(run, "g0")) > count, "quiet steps", PATIENCE_S)
    times = _commits(run, "g0")
    return times[settled], times[count]


def _sort_steps(
    run: Cluster, names: list[str], outcome: Outcome, quiet: list[tuple[float, float]], own: list[float]
) -> None:
    """Before: the first quiet window; after: the later ones. During: from the joiner's attaching to its contribution.

    The joiner's import and build are left out: they are another machine's. So are the steps in which a member was lost.
    own: when the joiner committed steps: it was a member then
    """
    heals = [
        (way["time_s"] - way["transfer_s"] - way["replay_s"] - way["switch_s"], way["time_s"])
        for kind in outcome.ways.values()
        for way in kind
    ]
    for name in names:
        times = _commits(run, name)
        for began, ended in zip(times[:-1], times[1:], strict=True):
            member = any(began < moment <= ended + 0.05 for moment in own)
            if any(low <= ended and began <= high for low, high in heals):
                outcome.during.append(ended - began)
                (outcome.joined if member else outcome.loading).append(ended - began)
            elif quiet[0][0] <= began and ended <= quiet[0][1]:
                outcome.before.append(ended - began)
            elif any(low <= began and ended <= high for low, high in quiet[1:]):
                outcome.after.append(ended - began)
            elif member and any(began - 0.05 < moment <= began + 0.05 for moment in own):
                outcome.three.append(ended - began)


def summary(values: list[float]) -> dict[str, float]:
    """Median, least, most and count."""
    return {"median": statistics.median(values), "least": min(values), "most": max(values), "count": len(values)}
