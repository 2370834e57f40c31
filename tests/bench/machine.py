"""What the figures were taken on: for a reader who wants to compare them with others."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path


def machine(peers: Path | None) -> dict[str, str]:
    """Processor, cores, memory, versions. peers: Python of the environment that the peers are in."""
    words = {
        "machine": f"{_processor()}, {len(os.sched_getaffinity(0))} cores, {_memory_gib():.0f} GiB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {version(name)}" for name in ("torch", "grpcio", "bellrock")),
    }
    if peers is not None:
        words["peers"] = _versions_of(peers)
    return words


def load() -> str:
    """How many processes waited for a core lately, for people."""
    return f"{os.getloadavg()[0]:.1f} processes on average wanted a core in the minute before"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _versions_of(python: Path) -> str:
    asked = 'from importlib.metadata import version as v; print(f\'torchft {v("torchft")}, torch {v("torch")}\')'
    return subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True).stdout.strip()
