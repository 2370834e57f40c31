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
REFERENCE_STEPS = 1000


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Makes runs that are ended after the test."""
    made: list[Cluster] = []

    def make(*lighthouse_flags: str) -> Cluster:
        made.append(Cluster(tmp_path / f"run{len(made)}", "--lease-s", "5", *lighthouse_flags))
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
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "undisturbed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        steps = shared / "undisturbed" / "out" / "steps"
        if not (steps / f"{REFERENCE_STEPS}.npy").exists():
            make_reference(shared / "undisturbed")
    return lambda step: numpy.load(steps / f"{step}.npy", allow_pickle=False)


def make_reference(folder: Path) -> None:
    """Trains one group in `folder`, which keeps the weights of every step."""
    one = Cluster(folder)
    try:
        one.lighthouse()
        one.group("g0", "--steps", str(REFERENCE_STEPS), "--dump")
        assert one.wait_exit("g0") == 0, one.logs()
    finally:
        one.close()
