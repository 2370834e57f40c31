"""The training state of a rank as named tensors and a JSON-able tree, and back: bit for bit, without pickle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from replica.manifest import TensorSpec


class StateMismatch(ValueError):
    """The state to load is not this model's; the text names the field and both values. Fix the configuration."""


class NotRepresentable(TypeError):
    """Something in the training state is neither tensor nor plain data; the text says where, what, and what to do."""


class HasStateDict(Protocol):
    """Schedulers, scalers, loaders: whatever keeps its state this way."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class TrainingState:
    """All that equal versions must have bit-equal on this shard: model, optimizer, schedule, extras.

    usable: False from the moment a load begins to write until it is verified and complete
    """

    usable: bool

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: HasStateDict | None = None,
        extras: Mapping[str, HasStateDict] | None = None,
    ) -> None:
        raise NotImplementedError

    def flatten(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """(local shards by name, no copies; everything else as a JSON-able tree). Call it between steps only.

        Raises NotRepresentable.
        """
        raise NotImplementedError

    def prepare(self, specs: Sequence[TensorSpec], scalars: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Begins a load: the final tensors to write into, by name, creating what is missing (optimizer state).

        Sets `usable` to False. Raises StateMismatch before anything was touched.
        """
        raise NotImplementedError

    def finish(self) -> None:
        """Ends a load once every tensor of `prepare` holds its verified bytes: takes over scalars; sets `usable`."""
        raise NotImplementedError

    def load(self, tensors: Mapping[str, torch.Tensor], scalars: dict[str, Any]) -> None:
        """prepare, copy, finish: for states that lie in memory already."""
        raise NotImplementedError
