"""Cables are cut, in one direction or both, between hosts that are network namespaces of their own.

Nobody is told of a cut: what is sent does not arrive, and what did not arrive is sent again by TCP once the cut has
healed. Whatever happens, ranks are not started again, and no step of the history has a slot twice or misses one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from e2e.cluster import Cluster, alive
from e2e.conftest import TOGETHER, Reference
from e2e.network import Network, Proxy, why_not

from lighthouse.client import Unreachable, watch_now
from lighthouse.core_values import Happened
from replica.ranks import free_port

GROUPS = ("g0", "g1", "g2")
DELAY = ("--delay-s", "0.05")
LEASE_S = 3.0
FLAGS = ("--lease-s", str(LEASE_S), *TOGETHER)

STALLS = ("--stall-patience-s", "24", "--connect-s", "40")
"""Half of the second is what ranks may take to leave, on a machine with too few cores."""

hosts_of_our_own = pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}")
whole = pytest.mark.parametrize("net", [()], indirect=True, ids=["one run"])
"""A run that a test leaves as it found it, for the next one."""
pytestmark = [pytest.mark.timeout(600)]


class Told:
    """What the lighthouse tells of what happens from now on, read by a thread until the lighthouse ends."""

    def __init__(self, run: Cluster) -> None:
        self.events: list[Happened] = []
        self._run = run
        self._since_s = time.time()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def of(self, kind: str, group: str = "") -> list[Happened]:
        """Those of this kind, about the group if one is named."""
        return [event for event in self.events if event.kind == kind and group in ("", event.group)]

    def until(self, kind: str, group: str = "", timeout_s: float = 60.0) -> Happened:
        """Waits for one of them; the first."""
        self._run.until(lambda: bool(self.of(kind, group)), f"the lighthouse tells of {kind} {group}", timeout_s)
        return self.of(kind, group)[0]

    def _read(self) -> None:
        with contextlib.suppress(Unreachable):
            token = self._run.token_file.read_text().strip()
            for event in watch_now(
                self._run.way_in, token=token, run_id="e2e"
            ):  # what was, too: this thread may be late
                if event.time_s >= self._since_s:
                    self.events.append(event)


class Hosts:
    """A run of some groups, each on a host of its own, and the lighthouse on another."""

    def __init__(self, folder: Path, *flags: str, names: tuple[str, ...] = GROUPS) -> None:
        self.names = names
        self.network = Network(("lighthouse", *names))
        wanted = ("--groups-wanted", str(len(names)))
        self.run = Cluster(folder, *FLAGS, *wanted, *flags, network=self.network)

    def start(self, *job: str) -> None:
        """Starts everything; returns when all train."""
        self.run.lighthouse()
        for name in self.names:
            self.run.group(name, *DELAY, *job)
        self.begin()
        self.pids = {name: self.run.rank_pids(name) for name in self.names}

    def begin(self) -> None:
        """From now on is told what happens; returns when all train, whatever the test before has left."""
        self.network.heal()
        self.applied = len(applied(self.run, "g1"))
        for name in self.names:
            contributes(self.run, name)
        self.told = Told(self.run)

    def close(self) -> None:
        self.run.close()
        self.network.close()

    def go_on(self, *names: str, steps: int = 5) -> None:
        """Waits until these groups have committed so many steps more."""
        for name in names:
            goes_on(self.run, name, steps)

    def check_not_restarted(self, *names: str, loaded: bool = False) -> None:
        """These groups have the ranks that they began with, and loaded nothing, unless they were to."""
        for name in names:
            assert self.run.rank_pids(name) == self.pids[name], self.run.logs()
            assert self.run.lives(name) == 1, self.run.logs()
            assert loaded or not [x for x in self.run.ledger(name) if x["event"] == "load"], self.run.logs()

    def check_nothing_twice(self) -> None:
        """Nobody summed a slot twice."""
        for name in self.names:
            assert self.run.recomputed(name) == []

    def finish(self, undisturbed: Reference) -> None:
        """Nobody summed a slot twice, and all that must hold at the end of a run."""
        self.check_nothing_twice()
        self.run.finish(undisturbed)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Callable[..., Hosts]]:
    """Makes such a run, and ends it."""
    made: list[Hosts] = []

    def make(*flags: str, names: tuple[str, ...] = GROUPS) -> Hosts:
        made.append(Hosts(tmp_path / "run", *flags, names=names))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def net(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, undisturbed: Reference
) -> Iterator[Hosts]:
    """A run of three, with the lighthouse's flags of the parameter, that cuts have no lasting effect on."""
    net = Hosts(tmp_path_factory.mktemp("cuts") / "run", *request.param)
    try:
        net.start()
        yield net
        net.check_not_restarted(*GROUPS, loaded=request.param == STALLS)
        net.finish(undisturbed)
    finally:
        net.close()


