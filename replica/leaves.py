"""The tensors of a training state by name, and how those that stay are found again at a fraction of the cost.

To name ten thousand tensors, and to ask each whether it can travel, takes tens of milliseconds, in which other groups
may wait. What comes out follows from names, types, layouts, dtypes, shapes and devices (and, since tied tensors travel
once, from where the model's lie) alone. So it is kept (`Standing`) with all that it follows from, and is good for as
long as that is the same. Only values are kept, never a tensor: nobody's memory is held, and none may be mistaken for
another. What is not plain tensors, as a number among an optimizer's state, is looked at each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from replica.manifest import TensorSpec, pack, packed_bytes
from replica.plain import NotRepresentable, encode
from replica.sharded import dtensor_type, is_dtensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

_PLAIN = (torch.Tensor, nn.Parameter, nn.Buffer)


@dataclass(frozen=True, kw_only=True)
class Extent:
    """Bytes of a training state's tensors, and whether some of them lie on a GPU."""

    bytes: int
    on_gpu: bool


class Leaves:
    """Tensors being collected: local shards by name, and what is known about where they live."""

    def __init__(self, standing: Standing | None = None, tensors: dict[str, torch.Tensor] | None = None) -> None:
        """Begins with what stands, if that is given."""
        self.tensors = tensors or {}
        self.sharded = set(standing.sharded) if standing else set()
        self.on_host = set(standing.on_host) if standing else set()
        self._specs = standing.specs if standing else ()
        self._on_gpu = standing.on_gpu if standing else False

    def add(self, name: str, tensor: torch.Tensor, like: torch.Tensor | None = None) -> str:
        """Adds the local part of `tensor`; `like` is the parameter that it belongs to. Raises NotRepresentable."""
        if name in self.tensors:
            raise NotRepresentable(
                f"two tensors of the training state are called {name}; rename a key of its state_dict"
            )
        plain = type(tensor) in _PLAIN or type(tensor) is dtensor_type()
        if not plain or tensor.is_quantized or tensor.layout is not torch.strided:
            raise NotRepresentable(
                f"{name} is a {tensor.layout} {type(tensor).__name__}; only plain tensors and DTensors can be healed"
            )
        if tensor.is_meta or is_lazy(tensor):
            raise NotRepresentable(f"{name} has no memory yet; materialise the model before it joins")
        if is_dtensor(tensor):
            if like is not None and not _sharded_as(tensor, like):
                raise NotRepresentable(f"{name} is a DTensor laid out otherwise than its parameter")
            self.sharded.add(name)
        local = local_part(tensor)
        if like is not None and local.is_cpu and not like.is_cpu:
            self.on_host.add(name)
        self.tensors[name] = local
        return name

    @property
    def others(self) -> dict[str, torch.Tensor]:
        """Those that were added."""
        return dict(islice(self.tensors.items(), len(self._specs), None))

    def specs(self) -> tuple[TensorSpec, ...]:
        """The manifest's, in the order in which tensors were added."""
        return (*self._specs, *pack(self.others.items(), self.sharded, self.on_host, packed_bytes(self._specs)))

    def extent(self) -> Extent:
        """How much memory they take."""
        others = self.others.values()
        return Extent(
            bytes=packed_bytes(self._specs) + sum(tensor.nbytes for tensor in others),
            on_gpu=self._on_gpu or any(tensor.is_cuda for tensor in others),
        )


class Sight:
    """The model's and the optimizer's tensors as they are just now."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        known = dict(model.named_parameters())
        passing = {
            f"{prefix}.{name}" if prefix else name
            for prefix, module in model.named_modules(remove_duplicate=False)
            for name in module._non_persistent_buffers_set
        }
        buffers = [(name, tensor) for name, tensor in model.named_buffers() if name not in passing]
        names = {id(parameter): name for name, parameter in known.items()}
        self.parameters = {
            names.get(id(parameter), f"group {i} place {k}"): parameter
            for i, group in enumerate(optimizer.param_groups)
            for k, parameter in enumerate(group["params"])
        }
        """The optimizer's by name: the model's name, or their place in the groups."""
        self.states = {name: optimizer.state[p] for name, p in self.parameters.items() if p in optimizer.state}
        """By the same names, where there are any."""
        self.trained = len(known)
        """So many of the model's tensors, the first, are parameters."""
        self.model = [*known.items(), *buffers]
        self._held = [value for state in self.states.values() for value in state.values()]
        self._local: list[torch.Tensor] | None = None

    @property
    def local(self) -> list[torch.Tensor]:
        """The local parts of all tensors, the model's first, then those that lie in the states themselves."""
        if self._local is None:
            found = [tensor for _, tensor in self.model]
            found += [value for value in self._held if isinstance(value, torch.Tensor)]
            self._local = [
                t if (kind := type(t)) is torch.Tensor and not t.requires_grad  # most of them; a call costs as much
                else t.detach() if kind is nn.Parameter
                else local_part(t)
                for t in found
            ]  # fmt: skip
        return self._local

    def shape(self) -> Iterator[list[Any]]:
        """All that a description of these tensors follows from, one thing after another; good as long as those before
        it are as expected."""
        yield [name for name, _ in self.model]
        yield [self.trained]
        yield [(name, type(state), *state) for name, state in self.states.items()]
        tensors, sharded = [tensor for _, tensor in self.model], dtensor_type()
        yield [type(each) for each in (*tensors, *self._held)]
        tensors += [each for each in self._held if isinstance(each, torch.Tensor)]
        yield [tensor.layout for tensor in tensors]
        yield [(t.device_mesh, t.placements, t.shape) for t in tensors if isinstance(t, sharded)]
        yield [(type(p), p.device) for p in self.parameters.values()]
        yield [(p.device_mesh, p.placements, p.shape) for p in self.parameters.values() if isinstance(p, sharded)]
        yield [tensor.dtype for tensor in self.local]
        yield [tensor.shape for tensor in self.local]
        yield [tensor.device for tensor in self.local]
        yield [(tensor.data_ptr(), tensor.stride()) for tensor in self.local[: len(self.model)]]


