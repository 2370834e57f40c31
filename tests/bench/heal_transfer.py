"""How fast a snapshot moves between processes, and what memory that takes: the parts of bench_heal.py without a run.

Donors and joiners are processes of their own. The bare loop that all is measured against is one connection, `sendall`
of the whole and `recv_into` in pieces of 1 MiB, nothing checked. *First*: in a process of its own each time, into
memory of which the joiner has touched as much as its model takes, and no more. *Warm*: again into the same memory.
"""

from __future__ import annotations

import gc
import multiprocessing
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from typing import Any

import torch
from torch import nn

from lighthouse.values import Version
from replica.digest import digest
from replica.entry import EntryLog
from replica.snapshot import Room, Snapshot
from replica.state import TrainingState
from replica.transfer_client import load_snapshot
from replica.transfer_server import WeightServer

TOKEN = b"bench"
PIECE = 1 << 20
HEAL = 1
TOGETHER = 3
"""Joiners that come at once, with the heals HEAL and the next ones."""
LINEARS = ((1024, 4096), (4096, 1024), (1024, 1024), (768, 96), (64, 7))
"""One block: linears of these sizes with their biases, a norm, an odd table and a scalar; from 40 MB to 4 bytes."""


class Scalar(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


def block() -> nn.Module:
    """Tensors of many sizes, about 36 MB of float32."""
    parts: list[nn.Module] = [nn.Linear(n, m) for n, m in LINEARS]
    return nn.Sequential(*parts, nn.LayerNorm(1024), nn.Embedding(257, 33), Scalar())


def build(mb: int, filled: bool) -> TrainingState:
    """A model whose weights and Adam moments take about `mb` MB together; `filled`: the moments are there."""
    torch.manual_seed(1 if filled else 2)
    size = sum(p.numel() * 4 for p in block().parameters())
    model = nn.Sequential(*(block() for _ in range(max(1, round(mb * 1e6 / 3 / size)))))
    optimizer = torch.optim.AdamW(model.parameters())
    if filled:
        for parameter in model.parameters():
            parameter.grad = torch.rand_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
    return TrainingState(model, optimizer)


def own_bytes() -> int:
    """Anonymous memory of this process that lies in RAM."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))


class Peak:
    """The most anonymous memory of this process while the block runs, above what it had before."""

    def __init__(self) -> None:
        self.before = self.most = own_bytes()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            self.most = max(self.most, own_bytes())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.most = max(self.most, own_bytes())

    @property
    def extra(self) -> int:
        """Bytes above what there was before."""
        return self.most - self.before


@dataclass(frozen=True, kw_only=True)
class Donor:
    """What a donor's process says: where it serves; sizes in bytes, times in seconds."""

    address: str
    bare_port: int
    total: int
    staged: int
    extra: int
    fresh_s: float
    ahead_s: float
    digest: int


def donate(mb: int, part: int, of: int, pipe: Connection) -> None:
    """A donor: its stripe and the next one's, and a bare sender of as many bytes as the whole."""
    torch.set_num_threads(1)
    state = build(mb, filled=True)
    stripes = ((part, of), ((part + 1) % of, of)) if of > 2 else ()
    own_bytes()
    began = time.perf_counter()
    Snapshot.stage(state, Version(1, 1), 8, False, stripes).wait()
    fresh_s = time.perf_counter() - began
    with Peak() as peak:
        room = Room(state, stripes)
        while not room.ready:
            time.sleep(0.001)
        began = time.perf_counter()
        snapshot = Snapshot.stage(state, Version(1, 1), 8, False, stripes, room=room)
        snapshot.wait()
        ahead_s = time.perf_counter() - began
    server = WeightServer("127.0.0.1", TOKEN, EntryLog())
    for heal in range(HEAL, HEAL + TOGETHER):
        server.stage(heal, snapshot)
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(
        Donor(
            address=server.address,
            bare_port=listener.getsockname()[1],
            total=snapshot.chunks.total,
            staged=snapshot.bytes,
            extra=peak.extra,
            fresh_s=fresh_s,
            ahead_s=ahead_s,
            digest=digest(state),
        )
    )
    if part == 0:
        content = memoryview(bytearray(snapshot.chunks.total))
        threading.Thread(target=send_bare, args=(listener, content), daemon=True).start()
    pipe.recv()
    server.close()


def send_bare(listener: socket.socket, content: memoryview) -> None:
    """The loop to beat, for ever: all of `content` to whoever connects."""
    while True:
        peer, _ = listener.accept()
        with peer:
            peer.sendall(content)


def receive_bare(port: int, into: memoryview) -> None:
    """The loop to beat: one connection, whole pieces, nothing checked."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        at = 0
        while at < len(into):
            at += sock.recv_into(into[at : at + PIECE], 0, socket.MSG_WAITALL)


@dataclass(kw_only=True)
class Rates:
    """GB/s, pair by pair: the bare loop and ours just after or before it; and a joiner's memory over its shard's."""

    first: list[tuple[float, float]] = field(default_factory=list)
    warm: list[tuple[float, float]] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)


def join(mb: int, donors: tuple[Donor, ...], warm: int, bare_first: bool, pipe: Connection) -> None:
    """A joiner: one pair of first transfers, then so many warm ones."""
    torch.set_num_threads(1)
    total = donors[0].total
    rates = Rates()
    before = own_bytes()
    with Peak() as peak:
        state = build(mb, filled=False)
        weights = sum(tensor.nbytes for tensor in state.flatten()[0].values())
        sources = [donor.address for donor in donors]
        into: list[memoryview] = []

        def ours() -> None:
            load_snapshot(sources, HEAL, state, TOKEN)

        def bare() -> None:
            receive_bare(donors[0].bare_port, into[0])

        if bare_first:
            into.append(memory(total, weights))
            bare_rate = _rate(bare, total)
            into.clear()
        our_rate = _rate(ours, total)
    rates.memory.append((peak.most - before) / total)
    into[:] = into or [memory(total, weights)]
    if not bare_first:
        bare_rate = _rate(bare, total)
    rates.first.append((bare_rate, our_rate))
    _rate(bare, total)
    for _ in range(warm):
        rates.warm.append((_rate(bare, total), _rate(ours, total)))
    assert digest(state) == donors[0].digest, "what was loaded is not what was staged"
    pipe.send(rates)


def memory(size: int, touched: int) -> memoryview:
    """So many bytes, the first of them `touched`: a joiner's model is there, what its optimizer keeps is not."""
    content = torch.empty(size, dtype=torch.uint8)
    content[:touched].zero_()
    return memoryview(content.numpy().data)


def _rate(action: Callable[[], object], size: int) -> float:
    began = time.perf_counter()
    action()
    return size / (time.perf_counter() - began) / 1e9


def measure(mb: int, count: int, rounds: int, warm: int) -> tuple[list[Donor], Rates]:
    """Transfers of `mb` MB from `count` donors: so many joiners, each with one first and some warm transfers."""
    context = multiprocessing.get_context("spawn")
    processes: list[Any] = []
    pipes = []
    rates = Rates()
    try:
        for part in range(count):
            pipe = _start(context, processes, donate, mb, part, count)
            pipes.append(pipe)
        donors = [pipe.recv() for pipe in pipes]
        for number in range(rounds):
            # The bare loop goes first only where the joiner's memory is not what is measured.
            pipe = _start(context, processes, join, mb, tuple(donors), warm, number % 2 == 1)
            got = pipe.recv()
            rates.first += got.first
            rates.warm += got.warm
            rates.memory += got.memory if number % 2 == 0 else []
            processes.pop().join(30)
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(30)
        return donors, rates
    finally:
        for process in processes:
            process.kill()


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """Joiners that came together: seconds until the last of them had loaded, and the donor's share of their bytes."""

    seconds: float
    share: float


def crowd(mb: int, passes: bool) -> Crowd:
    """Has `TOGETHER` joiners load from one donor at once; passes: they pass on what they have."""
    context = multiprocessing.get_context("spawn")
    processes: list[Any] = []
    try:
        donor = (donor_pipe := _start(context, processes, donate, mb, 0, 1)).recv()
        pipes = [_start(context, processes, _come, mb, donor, HEAL + i) for i in range(TOGETHER)]
        addresses = [pipe.recv() for pipe in pipes]
        began = time.perf_counter()
        for i, pipe in enumerate(pipes):
            pipe.send(addresses[:i] if passes else [])
        from_donor = [pipe.recv() for pipe in pipes]
        seconds = time.perf_counter() - began
        for pipe in (donor_pipe, *pipes):
            pipe.send(None)
        for process in processes:
            process.join(30)
        return Crowd(seconds=seconds, share=sum(from_donor) / TOGETHER / donor.total)
    finally:
        for process in processes:
            process.kill()


def _come(mb: int, donor: Donor, heal: int, pipe: Connection) -> None:
    """One of several joiners; says how many bytes the donor gave it."""
    torch.set_num_threads(1)
    state = build(mb, filled=False)
    server = WeightServer("127.0.0.1", TOKEN, EntryLog())
    lock, seen, given = threading.Lock(), [0], [0]

    def moved(count: int, _: int, source: str) -> None:
        with lock:
            given[0] += max(0, count - seen[0]) if source == donor.address else 0
            seen[0] = max(seen[0], count)

    pipe.send(server.address)
    passing = pipe.recv()
    load_snapshot(
        [donor.address], heal, state, TOKEN, progress=moved, passing=passing, pass_on=server.pass_on
    )  # fmt: skip
    pipe.send(given[0])
    pipe.recv()  # it passes on until all have loaded
    assert digest(state) == donor.digest, "what was loaded is not what was staged"
    server.close()


class BarePair:
    """Two processes and a bare connection between them, to be measured beside a run: `size` bytes, memory touched."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._processes: list[Any] = []
        sender = _start(context, self._processes, _bare_sender, size)
        self._pipe = _start(context, self._processes, _bare_receiver, size, sender.recv())

    def rate(self) -> float:
        """GB/s of one transfer."""
        self._pipe.send(None)
        return float(self._pipe.recv())

    def close(self) -> None:
        """Ends both."""
        for process in self._processes:
            process.kill()
            process.join()


def _bare_sender(size: int, pipe: Connection) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    pipe.send(listener.getsockname()[1])
    send_bare(listener, memory(size, size))


def _bare_receiver(size: int, port: int, pipe: Connection) -> None:
    into = memory(size, size)
    while True:
        pipe.recv()
        pipe.send(_rate(lambda: receive_bare(port, into), size))


def _start(context: SpawnContext, processes: list[Any], target: Any, *arguments: Any) -> Connection:
    ours, theirs = context.Pipe()
    process = context.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    processes.append(process)
    return ours