def applied(run: Cluster, name: str) -> list[int]:
    """Steps that the group has made by entries."""
    return [line["step"] for line in run.ledger(name) if line["event"] == "apply"]


def contributes(run: Cluster, name: str) -> None:
    """Waits until the group has contributed to three steps more."""

    def contributed() -> int:
        return sum(line["event"] == "commit" and bool(line["slots"]) for line in run.ledger(name))

    seen = contributed()
    run.until(lambda: contributed() >= seen + 3, f"{name} contributes", 120.0)


def goes_on(run: Cluster, name: str, steps: int) -> None:
    """Waits until the group has committed so many steps more."""
    seen = run.commits(name)
    run.until(lambda: run.commits(name) >= seen + steps, f"{name} commits {steps} steps more", 90.0)


# ---- the lighthouse is not heard ------------------------------------------------------------------------------------


@hosts_of_our_own
@whole
def test_a_group_is_cut_from_the_lighthouse(net: Hosts) -> None:
    """It trains on with the others until its lease has run out; then it is lost, though alive, and comes back."""
    net.begin()
    generation = net.run.generations("g1")
    seen = net.run.commits("g1")
    net.network.cut_both("g1", "lighthouse")
    net.told.until("lost", "g1")
    # One step was in work at the cut, another began after it; how many more there are depends on the machine.
    assert net.run.commits("g1") >= seen + 2 and net.run.generations("g1") == generation
    net.go_on("g0", "g2", steps=20)
    net.network.heal()
    comes_back_by_entries(net)


def comes_back_by_entries(net: Hosts) -> None:
    """g1 was cut off for a while: it is not fenced, starts nothing again, loads nothing, and contributes."""
    assert net.told.until("heal", "g1").text == "by entries"
    net.told.until("switched")
    net.go_on(*GROUPS)
    assert len(applied(net.run, "g1")) >= net.applied + 20, "it followed what the others did meanwhile"
    assert not net.told.of("fenced")
    net.check_not_restarted(*GROUPS)
    net.check_nothing_twice()


@hosts_of_our_own
@whole
def test_the_lighthouse_is_cut_from_all(net: Hosts) -> None:
    """For longer than a lease: everybody trains on as if nothing was, and goes on together afterwards."""
    net.begin()
    generations = {name: net.run.generations(name) for name in GROUPS}
    net.network.isolate("lighthouse")
    for name in GROUPS:
        net.told.until("lost", name)
    net.go_on(*GROUPS, steps=20)
    assert {name: net.run.generations(name) for name in GROUPS} == generations
    net.network.heal()
    net.told.until("formed")
    net.go_on(*GROUPS)
    net.check_not_restarted(*GROUPS)
    net.check_nothing_twice()


# ---- a host is cut off ----------------------------------------------------------------------------------------------

ELSEWHERE = ("lighthouse", "g0", "g2")


@hosts_of_our_own
@whole
@pytest.mark.parametrize("cut", ["both", "not heard", "hears nothing"])
def test_a_host_is_cut_off_for_longer_than_a_lease(net: Hosts, cut: str) -> None:
    net.begin()
    if cut != "hears nothing":
        net.network.cut("g1", ELSEWHERE)
    if cut != "not heard":
        net.network.cut(ELSEWHERE, "g1")
    net.told.until("lost", "g1")
    net.go_on("g0", "g2", steps=20)
    net.network.heal()
    comes_back_by_entries(net)


@hosts_of_our_own
def test_a_host_is_dead_and_says_nothing(hosts: Callable[..., Hosts], undisturbed: Reference) -> None:
    """No reset, no end of a connection: as when its power fails. Its group is started again, and heals."""
    net = hosts()
    net.start()
    net.network.isolate("g1")
    pids = [net.run.pid("g1"), *net.pids["g1"].values()]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    net.told.until("lost", "g1")
    net.go_on("g0", "g2", steps=20)
    net.run.until(lambda: not any(alive(pid) for pid in pids), "nothing of g1 is left")
    net.network.heal()
    net.run.group("g1", *DELAY, key="g1 again")
    net.told.until("caught_up", "g1", 120.0)
    net.go_on(*GROUPS)
    net.check_not_restarted("g0", "g2")
    for name in ("g0", "g2"):
        assert net.run.recomputed(name) == []
    net.run.finish(undisturbed, ("g0", "g1 again", "g2"))


