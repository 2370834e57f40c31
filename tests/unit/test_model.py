"""The byte model: its size, its causality, its sums, and the same numbers when it is sharded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trainer.config import ModelShape, TrainConfig
from trainer.model import build_model, parameter_count

SMALL = ModelShape(width=32, depth=2, heads=2, context=16)


def windows(count: int, seed: int = 0, length: int = 16) -> torch.Tensor:
    return torch.randint(0, 256, (count, length + 1), generator=torch.Generator().manual_seed(seed))


def test_default_size_is_between_one_and_three_million() -> None:
    assert 1_000_000 <= parameter_count(build_model(TrainConfig().shape, seed=0)) <= 3_000_000


def test_a_seed_fixes_the_weights() -> None:
    first, again, other = (build_model(SMALL, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_loss_starts_at_chance_and_is_a_sum() -> None:
    model = build_model(SMALL, seed=0)
    loss, tokens = model(windows(8))
    assert tokens == 8 * 16
    assert loss.item() / tokens == pytest.approx(5.545, abs=0.1)  # ln 256
    halves = [model(half)[0].item() for half in windows(8).split(4)]
    assert sum(halves) == pytest.approx(loss.item(), rel=1e-5)


def test_no_byte_sees_the_future() -> None:
    model = build_model(SMALL, seed=0)
    seen: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda _module, _args, out: seen.append(out.detach()))
    one = windows(1)
    two = one.clone()
    two[0, 9] = (two[0, 9] + 1) % 256
    model(one)
    model(two)
    assert torch.equal(seen[0][:, :9], seen[1][:, :9])
    assert not torch.allclose(seen[0][:, 9:], seen[1][:, 9:])


def test_positions_matter() -> None:
    model = build_model(SMALL, seed=0)
    seen: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda _module, _args, out: seen.append(out.detach()))
    model(torch.tensor([[1, 2, 3, 9]]))
    model(torch.tensor([[2, 1, 3, 9]]))
    assert not torch.allclose(seen[0][0, 2], seen[1][0, 2])


def test_it_learns() -> None:
    model = build_model(SMALL, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = windows(4)
    losses = []
    for _ in range(30):
        loss, tokens = model(batch)
        (loss / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


SHARDED = """
import os, sys, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from trainer.config import ModelShape
from trainer.model import build_model, shard
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=int(sys.argv[2]), world_size=2)
model = build_model(ModelShape(width=32, depth=2, heads=2, context=16), seed=0)
plain = build_model(ModelShape(width=32, depth=2, heads=2, context=16), seed=0)
shard(model, init_device_mesh("cpu", (2,), mesh_dim_names=("dp_shard",)))
data = torch.randint(0, 256, (4, 17), generator=torch.Generator().manual_seed(0))
mine = data[dist.get_rank() * 2 : dist.get_rank() * 2 + 2]
loss, tokens = model(mine)
loss.backward()
plain(data)[0].backward()
for (name, a), (_, b) in zip(model.named_parameters(), plain.named_parameters()):
    whole = a.grad.full_tensor() * 2  # untouched, FSDP2 gives the mean over shards
    torch.testing.assert_close(whole, b.grad, rtol=1e-4, atol=1e-4, msg=name)
dist.barrier()  # gloo's threads end the process if the group goes away while the other rank is still comparing
dist.destroy_process_group()
"""


def test_two_shards_compute_what_one_process_does(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SHARDED, str(tmp_path / "meet")]
    ranks = [
        subprocess.Popen([*command, str(rank)], env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}) for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=100) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
