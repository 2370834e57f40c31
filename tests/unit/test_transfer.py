"""Weight servers and joiners over real sockets: what arrives is verified, and no peer can hold the other up."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest
import torch
from torch import nn

from lighthouse.values import EntryName, Version
from replica import beside
from replica.beside import Beside, Gate
from replica.digest import digest, digests
from replica.entry import Entry, EntryLog
from replica.manifest import Tensors
from replica.snapshot import Room, Snapshot
from replica.state import TrainingState
from replica.transfer_client import Cancel, FellBehind, TransferFailed, WrongState, fetch_entry, load_snapshot
from replica.transfer_limits import TransferLimits
from replica.transfer_link import Link, LinkLost, connect, prove_as_joiner, prove_as_source
from replica.transfer_server import WeightServer
from replica.transfer_values import AskEntry, AskSnapshot, HeldRange, OfferSnapshot
from replica.values import HealCount, Merged
from tests.unit.test_state import Odd

TOKEN = b"a secret of the run"
AT = Version(12, 3)
QUICK = TransferLimits(connect_s=2.0, handshake_s=1.0, stall_s=0.5, idle_s=2.0, hurry_s=0.5)
DEADLINE_S = 20.0


def state(seed: int, width: int = 64, trained: bool = False) -> TrainingState:
    torch.manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * seed)
    if trained:
        model(torch.ones(2, width)).square().sum().backward()
        optimizer.step()
    return TrainingState(model, optimizer)


@contextmanager
def served(
    donor: TrainingState, stripes: tuple[tuple[int, int], ...] = (), chunk_bytes: int = 10_000, **more: Any
) -> Iterator[WeightServer]:
    server = WeightServer("127.0.0.1", TOKEN, EntryLog(), **more)
    try:
        server.stage(7, Snapshot.stage(donor, AT, 96, True, stripes, chunk_bytes))
        yield server
    finally:
        server.close()


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)


def test_a_heal_that_is_dropped_while_its_copy_is_made_leaves_nothing_at_the_donor() -> None:
    copied = threading.Event()
    with served(state(1, trained=True)) as server:
        snapshot = Snapshot.stage(state(1, trained=True), AT, 96, True)
        snapshot.wait()
        snapshot._beside = Beside(lambda: until(copied.is_set), "copy")
        server.stage(8, snapshot)
        joiner = threading.Thread(target=lambda: _fails([server.address]), daemon=True)
        joiner.start()
        until(lambda: 8 in server._known.values())
        server.drop(8)
        copied.set()
        joiner.join(DEADLINE_S)
        until(lambda: not server._known)
        assert server._frames == {} and 8 not in server._staged


def test_who_asks_for_a_heal_only_once_it_was_dropped_is_not_kept_waiting() -> None:
    with served(state(1, trained=True)) as server:
        snapshot = Snapshot.stage(state(1, trained=True), AT, 96, True)
        server.stage(8, snapshot)
        server.drop(8)
        joiner = threading.Thread(target=lambda: _fails([server.address]), daemon=True)
        joiner.start()
        joiner.join(DEADLINE_S)
        assert not joiner.is_alive()
        server.stage(8, snapshot)
        assert load_snapshot([server.address], 8, state(2), TOKEN, limits=QUICK).version == AT


def _fails(sources: list[str]) -> None:
    with pytest.raises(TransferFailed):
        load_snapshot(sources, 8, state(2), TOKEN, limits=QUICK)


class Proxy:
    """Forwards connections to a source, and spoils the bytes that come back as `spoil(position, content)` says."""

    def __init__(self, target: str, spoil: Callable[[int, bytearray], None]) -> None:
        self._target = target
        self._spoil = spoil
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            host, _, port = self._target.rpartition(":")
            far = socket.create_connection((host, int(port)))
            threading.Thread(target=self._pump, args=(near, far, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, self._spoil), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, spoil: Any) -> None:
        at = 0
        try:
            while content := bytearray(source.recv(4096)):
                if spoil is not None:
                    spoil(at, content)
                at += len(content)
                sink.sendall(content)
        except OSError:
            pass
        finally:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def spoiled(target: str, spoil: Callable[[int, bytearray], None]) -> Iterator[str]:
    proxy = Proxy(target, spoil)
    try:
        yield proxy.address
    finally:
        proxy.close()


# ---- snapshots -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("links", [1, 3])
def test_a_snapshot_is_loaded_bit_for_bit_into_a_fresh_joiner(links: int) -> None:
    donor, joiner = state(1, trained=True), state(2)
    seen: list[tuple[int, int]] = []
    with served(donor) as server:
        loaded = load_snapshot(
            [server.address],
            7,
            joiner,
            TOKEN,
            limits=TransferLimits(links=links),
            progress=lambda moved, total, source: seen.append((moved, total)),
        )
    assert (loaded.version, loaded.cursor, loaded.stop) == (AT, 96, True)
    assert digests(joiner) == digests(donor) and joiner.usable
    assert max(seen) == (loaded.bytes, loaded.bytes)


def test_a_joiner_waits_while_the_donor_does_what_others_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a step's computing shuts the gate, its end opens it; and a step cannot keep joiners out for ever."""
    gate, joiner = Gate(), state(2)
    monkeypatch.setattr(beside, "SHUT_S", 60.0)
    gate.shut()
    with served(donor := state(1, trained=True), gate=gate) as server:
        load = Beside(lambda: load_snapshot([server.address], 7, joiner, TOKEN), "load")
        until(lambda: server.connections > 0)
        time.sleep(0.2)
        assert not load.done
        gate.open()
        load.result()
        monkeypatch.setattr(beside, "SHUT_S", 0.05)
        gate.shut()
        load_snapshot([server.address], 7, joiner, TOKEN)
    assert digests(joiner) == digests(donor)


