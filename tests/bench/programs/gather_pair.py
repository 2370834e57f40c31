"""What gloo and memory alone cost: gather_pair.py TURNS NAME SIZE   with RANK, WORLD_SIZE and the like

A step of a turn is one gather of a record of 81 bytes, and one copy of as many bytes as the model has gradients, from
many tensors into one; the answer has the milliseconds of each, and when each gather was entered (seconds, monotonic).
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from bench.programs.workload import model_of
from bench.turns import Performer

RECORD_BYTES = 81


def main() -> None:
    turns, name, size = sys.argv[1:4]
    dist.init_process_group("gloo")
    record = torch.zeros(RECORD_BYTES, dtype=torch.uint8)
    matrix = torch.zeros(dist.get_world_size() * RECORD_BYTES, dtype=torch.uint8)
    grads = [torch.randn_like(parameter) for parameter in model_of(size).parameters()]
    flat = torch.empty(sum(grad.numel() for grad in grads))
    places = [part.view(grad.shape) for part, grad in zip(flat.split([g.numel() for g in grads]), grads, strict=True)]
    turn = Performer(turns, f"{name}/{dist.get_rank()}")
    took: dict[str, list[float]] = {}
    entered: list[float] = []
    while turn.next():
        if turn.first:
            took, entered = {"gather": [], "copy": [], "norm": []}, []
        times = [time.monotonic()]
        entered.append(times[0])
        dist.all_gather_into_tensor(matrix, record)
        times.append(time.monotonic())
        torch._foreach_copy_(places, grads)
        times.append(time.monotonic())
        torch.linalg.vector_norm(flat)
        times.append(time.monotonic())
        for part, began, ended in zip(took, times, times[1:], strict=False):
            took[part].append(1e3 * (ended - began))
        turn.notes = {"parts": took, "entered": entered}


if __name__ == "__main__":
    main()
