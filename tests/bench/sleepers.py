"""Runs whose compute is a sleep, of Bellrock and of torchft, that lose groups: one interface to both.

Groups keep diaries (`bench.programs.sleeper`), which say what happened when. A group of Bellrock is started again by
its agent; one of torchft by the benchmark, at once, as torchelastic would.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.children import PROGRAMS, BellrockRun, Children, torchft_lighthouse

NAMES = ("g0", "g1", "g2")
SLOTS = 6
"""Microbatches of a step; with all groups there each computes two, also in torchft."""

Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """How torchft is set up. flags: of its lighthouse; timeout_s: of its manager."""

    flags: tuple[str, ...] = ()
    timeout_s: float = 60.0


DEFAULT = Tuning()
TUNED = Tuning(
    flags=("--heartbeat_timeout_ms", "1000", "--join_timeout_ms", "1000", "--quorum_tick_ms", "20"), timeout_s=5.0
)


class Sleepers:
    """Three groups of one rank. key: names the run; slot_s: seconds of a microbatch's sleep; ballast_mb: of weights."""

    def __init__(self, children: Children, key: str, slot_s: float, ballast_mb: int) -> None:
        self.children, self.key, self.slot_s, self.ballast_mb = children, key, slot_s, ballast_mb
        self.folder = children.folder / f"diaries.{key}"
        self.folder.mkdir()

    def diary(self, name: str) -> list[Line]:
        """What a group's processes have written, oldest first."""
        path = self.folder / f"{name}.diary"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def diaries(self) -> dict[str, list[Line]]:
        """Those of all groups."""
        return {name: self.diary(name) for name in NAMES}

    def pid(self, name: str) -> int:
        """The process that trains as this group; 0 if there is none."""
        pids = [line["pid"] for line in self.diary(name) if line["event"] == "started"]
        return pids[-1] if pids and _runs(pids[-1]) else 0

    def kill(self, name: str) -> bool:
        """SIGKILLs the group's process, if there is one."""
        pid = self.pid(name)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return bool(pid)

    def tend(self) -> None:
        """Starts again what has ended, where nobody else does."""

    def until_all_contribute(self, since: float, timeout_s: float = 120.0) -> None:
        """Waits until each group has contributed to two steps since then."""

        def contributed() -> bool:
            self.tend()
            return all(len(contributions(self.diary(name), since)) >= 2 for name in NAMES)

        self.children.until(contributed, f"all groups of {self.key} contribute", timeout_s)


class BellrockSleepers(Sleepers):
    """Bellrock's, with its defaults; flags: of `bellrock group`."""

    def __init__(self, children: Children, key: str, slot_s: float, ballast_mb: int, *flags: str) -> None:
        super().__init__(children, key, slot_s, ballast_mb)
        run = BellrockRun(children, key, "--groups-wanted", str(len(NAMES)))
        command = [sys.executable, PROGRAMS / "bellrock_sleeper.py", self.folder, str(slot_s), str(SLOTS)]
        command.append(str(ballast_mb))
        for name in NAMES:
            run.group(name, 1, command, "--restart-limit", "1000", *flags)


class TorchftSleepers(Sleepers):
    """torchft's."""

    def __init__(
        self, children: Children, key: str, slot_s: float, ballast_mb: int, python: Path, tuning: Tuning
    ) -> None:
        super().__init__(children, key, slot_s, ballast_mb)
        self._python, self._tuning = python, tuning
        self._starts: Counter[str] = Counter()
        self._address = torchft_lighthouse(children, f"{key}.lighthouse", python, *tuning.flags)
        for name in NAMES:
            self._start(name)

    def tend(self) -> None:
        for name in NAMES:
            if not _runs(self.children.pid(f"{self.key}.{name}")):
                self._start(name)

    def _start(self, name: str) -> None:
        self._starts[name] += 1
        if self._starts[name] > 3 + sum(line["event"] == "ready" for line in self.diary(name)):
            raise RuntimeError(f"{name} of {self.key} ends before it is ready, again and again")
        own = (self.folder, str(self.slot_s), str(SLOTS // len(NAMES)), name, self._address)
        told = (str(self._tuning.timeout_s), str(self.ballast_mb))
        self.children.program(f"{self.key}.{name}", self._python, "torchft_sleeper.py", *own, *told)


def contributions(diary: list[Line], since: float = 0.0) -> list[Line]:
    """The lines of steps committed since then to which the group brought microbatches."""
    return [line for line in diary if line["event"] == "committed" and line["microbatches"] and line["time_s"] > since]


def usual_step_s(diary: list[Line], before: float) -> float:
    """The median of the last steps before that time."""
    times = [line["time_s"] for line in contributions(diary) if line["time_s"] < before][-9:]
    return statistics.median(later - earlier for earlier, later in zip(times, times[1:], strict=False))


def recomputed(diary: list[Line], since: float) -> int:
    """Microbatches that the group computed in vain since then: of a step that was discarded, or the same one again."""
    seen: set[tuple[int, int, int]] = set()
    count = 0
    for line in diary:
        if line["event"] == "discarded" and line["time_s"] > since:
            count += line["microbatches"]
        if line["event"] == "begun" and line["time_s"] > since:
            what = (line["pid"], line["step"], line["slot"])
            count += what in seen and not _discards(diary)
            seen.add(what)
    return count


def _discards(diary: list[Line]) -> bool:
    return any(line["event"] == "discarded" for line in diary)


def samples_per_live_s(diaries: Mapping[str, list[Line]], begin: float, end: float, alive_from: str) -> float:
    """Microbatches committed per second and live group, between two times.

    A group lives from the line `alive_from` ("started" or "ready") of one of its processes until that one's last line.
    """
    microbatches, live_s = 0, 0.0
    for diary in diaries.values():
        microbatches += sum(x["microbatches"] for x in contributions(diary, begin) if x["time_s"] <= end)
        for pid in {line["pid"] for line in diary}:
            own = [line for line in diary if line["pid"] == pid]
            since = next((line["time_s"] for line in own if line["event"] == alive_from), None)
            if since is not None:
                until = end if _runs(pid) else own[-1]["time_s"]
                live_s += max(0.0, min(end, until) - max(begin, since))
    return microbatches / live_s


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