def test_the_snapshot_is_of_its_version_whatever_the_donor_does_later() -> None:
    donor, joiner = state(1, trained=True), state(2)
    before = digest(donor)
    server = WeightServer("127.0.0.1", TOKEN, EntryLog())
    try:
        snapshot = Snapshot.stage(donor, AT, 96, True)
        server.stage(7, snapshot)
        snapshot.fence()  # as before each `apply`
        with torch.no_grad():
            for tensor in donor.flatten()[0].values():
                tensor.add_(1)
        load_snapshot([server.address], 7, joiner, TOKEN)
    finally:
        server.close()
    assert digest(joiner) == before != digest(donor)


@pytest.mark.parametrize("grown", [False, True])
def test_room_made_ahead_is_used_if_it_fits(grown: bool) -> None:
    donor, joiner = state(1, trained=not grown), state(2)
    room = Room(donor)
    if grown:
        donor = state(1, trained=True)
    server = WeightServer("127.0.0.1", TOKEN, EntryLog())
    try:
        server.stage(7, Snapshot.stage(donor, AT, 96, True, room=room))
        load_snapshot([server.address], 7, joiner, TOKEN)
    finally:
        server.close()
    assert digest(joiner) == digest(donor)


def test_thousands_of_small_tensors_share_chunks() -> None:
    def many(seed: int) -> TrainingState:
        model = nn.ParameterList(nn.Parameter(torch.full((i % 7, 3), float(seed))) for i in range(2000))
        return TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))

    donor, joiner = many(1), many(2)
    with served(donor, chunk_bytes=1 << 20) as server:
        load_snapshot([server.address], 7, joiner, TOKEN)
    assert digest(joiner) == digest(donor)


def test_tensors_that_are_not_contiguous_are_loaded() -> None:
    def turned(seed: int) -> TrainingState:
        torch.manual_seed(seed)
        model = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
        return TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))

    donor, joiner = turned(1), turned(2)
    assert not joiner.flatten()[0]["model/weight"].is_contiguous()
    with served(donor, chunk_bytes=100) as server:
        load_snapshot([server.address], 7, joiner, TOKEN)
    assert digest(joiner) == digest(donor)


