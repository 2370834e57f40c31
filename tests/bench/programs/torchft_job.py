"""A replica group of torchft with its own DDP wrapper: python torchft_job.py TURNS NAME SIZE GROUP LIGHTHOUSE

Run by the interpreter of the peers' environment.
"""

from __future__ import annotations

import os
import sys
import time

import torch
from bench.programs.torchft_parts import make_manager
from bench.programs.workload import MAX_GRAD_NORM, batches, model_of, optimizer_of
from bench.turns import Performer
from torchft.ddp import DistributedDataParallel
from torchft.optim import OptimizerWrapper


def main() -> None:
    turns, name, size, group, lighthouse = sys.argv[1:6]
    bare = model_of(size)
    plain = optimizer_of(bare)
    manager = make_manager(bare, plain, f"g{group}", lighthouse, 60.0)
    model = DistributedDataParallel(manager, bare)
    optimizer = OptimizerWrapper(manager, plain)
    data = batches(size, int(group))
    turn = Performer(turns, f"{name}/g{group}")
    step, cpu_s = 0, 0.0
    while turn.next():
        if turn.first:
            cpu_s = time.process_time()
        optimizer.zero_grad()
        loss_sum, tokens = model(data[step % len(data)])
        (loss_sum / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        step += 1
        turn.notes = {"cpu_s": time.process_time() - cpu_s}
    os._exit(0)


if __name__ == "__main__":
    main()
