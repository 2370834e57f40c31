"""The training state of a rank as named tensors and a JSON-able tree, and back: bit for bit, without pickle.

`flatten` hands out the live local shards themselves. A load goes the other way round: `prepare` says which tensors to
write into, creating on a fresh joiner what an optimizer only creates in its first step, so that received bytes land in
their final place; `finish` installs the rest. In between the state is not usable.

What is in it: parameters and persistent buffers (each once, also when tied), modules' extra state, the optimizer's
param groups and state, the scheduler, and registered extras.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from replica.manifest import TensorSpec, dtype_named, pack
from replica.plain import NotRepresentable, decode, encode, tensor_names

__all__ = ["HasStateDict", "NotRepresentable", "StateMismatch", "TrainingState", "no_collection"]

_IN_PLACE = ("model/", "optimizer/", "group/")
"""Tensors under these names stay where they are; others are handed over anew."""
_HOST = torch.device("cpu")
_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer, DTensor)


class StateMismatch(ValueError):
    """The state to load is not this model's; the text names the field and both values. Fix the configuration."""


class HasStateDict(Protocol):
    """Schedulers, scalers, loaders: whatever keeps its state this way."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@contextmanager
def no_collection() -> Iterator[None]:
    """The garbage collector rests: what is made here at once, and is no garbage, would have it look through all other
    objects of the process, which takes longer than the work itself."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _Leaves:
    """Tensors being collected: local shards by name, and what is known about where they live."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.sharded: set[str] = set()
        self.on_host: set[str] = set()

    def add(self, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> str:
        """Adds the local part of `tensor`; `like` is the parameter that it belongs to."""
        if name in self.tensors:
            raise NotRepresentable(
                f"two tensors of the training state are called {name}; rename a key of its state_dict"
            )
        if type(tensor) not in _PLAIN or tensor.is_quantized or tensor.layout is not torch.strided:
            raise NotRepresentable(
                f"{name} is a {tensor.layout} {type(tensor).__name__}; only plain tensors and DTensors can be healed"
            )
        if tensor.is_meta or is_lazy(tensor):
            raise NotRepresentable(f"{name} has no memory yet; materialise the model before it joins")
        if isinstance(tensor, DTensor):
            if like is not None and not _sharded_as(tensor, like):
                raise NotRepresentable(f"{name} is a DTensor laid out otherwise than its parameter")
            self.sharded.add(name)
        local = local_part(tensor)
        if like is not None and local.is_cpu and not like.is_cpu:
            self.on_host.add(name)
        self.tensors[name] = local
        return name


class TrainingState:
    """All that equal versions must have bit-equal on this shard: model, optimizer, schedule, extras.

    usable: False from the moment a load begins to write until it is verified and complete
    Raises NotRepresentable where something in it could not be healed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        scheduler: HasStateDict | None = None,
        extras: Mapping[str, HasStateDict] | None = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._extras = dict(extras or {})
        self._loading: tuple[dict[str, torch.Tensor], dict[str, Any], frozenset[str]] | None = None
        self.usable = True
        self._trained = {name for name, _ in model.named_parameters()}
        self.flatten()

    def flatten(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """(local shards by name, no copies; everything else as a JSON-able tree). Call it between steps only.

        Raises NotRepresentable.
        """
        leaves, scalars = self._walk()
        return leaves.tensors, scalars

    @no_collection()
    def describe(self) -> tuple[tuple[TensorSpec, ...], dict[str, torch.Tensor], dict[str, Any]]:
        """`flatten`, with the specs of the tensors in the same order."""
        leaves, scalars = self._walk()
        specs = pack(leaves.tensors.items(), frozenset(leaves.sharded), frozenset(leaves.on_host))
        return specs, leaves.tensors, scalars

    def steady(self, name: str) -> bool:
        """Whether the tensor of this name is changed by `apply` alone: a parameter, or the optimizer's. Buffers and
        extras may change in a forward pass too."""
        return name.startswith("optimizer/") or name.removeprefix("model/") in self._trained

    def prepare(self, specs: Sequence[TensorSpec], scalars: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Begins a load: the final tensors to write into, by name, creating what is missing (optimizer state).

        Sets `usable` to False. Raises StateMismatch before anything was touched.
        """
        leaves, mine = self._walk()
        given = {spec.name: spec for spec in specs}
        owners = _check(mine, scalars, leaves, given, self._parameters())
        self.usable = False
        self._optimizer.state.clear()
        targets = {spec.name: _target(spec, leaves, owners.get(spec.name)) for spec in specs}
        self._loading = targets, scalars, frozenset(spec.name for spec in specs if spec.sharded)
        return targets

    def finish(self) -> None:
        """Ends a load once every tensor of `prepare` holds its verified bytes: takes over scalars; sets `usable`."""
        if self._loading is None:
            raise RuntimeError("finish without prepare")
        targets, scalars, sharded = self._loading
        for module, name in self._stateful_modules():
            module.set_extra_state(decode(scalars["modules"][name], targets.__getitem__))
        for name, parameter in self._parameters().items():
            if name in scalars["optimizer"]["state"]:
                fetch = _installer(targets, sharded, parameter)
                self._optimizer.state[parameter] = decode(scalars["optimizer"]["state"][name], fetch)
        for group, saved in zip(self._optimizer.param_groups, scalars["optimizer"]["groups"], strict=True):
            for key in group.keys() - {"params"}:
                del group[key]
            group.update(decode({k: v for k, v in saved.items() if k != "params"}, targets.__getitem__))
        if self._scheduler is not None:
            self._scheduler.load_state_dict(decode(scalars["scheduler"], targets.__getitem__))
        for name, extra in self._extras.items():
            extra.load_state_dict(decode(scalars["extras"][name], targets.__getitem__))
        self._loading = None
        self.usable = True

    def load(self, specs: Sequence[TensorSpec], tensors: Mapping[str, torch.Tensor], scalars: dict[str, Any]) -> None:
        """prepare, copy, finish: for states that `describe` gave and that lie in memory. Raises StateMismatch."""
        targets = self.prepare(specs, scalars)
        with torch.no_grad():
            for name, tensor in tensors.items():
                targets[name].copy_(tensor)
        self.finish()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _walk(self) -> tuple[_Leaves, dict[str, Any]]:
        _reshard(self._model)
        leaves = _Leaves()
        for name, tensor in _model_tensors(self._model):
            leaves.add(f"model/{name}", tensor)
        modules = {
            name: encode(module.get_extra_state(), f"module/{name}", leaves.add)
            for module, name in self._stateful_modules()
        }
        names = {parameter: name for name, parameter in self._parameters().items()}
        scalars = {
            "modules": modules,
            "optimizer": {
                "groups": [
                    {"params": [names[p] for p in group["params"]]}
                    | encode({k: v for k, v in group.items() if k != "params"}, f"group/{i}", leaves.add)
                    for i, group in enumerate(self._optimizer.param_groups)
                ],
                "state": {
                    names[p]: encode(self._optimizer.state[p], f"optimizer/{names[p]}", _beside(leaves, p))
                    for p in names
                    if p in self._optimizer.state
                },
            },
            "scheduler": None
            if self._scheduler is None
            else encode(self._scheduler.state_dict(), "scheduler", leaves.add),
            "extras": {
                name: encode(extra.state_dict(), f"extras/{name}", leaves.add) for name, extra in self._extras.items()
            },
        }
        unknown = [key for key in self._optimizer.state if key not in names]
        if unknown:
            raise NotRepresentable(f"the optimizer keeps state for {unknown[0]!r}, which is in none of its groups")
        return leaves, scalars

    def _parameters(self) -> dict[str, torch.Tensor]:
        """The optimizer's parameters by name: the model's name, or their place in the groups."""
        known = {id(parameter): name for name, parameter in self._model.named_parameters()}
        return {
            known.get(id(parameter), f"group {i} place {k}"): parameter
            for i, group in enumerate(self._optimizer.param_groups)
            for k, parameter in enumerate(group["params"])
        }

    def _stateful_modules(self) -> Iterator[tuple[nn.Module, str]]:
        for name, module in self._model.named_modules():
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                yield module, name


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that this rank holds of a tensor, without padding, outside autograd."""
    if not isinstance(tensor, DTensor):
        return tensor if type(tensor) is torch.Tensor and not tensor.requires_grad else tensor.detach()
    with torch.no_grad():
        return tensor.to_local().detach()


def _model_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and persistent buffers, each piece of memory once, under its first name."""
    seen: set[tuple[Any, ...]] = set()
    passing = {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        for name in module._non_persistent_buffers_set
    }
    buffers = ((name, tensor) for name, tensor in model.named_buffers() if name not in passing)
    for name, tensor in (*model.named_parameters(), *buffers):
        if is_lazy(tensor) or tensor.layout is not torch.strided:
            yield name, tensor
            continue
        local = local_part(tensor)
        key = (local.data_ptr(), local.dtype, local.shape, local.stride())
        if local.numel() == 0 or local.is_meta or key not in seen:
            seen.add(key)
            yield name, tensor


def _reshard(model: nn.Module) -> None:
    """FSDP2 may leave modules gathered after a forward; only their shards are the state."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _beside(leaves: _Leaves, parameter: torch.Tensor) -> Any:
    return lambda name, tensor: leaves.add(name, tensor, parameter)


def _installer(
    targets: dict[str, torch.Tensor], sharded: frozenset[str], parameter: torch.Tensor
) -> Callable[[str], torch.Tensor]:
    """Gives optimizer state of `parameter` by name, as a DTensor where it is a shard."""
    return lambda name: _as_sharded(targets[name], parameter) if name in sharded else targets[name]


def _sharded_as(tensor: DTensor, like: torch.Tensor) -> bool:
    return (
        isinstance(like, DTensor)
        and tensor.device_mesh == like.device_mesh
        and tensor.placements == like.placements
        and tensor.shape == like.shape
    )


def _as_sharded(local: torch.Tensor, like: Any) -> DTensor:
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _target(spec: TensorSpec, mine: _Leaves, owner: torch.Tensor | None) -> torch.Tensor:
    old = mine.tensors.get(spec.name)
    in_place = spec.name.startswith(_IN_PLACE)
    if in_place and old is not None and _like(old, spec) and (spec.name in mine.sharded) == spec.sharded:
        return old
    device = owner.device if owner is not None and not spec.on_host else _HOST
    return torch.empty(spec.shape, dtype=dtype_named(spec.dtype), device=device)


def _like(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    return tensor.shape == spec.shape and tensor.dtype is dtype_named(spec.dtype)


def _check(
    mine: dict[str, Any],
    theirs: dict[str, Any],
    leaves: _Leaves,
    given: dict[str, TensorSpec],
    parameters: dict[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Raises StateMismatch where the two differ in more than values. Returns the parameter that tensors belong to."""
    if set(theirs) != set(mine):
        raise StateMismatch(f"the state has parts {sorted(theirs)}, expected {sorted(mine)}")
    _same("parts of modules' extra state", sorted(theirs["modules"]), sorted(mine["modules"]))
    _same("registered extras", sorted(theirs["extras"]), sorted(mine["extras"]))
    _same("scheduler present", theirs["scheduler"] is not None, mine["scheduler"] is not None)
    groups, own = theirs["optimizer"]["groups"], mine["optimizer"]["groups"]
    _same("number of param groups", len(groups), len(own))
    for i, (group, expected) in enumerate(zip(groups, own, strict=True)):
        _same(f"parameters of group {i}", group.get("params"), expected["params"])
        _same(f"settings of group {i}", sorted(group), sorted(expected))
    states = theirs["optimizer"]["state"]
    _same("parameters with optimizer state", sorted(states.keys() - parameters.keys()), [])
    model = {name for name in leaves.tensors if name.startswith("model/")}
    _same("tensors of the model", sorted({n for n in given if n.startswith("model/")} ^ model), [])
    others = given.keys() - model
    for name in sorted(model):
        spec, own_tensor = given[name], leaves.tensors[name]
        if _like(own_tensor, spec) and spec.sharded is (name in leaves.sharded):
            continue
        _same(f"local shape of {name}", spec.shape, tuple(own_tensor.shape))
        _same(f"dtype of {name}", spec.dtype, str(own_tensor.dtype).removeprefix("torch."))
        _same(f"sharding of {name}", spec.sharded, name in leaves.sharded)
    beside = {key: tensor_names(tree) for key, tree in states.items()}
    owners = {name: parameters[key] for key, names in beside.items() for name in names}
    named = [name for names in beside.values() for name in names]
    named += tensor_names([groups, theirs["modules"], theirs["scheduler"], theirs["extras"]])
    if len(named) != len(others) or set(named) != others:
        _same("tensors that the tree refers to", sorted(named), sorted(others))
    for name, spec in given.items():
        if spec.sharded and name in others and not _fits_shard(spec, owners.get(name)):
            raise StateMismatch(f"sharding of {name}: theirs is a shard, and no parameter here is sharded that way")
    return owners


def _fits_shard(spec: TensorSpec, owner: torch.Tensor | None) -> bool:
    return isinstance(owner, DTensor) and tuple(local_part(owner).shape) == spec.shape


def _same(field: str, theirs: Any, mine: Any) -> None:
    if theirs != mine:
        raise StateMismatch(f"{field}: theirs {_short(theirs)}, here {_short(mine)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + " ..."