@pytest.mark.parametrize("stripes", [1, 3])
def test_every_kind_of_tensor_crosses_the_sockets_bit_for_bit(stripes: int) -> None:
    """All dtypes down to float8, no dimensions, no elements, transposed, tied, and memory shared by two parameters."""

    def odd(seed: int) -> TrainingState:
        model = Odd(seed)
        model.tied = nn.Linear(5, 5)
        model.untied = nn.Linear(5, 5)
        model.untied.weight = model.tied.weight
        model.shares = nn.Parameter(model.tied.bias.data)
        optimizer = torch.optim.AdamW(model.parameters())
        if seed == 1:
            (model() + model.untied(model.tied(torch.ones(2, 5))).sum()).backward()
            optimizer.step()
        return TrainingState(model, optimizer)

    donor, joiner = odd(1), odd(2)
    assert digest(joiner) != digest(donor)
    with ExitStack() as stack:
        parts = [((i, 3), ((i + 1) % 3, 3)) for i in range(3)] if stripes > 1 else [()]
        servers = [stack.enter_context(served(donor, part, chunk_bytes=37)) for part in parts]
        load_snapshot([server.address for server in servers], 7, joiner, TOKEN)
    assert digests(joiner) == digests(donor)


def test_a_joiner_waits_until_the_snapshot_is_staged() -> None:
    donor, joiner = state(1, trained=True), state(2)
    server = WeightServer("127.0.0.1", TOKEN, EntryLog())
    try:
        snapshot = Snapshot.stage(donor, AT, 96, False)
        timer = threading.Timer(0.2, server.stage, (7, snapshot))
        timer.start()
        load_snapshot([server.address], 7, joiner, TOKEN, wait_s=DEADLINE_S)
        with pytest.raises(TransferFailed, match="no snapshot is staged here for heal 8"):
            load_snapshot([server.address], 8, joiner, TOKEN, wait_s=0.0)
        assert joiner.usable, "nothing was written"
    finally:
        server.close()


def test_striped_donors_each_hold_two_parts_and_one_may_be_missing() -> None:
    donor, joiner = state(1, trained=True), state(2)
    whole = Snapshot.stage(donor, AT, 96, True, (), 10_000).bytes
    with ExitStack() as stack:
        servers = [stack.enter_context(served(donor, ((i, 3), ((i + 1) % 3, 3)))) for i in range(3)]
        held = Snapshot.stage(donor, AT, 96, True, ((0, 3), (1, 3)), 10_000).bytes
        assert held < 0.75 * whole
        addresses = [server.address for server in servers]
        load_snapshot(addresses, 7, joiner, TOKEN)
        assert digest(joiner) == digest(donor)
        servers[1].close()
        joiner = state(2)
        load_snapshot(addresses, 7, joiner, TOKEN)
        assert digest(joiner) == digest(donor)
        servers[2].close()
        with pytest.raises(TransferFailed):
            load_snapshot(addresses, 7, joiner, TOKEN)
        assert not joiner.usable


def test_a_donor_that_could_not_stage_is_done_without() -> None:
    donor, joiner = state(1, trained=True), state(2)
    short = WeightServer("127.0.0.1", TOKEN, EntryLog())
    try:
        with served(donor) as server:
            short.refuse(7, "too little memory")
            load_snapshot([short.address, server.address], 7, joiner, TOKEN)
            assert digest(joiner) == digest(donor)
        with pytest.raises(TransferFailed, match="too little memory"):
            load_snapshot([short.address], 7, joiner, TOKEN)
        assert short.drop(7) is None
    finally:
        short.close()


def test_a_wrong_chunk_is_asked_again() -> None:
    donor, joiner = state(1, trained=True), state(2)
    spoilt: list[int] = []

    def once(at: int, content: bytearray) -> None:
        if at > 60_000 and not spoilt:
            spoilt.append(at)
            content[0] ^= 1

    with served(donor) as server, spoiled(server.address, once) as address:
        load_snapshot([address], 7, joiner, TOKEN)
    assert spoilt and digest(joiner) == digest(donor)


