"""The gradients of a model as this rank holds them: where they are read from, and written to.

Between verdicts `.grad` is the *local raw sum* over the slots that this rank has computed; nothing but backward changes
it. What is reduced is a copy in buckets. A gradient is None where no slot used the parameter, which is not the same as
zero: an optimizer leaves such a parameter alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import nn

from replica.buckets import Layout, Shape, lay_out
from replica.errors import MisuseError
from replica.sharded import is_dtensor, is_fsdp

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

_RUN = 1 << 16
"""Elements whose squares are added up in one go: few enough to stay in a core's cache, and to lose nothing that counts
to the rounding of float32."""


class Gradients:
    """The trainable parameters of `model`, in order of registration, with their bucket layout.

    shards, shard_rank: this process's place in its group
    group: the process group over the shards, to add up gradients of parameters that are not sharded; None with 1 shard
    reduce_dtype: of what is added up over groups; None is each parameter's own. The local sum over slots stays in the
    parameter's dtype: it is rounded once into its bucket, and the reduced sum once back into `.grad`
    Raises MisuseError where a parameter is placed in a way that cannot be reduced.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        shards: int,
        shard_rank: int,
        group: dist.ProcessGroup | None,
        bucket_bytes: int,
        reduce_dtype: torch.dtype | None = None,
    ) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise MisuseError("the model has no parameter that requires a gradient")
        self.names = tuple(name for name, _ in named)
        self.parameters = tuple(p for _, p in named)
        self.shard_rank = shard_rank
        self.whole = tuple(_is_whole(name, p, shards) for name, p in named)
        if any(self.whole) and group is None:
            raise MisuseError(
                f"{self.names[self.whole.index(True)]} is not sharded in a group of {shards} shards: call "
                "torch.distributed.init_process_group() before Replica(), or give it process_group"
            )
        self._group = group
        self.layout: Layout = lay_out(
            (
                Shape(numel=_local(p).numel(), dtype=reduce_dtype or p.dtype, device=_local(p).device, whole=w)
                for p, w in zip(self.parameters, self.whole, strict=True)
            ),
            bucket_bytes,
        )

    def local(self, parameter: int) -> torch.Tensor | None:
        """This shard's gradient of parameter number `parameter`, sharing memory with `.grad`; None if it has none."""
        grad = self.parameters[parameter].grad
        return None if grad is None else _local(grad)

    @torch.no_grad()
    def copy_out(self, parameters: Sequence[int], tensors: Sequence[torch.Tensor]) -> list[bool]:
        """Copies local gradients to their places in `tensors`: zeros where there is none. Which of them there are."""
        places, found, missing = [], [], []
        grads = [self.local(parameter) for parameter in parameters]
        for parameter, grad in zip(parameters, grads, strict=True):
            place = self.layout.view(tensors, parameter)
            if grad is None:
                missing.append(place)
            else:
                places.append(place.view(grad.shape))
                found.append(grad)
        if found:
            torch._foreach_copy_(places, found)
        if missing:
            torch._foreach_zero_(missing)
        return [grad is not None for grad in grads]

    @torch.no_grad()
    def add_over_shards(self, tensors: Sequence[torch.Tensor], present: Sequence[bool]) -> list[bool]:
        """Adds up, over the group's shards, buckets of parameters that are not sharded; by parameter, whether this
        shard has a gradient, or, of those, any shard has.

        A collective: all shards call it equally often, in every attempt, whatever they know about it by then.
        """
        if self._group is None or not any(self.whole):
            return list(present)
        for bucket, tensor in zip(self.layout.buckets, tensors, strict=True):
            if bucket.whole:
                dist.all_reduce(tensor, group=self._group)
        counts = torch.tensor(present, dtype=torch.int32, device=tensors[0].device)
        dist.all_reduce(counts, group=self._group)
        return [bool(n) if whole else own for n, own, whole in zip(counts.tolist(), present, self.whole, strict=True)]

    @torch.no_grad()
    def write_back(self, buckets: Sequence[torch.Tensor], presence: Sequence[bool], factor: float) -> None:
        """Makes `.grad` of every parameter its place in `buckets` times `factor`; None where it is not present."""
        for i, (parameter, present) in enumerate(zip(self.parameters, presence, strict=True)):
            if not present:
                parameter.grad = None
                continue
            if parameter.grad is None:
                parameter.grad = _new_grad(parameter)
            grad = _local(parameter.grad)
            place = self.layout.view(buckets, i).view(grad.shape)
            if place.dtype is grad.dtype:
                torch.mul(place, factor, out=grad)
            else:  # multiplied where it is wider, or it would be rounded once more
                grad.copy_(place).mul_(factor)

    def drop(self) -> None:
        """Forgets all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def locals(self) -> list[torch.Tensor]:
        """The local gradients that there are, sharing memory with `.grad`."""
        return [g for g in map(self.local, range(len(self.parameters))) if g is not None]

    def counted(self, bucket: int) -> bool:
        """Whether this shard counts the bucket in its squared norm: what all shards hold is counted by the first."""
        return self.shard_rank == 0 or not self.layout.buckets[bucket].whole


@torch.no_grad()
def squared_norm(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of squares of a flat tensor, in float64 (0-dim, on the tensor's device): finite iff all elements are.

    On the CPU runs of float32 are squared and added up as such, four to ten times as fast as wide ones (BLAS, half the
    bytes); only if that is not finite, for large elements or bad ones, everything is widened.
    """
    runs = tensor.split(_RUN)
    if tensor.dtype is torch.float32 and tensor.device.type == "cpu" and runs:
        total = torch.stack([torch.dot(run, run) for run in runs]).double().sum()
        if math.isfinite(total):
            return total
    total = torch.zeros((), dtype=torch.float64, device=tensor.device)
    for run in runs if tensor.device.type == "cpu" else (tensor,):
        wide = run.double()
        total += torch.dot(wide, wide)
    return total


