"""What a training state was found to be is kept, and holds no longer than the state stays what it was.

Each change is made to a state that was described before. It must then be described as one that is seen for the first
time: names, order, dtypes, shapes, plain data, and the very memory.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from replica.digest import digests
from replica.plain import NotRepresentable, dumps, loads
from replica.state import TrainingState


class Extra:
    """Plain data and tensors of the program's own."""

    def __init__(self) -> None:
        self.content: dict[str, Any] = {"seen": 3, "mean": torch.ones(2)}

    def state_dict(self) -> dict[str, Any]:
        return self.content

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.content = state_dict


class World:
    """A model with moments, all of whose parts the changes can reach."""

    def __init__(self, seed: int = 1) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Embedding(5, 4))
        self.model[0].register_buffer("table", torch.randn(3, 4).t())
        self.lone = nn.Parameter(torch.randn(2))  # of the optimizer, but not of the model
        self.optimizer = torch.optim.AdamW([{"params": self.model[:3].parameters()}, {"params": [self.lone]}], lr=0.1)
        self.extra = Extra()
        self.step()
        self.state = self.seen_first()

    def step(self) -> None:
        self.optimizer.zero_grad()
        (self.model[:3](torch.randn(6, 4)).square().sum() + self.lone.sum()).backward()
        self.optimizer.step()

    def seen_first(self) -> TrainingState:
        return TrainingState(self.model, self.optimizer, extras={"extra": self.extra})

    @property
    def one(self) -> dict[str, Any]:
        """The optimizer's state of the first weight."""
        state: dict[str, Any] = self.optimizer.state[self.model[0].weight]
        return state


def shown(describe: Callable[[], Any]) -> Any:
    """All that a description says, or why there is none."""
    try:
        found = describe()
    except NotRepresentable as refused:
        return str(refused)
    places = {
        name: (t.data_ptr() if t.numel() else 0, t.dtype, t.shape, t.stride(), t.device, t.requires_grad)
        for name, t in found.tensors.items()
    }
    return found.specs, list(places.items()), dumps(found.scalars), sorted(found.changing)


def assign(module: Any, name: str, value: Any) -> None:
    setattr(module, name, value)


def swap_groups(world: World) -> None:
    parameters = world.optimizer.param_groups[0]["params"]
    parameters.reverse()


def rename(world: World) -> None:
    buffers = world.model[0]._buffers
    buffers["renamed"] = buffers.pop("table")


def rename_module(world: World) -> None:
    modules = world.model._modules
    modules["last"] = modules.pop("3")


def elsewhere(world: World) -> None:
    """A parameter on another device than its moments."""
    other = nn.Parameter(torch.empty(2, device="meta"))
    world.optimizer.param_groups[1]["params"][0] = other
    world.optimizer.state[other] = world.optimizer.state.pop(world.lone)


class Own(torch.Tensor):
    """A class of the program's own."""


def half_of_a_buffer(world: World) -> None:
    table = world.model[0].table
    with torch.no_grad():
        table.set_(table.untyped_storage(), 0, (2, 3), (3, 1))


