"""A rank of a Bellrock group, as people write it: `bellrock group ... -- bellrock_job.py TURNS NAME SIZE GROUPS`.

The answer to a turn has the milliseconds of each part of a step, by the library's own observer, and when this rank
entered each roll call, on the host's monotonic clock.
"""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict

import torch.distributed as dist
from bench.programs.workload import MAX_GRAD_NORM, SAMPLES, SEED, batches, model_of, optimizer_of
from bench.turns import Performer
from torch.distributed.device_mesh import init_device_mesh

from replica import Replica
from trainer.model import shard

PARTS = {
    "slot": "deal",
    "forward": "forward",
    "computed": "backward",
    "gradients": "flush",
    "roll_call": "reduce",
    "voted": "gather",
    "apply": "verdict",
    "applied": "apply",
    "end": "after",
}
"""By the phase that ends it."""


class Parts:
    """Milliseconds of each part of each step. entered: when it entered the roll call, seconds."""

    def __init__(self) -> None:
        self.took: dict[str, list[float]] = defaultdict(list)
        self.entered: list[float] = []
        self._at = time.monotonic()

    def end(self, phase: str, step: int = 0) -> None:
        """A phase has come; also the library's observer."""
        if phase in PARTS:
            now = time.monotonic()
            self.took[PARTS[phase]].append(1e3 * (now - self._at))
            self._at = now
            if phase == "roll_call":
                self.entered.append(now)

    def begin(self) -> None:
        """A turn begins now."""
        self.took, self.entered, self._at = defaultdict(list), [], time.monotonic()


def main() -> None:
    turns, name, size, groups = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    dist.init_process_group("gloo")
    shards, rank = dist.get_world_size(), dist.get_rank()
    model = model_of(size)
    if shards > 1:
        shard(model, init_device_mesh("cpu", (shards,), mesh_dim_names=("dp_shard",)))
    parts = Parts()
    replica = Replica(
        model=model,
        optimizer=optimizer_of(model),
        slots=groups,
        slot_size=SAMPLES[size] * shards,
        seed=SEED,
        steps=1_000_000,
        max_grad_norm=MAX_GRAD_NORM,
        observer=parts.end,
    )
    data = batches(size, rank + shards * int(os.environ["BELLROCK_GROUP"].removeprefix("g")))
    turn = Performer(turns, f"{name}/{os.environ['BELLROCK_GROUP']}.{rank}")
    cpu_s = 0.0
    for step in replica.steps():
        turn.notes = {"parts": parts.took, "entered": parts.entered, "cpu_s": time.process_time() - cpu_s}
        if not turn.next():
            replica.request_stop()
        if turn.first:
            cpu_s = time.process_time()
            parts.begin()
        for slot in step:
            parts.end("slot")
            loss_sum, tokens = model(data[slot.number % len(data)])
            parts.end("forward")
            step.backward(loss_sum, tokens)
            parts.end("computed")
        step.apply()
        parts.end("end")


if __name__ == "__main__":
    main()
