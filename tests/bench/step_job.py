"""The rank's program of bench_step.py: a tiny model, a sleep for the compute, and two pings after each step.

Writes a JSON line a step to OUT/GROUP.times: where the time went (seconds), and how long a message of the size of a
roll call took to an echo and back, over a bare Unix socket and over a gRPC stream.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import grpc
import torch
from torch import nn

from replica import Replica

MESSAGE = bytes(300)


def socket_ping(path: str) -> Callable[[], float]:
    """Seconds of a round trip over a bare socket."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)

    def ping() -> float:
        began = time.perf_counter()
        sock.sendall(MESSAGE)
        left = len(MESSAGE)
        while left:
            left -= len(sock.recv(left))
        return time.perf_counter() - began

    return ping


def grpc_ping(path: str) -> Callable[[], float]:
    """Seconds of a round trip over a gRPC stream."""
    outbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    call = grpc.insecure_channel(f"unix:{path}").stream_stream("/echo/Echo")(iter(outbox.get, None))

    def ping() -> float:
        began = time.perf_counter()
        outbox.put(MESSAGE)
        next(call)
        return time.perf_counter() - began

    return ping


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--sleep-s", type=float, required=True)
    parser.add_argument("--echo", required=True)
    told = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Linear(16, 16)
    pings = {"socket": socket_ping(f"{told.echo}.socket"), "grpc": grpc_ping(f"{told.echo}.grpc")}
    replica = Replica(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.01),
        slots=told.groups,
        slot_size=1,
        seed=1,
        steps=told.steps,
    )
    with (told.out / f"{os.environ['BELLROCK_GROUP']}.times").open("w") as file:
        for step in replica.steps():
            for _ in step:
                time.sleep(told.sleep_s)
                step.backward(model(torch.ones(1, 16)).sum(), 1)
            step.apply()
            if step.result is not None:
                took = asdict(step.result.times) | {name: ping() for name, ping in pings.items()}
                file.write(json.dumps(took) + "\n")


if __name__ == "__main__":
    main()
