"""What a committed step does to the training state: registered once, the same function in every group.

It sees only values that are bit-equal in all groups: the merged roll call and the reduced gradients. So it can be done
again elsewhere, later, from an entry, without forward or backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.optim import Optimizer

from replica.values import Merged


class Schedule(Protocol):
    """A learning-rate scheduler, as far as `apply` is concerned."""

    def step(self) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Update:
    """What a registered `apply` is given; `.grad` of every parameter holds the raw sum over all samples of the step.

    In a step that is skipped (`merged.skip`) there are no gradients: only what counts steps moves.
    merged: the step's merged roll call: divide by `merged.tokens`; `merged.grad_norm` is the norm of the mean gradient
    gradients: this shard's local gradients, sharing memory with `.grad` (DTensors' local parts), in parameter order
    """

    merged: Merged
    gradients: Sequence[torch.Tensor]


Apply = Callable[[Update], None]
"""Changes model, optimizer and schedule by one step, as a function of the update alone."""


class DefaultApply:
    """Divides by tokens, clips by the norm that all groups agree on, steps the optimizer, then the schedule.

    A skipped step leaves weights and optimizer alone and still moves the schedule, so that the learning rate stays a
    function of the step's number.
    """

    def __init__(self, optimizer: Optimizer, scheduler: Schedule | None, max_grad_norm: float | None) -> None:
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm is {max_grad_norm}; it must be positive, or None for no clipping")
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._max_grad_norm = max_grad_norm

    def __call__(self, update: Update) -> None:
        if not update.merged.skip:
            scale(update, self._max_grad_norm)
            self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()


@torch.no_grad()
def scale(update: Update, max_grad_norm: float | None) -> None:
    """Turns raw sums into the clipped mean gradient per token, in place: one factor for all, the same in all groups."""
    merged = update.merged
    factor = 1.0 / max(merged.tokens, 1)
    if max_grad_norm is not None and merged.grad_norm > max_grad_norm:
        factor *= max_grad_norm / merged.grad_norm
    if update.gradients:
        torch._foreach_mul_(list(update.gradients), factor)
