"""Weight digests (DESIGN §6.5)."""

from __future__ import annotations

import torch

from replica.state import TrainingState


def digest(state: TrainingState) -> int:
    """One unsigned 64-bit value over all tensors and scalars of this shard. Reads, never writes."""
    raise NotImplementedError


def digests(state: TrainingState) -> dict[str, int]:
    """By tensor name (and "scalars"): what `digest` is made of, to name what differs."""
    raise NotImplementedError


def tensor_digest(tensor: torch.Tensor) -> int:
    """Unsigned 64-bit digest of the tensor's elements in logical order; equal bits and order, equal digest."""
    raise NotImplementedError
