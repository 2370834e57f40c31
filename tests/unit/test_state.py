"""The training state as tensors and plain data, and back: bit for bit, whatever is in it."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim import lr_scheduler

from replica.digest import digest, digests
from replica.plain import NotRepresentable, decode, dumps, encode, loads
from replica.state import StateMismatch, TrainingState

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "adamw, lr a tensor": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), capturable=False),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.1, centered=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2),
}

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.9**step),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.3, total_steps=20),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=7),
    "multi-step": lambda o: lr_scheduler.MultiStepLR(o, [1, 3, 3]),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
}


class Odd(nn.Module):
    """Parameters and buffers of every kind of shape and dtype."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        make = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(7, 5, generator=make).t())
        self.scale = nn.Parameter(torch.randn((), generator=make))
        self.nothing = nn.Parameter(torch.randn(0, 3, generator=make))
        self.frozen = nn.Parameter(torch.randn(3, generator=make).bfloat16(), requires_grad=False)
        for dtype in sorted(_dtypes(), key=str):
            raw = torch.randint(0, 2 if dtype is torch.bool else 256, (3 * dtype.itemsize,), generator=make)
            buffer = raw.to(torch.uint8).view(dtype).reshape(3) if dtype is not torch.bool else raw.bool()
            self.register_buffer(str(dtype).replace(".", "_"), buffer)
        self.register_buffer("passing", torch.randn(3, generator=make), persistent=False)

    def forward(self) -> torch.Tensor:
        return (self.weight * self.scale).square().sum() + self.nothing.sum()


def _dtypes() -> list[torch.dtype]:
    names = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128"
    names += " float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu uint16 uint32 uint64"
    return [getattr(torch, name) for name in names.split()]


class Counts:
    """An extra with plain data and tensors deep inside."""

    def __init__(self, **content: Any) -> None:
        self.content: dict[str, Any] = content

    def state_dict(self) -> dict[str, Any]:
        return self.content

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.content = state_dict


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 6, bias=False))
    model[3].weight = model[0].weight if model[0].weight.shape == model[3].weight.shape else model[3].weight
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, steps: int, seed: int = 3) -> None:
    make = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = torch.randn(4, 6, generator=make)

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        if scheduler is not None:
            scheduler.step()


def carried(donor: TrainingState, joiner: TrainingState) -> None:
    """Loads through the JSON text and copies, as over a wire."""
    found = donor.describe()
    copies = {name: tensor.clone() for name, tensor in found.tensors.items()}
    joiner.load(found.specs, copies, loads(dumps(found.scalars)))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_fresh_joiner_goes_on_as_the_donor_does(kind: str) -> None:
    runs = []
    for seed in (1, 2):
        model = net(seed)
        optimizer = OPTIMIZERS[kind](model.parameters())
        runs.append((model, optimizer, TrainingState(model, optimizer)))
    train(runs[0][0], runs[0][1], None, 3)
    assert digest(runs[0][2]) != digest(runs[1][2])
    carried(runs[0][2], runs[1][2])
    assert digests(runs[0][2]) == digests(runs[1][2])
    for model, optimizer, _ in runs:
        train(model, optimizer, None, 2, seed=4)
    assert digests(runs[0][2]) == digests(runs[1][2])


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedules_are_carried(kind: str) -> None:
    runs = []
    for seed in (1, 2):
        model = net(seed)
        optimizer = torch.optim.AdamW(
            [{"params": list(model[0].parameters()), "weight_decay": 0.0}, {"params": list(model[3].parameters())}]
        )
        scheduler = SCHEDULERS[kind](optimizer)
        runs.append((model, optimizer, scheduler, TrainingState(model, optimizer, scheduler)))
    train(*runs[0][:3], steps=3)
    carried(runs[0][3], runs[1][3])
    for model, optimizer, scheduler, _ in runs:
        train(model, optimizer, scheduler, 2, seed=4)
    assert digests(runs[0][3]) == digests(runs[1][3])
    assert runs[0][2].get_last_lr() == runs[1][2].get_last_lr()


