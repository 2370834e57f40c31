"""Fixtures of the end-to-end tests."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
from e2e.cluster import Cluster

Reference = Callable[[int], numpy.ndarray]
REFERENCE_STEPS = 500
"""Of the first reference. A run that took more steps makes one that is longer, so no test has to end in time."""
TOGETHER = ("--join-wait-s", "200")
"""Groups that are wanted form together, however long one of them takes to start on a busy machine."""

LIMIT_S = 600.0
"""Of a test that has none of its own: many times what any takes, on the slowest machine that it is to pass on."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real processes take as long as their machine lets them: what they show does not depend on it."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LIMIT_S))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes runs that are ended after the test."""
    made: list[Cluster] = []

    def make(*lighthouse_flags: str) -> Cluster:
        made.append(Cluster(tmp_path / f"run{len(made)}", "--lease-s", "5", *TOGETHER, *lighthouse_flags))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    """Weights after so many steps of a run of one group that nothing happened to.

    It is made once, by whichever process of the tests needs it first; the others wait for that.
    """
    base = tmp_path_factory.getbasetemp()
    return reference((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "undisturbed")


def reference(folder: Path, *job: str) -> Reference:
    """Weights after so many steps of a run of one group in `folder`, made when they are asked for first."""

    def weights(steps: int) -> numpy.ndarray:
        length = REFERENCE_STEPS
        while length < steps:
            length *= 2
        kept = folder / str(length) / "out" / "steps"
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (kept / f"{length}.npy").exists():
                make_reference(folder / str(length), length, *job)
        return numpy.load(kept / f"{steps}.npy", allow_pickle=False)

    return weights


def make_reference(folder: Path, steps: int, *job: str) -> None:
    """Trains one group in `folder`, which keeps the weights of every step."""
    one = Cluster(folder)
    try:
        one.lighthouse()
        one.group("g0", "--steps", str(steps), "--dump", *job)
        assert one.wait_exit("g0", 60.0 + 0.1 * steps) == 0, one.logs()
    finally:
        one.close()
