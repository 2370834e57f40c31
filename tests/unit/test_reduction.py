"""Gradients into buckets and back, on a communicator of one and on single-process models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from replica.buckets import ScratchPool
from replica.communicator import CommunicatorLost
from replica.errors import MisuseError, ReplicaError
from replica.gradients import Gradients, describe, squared_norm
from replica.reduction import Hooks, Reduced, Reduction
from replica.solo import SoloCommunicator


class Twice(nn.Module):
    """A layer that is used twice, one that is never used, and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.again = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.out = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.frozen(self.again(self.again(x)))).sum()


def made(bucket_bytes: int = 20) -> tuple[Twice, Gradients]:
    model = Twice()
    return model, Gradients(model, shards=1, shard_rank=0, group=None, bucket_bytes=bucket_bytes)


def once(model: Twice) -> None:
    model(torch.ones(2, 4)).backward()


def test_reduced_gradients_are_the_local_sums_and_absent_ones_stay_absent() -> None:
    model, gradients = made()
    hooks = Hooks(gradients, overlap=True)
    once(model)
    hooks.backward_done()
    reduction = Reduction(gradients, gradients.layout.allocate())
    reduction.over(SoloCommunicator(1))
    assert hooks.arm(reduction)
    once(model)
    hooks.backward_done()
    assert reduction.launched(len(gradients.parameters) - 1), "the first bucket left during backward"
    wanted = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    reduction.flush()
    seen: list[int] = []
    reduced = reduction.finish(SoloCommunicator(1), lambda: seen.append(1))
    assert seen == [1]
    assert reduced.presence == tuple(not n.startswith("unused") for n in gradients.names)
    assert reduced.grad_sq == pytest.approx(sum(float(g.double().square().sum()) for g in wanted.values()))
    gradients.drop()
    gradients.write_back(reduced.buckets, reduced.presence, 1.0)
    for name, parameter in model.named_parameters():
        if name in wanted:
            assert parameter.grad is not None and torch.equal(parameter.grad, wanted[name])
        else:
            assert parameter.grad is None


def test_a_parameter_is_present_if_any_member_has_a_gradient_for_it() -> None:
    seen = [(True, *(False,) * 8, False, True), (False, *(False,) * 8, True, False)]
    members = [Reduced(buckets=(), presence=presence, grad_sq=1.0) for presence in seen]
    bits = np.stack([np.frombuffer(member.presence_bits, np.uint8) for member in members])
    assert bits.shape == (2, 2)
    for member in members:
        assert member.with_presence(bits).presence == (True, *(False,) * 8, True, True)


def test_nothing_overlaps_until_a_backward_has_been_seen() -> None:
    model, gradients = made()
    hooks = Hooks(gradients, overlap=True)
    assert not hooks.arm(Reduction(gradients, gradients.layout.allocate()))
    once(model)
    hooks.backward_done()
    assert hooks.arm(Reduction(gradients, gradients.layout.allocate()))


def test_hooks_never_raise_and_a_lost_communicator_leaves_the_sums() -> None:
    model, gradients = made()
    hooks = Hooks(gradients, overlap=True)
    once(model)
    hooks.backward_done()
    lost = SoloCommunicator(1)
    lost.abandon("for the test")
    reduction = Reduction(gradients, gradients.layout.allocate())
    reduction.over(lost)
    hooks.arm(reduction)
    once(model)
    hooks.backward_done()
    reduction.flush()
    with pytest.raises(CommunicatorLost, match="for the test"):
        reduction.finish(lost, lambda: None)
    again = Reduction(gradients, gradients.layout.allocate())
    again.flush()
    reduced = again.finish(SoloCommunicator(2), lambda: None)
    assert model.out.weight.grad is not None
    at = gradients.names.index("out.weight")
    assert torch.equal(gradients.layout.view(reduced.buckets, at), model.out.weight.grad.flatten())


def test_a_gradient_that_is_completed_again_after_it_was_sent_is_an_error_not_a_wrong_sum() -> None:
    model, gradients = made()
    reduction = Reduction(gradients, gradients.layout.allocate())
    reduction.over(SoloCommunicator(1))
    once(model)
    last = len(gradients.parameters) - 1
    for parameter in (last, last - 1, last):
        reduction.fill(parameter)
    with pytest.raises(ReplicaError, match="overlap=False"):
        reduction.flush()


