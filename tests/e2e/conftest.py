"""Fixtures of the end-to-end tests."""

from __future__ import annotations

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
    """Weights after so many steps of a run of one group that nothing happened to."""
    one = Cluster(tmp_path_factory.mktemp("undisturbed") / "run")
    try:
        one.lighthouse()
        one.group("g0", "--steps", str(REFERENCE_STEPS), "--dump")
        assert one.wait_exit("g0") == 0, one.logs()
    finally:
        one.close()
    return lambda steps: numpy.load(one.out / "steps" / f"{steps}.npy", allow_pickle=False)
