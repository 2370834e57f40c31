"""Sharded tensors and modules, told from others without importing what makes them.

torch's part for sharding takes as long to import as a third of torch itself. A rank that holds all of its model need
not wait for it: where nobody has imported it, nothing is sharded.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def dtensor_type() -> Any:
    """DTensor, as isinstance takes it; of nothing, if there can be none yet."""
    return getattr(sys.modules.get("torch.distributed.tensor"), "DTensor", ())


def is_dtensor(tensor: object) -> TypeGuard[DTensor]:
    """Whether a tensor is a shard with its mesh."""
    return isinstance(tensor, dtensor_type())


def is_fsdp(module: object) -> TypeGuard[FSDPModule]:
    """Whether `fully_shard` was called on a module."""
    return isinstance(module, getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ()))