def sum_over_shards(model: nn.Module) -> None:
    """Makes FSDP2 add gradients over the shards instead of averaging them, in every module of `model`.

    On gloo also without the premultiplied sum, which it does not have.
    """
    for module in fsdp_modules(model):
        module.set_gradient_divide_factor(1.0)
        if next(iter(module.parameters())).device.type == "cpu":  # type: ignore[attr-defined]
            module.set_force_sum_reduction_for_comms(True)


def fsdp_modules(model: nn.Module) -> list[FSDPModule]:
    """All modules of `model` that `fully_shard` was called on."""
    return [m for m in model.modules() if is_fsdp(m)]


def describe(model: nn.Module) -> str:
    """A hash of names, global shapes and dtypes of all parameters and buffers: equal for equal models."""
    words = [
        f"{kind} {name} {tuple(t.shape)} {t.dtype} {t.requires_grad}"
        for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers()))
        for name, t in tensors
    ]
    return hashlib.blake2b("\n".join(words).encode(), digest_size=16).hexdigest()


def _local(tensor: torch.Tensor) -> torch.Tensor:
    if not is_dtensor(tensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


def _is_whole(name: str, parameter: nn.Parameter, shards: int) -> bool:
    if not is_dtensor(parameter):
        return shards > 1
    from torch.distributed.tensor import Shard

    if parameter.device_mesh.size() != shards or not all(isinstance(p, Shard) for p in parameter.placements):
        raise MisuseError(
            f"{name} is placed as {parameter.placements} on {parameter.device_mesh}: inside a group of {shards} shards "
            "parameters are plain, or sharded by fully_shard over exactly these shards"
        )
    return False


def _new_grad(parameter: nn.Parameter) -> torch.Tensor:
    if not is_dtensor(parameter):
        return torch.empty_like(parameter)
    local = torch.empty_like(_local(parameter))
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
