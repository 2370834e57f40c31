"""Whatever is asked for wrongly: a clear error that says what to do, and nothing lost for the others."""

from __future__ import annotations

import re
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster
from e2e.conftest import Reference

DELAY = ("--delay-s", "0.1")


@pytest.fixture(scope="module")
def trains(tmp_path_factory: pytest.TempPathFactory, undisturbed: Reference) -> Iterator[Cluster]:
    """A run of one group that trains, for others to bump into: all of them together leave no trace in it."""
    run = Cluster(tmp_path_factory.mktemp("trains") / "run", "--lease-s", "5")
    try:
        run.lighthouse()
        run.group("g0", *DELAY)
        run.until_contributing("g0")
        yield run
        assert run.lives("g0") == 1
        run.finish(undisturbed, ("g0",))
    finally:
        run.close()


def test_no_lighthouse(cluster: Callable[..., Cluster]) -> None:
    run = cluster()
    run.token_file.write_text("secret\n")
    run.group("g0", flags=("--connect-s", "3"))
    assert run.wait_exit("g0") == 1
    assert f"not reachable at {run.address}" in run.log("g0") and "trying again" in run.log("g0")
    assert run.log("g0").count("trying again") < 10


def test_the_port_is_taken(cluster: Callable[..., Cluster]) -> None:
    run = cluster()
    with socket.create_server(("127.0.0.1", int(run.address.rpartition(":")[2]))):
        run.lighthouse()
        assert run.wait_exit("lighthouse") == 2
    assert "in use" in run.log("lighthouse") or "taken" in run.log("lighthouse")
    assert "Traceback" not in run.log("lighthouse")


def test_a_wrong_token(trains: Cluster) -> None:
    other = trains.folder / "other-token"
    other.write_text("0123456789abcdef0123456789abcdef\n")
    trains.group("g1", *DELAY, token_file=other)
    assert trains.wait_exit("g1") == 2
    assert "token" in trains.log("g1")


def test_no_token(cluster: Callable[..., Cluster]) -> None:
    run = cluster()
    run.group("g0")
    assert run.wait_exit("g0") == 2
    assert str(run.token_file) in run.log("g0")


def test_another_run_id(trains: Cluster) -> None:
    trains.group("g2", *DELAY, run_id="another")
    assert trains.wait_exit("g2") == 2
    assert "'e2e'" in trains.log("g2") and "'another'" in trains.log("g2")


@pytest.mark.parametrize(
    ("flags", "field", "values"),
    [
        (("--slots", "8"), "slots", ("6", "8")),
        (("--width", "16"), "model", ()),
        (("--seed", "4"), "seed", ("3", "4")),
    ],
)
def test_another_configuration(trains: Cluster, flags: tuple[str, ...], field: str, values: tuple[str, ...]) -> None:
    trains.group(field, *DELAY, *flags)
    assert trains.wait_exit(field) == 2, trains.logs()
    said = next(line for line in trains.log(field).splitlines() if "differs" in line)
    assert field in said and all(value in said for value in values)


def test_another_number_of_shards(trains: Cluster) -> None:
    trains.group("g5", *DELAY, shards=2)
    assert trains.wait_exit("g5") == 2, trains.logs()
    said = next(line for line in trains.log("g5").splitlines() if "differs" in line)
    assert "shards" in said and "1" in said and "2" in said


def test_shards_that_disagree(cluster: Callable[..., Cluster]) -> None:
    run = cluster()
    run.lighthouse()
    run.group("g0", "--odd-shard", "1", shards=2)
    assert run.wait_exit("g0") == 2, run.logs()
    assert "seed" in run.log("g0") and "shard" in run.log("g0")


def test_slot_size_not_divisible_by_shards(cluster: Callable[..., Cluster]) -> None:
    run = cluster()
    run.lighthouse()
    run.group("g0", shards=3)
    assert run.wait_exit("g0") == 2
    assert "slot_size 4 is not divisible by the 3 shards" in run.log("g0")


def test_too_few_groups_ever(cluster: Callable[..., Cluster]) -> None:
    run = cluster("--min-groups", "2", "--groups-wanted", "2", "--join-wait-s", "1")
    run.lighthouse()
    run.group("g0", *DELAY)
    run.until(lambda: run.known().groups != (), "g0 is welcome")
    run.until(lambda: re.search("waits for.*2", run.known().hold) is not None, "status says what it waits for")
    assert run.step() == 0
    run.kill("g0", signal.SIGTERM)
    assert run.wait_exit("g0") == 0, run.logs()


def test_user_code_raises(trains: Cluster) -> None:
    trains.group("g6", *DELAY, "--raise-at", "0", "--die-group", "g6", flags=("--restart-limit", "2"))
    assert trains.wait_exit("g6", 180.0) == 1, trains.logs()
    log = trains.log("g6")
    assert log.count("RuntimeError: the user's own mistake") >= 2, "once for each life"
    assert log.count("Traceback") == trains.lives("g6", ended=True)
    assert "[g6/0]" in log and "rank 0" in log


def test_missing_and_empty_data(cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    run = cluster()
    run.lighthouse()
    empty = tmp_path / "empty.txt"
    empty.touch()
    for name, data in (("g0", tmp_path / "nowhere"), ("g1", empty)):
        run.byte_model(name, "--data", str(data))
        assert run.wait_exit(name) == 2, run.logs()
        assert str(data) in run.log(name) and "Traceback" not in run.log(name)
