"""Joiners that load the same version pass on what they have: verified by the donor's hash, and of that version only."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from lighthouse.values import Version
from replica.digest import digest
from replica.entry import EntryLog
from replica.snapshot import Snapshot
from replica.state import TrainingState
from replica.transfer_client import LoadedSnapshot, TransferFailed, load_snapshot
from replica.transfer_limits import TransferLimits
from replica.transfer_link import connect, prove_as_joiner
from replica.transfer_server import WeightServer
from replica.transfer_values import AskPassed, OfferSnapshot
from tests.unit.test_transfer import AT, DEADLINE_S, QUICK, TOKEN, served, spoiled, state, until

PATIENT = TransferLimits(links=1, stall_s=DEADLINE_S, idle_s=2 * DEADLINE_S, hurry_s=100.0)


@dataclass
class Joiner:
    """A joiner with a weight server of its own, on which it passes on what it loads."""

    state: TrainingState
    server: WeightServer
    moved: dict[str, int] = field(default_factory=dict)
    """Bytes by the source that gave them, as far as progress tells."""
    _seen: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def load(
        self,
        *sources: str,
        heal: int = 7,
        passing: tuple[Joiner, ...] = (),
        limits: TransferLimits = PATIENT,
    ) -> LoadedSnapshot:
        return load_snapshot(
            sources,
            heal,
            self.state,
            TOKEN,
            limits=limits,
            progress=self._progress,
            passing=[other.server.address for other in passing],
            pass_on=self.server.pass_on,
        )

    def _progress(self, moved: int, total: int, source: str) -> None:
        with self._lock:
            self.moved[source] = self.moved.get(source, 0) + max(0, moved - self._seen)
            self._seen = max(self._seen, moved)


@contextmanager
def joiner(made: TrainingState | None = None) -> Iterator[Joiner]:
    server = WeightServer("127.0.0.1", TOKEN, EntryLog())
    try:
        yield Joiner(made or state(2), server)
    finally:
        server.close()


class Gate:
    """Lets so many bytes through a proxy, and the rest once it is opened; or cuts the connection there."""

    def __init__(self, after: int, cut: bool = False) -> None:
        self.after, self.cut = after, cut
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self, at: int, content: bytearray) -> None:
        if at > self.after:
            self.reached.set()
            if self.cut:
                raise OSError("cut")
            self.open.wait(DEADLINE_S)


def test_a_joiner_whose_donor_dies_gets_the_rest_from_another_joiner() -> None:
    donor, gate = state(1, trained=True), Gate(9_000, cut=True)
    with served(donor) as server, joiner() as one, joiner() as two, spoiled(server.address, gate) as dying:
        loaded = one.load(server.address)
        again = two.load(dying, passing=(one,))
        assert gate.reached.is_set() and (again.version, again.bytes) == (loaded.version, loaded.bytes)
        assert digest(two.state) == digest(one.state) == digest(donor)
        assert two.moved[one.server.address] > loaded.bytes / 2


def test_a_joiner_passes_on_what_it_has_while_the_rest_is_still_on_its_way() -> None:
    donor, half, none = state(1, trained=True), Gate(80_000), Gate(10_000)
    with ExitStack() as stack:
        server = stack.enter_context(served(donor))
        one, two, three = (stack.enter_context(joiner()) for _ in range(3))
        slow = stack.enter_context(spoiled(server.address, half))
        slower = stack.enter_context(spoiled(server.address, none))
        first = threading.Thread(target=one.load, args=(slow,))
        second = threading.Thread(target=two.load, args=(slower,), kwargs={"passing": (one,)})
        third = threading.Thread(target=three.load, args=(slower,), kwargs={"passing": (one, two)})
        for thread in (first, second, third):
            thread.start()
        try:
            assert half.reached.wait(DEADLINE_S)
            for each in (two, three):
                until(lambda each=each: sum(each.moved.values()) > 20_000)
            assert second.is_alive() and one.server.address in two.moved
        finally:
            half.open.set()
            none.open.set()
            for thread in (first, second, third):
                thread.join(DEADLINE_S)
        assert digest(one.state) == digest(two.state) == digest(three.state) == digest(donor)


def test_what_has_changed_since_it_landed_is_not_taken_for_what_it_was() -> None:
    donor, gate = state(1, trained=True), Gate(9_000, cut=True)
    with served(donor) as server, joiner() as one, joiner() as two, spoiled(server.address, gate) as dying:
        one.load(server.address)
        with torch.no_grad():
            for tensor in one.state.flatten()[0].values():
                tensor.add_(1)
        with pytest.raises(TransferFailed, match="wrong hash"):
            two.load(dying, passing=(one,))
        two.load(server.address, passing=(one,))
        assert digest(two.state) == digest(donor)


def test_another_version_is_not_passed_on() -> None:
    donor, later = state(1, trained=True), state(3, trained=True)
    newer = WeightServer("127.0.0.1", TOKEN, EntryLog())
    try:
        newer.stage(8, Snapshot.stage(later, Version(13, 3), 104, False))
        with served(donor) as server, joiner() as one, joiner() as two:
            one.load(server.address)
            assert two.load(newer.address, heal=8, passing=(one,)).version == Version(13, 3)
            assert digest(two.state) == digest(later) and set(two.moved) == {newer.address}
            with spoiled(newer.address, Gate(9_000, cut=True)) as dying, joiner() as third:
                began = time.monotonic()
                with pytest.raises(TransferFailed, match=r"no load of .*13.* is under way here"):
                    third.load(dying, heal=8, passing=(one,), limits=QUICK)
                assert time.monotonic() - began < DEADLINE_S
    finally:
        newer.close()


def test_a_joiner_that_goes_on_passes_on_no_more() -> None:
    donor, gate = state(1, trained=True), Gate(9_000)
    with served(donor) as server, joiner() as one, joiner() as two, spoiled(server.address, gate) as slow:
        one.load(server.address)
        one.server.pass_no_more()
        one.server.pass_no_more()
        with (
            spoiled(server.address, Gate(9_000, cut=True)) as dying,
            pytest.raises(TransferFailed, match="no load of"),
        ):
            two.load(dying, passing=(one,), limits=QUICK)
        gate.open.set()
        one.load(slow)
        link = connect(one.server.address, 2.0, DEADLINE_S, threading.Lock())
        prove_as_joiner(link, TOKEN)
        link.say_as_joiner(AskPassed(heal=9, version=AT, wait_s=0.0))
        assert isinstance(link.hear_source(1 << 20), OfferSnapshot)
        one.server.pass_no_more()
        until(lambda: one.server.connections == 0)
        link.close()
        one.load(server.address)
        reader = threading.Thread(target=lambda: two.load(server.address, passing=(one,)))
        reader.start()
        one.server.pass_no_more()
        reader.join(DEADLINE_S)
        until(lambda: one.server.connections == 0)
        assert digest(two.state) == digest(donor)


def test_tensors_that_do_not_lie_in_one_piece_come_from_the_donor() -> None:
    def turned(seed: int) -> TrainingState:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last), nn.Linear(40, 40))
        return TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))

    donor = turned(1)
    with served(donor, chunk_bytes=200) as server, joiner(turned(2)) as one, joiner(turned(3)) as two:
        one.load(server.address)
        two.load(server.address, passing=(one,))
        assert digest(two.state) == digest(one.state) == digest(donor)