def test_a_gradient_that_changes_before_its_bucket_is_sent_is_sent_as_it_is_then() -> None:
    model, gradients = made()
    first = gradients.layout.buckets[0].parameters
    later = next(bucket.parameters for bucket in gradients.layout.buckets[1:])
    reduction = Reduction(gradients, gradients.layout.allocate())
    reduction.over(SoloCommunicator(1))
    once(model)
    for parameter in later:
        reduction.fill(parameter)
    assert not reduction.launched(later[0]), "it waits for the first bucket"
    once(model)
    for parameter in (*later, *first):
        reduction.fill(parameter)
    assert reduction.launched(later[0])
    reduction.flush()
    reduced = reduction.finish(SoloCommunicator(1), lambda: None)
    for parameter in later:
        grad = gradients.local(parameter)
        wanted = torch.zeros(gradients.layout.places[parameter].numel) if grad is None else grad.flatten()
        assert torch.equal(gradients.layout.view(reduced.buckets, parameter), wanted)


def test_a_gradient_that_fires_repeatedly_is_left_to_the_flush() -> None:
    model, gradients = made()
    hooks = Hooks(gradients, overlap=True)
    model.out(torch.ones(4)).backward()
    model.out(torch.ones(4)).backward()
    hooks.backward_done()
    reduction = Reduction(gradients, gradients.layout.allocate())
    reduction.over(SoloCommunicator(1))
    hooks.arm(reduction)
    model.out(torch.ones(4)).backward()
    model.out(torch.ones(4)).backward()
    hooks.backward_done()
    reduction.flush()
    at = gradients.names.index("out.weight")
    reduced = reduction.finish(SoloCommunicator(1), lambda: None)
    assert torch.equal(gradients.layout.view(reduced.buckets, at), torch.full((4,), 4.0))


def test_clipping_does_not_reach_what_an_entry_holds() -> None:
    model, gradients = made()
    pool = ScratchPool(gradients.layout)
    once(model)
    reduction = Reduction(gradients, pool.take())
    reduction.flush()
    reduced = reduction.finish(SoloCommunicator(1), lambda: None)
    before = [b.clone() for b in reduced.buckets]
    gradients.write_back(reduced.buckets, reduced.presence, 0.25)
    assert model.out.weight.grad is not None
    at = gradients.names.index("out.weight")
    assert torch.equal(model.out.weight.grad.flatten(), gradients.layout.view(reduced.buckets, at) * 0.25)
    for grad in gradients.locals():
        grad.mul_(0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, reduced.buckets, strict=True))


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_the_norm_is_finite_iff_all_elements_are(bad: float) -> None:
    values = torch.full((3_000_000,), 1e30)
    assert float(squared_norm(values)) == pytest.approx(3e66)
    values[2_999_999] = bad
    assert not torch.isfinite(squared_norm(values))
    assert float(squared_norm(torch.empty(0))) == 0.0


def test_the_norm_of_usual_gradients_is_that_of_wide_ones() -> None:
    values = torch.randn(300_000, generator=torch.Generator().manual_seed(1)) * 1e-3
    wanted = float(values.double().square().sum())
    assert float(squared_norm(values)) == pytest.approx(wanted, rel=1e-6)
    assert float(squared_norm(values.double())) == pytest.approx(wanted, rel=1e-12)
    assert float(squared_norm(values.bfloat16())) == pytest.approx(wanted, rel=1e-2)


def test_models_differ_by_names_shapes_dtypes_and_what_is_trained() -> None:
    same = describe(Twice())
    assert describe(Twice()) == same
    assert describe(Twice().double()) != same
    assert describe(Twice().requires_grad_(False)) != same


def test_plain_parameters_in_a_group_of_several_shards_need_the_process_group() -> None:
    with pytest.raises(MisuseError, match="init_process_group"):
        Gradients(Twice(), shards=2, shard_rank=0, group=None, bucket_bytes=100)


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(MisuseError, match="no parameter"):
        Gradients(Twice().requires_grad_(False), shards=1, shard_rank=0, group=None, bucket_bytes=100)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_sums_over_groups_may_have_a_dtype_of_their_own(dtype: torch.dtype) -> None:
    """The local sum keeps its own; it is rounded once on its way into the bucket, and once on its way back."""
    model = Twice()
    gradients = Gradients(model, shards=1, shard_rank=0, group=None, bucket_bytes=100, reduce_dtype=dtype)
    assert {bucket.dtype for bucket in gradients.layout.buckets} == {dtype}
    for _ in range(3):
        once(model)
    local = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    reduction = Reduction(gradients, gradients.layout.allocate())
    reduction.flush()
    reduced = reduction.finish(SoloCommunicator(1), lambda: None)
    assert all(torch.equal(p.grad, local[n]) for n, p in model.named_parameters() if p.grad is not None)
    gradients.write_back(reduced.buckets, reduced.presence, 0.3)
    for name, parameter in model.named_parameters():
        if name in local:
            assert parameter.grad is not None and parameter.grad.dtype is torch.float32
            assert torch.equal(parameter.grad, local[name].to(dtype).float() * 0.3)
    assert reduced.grad_sq == pytest.approx(sum(float(g.to(dtype).double().square().sum()) for g in local.values()))
