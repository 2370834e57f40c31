"""What all jobs of the benchmarks train: one byte model of two sizes, on made-up bytes, with one optimizer.

Imported by programs of other environments: torch and the standard library only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.config import ModelShape
from trainer.model import ByteModel, build_model

SIZES = {
    "1M": ModelShape(width=128, depth=5, heads=4, context=64),
    "25M": ModelShape(width=512, depth=8, heads=8, context=64),
}
SAMPLES = {"1M": 4, "25M": 2}
"""Samples of a microbatch at each rank."""
MAX_GRAD_NORM = 1.0
SEED = 1


def model_of(size: str) -> ByteModel:
    """The model with its first weights, the same in every process."""
    torch.set_num_threads(1)
    return build_model(SIZES[size], SEED)


def optimizer_of(model: torch.nn.Module) -> torch.optim.AdamW:
    """The optimizer of every job."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def batches(size: str, rank: int, count: int = 16) -> list[Tensor]:
    """Some microbatches of one rank: int64 [samples, context + 1]."""
    chance = torch.Generator().manual_seed(SEED + rank)
    shape = (SAMPLES[size], SIZES[size].context + 1)
    return [torch.randint(256, shape, generator=chance) for _ in range(count)]