@dataclass(frozen=True, kw_only=True)
class Common:
    """Tensors, the first ones, and optimizer's states by parameter that are the same on both sides of a load."""

    names: tuple[str, ...]
    trees: dict[str, Any]


NOTHING = Common(names=(), trees={})


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What was found of the model's and the optimizer's tensors, and what that follows from.

    names: those that travel, in order, the model's first; picked: their places in `Sight.local`
    trees: by parameter, what stands for its state in the plain data; None where that is not tensors alone
    changing: names of what a forward pass may change: buffers
    """

    names: tuple[str, ...]
    picked: tuple[int, ...]
    sharded: frozenset[str]
    on_host: frozenset[str]
    on_gpu: bool
    specs: tuple[TensorSpec, ...]
    trees: dict[str, Any]
    changing: frozenset[str]
    shape: list[list[Any]]

    @classmethod
    def of(cls, sight: Sight) -> Standing:
        """Goes through all tensors. Raises NotRepresentable where one cannot travel."""
        leaves = Leaves()
        picked = list(_once(sight.model))
        for name, tensor in (sight.model[at] for at in picked):
            leaves.add(f"model/{name}", tensor)
        changing = frozenset(f"model/{sight.model[at][0]}" for at in picked if at >= sight.trained)
        trees: dict[str, Any] = {}
        at = len(sight.model)
        for name, state in sight.states.items():
            plain = _is_plain(state)
            tree = encode_state(leaves if plain else Leaves(), name, state, sight.parameters[name])
            trees[name] = tree if plain else None
            count = sum(isinstance(value, torch.Tensor) for value in state.values())
            picked += range(at, at + count) if plain else ()
            at += count
        return cls(
            names=tuple(leaves.tensors),
            picked=tuple(picked),
            sharded=frozenset(leaves.sharded),
            on_host=frozenset(leaves.on_host),
            on_gpu=leaves.extent().on_gpu,
            specs=leaves.specs(),
            trees=trees,
            changing=changing,
            shape=list(sight.shape()),
        )

    def holds(self, sight: Sight) -> bool:
        """Whether going through these tensors would find the same."""
        return all(now == then for now, then in zip(sight.shape(), self.shape, strict=True))

    def common(self, specs: Sequence[TensorSpec], states: dict[str, Any]) -> Common:
        """What a manifest and the optimizer's states that come with it have in common with this: all of it or nothing.

        states: as plain data, by parameter
        """
        trees = {name: tree for name, tree in self.trees.items() if tree is not None}
        same = tuple(specs[: len(self.specs)]) == self.specs and {name: states.get(name) for name in trees} == trees
        return Common(names=self.names, trees=trees) if same else NOTHING

    def leaves(self, sight: Sight) -> Leaves:
        """The tensors themselves, as they are now."""
        local = sight.local
        return Leaves(self, dict(zip(self.names, [local[at] for at in self.picked], strict=True)))


def encode_state(leaves: Leaves, name: str, state: Any, parameter: torch.Tensor) -> Any:
    """An optimizer's state of one parameter as plain data; its tensors go to the leaves."""
    return encode(state, f"optimizer/{name}", lambda where, tensor: leaves.add(where, tensor, parameter))


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that this rank holds of a tensor, without padding, outside autograd."""
    if not is_dtensor(tensor):
        return tensor if type(tensor) is torch.Tensor and not tensor.requires_grad else tensor.detach()
    with torch.no_grad():
        return tensor.to_local().detach()


def _is_plain(state: Any) -> bool:
    return type(state) is dict and all(
        type(key) is str and not key.startswith("!") and isinstance(value, torch.Tensor) for key, value in state.items()
    )


def _once(tensors: Sequence[tuple[str, torch.Tensor]]) -> Iterator[int]:
    """Places of the tensors, each piece of memory once, under its first name."""
    seen: set[tuple[Any, ...]] = set()
    for at, (_, tensor) in enumerate(tensors):
        if is_lazy(tensor) or tensor.layout is not torch.strided:
            yield at
            continue
        local = local_part(tensor)
        key = (local.data_ptr(), local.dtype, local.shape, local.stride())
        if local.numel() == 0 or local.is_meta or key not in seen:
            seen.add(key)
            yield at


def _sharded_as(tensor: DTensor, like: torch.Tensor) -> bool:
    return (
        is_dtensor(like)
        and tensor.device_mesh == like.device_mesh
        and tensor.placements == like.placements
        and tensor.shape == like.shape
    )
