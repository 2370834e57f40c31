"""The training state of a rank as named tensors and a JSON-able tree, and back: bit for bit, without pickle.

`flatten` hands out the live local shards themselves. A load goes the other way round: `prepare` says which tensors to
write into, creating on a fresh joiner what an optimizer only creates in its first step, so that received bytes land in
their final place; `finish` installs the rest. In between the state is not usable.

What is in it: parameters and persistent buffers (each once, also when tied), modules' extra state, the optimizer's
param groups and state, the scheduler, and registered extras.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from replica.leaves import NOTHING, Common, Extent, Leaves, Sight, Standing, encode_state, local_part
from replica.manifest import TensorSpec, dtype_named
from replica.plain import NotRepresentable, decode, encode, tensor_names
from replica.sharded import is_dtensor, is_fsdp

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["HasStateDict", "NotRepresentable", "StateMismatch", "TrainingState", "no_collection"]

_IN_PLACE = ("model/", "optimizer/", "group/")
"""Tensors under these names stay where they are; others are handed over anew."""
_HOST = torch.device("cpu")


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


@dataclass(frozen=True, kw_only=True)
class Description:
    """A training state as it is at one moment.

    specs: the manifest's tensors; tensors: the local shards themselves, by name, in the same order
    scalars: everything else as a JSON-able tree, whose content is nobody else's
    changing: names of what may change outside `apply`: in a forward pass, as buffers, or at any time, as extras
    """

    specs: tuple[TensorSpec, ...]
    tensors: dict[str, torch.Tensor]
    scalars: dict[str, Any]
    changing: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class _Loading:
    """A load that was begun. sharded: names of targets that are shards; installs: parameters whose state comes anew"""

    targets: dict[str, torch.Tensor]
    scalars: dict[str, Any]
    sharded: frozenset[str]
    installs: dict[str, torch.Tensor]


class TrainingState:
    """All that equal versions must have bit-equal on this shard: model, optimizer, schedule, extras.

    usable: False from the moment a load begins to write until it is verified and complete
    extent: how much memory it took when it was last gone through
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
        self._standing: Standing | None = None
        self._loading: _Loading | None = None
        self.usable = True
        self.extent = Extent(bytes=0, on_gpu=False)
        self.flatten()

    def flatten(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """(local shards by name, no copies; everything else as a JSON-able tree). Call it between steps only.

        Raises NotRepresentable.
        """
        _, leaves, scalars = self._walk()
        return leaves.tensors, scalars

    @no_collection()
    def describe(self) -> Description:
        """All that a snapshot needs to know. Call it between steps only. Raises NotRepresentable."""
        _, leaves, scalars = self._walk()
        standing = self._standing
        assert standing is not None
        changing = standing.changing.union(name for name in leaves.others if not name.startswith("optimizer/"))
        return Description(specs=leaves.specs(), tensors=leaves.tensors, scalars=scalars, changing=changing)

    def prepare(self, specs: Sequence[TensorSpec], scalars: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Begins a load: the final tensors to write into, by name, creating what is missing (optimizer state).

        Sets `usable` to False. Raises StateMismatch before anything was touched.
        """
        sight, leaves, mine = self._walk()
        assert self._standing is not None
        shared = _shared(leaves)
        stays = NOTHING if shared else self._standing.common(specs, scalars["optimizer"]["state"])
        given = {spec.name: spec for spec in specs[len(stays.names) :]}
        owners = _check(mine, scalars, leaves, given, sight.parameters, stays)
        self.usable = False
        self._loading = None  # of a load that failed: its memory is needed
        for name, parameter in sight.parameters.items():
            if name not in stays.trees:
                self._optimizer.state.pop(parameter, None)
        targets = dict(zip(stays.names, leaves.tensors.values(), strict=False))
        targets |= {name: _target(spec, leaves, shared, owners.get(name)) for name, spec in given.items()}
        installs = {name: each for name, each in sight.parameters.items() if name not in stays.trees}
        sharded = frozenset(name for name, spec in given.items() if spec.sharded)
        self._loading = _Loading(targets=targets, scalars=scalars, sharded=sharded, installs=installs)
        return targets

    def finish(self) -> None:
        """Ends a load once every tensor of `prepare` holds its verified bytes: takes over scalars; sets `usable`."""
        if self._loading is None:
            raise RuntimeError("finish without prepare")
        targets, scalars = self._loading.targets, self._loading.scalars
        states = scalars["optimizer"]["state"]
        for module, name in self._stateful_modules():
            module.set_extra_state(decode(scalars["modules"][name], targets.__getitem__))
        for name, parameter in self._loading.installs.items():
            if name in states:
                fetch = _installer(targets, self._loading.sharded, parameter)
                self._optimizer.state[parameter] = decode(states[name], fetch)
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

    def _walk(self) -> tuple[Sight, Leaves, dict[str, Any]]:
        _reshard(self._model)
        sight = Sight(self._model, self._optimizer)
        if self._standing is None or not self._standing.holds(sight):
            self._standing = Standing.of(sight)
        leaves = self._standing.leaves(sight)
        names = {parameter: name for name, parameter in sight.parameters.items()}
        states = {
            name: encode_state(leaves, name, sight.states[name], sight.parameters[name]) if tree is None else tree
            for name, tree in self._standing.trees.items()
        }
        scalars = {
            "modules": {
                name: encode(module.get_extra_state(), f"module/{name}", leaves.add)
                for module, name in self._stateful_modules()
            },
            "optimizer": {
                "groups": [
                    {"params": [names[p] for p in group["params"]]}
                    | encode({k: v for k, v in group.items() if k != "params"}, f"group/{i}", leaves.add)
                    for i, group in enumerate(self._optimizer.param_groups)
                ],
                "state": states,
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
        self.extent = leaves.extent()
        return sight, leaves, scalars

    def _stateful_modules(self) -> Iterator[tuple[nn.Module, str]]:
        for name, module in self._model.named_modules():
            if type(module).get_extra_state is not nn.Module.get_extra_state:
                yield module, name


def _reshard(model: nn.Module) -> None:
    """FSDP2 may leave modules gathered after a forward; only their shards are the state."""
    for module in model.modules():
        if is_fsdp(module):
            module.reshard()


def _installer(
    targets: dict[str, torch.Tensor], sharded: frozenset[str], parameter: torch.Tensor
) -> Callable[[str], torch.Tensor]:
    """Gives optimizer state of `parameter` by name, as a DTensor where it is a shard."""
    return lambda name: _as_sharded(targets[name], parameter) if name in sharded else targets[name]


def _as_sharded(local: torch.Tensor, like: Any) -> DTensor:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _shared(leaves: Leaves) -> set[str]:
    """Names of tensors beside the model's that have their memory in common: each is to have its own."""
    places = [tensor.data_ptr() for tensor in leaves.tensors.values() if tensor.numel()]
    if len(set(places)) == len(places):
        return set()
    names: dict[int, set[str]] = {}
    for name, tensor in leaves.tensors.items():
        if not name.startswith("model/") and tensor.numel():
            names.setdefault(tensor.data_ptr(), set()).add(name)
    return set().union(*(together for together in names.values() if len(together) > 1))


def _target(spec: TensorSpec, mine: Leaves, shared: Set[str], owner: torch.Tensor | None) -> torch.Tensor:
    old = mine.tensors.get(spec.name)
    in_place = spec.name.startswith(_IN_PLACE) and spec.name not in shared
    if in_place and old is not None and _like(old, spec) and (spec.name in mine.sharded) == spec.sharded:
        return old
    device = owner.device if owner is not None and not spec.on_host else _HOST
    return torch.empty(spec.shape, dtype=dtype_named(spec.dtype), device=device)


def _like(tensor: torch.Tensor, spec: TensorSpec) -> bool:
    return tensor.shape == spec.shape and tensor.dtype is dtype_named(spec.dtype)


def _check(
    mine: dict[str, Any],
    theirs: dict[str, Any],
    leaves: Leaves,
    given: dict[str, TensorSpec],
    parameters: dict[str, torch.Tensor],
    common: Common,
) -> dict[str, torch.Tensor]:
    """Raises StateMismatch where the two differ in more than values. Returns the parameter that tensors belong to.

    given: the tensors of theirs, without those in `common`, of which it is known that they do not differ
    """
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
    states = {name: tree for name, tree in theirs["optimizer"]["state"].items() if name not in common.trees}
    _same("parameters with optimizer state", sorted(states.keys() - parameters.keys()), [])
    model = {name for name in islice(leaves.tensors, len(common.names), None) if name.startswith("model/")}
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
    return is_dtensor(owner) and tuple(local_part(owner).shape) == spec.shape


def _same(field: str, theirs: Any, mine: Any) -> None:
    if theirs != mine:
        raise StateMismatch(f"{field}: theirs {_short(theirs)}, here {_short(mine)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:200] + " ..."