def in_other_memory(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.clone()


def sparse(world: World) -> None:
    world.one["exp_avg"] = torch.eye(4).to_sparse()


def stateless(world: World) -> None:
    world.optimizer.state.pop(world.model[0].weight)


def of_a_stranger(world: World) -> None:
    world.optimizer.state[nn.Parameter(torch.ones(2))] = {"step": torch.tensor(1.0)}


def not_there(world: World) -> None:
    world.model[0].weight = nn.Parameter(torch.empty(4, 4, device="meta"))


def lazily(world: World) -> None:
    world.model.add_module("lazy", nn.LazyLinear(3))


def swapped(world: World) -> None:
    torch.utils.swap_tensors(world.model[0].weight, world.model[2].weight)


CHANGES: dict[str, Callable[[World], Any]] = {
    "a step": World.step,
    "a parameter replaced": lambda w: assign(w.model[0], "weight", nn.Parameter(torch.randn(4, 4))),
    "a parameter of another dtype": lambda w: assign(w.model[0].weight, "data", w.model[0].weight.data.double()),
    "a parameter of another shape": lambda w: assign(w.model[3].weight, "data", torch.randn(7, 4)),
    "a parameter no longer contiguous": lambda w: assign(w.model[0].weight, "data", torch.randn(4, 4).t()),
    "a parameter in other memory": lambda w: in_other_memory(w.model[0].weight),
    "a parameter frozen": lambda w: w.model[0].weight.requires_grad_(False),
    "a parameter without memory": not_there,
    "a parameter that is not made yet": lazily,
    "parameters swapped": swapped,
    "weights tied": lambda w: assign(w.model[0], "weight", w.model[2].weight),
    "weights tied by their memory": lambda w: assign(w.model[0].weight, "data", w.model[2].weight.data),
    "a view of other weights": lambda w: assign(w.model[0].weight, "data", w.model[2].weight.data.t()),
    "the model in double": lambda w: w.model.double(),
    "a buffer replaced": lambda w: assign(w.model[1], "running_mean", torch.randn(4)),
    "a buffer of another shape": lambda w: assign(w.model[0], "table", torch.randn(2)),
    "a buffer resized where it is": half_of_a_buffer,
    "a buffer gone": lambda w: assign(w.model[0], "table", None),
    "a buffer under another name": rename,
    "a buffer that no longer stays": lambda w: w.model[0]._non_persistent_buffers_set.add("table"),
    "a buffer more": lambda w: w.model[2].register_buffer("more", torch.ones(2)),
    "a buffer that is a weight": lambda w: w.model[2].register_buffer("more", w.model[0].weight.data),
    "a module more": lambda w: w.model.append(nn.Linear(2, 2)),
    "a module gone": lambda w: w.model.pop(3),
    "a module under another name": rename_module,
    "no moments": lambda w: w.optimizer.state.clear(),
    "no moments of one": stateless,
    "moments of a stranger": of_a_stranger,
    "a moment replaced": lambda w: w.one.update(exp_avg=torch.randn(4, 4)),
    "a moment of another dtype": lambda w: w.one.update(exp_avg=torch.randn(4, 4, dtype=torch.bfloat16)),
    "a moment of another shape": lambda w: w.one.update(exp_avg=torch.randn(4)),
    "a moment no longer contiguous": lambda w: w.one.update(exp_avg=torch.randn(4, 4).t()),
    "a moment in other memory": lambda w: in_other_memory(w.one["exp_avg"]),
    "a moment resized where it is": lambda w: w.one["exp_avg"].resize_(2, 4),
    "a moment that is sparse": sparse,
    "a moment without memory": lambda w: w.one.update(exp_avg=torch.empty(4, 4, device="meta")),
    "a moment of a class of its own": lambda w: w.one.update(exp_avg=w.one["exp_avg"].as_subclass(Own)),
    "moments on another device": elsewhere,
    "a moment under another name": lambda w: w.one.update(average=w.one.pop("exp_avg")),
    "a moment under a number": lambda w: w.one.update({7: w.one.pop("exp_avg")}),
    "moments in another order": lambda w: w.one.update(exp_avg=w.one.pop("exp_avg")),
    "moments that share memory": lambda w: w.one.update(exp_avg=w.one["exp_avg_sq"]),
    "moments in another kind of dict": lambda w: w.optimizer.state.update({w.model[0].weight: OrderedDict(w.one)}),
    "a moment that is a number": lambda w: w.one.update(step=8),
    "a number more": lambda w: w.one.update(more=None),
    "a list of moments": lambda w: w.one.update(old=[torch.ones(2), torch.ones(3)]),
    "no moment at all": lambda w: w.one.clear(),
    "something that cannot travel": lambda w: w.one.update(more=object()),
    "another learning rate": lambda w: w.optimizer.param_groups[0].update(lr=0.3),
    "a learning rate that is a tensor": lambda w: w.optimizer.param_groups[0].update(lr=torch.tensor(0.3)),
    "a group more": lambda w: w.optimizer.add_param_group({"params": [w.model[3].weight]}),
    "parameters in another order": swap_groups,
    "an extra changed": lambda w: w.extra.content.update(seen=4, mean=torch.ones(5)),
}


UNLOADABLE = {"moments on another device"}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    world = World()
    assert shown(world.state.describe) == shown(world.seen_first().describe)
    CHANGES[change](world)
    for _ in range(2):
        assert shown(world.state.describe) == shown(lambda: world.seen_first().describe())


@pytest.mark.parametrize("seed", range(40))
def test_changes_one_after_another_are_seen(seed: int) -> None:
    make = torch.Generator().manual_seed(seed)
    world = World(seed)
    names = list(CHANGES)
    done = []
    for _ in range(12):
        done.append(names[int(torch.randint(len(names), (), generator=make))])
        try:
            CHANGES[done[-1]](world)
        except (RuntimeError, AttributeError, KeyError, IndexError, TypeError, ValueError):
            done[-1] += " (in vain)"
        assert shown(world.state.describe) == shown(lambda: world.seen_first().describe()), done


@pytest.mark.parametrize("change", sorted(CHANGES.keys() - UNLOADABLE))
def test_a_load_into_a_changed_state_is_a_load_into_one_seen_first(change: str) -> None:
    """Refused with the same words, or with the same content afterwards; and the second load as the first."""
    donor = World(2)
    specs, scalars = donor.state.describe().specs, loads(dumps(donor.state.describe().scalars))
    tensors = {name: tensor.clone() for name, tensor in donor.state.describe().tensors.items()}
    outcomes = []
    for fresh in (False, True):
        world = World()
        CHANGES[change](world)
        outcome: list[Any] = []
        for _ in range(2):
            try:
                state = world.seen_first() if fresh else world.state
                state.load(specs, tensors, scalars)
                outcome.append((digests(state), state.usable))
                if change != "a view of other weights":  # two of the donor's tensors have one place here
                    assert digests(state) == digests(donor.state)
                assert state.describe().specs == specs
                assert all(type(v) is torch.Tensor for v in world.one.values())
            except (NotRepresentable, ValueError, RuntimeError) as refused:
                outcome.append(str(refused))
        outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]


