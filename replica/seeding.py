"""Chance in compute, seeded for each slot: a slot that is taken over draws what its owner would have drawn."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import torch


def slot_seed(seed: int, step: int, slot: int, shard_rank: int) -> int:
    """The 63-bit seed of one shard's share of one slot of one step."""
    name = f"bellrock slot {seed} {step} {slot} {shard_rank}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1


def seed_slot(seed: int, step: int, slot: int, shard_rank: int) -> None:
    """Seeds torch (the CPU, and devices in use), Python's `random` and numpy for the slot that is about to run."""
    value = slot_seed(seed, step, slot, shard_rank)
    # torch.manual_seed keeps a call, with its stack, for every kind of device that was never used: milliseconds at each
    # slot, and memory for ever.
    torch.default_generator.manual_seed(value)
    for kind in (torch.cuda, torch.xpu):
        if kind.is_initialized():
            kind.manual_seed_all(value)
    random.seed(value)
    np.random.seed(value & 0xFFFF_FFFF)
