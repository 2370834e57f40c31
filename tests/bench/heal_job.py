"""The job of bench_heal.py: a large state, little of it trained, a step's compute stood in for by a sleep.

python heal_job.py --mb 1000 --trained-mb 16 --sleep-s 0.2 --out FOLDER

The sleep is once a step, whatever slots the group has, so that a change of members changes nothing in it. Ends after
the step that follows the appearance of FOLDER/enough.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from replica import Replica

WIDTH = 512


def build(mb: int, trained_mb: int) -> nn.Module:
    """Layers whose weights and Adam moments take `trained_mb` MB, and frozen tables that make it `mb` MB."""
    torch.manual_seed(5)
    layers = max(1, round(trained_mb * 1e6 / 12 / WIDTH / WIDTH))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    left = int(mb * 1e6 / 4) - 3 * layers * WIDTH * WIDTH
    for i in range(max(0, left) >> 22):
        model.register_parameter(f"frozen{i}", nn.Parameter(torch.full((1 << 22,), float(i)), requires_grad=False))
    return model


def main() -> None:
    """Trains until told that it is enough."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--mb", type=int, required=True)
    parser.add_argument("--trained-mb", type=int, required=True)
    parser.add_argument("--sleep-s", type=float, required=True)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    model = build(flags.mb, flags.trained_mb)
    layers = nn.Sequential(*(layer for layer in model))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    replica = Replica(model=model, optimizer=optimizer, slots=6, slot_size=1, seed=1, steps=1_000_000)
    inputs = torch.ones(4, WIDTH)
    for step in replica.steps():
        slept = False
        for _ in step:
            if not slept:
                time.sleep(flags.sleep_s)
            slept = True
            step.backward((layers(inputs) ** 2).sum(), 4)
        step.apply()
        if (Path(flags.out) / "enough").exists():
            replica.request_stop()


if __name__ == "__main__":
    main()
