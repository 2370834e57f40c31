"""A snapshot is of the moment at which it was staged, though it is copied beside the step that follows."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from lighthouse.values import Version
from replica.beside import Beside
from replica.snapshot import Room, Snapshot
from replica.state import TrainingState


def trained(seed: int) -> tuple[nn.Module, TrainingState]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(700, 900), nn.BatchNorm1d(900), nn.Linear(900, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 700)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, TrainingState(model, optimizer)


def test_what_a_forward_pass_changes_is_copied_at_once_and_the_rest_before_wait_returns() -> None:
    model, state = trained(1)
    tensors, _ = state.flatten()
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    snapshot = Snapshot.stage(state, Version(1, 1), 8, False)
    for buffer in model.buffers():
        buffer.add_(1)
    snapshot.wait()
    with torch.no_grad():
        for tensor in tensors.values():
            tensor.fill_(0)
    for spec in snapshot.specs:
        found = b"".join(bytes(view) for view in snapshot.segments().views(spec.offset, spec.offset + spec.bytes))
        assert found == before[spec.name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(), spec.name
    steady = tensors.keys() - state.describe().changing
    assert {f"model/{name}" for name, _ in model.named_parameters()} < steady
    assert steady.isdisjoint(f"model/{name}" for name, _ in model.named_buffers())


class Counted:
    """An extra that grows, and knows how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.size = 1000

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        return {"tensor": torch.full((self.size,), 7.0)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.size = len(state_dict["tensor"])


@pytest.mark.parametrize("grows", [False, True])
def test_room_is_made_without_going_through_the_state_and_done_without_if_that_has_grown(grows: bool) -> None:
    """It is made amid a step, for which others wait."""
    model, extra = nn.Linear(700, 900), Counted()
    state = TrainingState(model, torch.optim.SGD(model.parameters()), extras={"extra": extra})
    asked = extra.asked
    room = Room(state)
    assert extra.asked == asked
    extra.size += grows
    snapshot = Snapshot.stage(state, Version(1, 1), 8, False, room=room)
    snapshot.wait()
    found = state.describe()
    assert snapshot.bytes == sum(tensor.nbytes for tensor in found.tensors.values())
    for spec in snapshot.specs:
        held = b"".join(bytes(view) for view in snapshot.segments().views(spec.offset, spec.offset + spec.bytes))
        assert held == found.tensors[spec.name].numpy().tobytes()


def test_the_memory_of_a_snapshot_is_given_back_at_once() -> None:
    """Not whenever the garbage collector comes by: a donor of many heals held several copies."""
    _, state = trained(1)
    gc.collect()
    gc.disable()
    try:
        snapshot = Snapshot.stage(state, Version(1, 1), 8, False)
        snapshot.wait()
        gone = weakref.ref(snapshot)
        del snapshot
        assert gone() is None
    finally:
        gc.enable()


def test_too_little_memory_for_a_snapshot_is_known_and_harms_nobody() -> None:
    model = nn.Linear(3, 3)
    model.register_buffer("huge", torch.zeros(1).expand(1 << 46))
    state = TrainingState(model, torch.optim.SGD(model.parameters()))
    room = Room(state)
    assert room.take([]) == [] and room.short and room.ready


def test_what_goes_wrong_beside_is_raised_where_it_is_waited_for() -> None:
    def fails() -> int:
        raise MemoryError("no room")

    beside = Beside(fails, "test")
    for _ in range(2):
        with pytest.raises(MemoryError, match="no room"):
            beside.result()
