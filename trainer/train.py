"""A rank: one process of a replica group, training the byte model. Reads from top to bottom.

`bellrock group` starts one of these for each shard. What is particular to Bellrock is the loop at the end: everything
else is a training script as one writes it for torch alone.
"""

from __future__ import annotations

import gc
import json
import math
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import tyro
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from replica import Replica
from replica.digest import digest
from replica.state import TrainingState
from trainer.config import FixTheConfiguration, TrainConfig
from trainer.model import ByteModel, build_model, shard
from trainer.text import open_text

LAST_LR_PART = 0.1


def train(config: TrainConfig) -> None:
    """Trains until the run is finished, or until this group is told to leave."""
    torch.set_num_threads(config.threads)
    text = open_text(config.data, config.context)

    # Inside the group: the ranks that share one copy of the model. Between groups there is only `replica`.
    dist.init_process_group("gloo")
    shards = dist.get_world_size()
    model = build_model(config.shape, config.seed)
    if shards > 1 or config.always_shard:
        shard(model, init_device_mesh("cpu", (shards,), mesh_dim_names=("dp_shard",)))
    optimizer = build_optimizer(model, config)
    scheduler = LambdaLR(optimizer, lambda step: lr_part(step, config))

    replica = Replica(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        slots=None if config.slots_per_group else config.slots,
        slots_per_group=config.slots_per_group or None,
        slot_size=config.slot_size,
        dataset_length=text.count,
        seed=config.seed,
        steps=config.steps,
        epochs=config.epochs or None,
        max_grad_norm=config.max_grad_norm,
        reduce_dtype=config.reduce_dtype,
        data=text.fingerprint,
    )
    stop_file = Path(config.stop_file) if config.stop_file else None
    for step in replica.steps():
        if stop_file is not None and stop_file.exists():
            replica.request_stop()
        for slot in step:  # ends only with the verdict; yields taken-over slots if a peer dies
            assert slot.samples is not None  # as the length of the data set was given
            windows = torch.from_numpy(text.samples(slot.samples))
            loss_sum, tokens = forward(model, windows, config)
            step.backward(loss_sum, tokens)
        step.apply()  # what was registered above: clip, optimizer, scheduler

    if config.finals:
        leave_final(Path(config.finals), replica, TrainingState(model, optimizer, scheduler))
    dist.destroy_process_group()


def leave_final(folder: Path, replica: Replica, state: TrainingState) -> None:
    """Writes what this rank ended with: {"step", "generation", "digest"}."""
    me = replica.environment
    version = replica.version
    final = {"step": version.step, "generation": version.generation, "digest": f"{digest(state):016x}"}
    (folder / f"{me.group}.{me.shard_rank}.final").write_text(json.dumps(final))


def forward(model: ByteModel, windows: Tensor, config: TrainConfig) -> tuple[Tensor, int]:
    """(loss summed over tokens, tokens) of one shard's part of a slot."""
    if config.sleep_s > 0:
        time.sleep(config.sleep_s)
        windows = windows[:, :2]
    loss_sum, tokens = model(windows)
    return loss_sum, tokens


def build_optimizer(model: nn.Module, config: TrainConfig) -> AdamW:
    """AdamW; matrices decay, norms do not."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return AdamW(groups, lr=config.lr, betas=(0.9, 0.95))


def lr_part(step: int, config: TrainConfig) -> float:
    """The part of the peak learning rate that step number `step` uses: a linear warm-up, then a cosine."""
    if step < config.warmup_steps:
        return (step + 1) / config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps))
    return LAST_LR_PART + (1 - LAST_LR_PART) * (1 + math.cos(math.pi * progress)) / 2


def main() -> int:
    """Entry point of a rank: the flags of `TrainConfig`."""
    try:
        train(tyro.cli(TrainConfig, description=__doc__))
    except FixTheConfiguration as wrong:
        print(f"error: {wrong}", file=sys.stderr)
        return 2
    # At its end the interpreter would collect garbage among all that torch has made: a second of a core for each rank.
    gc.freeze()
    return 0


if __name__ == "__main__":
    sys.exit(main())