def test_every_dtype_and_shape_is_carried_bit_for_bit() -> None:
    states = []
    for seed in (1, 2):
        model = Odd(seed)
        states.append((model, TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1))))
    (donor, from_), (joiner, to) = states
    tensors, _ = from_.flatten()
    assert "model/passing" not in tensors
    before = {name: tensor.data_ptr() for name, tensor in joiner.state_dict(keep_vars=True).items()}
    carried(from_, to)
    for name, tensor in donor.state_dict().items():
        other = joiner.state_dict()[name]
        flat, other_flat = (t.contiguous().reshape(-1).view(torch.uint8) for t in (tensor, other))
        assert torch.equal(flat, other_flat), name
        assert joiner.state_dict(keep_vars=True)[name].data_ptr() == before[name]


class Chance:
    """A generator of the training program's own, as an extra: randomness that must go on alike everywhere."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.generator.set_state(state_dict["state"])


def test_a_generator_of_random_numbers_is_carried_as_an_extra() -> None:
    states, chances = [], []
    for seed in (1, 2):
        model = net(seed)
        chances.append(Chance(seed))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        states.append(TrainingState(model, optimizer, extras={"chance": chances[-1]}))
    torch.rand(7, generator=chances[0].generator)
    carried(*states)
    assert digests(states[0]) == digests(states[1])
    one, other = (torch.rand(5, generator=chance.generator) for chance in chances)
    assert torch.equal(one, other)


def test_tied_and_shared_tensors_travel_once() -> None:
    model = nn.Module()
    model.one = nn.Linear(4, 4)
    model.two = nn.Linear(4, 4)
    model.two.weight = model.one.weight
    model.three = nn.Linear(4, 4)
    model.three.weight = nn.Parameter(model.one.weight.data)
    tensors, _ = TrainingState(model, torch.optim.SGD(model.parameters(), lr=0.1)).flatten()
    assert [name for name in tensors if name.endswith("weight")] == ["model/one.weight"]


def test_extras_keep_their_types() -> None:
    content = {
        "tuple": (1, (2.5, "x")),
        "keys": {1: "one", (2, 3): None, "!odd": True},
        "floats": [math.inf, -math.inf, 1e-320, 0.1, -0.0],
        "counter": Counter({3: 2}),
        "ordered": OrderedDict([("b", 1), ("a", 2)]),
        "bytes": b"\x00\xff",
        "huge": 1 << 700,
        "complex": complex(0.1, -0.0),
        "dtype": torch.bfloat16,
        "tensor": {"deep": [torch.arange(3), torch.tensor(1.5)]},
        "size": torch.Size([2, 3]),
        "empty": {},
    }
    aside: dict[str, torch.Tensor] = {}

    def put(name: str, tensor: torch.Tensor) -> str:
        aside[name] = tensor
        return name

    back = decode(loads(dumps(encode(content, "x", put))), aside.__getitem__)
    assert torch.equal(back["tensor"]["deep"][0], torch.arange(3))
    del back["tensor"], content["tensor"]
    content["size"] = [2, 3]
    assert back == content
    assert list(back["ordered"]) == ["b", "a"] and type(back["counter"]) is Counter
    assert math.copysign(1, back["floats"][4]) == -1


@pytest.mark.parametrize("value", [lambda x: x, {1, 2}, object(), nn.Linear(1, 1), torch.Generator()])
def test_what_needs_pickle_is_refused_with_its_place(value: Any) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(NotRepresentable, match="extras/thing/a/0"):
        TrainingState(model, optimizer, extras={"thing": Counts(a=[value])})


def test_tensors_that_cannot_travel_are_refused_by_name() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(NotRepresentable, match="extras/e/s.*sparse"):
        TrainingState(model, optimizer, extras={"e": Counts(s=sparse)})
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    with pytest.raises(NotRepresentable, match="model/weight has no memory"):
        TrainingState(empty, torch.optim.SGD(empty.parameters(), lr=0.1))


def test_another_models_state_is_refused_before_anything_is_touched() -> None:
    def state(model: nn.Module, lr: float = 0.1, groups: int = 1, **extras: Counts) -> TrainingState:
        parameters = list(model.parameters())
        split = [{"params": parameters[:1]}, {"params": parameters[1:]}] if groups > 1 else parameters
        return TrainingState(model, torch.optim.AdamW(split, lr=lr), extras=extras)

    mine = state(nn.Linear(3, 2))
    before = digest(mine)
    others = {
        r"local shape of model/weight: theirs \(2, 4\), here \(2, 3\)": state(nn.Linear(4, 2)),
        "dtype of model/bias": state(nn.Linear(3, 2).to(torch.float64)),
        "parameters of group 0": state(nn.Linear(3, 2, bias=False)),
        "number of param groups": state(nn.Linear(3, 2), groups=2),
        "registered extras": state(nn.Linear(3, 2), more=Counts()),
    }
    for text, other in others.items():
        with pytest.raises(StateMismatch, match=text):
            carried(other, mine)
        assert mine.usable and digest(mine) == before
    carried(state(nn.Linear(3, 2), lr=0.7), mine)
    assert mine.flatten()[1]["optimizer"]["groups"][0]["lr"] == 0.7


def test_a_state_is_not_usable_until_its_load_has_finished() -> None:
    model = nn.Linear(3, 2)
    state = TrainingState(model, torch.optim.AdamW(model.parameters()))
    found = state.describe()
    targets = state.prepare(found.specs, found.scalars)
    assert not state.usable
    assert targets["model/weight"].data_ptr() == model.weight.data_ptr()
    state.finish()
    assert state.usable


def _sharded(rank: int, folder: str, report: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        runs = []
        for seed in (1, 2):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
            fully_shard(model)
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
            runs.append((model, optimizer, TrainingState(model, optimizer)))
        for model, optimizer, _ in runs[:1]:
            train_sharded(model, optimizer, 2)
        runs[0][0](torch.ones(2, 5))  # leaves the root gathered
        carried(runs[0][2], runs[1][2])
        moment = runs[1][1].state[next(iter(runs[1][0].parameters()))]["exp_avg"]
        assert isinstance(moment, DTensor)
        assert digests(runs[0][2]) == digests(runs[1][2])
        for model, optimizer, _ in runs:
            train_sharded(model, optimizer, 2)
        assert digests(runs[0][2]) == digests(runs[1][2])
        shapes = {name: tuple(tensor.shape) for name, tensor in runs[0][2].flatten()[0].items()}
        report.put((rank, shapes, ""))
    except BaseException as error:
        report.put((rank, {}, repr(error)))
        raise
    finally:
        torch.distributed.destroy_process_group()


def train_sharded(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.full((2, 5), float(step + 1))).square().sum().backward()
        optimizer.step()


def test_uneven_shards_of_fsdp2_are_carried_without_padding(tmp_path: Path) -> None:
    context = torch.multiprocessing.get_context("spawn")
    report = context.Queue()
    ranks = [context.Process(target=_sharded, args=(rank, str(tmp_path), report)) for rank in range(2)]
    for process in ranks:
        process.start()
    try:
        reports = sorted(report.get(timeout=60) for _ in ranks)
        assert [error for *_, error in reports] == ["", ""]
        assert [shapes["model/0.weight"] for _, shapes, _ in reports] == [(4, 5), (3, 5)]
        assert [shapes["optimizer/1.weight/exp_avg"] for _, shapes, _ in reports] == [(2, 7), (1, 7)]
    finally:
        for process in ranks:
            process.join(20)
            process.kill()
