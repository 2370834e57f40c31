"""What all tests share: how they are run in several processes, and what their child processes inherit."""

from __future__ import annotations

import faulthandler
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent
MOST_PROCESSES = 8
"""Of tests at a time: an end-to-end test takes some 2 GB."""
TOGETHER = ("e2e/test_bad_input.py", "e2e/test_cuts.py", "e2e/test_kills.py", "simulation/test_scale.py")
"""Modules with a fixture of their own that is costly to make."""

_stderr = pytest.StashKey[int]()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """`-n auto` is one process more than there are cores, since most tests wait more than they compute."""
    return min((os.cpu_count() or 1) + 1, MOST_PROCESSES)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Whichever process is free takes the next test; those that share a fixture of their module stay together."""
    from xdist.scheduler import LoadScopeScheduling

    class OneByOne(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return path if path.endswith(TOGETHER) else nodeid

    return OneByOne(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that take longest come first, so that at the end no process is still busy when the others are done."""
    items.sort(key=lambda item: [not item.get_closest_marker(name) for name in ("chaos", "slow")])


def pytest_configure(config: pytest.Config) -> None:
    # An example that takes long says something about the machine. No test may hang for ever all the same.
    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")
    config.stash[_stderr] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test with a timeout of its own has the stacks dumped when nearly all of that is over.

    `faulthandler_timeout` would do it when nearly all of the default one is, though nothing may be wrong.
    """
    own = item.get_closest_marker("timeout")
    if own is not None:
        faulthandler.dump_traceback_later(0.9 * own.args[0], file=item.config.stash[_stderr])


@pytest.fixture(scope="session", autouse=True)
def _children_run_this_checkout() -> None:
    """Environment of every process that a test starts: our sources first, one thread for each rank (two cores).

    They keep what they compile, where the environment says not to: some thousand processes would do it again.
    """
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(p for p in paths if p))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture
def root() -> Path:
    """The top of the repository."""
    return ROOT