# ---- peers only -----------------------------------------------------------------------------------------------------


@hosts_of_our_own
@pytest.mark.parametrize(
    ("senders", "receivers", "out"),
    [
        (("g1",), ("g0", "g2"), "g1"),
        (("g0", "g2"), ("g1",), "g1"),
        (("g0",), ("g1", "g2"), "g0"),
        (("g1",), ("g2",), "g2"),
    ],
    ids=["g1 is not heard", "g1 hears nothing", "g0 is not heard", "g2 does not hear g1"],
)
@pytest.mark.parametrize("net", [STALLS], indirect=True, ids=["one run"])
def test_members_do_not_reach_each_other(
    net: Hosts, senders: tuple[str, ...], receivers: tuple[str, ...], out: str
) -> None:
    """All of them reach the lighthouse. Whoever lacks the most others is put out, and comes back once it can."""
    net.begin()
    net.network.cut(senders, receivers)
    assert net.told.until("apart", timeout_s=90.0).group == out
    others = tuple(name for name in GROUPS if name != out)
    net.go_on(*others, steps=20)
    assert not net.told.of("evicted") and not net.told.of("lost")
    net.network.heal()
    net.told.until("caught_up", out, 90.0)
    net.go_on(*GROUPS)
    for name in GROUPS:
        assert net.run.rank_pids(name) == net.pids[name] and net.run.lives(name) == 1, net.run.logs()
    net.check_nothing_twice()


# ---- one entry ------------------------------------------------------------------------------------------------------


@hosts_of_our_own
def test_a_commit_that_one_missed_comes_by_one_entry(hosts: Callable[..., Hosts], undisturbed: Reference) -> None:
    """In a roll call all that g1 has to hear arrives, and nothing that it says does: it alone commits the step."""
    net = hosts(names=("g0", "g1"))
    gate = net.run.folder / "gate"
    net.start("--wait-at", "roll_call@30", "--wait-group", "g0", "--wait-file", str(gate))
    net.run.until(gate.exists, "g0 is about to take part in the roll call of step 31", 90.0)
    net.run.until(lambda: (net.run.out / "at-g1-roll_call-30").exists(), "g1 is in it")
    net.network.cut("g1", "g0")
    gate.unlink()
    net.run.until(lambda: made(net.run, "g1", 31), "g1 commits step 31")
    net.network.reset("g0", "g1")
    net.told.until("level", "g0")
    net.network.heal()
    net.go_on("g0", "g1")
    assert [line["step"] for line in net.run.ledger("g0") if line["event"] == "apply"] == [31]
    assert not made(net.run, "g0", 31) and net.told.of("level", "g0")[0].text == "by one entry"
    assert not net.told.of("heal")
    net.check_not_restarted("g0", "g1")
    net.finish(undisturbed)


def made(run: Cluster, name: str, step: int) -> bool:
    """Whether the group has committed that step itself."""
    return any(line["event"] == "commit" and line["step"] == step for line in run.ledger(name))


# ---- without hosts of our own ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ways", [("to", "from"), ("to",)], ids=["both", "not heard"])
def test_a_cable_to_the_lighthouse_is_cut(tmp_path: Path, undisturbed: Reference, ways: tuple[str, ...]) -> None:
    """As above, with a proxy for a cable: so that a cut is tried on machines without network namespaces, too.

    (Not the third way: a proxy acknowledges what does not arrive, and what the group says would arrive as before.)
    """
    run = Cluster(tmp_path / "run", *FLAGS, "--groups-wanted", "3")
    cable = Proxy(f"127.0.0.1:{free_port('127.0.0.1')}", run.address, tmp_path / "cuts")
    try:
        run.lighthouse()
        for name in GROUPS:
            run.group(name, *DELAY, lighthouse=cable.address if name == "g1" else "")
        for name in GROUPS:
            run.until_contributing(name)
        told, pids = Told(run), run.rank_pids("g1")
        cable.cut(*ways)
        told.until("lost", "g1")
        goes_on(run, "g0", 20)
        cable.cut()
        assert told.until("heal", "g1").text == "by entries"
        told.until("switched")
        goes_on(run, "g1", 5)
        assert run.rank_pids("g1") == pids and run.lives("g1") == 1
        assert not [line for line in run.ledger("g1") if line["event"] == "load"]
        run.finish(undisturbed)
    finally:
        run.close()
        cable.close()
