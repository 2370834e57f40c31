"""A plain job, as people write it without fault tolerance: DistributedDataParallel, or HSDP (FSDP2 on a 2-D mesh).

python plain_job.py TURNS NAME SIZE SHARDS   with RANK, WORLD_SIZE and the like in the environment
"""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from bench.programs.workload import MAX_GRAD_NORM, batches, model_of, optimizer_of
from bench.turns import Performer
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    turns, name, size, shards = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    bare = model_of(size)
    model: torch.nn.Module = bare
    if shards == 1:
        model = DistributedDataParallel(bare)
    else:
        mesh = init_device_mesh("cpu", (world // shards, shards), mesh_dim_names=("dp_replicate", "dp_shard"))
        for block in bare.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(bare, mesh=mesh)
    optimizer = optimizer_of(model)
    data = batches(size, rank)
    turn = Performer(turns, f"{name}/{rank}")
    step, cpu_s = 0, 0.0
    while turn.next():
        if turn.first:
            cpu_s = time.process_time()
        loss_sum, tokens = model(data[step % len(data)])
        (loss_sum / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        turn.notes = {"cpu_s": time.process_time() - cpu_s}
    os._exit(0)


if __name__ == "__main__":
    main()