def test_a_parameter_that_becomes_a_buffer_may_change_in_a_forward_pass() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    optimizer = torch.optim.SGD(model[0].parameters())
    state = TrainingState(model, optimizer)
    weight = model[1].weight
    del model[1].weight
    model[1].register_buffer("weight", weight)
    assert shown(state.describe) == shown(TrainingState(model, optimizer).describe)
    assert state.describe().changing == {"model/1.weight"}


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["weight", "group 0 place 0"])  # of the model, and of the optimizer alone
def test_shards_laid_out_otherwise_are_seen(name: str, mesh: DeviceMesh) -> None:
    """Of one rank, so that the local shard is the same in all layouts."""
    model = nn.Linear(4, 3, bias=False)
    own = model.weight
    one, other = (nn.Parameter(DTensor.from_local(torch.ones(3, 4), mesh, [Shard(axis)])) for axis in (0, 1))
    optimizer = torch.optim.SGD([one], momentum=0.9)

    def stand_on(parameter: nn.Parameter, moment: torch.Tensor) -> None:
        model.weight = parameter if name == "weight" else own
        optimizer.param_groups[0]["params"] = [parameter]
        optimizer.state.clear()
        optimizer.state[parameter] = {"average": moment}

    stand_on(one, one.data)
    state = TrainingState(model, optimizer)
    for parameter, moment in ((one, other.data), (other, one.data)):
        stand_on(one, one.data)
        assert f"optimizer/{name}/average" in state.describe().tensors
        stand_on(parameter, moment)
        refused = f"optimizer/{name}/average is a DTensor laid out otherwise than its parameter"
        assert shown(state.describe) == refused


def test_a_load_writes_over_what_is_there() -> None:
    donor, joiner = World(2), World()
    before = {name: tensor.data_ptr() for name, tensor in joiner.state.describe().tensors.items()}
    found = donor.state.describe()
    for _ in range(2):
        joiner.state.load(found.specs, found.tensors, loads(dumps(found.scalars)))
        after = joiner.state.describe().tensors
        moved = [name for name in before if after[name].data_ptr() != before[name]]
        assert moved == ["extras/extra/mean"]
        joiner.step()


def test_what_was_replaced_is_not_held() -> None:
    """A copy of the moments that nobody uses would take as much memory as the weights."""
    world = World()
    world.state.describe()
    old = weakref.ref(world.one["exp_avg"].untyped_storage())
    parameter = weakref.ref(world.model[3].weight)
    world.one["exp_avg"] = torch.randn(4, 4)
    world.model[3].weight = nn.Parameter(torch.randn(5, 4))
    gc.collect()
    assert old() is None and parameter() is None


def test_describing_again_costs_a_part_of_the_first_time() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(800)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

    def cpu_s(action: Callable[[], Any]) -> float:
        began = time.thread_time()
        action()
        return time.thread_time() - began

    state = TrainingState(model, optimizer)
    first = min(cpu_s(lambda: TrainingState(model, optimizer)) for _ in range(5))
    again = min(cpu_s(state.describe) for _ in range(5))
    assert again < 0.5 * first, f"{again * 1e3:.1f} ms again, {first * 1e3:.1f} ms the first time"
