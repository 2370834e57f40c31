"""A job whose model is hard on the bookkeeping (`rank_program.Model`), in groups of FSDP shards.

python zoo_job.py --out FOLDER [--delay-s 0.05]

The run ends after the step that follows the appearance of FOLDER/enough; then each group's first rank writes all
parameters to FOLDER/GROUP.npz.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from e2e.rank_program import SAMPLES, build, full, loss_of

from replica import Replica

SLOTS = 5


def main() -> None:
    """Reads the flags and trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--delay-s", type=float, default=0.0)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, optimizer, scheduler = build("fsdp")
    replica = Replica(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        max_grad_norm=0.5,
        slots=SLOTS,
        slot_size=4,
        seed=5,
        steps=1_000_000,
        dataset_length=SAMPLES,
        bucket_bytes=600,
    )
    for step in replica.steps():
        for slot in step:
            loss_sum, tokens = loss_of(model, slot.number, slot.samples)
            time.sleep(flags.delay_s)
            step.backward(loss_sum, tokens)
        step.apply()
        if (flags.out / "enough").exists():
            replica.request_stop()
    parameters = full(model)
    if dist.get_rank() == 0:
        numpy.savez(flags.out / f"{os.environ['BELLROCK_GROUP']}.npz", *parameters)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
