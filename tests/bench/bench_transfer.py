"""Throughput of healing on loopback against a bare sendall / recv_into loop, interleaved in one run.

    python tests/bench/bench_transfer.py [--mb 256] [--rounds 7]

Prints one line a round (GB/s) and the medians with their ratio. The bare loop sends from one buffer and receives into
another that was touched before; ours stages a training state and loads it into another one, each chunk verified. The
source is a process of its own in both, as in a run.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch
from torch import nn

from lighthouse.values import EntryName, Version
from replica.digest import digest
from replica.entry import Entry, EntryLog
from replica.snapshot import Room, Snapshot
from replica.state import TrainingState
from replica.transfer_client import fetch_entry, load_snapshot
from replica.transfer_limits import TransferLimits
from replica.transfer_server import WeightServer
from replica.values import Merged

TOKEN = b"bench"
PIECE = 1 << 20


def build(mb: int, filled: bool) -> TrainingState:
    """A model of many layers whose weights and Adam moments take about `mb` MB together."""
    torch.manual_seed(1 if filled else 2)
    width = 1024
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(max(1, mb // 12))))
    optimizer = torch.optim.AdamW(model.parameters())
    if filled:
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return TrainingState(model, optimizer)


def entry_like(mb: int) -> list[torch.Tensor]:
    """Buckets of 25 MB."""
    return [torch.ones(25 << 18) for _ in range(max(1, mb // 25))]


def source(mb: int, pipe: Connection) -> None:
    """The donor's process: a weight server and a bare sender."""
    torch.set_num_threads(1)
    state = build(mb, filled=True)
    began = time.perf_counter()
    Snapshot.stage(state, Version(1, 1), 8, False)
    cold_s = time.perf_counter() - began
    room = Room(state)
    room.ready()
    began = time.perf_counter()
    snapshot = Snapshot.stage(state, Version(1, 1), 8, False, room=room)
    staged_s = time.perf_counter() - began
    log = EntryLog()
    merged = Merged(start=Version(1, 1), generation=1, slots=8)
    name = EntryName(start=merged.start, end=merged.end)
    log.keep(Entry(name=name, merged=merged, presence=(True,), buckets=tuple(entry_like(mb))))
    server = WeightServer("127.0.0.1", TOKEN, log)
    server.stage(1, snapshot)
    listener = socket.create_server(("127.0.0.1", 0))
    content = memoryview(bytearray(snapshot.bytes))

    def bare() -> None:
        while True:
            peer, _ = listener.accept()
            with peer:
                peer.sendall(content)

    threading.Thread(target=bare, daemon=True).start()
    pipe.send((server.address, listener.getsockname()[1], snapshot.bytes, cold_s, staged_s, digest(state)))
    pipe.recv()
    server.close()


def bare_receive(port: int, into: memoryview) -> None:
    """The loop to beat: one connection, whole pieces, nothing checked."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        at = 0
        while at < len(into):
            at += sock.recv_into(into[at : at + PIECE], 0, socket.MSG_WAITALL)


def timed(action: Callable[[], object], size: int) -> float:
    """GB/s of moving `size` bytes."""
    began = time.perf_counter()
    action()
    return size / (time.perf_counter() - began) / 1e9


def main() -> None:
    """Runs and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    donor = multiprocessing.get_context("spawn").Process(target=source, args=(options.mb, theirs))
    donor.start()
    try:
        address, port, size, cold_s, staged_s, expected = ours.recv()
        print(
            f"{size / 1e6:.0f} MB; staging {size / cold_s / 1e9:.2f} GB/s, into room made ahead {size / staged_s / 1e9:.2f}"
        )
        state = build(options.mb, filled=False)
        like = entry_like(options.mb)
        entry_bytes = sum(bucket.nbytes for bucket in like)
        into = memoryview(bytearray(size))
        rates: dict[str, list[float]] = {}
        cases: dict[str, tuple[Callable[[], object], int]] = {"bare": (lambda: bare_receive(port, into), size)}
        for links in (1, 2):
            limits = TransferLimits(links=links)
            cases[f"snapshot, {links} link(s)"] = (
                lambda limits=limits: load_snapshot([address], 1, state, TOKEN, limits=limits),  # type: ignore[misc]
                size,
            )
        cases["entry"] = (
            lambda: fetch_entry([address], Version(1, 1), TOKEN, 5.0, like, buffers=lambda: like),
            entry_bytes,
        )
        for case in cases.values():
            timed(*case)
        for _ in range(options.rounds):
            for label, case in cases.items():
                rates.setdefault(label, []).append(timed(*case))
            print("  ".join(f"{label} {values[-1]:.2f}" for label, values in rates.items()))
        bare = statistics.median(rates["bare"])
        for label, values in rates.items():
            print(
                f"{label}: median {statistics.median(values):.2f} GB/s, {statistics.median(values) / bare:.2f} of bare"
            )
        began = time.perf_counter()
        assert digest(state) == expected
        print(f"digest {size / (time.perf_counter() - began) / 1e9:.2f} GB/s")
        ours.send(None)
    finally:
        donor.join(10)
        donor.kill()


if __name__ == "__main__":
    main()