def test_a_source_that_errs_again_is_given_up_for_another() -> None:
    donor, joiner = state(1, trained=True), state(2)

    def always(at: int, content: bytearray) -> None:
        if at > 60_000:
            content[0] ^= 1

    with served(donor) as server, spoiled(server.address, always) as address:
        load_snapshot([address, server.address], 7, joiner, TOKEN)
        assert digest(joiner) == digest(donor)
        with pytest.raises(TransferFailed, match="wrong hash"):
            load_snapshot([address], 7, joiner, TOKEN)
        assert not joiner.usable
        with pytest.raises(RuntimeError, match="cannot be staged"):
            Snapshot.stage(joiner, AT, 0, False)
        load_snapshot([server.address], 7, joiner, TOKEN)
        assert joiner.usable and digest(joiner) == digest(donor)


def test_a_donor_that_dies_in_the_middle_is_replaced_by_the_other() -> None:
    donor, joiner = state(1, trained=True), state(2)
    died = threading.Event()

    def die(at: int, content: bytearray) -> None:
        if at > 60_000:
            died.set()
            raise OSError("cut")

    def wait(at: int, content: bytearray) -> None:
        if at > 30_000:
            died.wait(DEADLINE_S)

    patient = TransferLimits(links=1, stall_s=DEADLINE_S, hurry_s=100.0)
    with ExitStack() as stack:
        one, two = (stack.enter_context(served(donor)) for _ in range(2))
        dying = stack.enter_context(spoiled(one.address, die))
        waiting = stack.enter_context(spoiled(two.address, wait))
        load_snapshot([dying, waiting], 7, joiner, TOKEN, limits=patient)
    assert died.is_set() and digest(joiner) == digest(donor)


