"""What the jobs of the benchmarks that lose groups have in common: a small model, compute that is a sleep, a diary.

A line of the diary FOLDER/GROUP.diary is an event with the time (seconds since 1970), written by the group's process:
started (when the process was started, or a standby told to go on), ready (imported and built: it could train), begun (a
microbatch), committed.
Imported by programs of other environments: torch and the standard library only.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from bench.programs.beginning import STARTED
from torch import Tensor, nn


class Diary:
    """The lines of one process. Each is one write at the end of the file, so that a kill tears nothing."""

    def __init__(self, folder: str, group: str) -> None:
        self._file = os.open(Path(folder) / f"{group}.diary", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.note("started", at=STARTED)

    def note(self, event: str, at: float | None = None, **fields: Any) -> None:
        """Writes one event, of now unless `at` is given."""
        line = {"time_s": time.time() if at is None else at, "pid": os.getpid(), "event": event, **fields}
        os.write(self._file, json.dumps(line).encode() + b"\n")


class SmallModel(nn.Module):
    """A model that takes no time, the same everywhere; ballast_mb: of weights that are healed and never change."""

    def __init__(self, ballast_mb: int) -> None:
        super().__init__()
        torch.set_num_threads(1)
        torch.manual_seed(7)
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.ballast = nn.ParameterList(
            nn.Parameter(torch.full((1 << 18,), float(i)), requires_grad=False) for i in range(ballast_mb)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.layers(inputs)
        return out


def small_loss(model: nn.Module, number: int, sleep_s: float) -> Tensor:
    """The sum of squared errors over one microbatch of 4, after a sleep in place of what a GPU would do meanwhile."""
    inputs = torch.rand(4, 8, generator=torch.Generator().manual_seed(number))
    time.sleep(sleep_s)
    loss: Tensor = ((model(inputs) - inputs.sum(1, keepdim=True).sin()) ** 2).sum()
    return loss
