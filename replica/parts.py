"""What the step of a rank works with: put together by `assembly`, used by `steps`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from lighthouse.batch import BatchPolicy
from replica.apply import Apply
from replica.attach import AgentLink
from replica.buckets import ScratchPool
from replica.communicators import Communicators
from replica.entry import EntryLog
from replica.gradients import Gradients
from replica.healing import Healing
from replica.reduction import Hooks
from replica.state import TrainingState

Observer = Callable[[str, int], None]
"""Called with (phase, step) on the training thread, as a step goes on: bucket (before each all-reduce), gradients,
roll_call (before it), voted (after it), apply, applied, open (a generation is to be waited for), load."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a step works with, put together by `Replica`."""

    model: nn.Module
    gradients: Gradients
    hooks: Hooks
    pool: ScratchPool
    state: TrainingState
    apply: Apply
    log: EntryLog
    healing: Healing
    communicators: Communicators
    link: AgentLink
    batch: BatchPolicy
    steps: int
    """The run ends after so many."""
    seed: int
    shard_rank: int
    observer: Observer