def trickling(snapshot: Snapshot, drop_s: float) -> tuple[str, Callable[[], None]]:
    """A source that offers everything and then sends a byte each `drop_s` seconds."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=trickle, args=(Link(sock, 10.0), sock), daemon=True).start()

    def trickle(link: Link, sock: socket.socket) -> None:
        try:
            prove_as_source(link, TOKEN)
            link.hear_joiner()
            held = (HeldRange(first=0, end=snapshot.chunks.count),)
            link.say_as_source(
                OfferSnapshot(
                    heal=7,
                    version=snapshot.version,
                    cursor=snapshot.cursor,
                    stop=snapshot.stop,
                    scalars=snapshot.scalars,
                    tensors=Tensors.of(snapshot.specs),
                    chunks=snapshot.chunks,
                    held=held,
                )
            )
            while not over.wait(drop_s):
                sock.sendall(b"x")
        except (LinkLost, OSError):
            pass
        finally:
            link.close()

    threading.Thread(target=serve, daemon=True).start()

    def end() -> None:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()

    return f"127.0.0.1:{listener.getsockname()[1]}", end


def test_a_donor_that_sends_a_byte_now_and_then_is_given_up() -> None:
    donor, joiner = state(1, trained=True), state(2)
    address, end = trickling(Snapshot.stage(donor, AT, 96, True, (), 10_000), 0.1)
    try:
        with pytest.raises(TransferFailed, match="stalled"):
            load_snapshot([address], 7, joiner, TOKEN, limits=QUICK)
        assert not joiner.usable
        with served(donor) as server:
            load_snapshot([address, server.address], 7, joiner, TOKEN, limits=QUICK)
        assert digest(joiner) == digest(donor)
        patient = TransferLimits(stall_s=100.0, idle_s=200.0, hurry_s=0.2)
        with served(donor) as server:
            load_snapshot([address, server.address], 7, state(3), TOKEN, limits=patient)
    finally:
        end()


def test_sources_must_offer_the_same_version() -> None:
    donor, joiner = state(1, trained=True), state(2)
    server = WeightServer("127.0.0.1", TOKEN, EntryLog())
    try:
        server.stage(7, Snapshot.stage(donor, Version(13, 3), 104, False, ((0, 2),), 10_000))
        with served(donor, ((1, 2),)) as other, pytest.raises(TransferFailed, match="its version is"):
            load_snapshot([server.address, other.address], 7, joiner, TOKEN)
    finally:
        server.close()


def test_another_models_snapshot_is_refused_with_the_field() -> None:
    joiner = state(2, width=32)
    before = digest(joiner)
    with (
        served(state(1, trained=True)) as server,
        pytest.raises(WrongState, match=r"local shape of model/0.bias: theirs \(64,\), here \(32,\)"),
    ):
        load_snapshot([server.address], 7, joiner, TOKEN)
    assert joiner.usable and digest(joiner) == before


def test_a_dropped_snapshot_cuts_its_readers() -> None:
    with served(state(1, trained=True)) as server:
        link = connect(server.address, 2.0, DEADLINE_S, threading.Lock())
        prove_as_joiner(link, TOKEN)
        link.say_as_joiner(AskSnapshot(heal=7, wait_s=0.0))
        assert isinstance(link.hear_source(1 << 20), OfferSnapshot)
        server.drop(7)
        with pytest.raises(LinkLost):
            link.receive_chunk(0, [memoryview(bytearray(10_000))])
        link.close()
        until(lambda: server.connections == 0)


# ---- whoever connects ----------------------------------------------------------------------------------------------


def test_the_token_is_asked_for_on_both_sides() -> None:
    with served(state(1, trained=True)) as server, pytest.raises(TransferFailed, match="token was not proved"):
        load_snapshot([server.address], 7, state(2), b"a guess")
    address, end = trickling(Snapshot.stage(state(1), AT, 0, False), 10.0)
    try:
        with pytest.raises(TransferFailed):
            load_snapshot([address], 7, state(2), b"another", limits=QUICK)
    finally:
        end()


@pytest.mark.parametrize(
    "words", [b"", b"\x01", b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\x04\x00\x00\x00abcd"]
)
def test_a_stranger_cannot_hold_a_thread(words: bytes) -> None:
    with served(state(1), limits=QUICK) as server:
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port))) as stranger:
            stranger.settimeout(DEADLINE_S)
            stranger.sendall(words)
            with suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass
            until(lambda: server.connections == 0)


def test_strangers_cannot_keep_joiners_out() -> None:
    donor, joiner = state(1, trained=True), state(2)
    limits = TransferLimits(connections=4, handshake_s=DEADLINE_S)
    with served(donor, limits=limits) as server, ExitStack() as stack:
        host, _, port = server.address.rpartition(":")
        for _ in range(20):
            stack.enter_context(socket.create_connection((host, int(port))))
        load_snapshot([server.address], 7, joiner, TOKEN)
        assert digest(joiner) == digest(donor)
        until(lambda: server.connections <= 4)


@pytest.mark.parametrize("reads", [0, 1, 4096])
def test_a_reader_that_does_not_read_or_reads_too_slowly_is_dropped(reads: int) -> None:
    with served(state(1, width=1200, trained=True), chunk_bytes=4 << 20, limits=QUICK) as server:
        link = connect(server.address, 2.0, DEADLINE_S, threading.Lock())
        prove_as_joiner(link, TOKEN)
        link.say_as_joiner(AskSnapshot(heal=7, wait_s=0.0))
        assert isinstance(link.hear_source(1 << 20), OfferSnapshot)
        for chunk in range(8):
            link.want(chunk)

        def dropped() -> bool:
            if reads:
                with suppress(ConnectionResetError):  # it is dropped, with questions that nobody has read
                    link._sock.recv(reads)
            return server.connections == 0

        until(dropped)
        link.close()


def test_a_joiner_that_asks_for_nothing_or_nonsense_is_dropped() -> None:
    with served(state(1), limits=QUICK) as server:
        for wanted in (None, 1 << 30):
            link = connect(server.address, 2.0, DEADLINE_S, threading.Lock())
            prove_as_joiner(link, TOKEN)
            link.say_as_joiner(AskSnapshot(heal=7, wait_s=0.0))
            assert isinstance(link.hear_source(1 << 20), OfferSnapshot)
            if wanted is not None:
                link.want(wanted)
            until(lambda: server.connections == 0)
            link.close()


def test_closing_ends_threads_sockets_and_waits() -> None:
    before = set(threading.enumerate())
    log = EntryLog()
    server = WeightServer("127.0.0.1", TOKEN, log)
    links = []
    for _ in range(3):
        link = connect(server.address, 2.0, DEADLINE_S, threading.Lock())
        prove_as_joiner(link, TOKEN)
        link.say_as_joiner(AskSnapshot(heal=9, wait_s=100.0))
        links.append(link)
    log.close()
    server.close()
    server.close()
    until(lambda: not set(threading.enumerate()) - before)
    for link in links:
        link.close()
    with pytest.raises(TransferFailed, match="cannot connect"):
        load_snapshot([server.address], 9, state(2), TOKEN)


@pytest.mark.parametrize("side", ["source", "joiner"])
def test_descriptors_are_made_under_the_lock(side: str) -> None:
    lock = threading.Lock()
    donor, joiner = state(1, trained=True), state(2)
    done: list[object] = []
    with served(donor, lock=lock if side == "source" else None) as server:

        def load() -> None:
            used = lock if side == "joiner" else None
            done.append(load_snapshot([server.address], 7, joiner, TOKEN, lock=used))

        thread = threading.Thread(target=load)
        with lock:
            thread.start()
            thread.join(0.3)
            assert not done
        thread.join(DEADLINE_S)
        assert done


# ---- entries -------------------------------------------------------------------------------------------------------


def entry(step: int, skip: bool = False, size: int = 5000) -> Entry:
    merged = Merged(
        start=Version(step, 3),
        generation=3,
        slots=8,
        switch=4,
        save=True,
        skip=skip,
        heals=(HealCount(heal=7, records=4),),
        loss_sum=0.1,
        tokens=17,
        grad_norm=1e-300,
        mismatched=(1,),
        digested=True,
        compute_s=(0.25, 0.5),
    )
    buckets = () if skip else (torch.full((size,), 1.0 + step), torch.arange(7).to(torch.bfloat16))
    name = EntryName(start=merged.start, end=merged.end)
    return Entry(name=name, merged=merged, presence=(True, False, True), buckets=buckets)


LIKE = [torch.empty(5000, device="meta"), torch.empty(7, dtype=torch.bfloat16, device="meta")]


@contextmanager
def logged(*entries: Entry, **more: Any) -> Iterator[tuple[EntryLog, str]]:
    log = EntryLog()
    for each in entries:
        log.keep(each)
    server = WeightServer("127.0.0.1", TOKEN, log, **more)
    try:
        yield log, server.address
    finally:
        server.close()
        log.close()


def test_an_entry_comes_whole() -> None:
    sent = entry(4)
    with logged(sent) as (_, one), logged(sent) as (_, two):
        got = fetch_entry([one, two, "127.0.0.1:1"], Version(4, 3), TOKEN, 0.0, LIKE)
    assert got is not None
    assert (got.name, got.merged, got.presence) == (sent.name, sent.merged, sent.presence)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got.buckets, sent.buckets, strict=True))


def test_an_entry_is_received_into_given_buffers() -> None:
    buffers = [torch.zeros(5000), torch.zeros(7, dtype=torch.bfloat16)]
    with logged(entry(4)) as (_, address):
        got = fetch_entry([address], Version(4, 3), TOKEN, 0.0, LIKE, buffers=lambda: buffers)
    assert got is not None and got.buckets[0] is buffers[0] and buffers[0][0] == 5.0


def test_a_skipped_steps_entry_has_no_buckets() -> None:
    with logged(entry(4, skip=True)) as (_, address):
        got = fetch_entry([address], Version(4, 3), TOKEN, 0.0, LIKE)
    assert got is not None and got.buckets == () and got.merged.skip


def test_waiting_for_an_entry_ends_when_it_is_committed() -> None:
    with logged(entry(3)) as (log, address):
        assert fetch_entry([address], Version(4, 3), TOKEN, 0.0, LIKE) is None
        threading.Timer(0.2, log.keep, (entry(4),)).start()
        began = time.monotonic()
        got = fetch_entry([address], Version(4, 3), TOKEN, 60.0, LIKE)
        assert got is not None and time.monotonic() - began < DEADLINE_S


def test_asking_tells_the_log_what_the_joiner_has() -> None:
    with logged() as (log, address):
        log.owe(7, Version(0, 3), 1 << 20)
        for step in range(4):
            log.keep(entry(step))
            log.release_before(Version(step + 1, 3))
        assert fetch_entry([address], Version(2, 3), TOKEN, 0.0, LIKE, heal=7) is not None
        assert [name.start.step for name in log.names()] == [2, 3]


@pytest.mark.parametrize("asked", [Version(3, 3), Version(5, 2)])
def test_who_is_too_far_behind_or_elsewhere_is_told(asked: Version) -> None:
    with logged(entry(4)) as (_, address), pytest.raises(FellBehind):
        fetch_entry([address], asked, TOKEN, 5.0, LIKE)


def test_an_entry_comes_in_parts_from_all_who_have_it() -> None:
    big = entry(4, size=8_000_000)
    like = [torch.empty(8_000_000, device="meta"), LIKE[1]]
    sent: dict[str, int] = {}

    def counting(name: str) -> Callable[[int, bytearray], None]:
        def count(at: int, content: bytearray) -> None:
            sent[name] = at + len(content)

        return count

    with logged(big) as (_, one), logged(big) as (_, two), ExitStack() as stack:
        addresses = [stack.enter_context(spoiled(a, counting(n))) for n, a in (("one", one), ("two", two))]
        got = fetch_entry(addresses, Version(4, 3), TOKEN, 0.0, like)
    assert got is not None and torch.equal(got.buckets[0], big.buckets[0])
    assert len(sent) == 2 and min(sent.values()) > 4 << 20 and sum(sent.values()) < 1.2 * big.bytes


def test_a_source_that_has_it_wins_over_those_that_do_not() -> None:
    with logged(entry(9)) as (_, gone), logged(entry(4)) as (_, has), logged() as (_, empty):
        assert fetch_entry([gone, empty, has], Version(4, 3), TOKEN, 5.0, LIKE) is not None


def test_another_bucket_layout_is_refused() -> None:
    with logged(entry(4)) as (_, address), pytest.raises(WrongState, match="bucket layout of the source"):
        fetch_entry([address], Version(4, 3), TOKEN, 0.0, LIKE[:1])


def test_no_source_at_all() -> None:
    with pytest.raises(TransferFailed, match="cannot connect"):
        fetch_entry(["127.0.0.1:1"], Version(4, 3), TOKEN, 0.0, LIKE)
    with pytest.raises(TransferFailed, match="no sources"):
        fetch_entry([], Version(4, 3), TOKEN, 0.0, LIKE)
    with pytest.raises(TransferFailed, match="no address"):
        fetch_entry(["nowhere"], Version(4, 3), TOKEN, 0.0, LIKE)


def test_an_entry_is_not_written_again_while_it_is_sent() -> None:
    with logged(entry(4, size=4_000_000)) as (log, address):
        link = connect(address, 2.0, DEADLINE_S, threading.Lock())
        prove_as_joiner(link, TOKEN)
        link.say_as_joiner(AskEntry(heal=0, version=Version(4, 3), wait_s=0.0))
        link.hear_source(1 << 20)
        link.want(0)
        log.release_before(Version(9, 3))
        assert log.reuse() is None
        link.close()
        until(lambda: log.reuse() is not None)


# ---- memory --------------------------------------------------------------------------------------------------------


def _donor(pipe: Any) -> None:
    torch.set_num_threads(1)
    donor = state(1, width=1500, trained=True)
    with served(donor, chunk_bytes=4 << 20) as server:
        pipe.send((server.address, digest(donor)))
        pipe.recv()


def _peak_bytes() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


def test_a_joiner_needs_no_second_copy() -> None:
    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_donor, args=(theirs,))
    process.start()
    try:
        assert ours.poll(100)
        address, expected = ours.recv()
        joiner = state(2, width=1500)
        weights = sum(tensor.nbytes for tensor in joiner.flatten()[0].values())
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")
        before = _peak_bytes()
        loaded = load_snapshot([address], 7, joiner, TOKEN)
        grown = _peak_bytes() - before
        assert digest(joiner) == expected
        assert grown <= loaded.bytes - weights + 0.1 * loaded.bytes
        ours.send(None)
    finally:
        process.join(20)
        process.kill()


def test_a_donor_of_three_holds_two_stripes_and_no_more() -> None:
    """In memory too: what it grows by is what it holds, be it in room made ahead or not."""
    donor = state(1, width=1500, trained=True)
    total = sum(tensor.nbytes for tensor in donor.flatten()[0].values())
    stripes = ((2, 3), (0, 3))
    for ahead in (False, True):
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")
        before = _peak_bytes()
        room = Room(donor, stripes) if ahead else None
        snapshot = Snapshot.stage(donor, AT, 96, True, stripes, room=room)
        snapshot.wait()
        grown = _peak_bytes() - before
        assert snapshot.bytes <= total * 2 / 3 + 2 * snapshot.chunks.size
        assert grown <= snapshot.bytes + (8 << 20)
        del snapshot, room


def test_small_states_are_striped_too_and_equal_states_alike() -> None:
    snapshots = [Snapshot.stage(state(seed, trained=True), AT, 0, False) for seed in (1, 2)]
    assert snapshots[0].chunks == snapshots[1].chunks and snapshots[0].chunks.count > 20


def test_a_load_that_is_cancelled_ends_though_its_source_never_stages() -> None:
    joiner, cancel = state(2), Cancel()
    server = WeightServer("127.0.0.1", TOKEN, EntryLog())
    timer = threading.Timer(0.3, cancel.cancel)
    began = time.monotonic()
    try:
        timer.start()
        with pytest.raises(TransferFailed):
            load_snapshot([server.address], 7, joiner, TOKEN, wait_s=600.0, cancel=cancel)
        assert time.monotonic() - began < DEADLINE_S and joiner.usable
        with pytest.raises(TransferFailed):
            load_snapshot([server.address], 8, joiner, TOKEN, wait_s=600.0, cancel=cancel)
        assert time.monotonic() - began < 2 * DEADLINE_S, "also if it was cancelled before it began"
    finally:
        server.close()


def test_a_source_that_does_not_answer_is_left_alone_as_long_as_another_does() -> None:
    log = EntryLog()
    server = WeightServer("127.0.0.1", TOKEN, log)
    dead = socket.create_server(("127.0.0.1", 0))  # accepts in the kernel, and says nothing
    silent = f"127.0.0.1:{dead.getsockname()[1]}"
    shy: set[str] = set()
    try:
        asked = [silent, server.address]
        assert fetch_entry(asked, AT, TOKEN, 0.0, [], shy=shy, limits=QUICK) is None
        assert shy == {silent}
        began = time.monotonic()
        for _ in range(5):
            assert fetch_entry(asked, AT, TOKEN, 0.0, [], shy=shy, limits=QUICK) is None
        assert time.monotonic() - began < 5 * QUICK.handshake_s, "nobody waits for it five times"
    finally:
        server.close()
        dead.close()


def test_frames_have_limits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as peer:
        link = Link(listener.accept()[0], 1.0)
        peer.sendall(struct.pack("<I", 1 << 30))
        with pytest.raises(LinkLost, match="at most 4096"):
            link.hear_joiner()
        link.close()
