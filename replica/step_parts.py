"""What a step works with, and what a rank measures in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn

from replica.apply import Apply as ApplyFunction
from replica.attach import AgentLink
from replica.beside import Gate
from replica.buckets import ScratchPool
from replica.communicators import Communicators
from replica.entry import EntryLog
from replica.gradients import Gradients
from replica.healing import Healing
from replica.reduction import Hooks
from replica.state import TrainingState
from replica.values import Merged

Observer = Callable[[str, int], None]
"""Called with (phase, step) on the training thread, as a step goes on: bucket (before each all-reduce), gradients,
roll_call (before it), voted (after it), apply, applied, open (a generation is to be waited for), load. On a thread of
the transfer: loading (a piece of a snapshot is verified)."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a step works with, put together by `Replica`."""

    model: nn.Module
    gradients: Gradients
    hooks: Hooks
    pool: ScratchPool
    state: TrainingState
    apply: ApplyFunction
    factor: Callable[[Merged], float]
    """What reduced gradients are multiplied with on their way into `.grad`."""
    log: EntryLog
    healing: Healing
    communicators: Communicators
    link: AgentLink
    gate: Gate
    steps: int
    """The run ends after so many."""
    seed: int
    shard_rank: int
    observer: Observer


@dataclass
class Sums:
    """What this rank has measured over the slots in its local sum."""

    losses: list[torch.Tensor] = field(default_factory=list)
    tokens: int = 0
    compute_s: float = 0.0
