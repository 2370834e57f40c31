"""A training program on the rank library, as small as they come; what it did is left in a file for the test to read.

Its model has what makes bookkeeping hard: dropout, a layer that only some slots use, one that no slot of some steps
uses, a parameter that none ever uses, tied weights, and frozen parameters beside others of one FSDP group.
Everything is float64, so that another order of addition stays far below what a lost or doubled slot would change.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from replica import LeaveError, Replica, Slot, beside
from replica.beside import Gate
from replica.environment import RankEnvironment
from replica.state import TrainingState

WIDTH = 8
SAMPLES = 97


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.blocks[1].bias.requires_grad_(False)
        self.sometimes = nn.Linear(WIDTH, WIDTH)
        self.rarely = nn.Linear(WIDTH, WIDTH)
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last.weight = self.first.weight
        self.never = nn.Parameter(torch.ones(WIDTH, 3))
        self.frozen = nn.Parameter(torch.ones(WIDTH), requires_grad=False)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, odd: bool, rare: bool) -> torch.Tensor:
        x = x + torch.tanh(self.first(x))
        for block in self.blocks:
            x = x + torch.tanh(block(nn.functional.dropout(x, 0.25, training=True)))
        if odd:
            x = x + self.sometimes(x)
        if rare:
            x = x + self.rarely(x)
        return self.head(self.last(x) * self.frozen)


def build(kind: str) -> tuple[Model, torch.optim.Optimizer, Any]:
    """The model, sharded as `kind` says ("plain", "fsdp", or "mixed": only its blocks), optimizer and schedule."""
    torch.manual_seed(11)
    model = Model().double()
    if kind != "plain":
        mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        if kind == "fsdp":
            fully_shard(model.rarely, mesh=mesh)
            fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1, foreach=False)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))


def loss_of(model: nn.Module, number: int, samples: tuple[int, ...]) -> tuple[torch.Tensor, int]:
    """Sum of losses over the samples of a slot, and their count; slots with an odd number use one layer more.

    One more is used by each seventh: so by none in step 1 of those that tests make, of five slots each.
    """
    table = torch.arange(SAMPLES * WIDTH, dtype=torch.float64).reshape(SAMPLES, WIDTH).sin()
    x = table[list(samples)]
    return (model(x, number % 2 == 1, number % 7 == 3) - x.sum(1, keepdim=True)).square().sum(), len(samples)


def full(model: nn.Module) -> list[np.ndarray]:
    """All parameters, unsharded. A collective of the group."""
    return [(p.full_tensor() if isinstance(p, DTensor) else p).detach().numpy().copy() for p in model.parameters()]


def state_hash(model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any) -> str:
    """A hash of every bit of this rank's training state."""
    tensors, scalars = TrainingState(model, optimizer, scheduler).flatten()
    digest = hashlib.sha256(json.dumps(scalars, sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(told: dict[str, Any]) -> dict[str, Any]:
    """Runs to the end of the run; what it did, for the test."""
    environment = RankEnvironment(**told["environment"])
    if environment.shards > 1 or told["kind"] != "plain":
        dist.init_process_group(
            "gloo", init_method=f"file://{told['store']}", rank=environment.shard_rank, world_size=environment.shards
        )
    model, optimizer, scheduler = build(told["kind"])

    did: dict[str, Any] = {"slots": [], "results": [], "hashes": {}, "error": "", "joiners": []}

    def observe(phase: str, step: int) -> None:
        """Notes whether joiners are served meanwhile; stands still where it was told to, until it is killed."""
        if phase in ("gradients", "roll_call", "voted", "apply"):
            did["joiners"].append([phase, all(gate.is_open for gate in gates)])
        while [phase, step] == told.get("hang_at"):
            time.sleep(0.1)

    replica = Replica(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        max_grad_norm=0.5,
        slots=told["slots"],
        slot_size=4,
        seed=5,
        steps=told["steps"],
        dataset_length=SAMPLES,
        bucket_bytes=told.get("bucket_bytes", 600),
        environment=environment,
        observer=observe,
    )
    beside.SHUT_S = 60.0  # what is noted below must not depend on how fast this machine is
    gates = [made for made in gc.get_objects() if isinstance(made, Gate)]
    try:
        for step in replica.steps():
            for slot in step:
                did["joiners"].append(["slot", all(gate.is_open for gate in gates)])
                compute(model, step, slot, did, told)
            step.apply()
            if step.result is not None:
                version = f"{step.result.version}"
                did["results"].append([version, step.result.loss, step.result.tokens, step.result.skipped])
                did["hashes"][version] = state_hash(model, optimizer, scheduler)
    except LeaveError as left:
        did["error"] = str(left)
    else:
        np.savez(told["out"] + ".npz", *full(model))
        did["never"] = (model.never.full_tensor() if isinstance(model.never, DTensor) else model.never).sum().item()
    replica.close()
    return did


def compute(model: nn.Module, step: Any, slot: Slot, did: dict[str, Any], told: dict[str, Any]) -> None:
    assert slot.samples is not None
    loss_sum, tokens = loss_of(model, slot.number, slot.samples)
    if told.get("raise_at") == step.number:
        raise RuntimeError("this is what the program does wrong")
    if told.get("overflow_at") == [step.number, slot.index]:
        loss_sum = loss_sum * float("inf")
    wrong = told.get("misuse")
    if wrong == "apply in the loop":
        step.apply()
    if wrong != "no backward":
        step.backward(loss_sum if wrong != "detached" else loss_sum.detach(), tokens)
    if wrong == "backward twice":
        step.backward(loss_sum, tokens)
    did["slots"].append([step.number, slot.index, list(slot.samples)])


def main(text: str) -> None:
    """Entry of a rank's process; `text` is JSON."""
    os.setpgid(0, 0)
    torch.set_num_threads(1)
    told = json.loads(text)
    sys.stdout = sys.stderr = open(told["out"] + ".log", "w", buffering=1)  # noqa: SIM115 for the process's life
    try:
        did = train(told)
    except Exception:  # noqa: BLE001 what Python does with it in a process that multiprocessing did not start
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(1)
    Path(told["out"] + ".json").write_text(json.dumps(did))
    if dist.is_initialized():
        dist.destroy_process_group()
