"""A training state of many tensor sizes, to be healed: torch and the standard library only."""

from __future__ import annotations

import itertools

import torch
from torch import nn

WIDTHS = (16, 1000, 48, 700, 256, 1024, 8, 512)


def training_state(mb: int, filled: bool) -> tuple[nn.Module, torch.optim.AdamW]:
    """A model and its optimizer, whose weights and Adam moments take about `mb` MB together.

    filled: after a step, with moments; else as a joiner has it: freshly made, with other weights
    """
    torch.set_num_threads(1)
    torch.manual_seed(1 if filled else 2)
    layers: list[nn.Module] = []
    numel = 0
    for width, following in itertools.cycle(itertools.pairwise((*WIDTHS, WIDTHS[0]))):
        layers.append(nn.Linear(width, following))
        numel += (width + 1) * following
        if 12 * numel >= mb << 20:
            break
    model = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    if filled:
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer
