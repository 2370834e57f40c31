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

    (For the default apply: times its factor.) In a step that is skipped (`merged.skip`) there are no gradients: only
    what counts steps moves.
    merged: the step's merged roll call: divide by `merged.tokens`; `merged.grad_norm` is the norm of the mean gradient
    gradients: this shard's local gradients, sharing memory with `.grad` (DTensors' local parts), in parameter order
    """

    merged: Merged
    gradients: Sequence[torch.Tensor]


Apply = Callable[[Update], None]
"""Changes model, optimizer and schedule by one step, as a function of the update alone."""


class DefaultApply:
    """Steps the optimizer, then the schedule, on gradients divided by tokens and clipped by the norm that all agree on.

    `factor` does both, for whoever puts the gradients into `.grad`: they need no pass of their own then.
    A skipped step leaves weights and optimizer alone and still moves the schedule, so that the learning rate stays a
    function of the step's number.
    """

    def __init__(self, optimizer: Optimizer, scheduler: Schedule | None, max_grad_norm: float | None) -> None:
        if max_grad_norm is not None and not max_grad_norm > 0:
            raise ValueError(f"max_grad_norm is {max_grad_norm}; it must be positive, or None for no clipping")
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._max_grad_norm = max_grad_norm

    def factor(self, merged: Merged) -> float:
        """What raw sums are to be multiplied with on their way into `.grad`."""
        return mean_factor(merged, self._max_grad_norm)

    def __call__(self, update: Update) -> None:
        if not update.merged.skip:
            self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()


def raw_sums(_: Merged) -> float:
    """The factor for an `apply` of the program's own: it is given raw sums."""
    return 1.0


def mean_factor(merged: Merged, max_grad_norm: float | None) -> float:
    """What turns raw sums into the clipped mean gradient per token: one factor for all, the same in all groups."""
    factor = 1.0 / max(merged.tokens, 1)
    if max_grad_norm is not None and merged.grad_norm > max_grad_norm:
        factor *= max_grad_norm / merged.grad_norm
    return factor


@torch.no_grad()
def scale(update: Update, max_grad_norm: float | None) -> None:
    """Turns raw sums into the clipped mean gradient per token, in place, for an `apply` of the program's own."""
    if update.gradients:
        torch._foreach_mul_(list(update.gradients), mean_factor(update.merged, max_grad_norm))
