"""What all tests share: child processes import this checkout, and use one thread each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def _children_run_this_checkout() -> None:
    """Environment of every process that a test starts: our sources first, one thread for each rank (two cores)."""
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(p for p in paths if p))
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def root() -> Path:
    """The top of the repository."""
    return ROOT
