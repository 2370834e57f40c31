"""A donor and a joiner of torchft's two transports: torchft_pair.py TURNS NAME MB

"http" fetches the checkpoint and loads it into model and optimizer; "pg" receives it into their tensors in place, over
gloo: that is how each is used.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
from bench.programs.ballast import training_state
from bench.turns import Performer
from torch.distributed import TCPStore
from torchft.checkpointing.http_transport import HTTPTransport
from torchft.checkpointing.pg_transport import PGTransport
from torchft.process_group import ProcessGroupGloo

PATIENCE = timedelta(seconds=60)


def state_dict(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What torchft's users register."""
    return {"model": model.state_dict(), "optim": optimizer.state_dict()}


def join(port: int, rank: int) -> ProcessGroupGloo:
    """A process group of the two."""
    group = ProcessGroupGloo(timeout=PATIENCE)
    group.configure(f"127.0.0.1:{port}/pair", f"g{rank}", rank, 2)
    return group


def donor(mb: int, port: int, pipe: Connection) -> None:
    """Serves one checkpoint, each time it is asked to."""
    told = state_dict(*training_state(mb, filled=True))
    http: HTTPTransport[Any] = HTTPTransport(timeout=PATIENCE, num_chunks=0)
    pg: PGTransport[Any] = PGTransport(join(port, 0), PATIENCE, torch.device("cpu"))
    pipe.send(http.metadata())
    while True:
        kind, step = pipe.recv()
        transport = http if kind == "http" else pg
        transport.send_checkpoint([1], step, told, PATIENCE)
        pipe.send(None)
        if kind == "http":
            pipe.recv()  # it has been loaded
            transport.disallow_checkpoint()


def main() -> None:
    turns, name, mb = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=donor, args=(mb, store.port, theirs), daemon=True)
    process.start()
    model, optimizer = training_state(mb, filled=False)
    filled_model, filled_optimizer = training_state(mb, filled=True)
    size = sum(t.nbytes for t in filled_model.state_dict().values())
    size += sum(t.nbytes for state in filled_optimizer.state.values() for t in state.values())
    http: HTTPTransport[Any] = HTTPTransport(timeout=PATIENCE, num_chunks=0)
    place = state_dict(filled_model, filled_optimizer)
    pg: PGTransport[Any] = PGTransport(join(store.port, 1), PATIENCE, torch.device("cpu"), state_dict=lambda: place)
    metadata = ours.recv()
    turn = Performer(turns, f"{name}/joiner")
    step = 0
    while turn.next():
        step += 1
        kind = turn.wishes["kind"]
        began = time.perf_counter()
        ours.send((kind, step))
        if kind == "http":
            ours.recv()
            loaded = http.recv_checkpoint(0, metadata, step, PATIENCE)
            model.load_state_dict(loaded["model"])
            optimizer.load_state_dict(loaded["optim"])
        else:
            pg.recv_checkpoint(0, metadata, step, PATIENCE)
        turn.notes = {"gb_s": size / (time.perf_counter() - began) / 1e9}
        ours.send(None) if kind == "http" else ours.recv()


if __name__ == "__main__":
    main()
