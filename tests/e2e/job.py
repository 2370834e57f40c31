"""The program that end-to-end tests train: tiny, easy to follow to the last bit, and able to die at a named moment.

python job.py --out FOLDER --steps 12 [--fsdp] [--die PHASE@STEP --die-group g1 --die-shard 0] [--delay-s 0.02]

PHASE is where this rank ends itself with SIGKILL, once in the life of FOLDER: forward, backward, bucket, gradients,
roll_call, voted, apply, applied, open, load. The run ends after the step that follows the appearance of FOLDER/enough;
then each rank writes its weights to FOLDER/GROUP.SHARD.npy. --dump writes those of every step to FOLDER/steps.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from replica import Replica

SAMPLES = 1000


class Job:
    """One rank of the job; `observe` is called by the library at each phase of a step."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags = flags
        self.group = os.environ["BELLROCK_GROUP"]
        self.shard = int(os.environ["BELLROCK_SHARD_RANK"])
        self.phase, _, step = flags.die.partition("@")
        self.die_step = int(step or -1)
        self.out = Path(flags.out)

    def observe(self, phase: str, step: int) -> None:
        """Ends this rank if this is the moment that it was told; waits before its first load while a file is there."""
        if phase == "load" and self.flags.wait_at_load:
            wait, self.flags.wait_at_load = Path(self.flags.wait_at_load), ""
            wait.touch()
            while wait.exists():
                time.sleep(0.01)
        self.wait(phase, step)
        mine = self.group == self.flags.die_group and self.shard == self.flags.die_shard
        if not mine or phase != self.phase or step < self.die_step:
            return
        try:
            (self.out / f"died-{self.group}").touch(exist_ok=False)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def wait(self, phase: str, step: int) -> None:
        """Where one group is to wait at a moment while a file is there, and all say that they have come to it."""
        if f"{phase}@{step}" != self.flags.wait_at:
            return
        (self.out / f"at-{self.group}-{phase}-{step}").touch()
        if self.group != self.flags.wait_group:
            return
        wait = Path(self.flags.wait_file)
        wait.touch()
        while wait.exists():
            time.sleep(0.01)

    def run(self) -> None:
        """Trains, then writes the final weights."""
        flags = self.flags
        torch.set_num_threads(1)
        torch.manual_seed(7)
        wide = flags.width
        dist.init_process_group("gloo")
        model = nn.Sequential(nn.Linear(8, wide), nn.Tanh(), nn.Linear(wide, wide), nn.Tanh(), nn.Linear(wide, 1))
        if flags.fsdp:
            for layer in model:
                if isinstance(layer, nn.Linear):
                    fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
            fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + 0.1 * n))
        replica = Replica(
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            slots=flags.slots,
            slot_size=4,
            seed=flags.seed + (self.shard == flags.odd_shard),
            steps=flags.steps,
            dataset_length=SAMPLES,
            data="made up",
            max_grad_norm=1.0,
            bucket_bytes=2048,
            observer=self.observe,
        )
        if flags.dump:
            (self.out / "steps").mkdir(exist_ok=True)
        for step in replica.steps():
            for slot in step:
                self.observe("forward", step.number)
                if flags.raise_at == step.number and self.group == flags.die_group:
                    raise RuntimeError("the user's own mistake")
                loss_sum = self.loss(model, slot.samples)
                time.sleep(flags.delay_s)
                loss_sum.register_hook(lambda grad, at=step.number: self.observe("backward", at))
                step.backward(loss_sum, len(slot.samples))
            step.apply()
            if flags.dump:
                self.write(model, self.out / "steps" / f"{step.number}.npy")
            if (self.out / "enough").exists():
                replica.request_stop()
        self.write(model, self.out / f"{self.group}.{self.shard}.npy")
        dist.destroy_process_group()

    def loss(self, model: nn.Module, samples: tuple[int, ...]) -> torch.Tensor:
        """Sum of squared errors over the samples: each a function of its index."""
        draws = [torch.rand(8, generator=torch.Generator().manual_seed(i)) for i in samples]
        inputs = torch.stack(draws)
        return ((model(inputs) - inputs.sum(1, keepdim=True).sin()) ** 2).sum()

    def write(self, model: nn.Module, path: Path) -> None:
        """The weights, one after another, as float32 (a temporary name first)."""
        parts = [getattr(p, "full_tensor", lambda p=p: p)().detach().flatten().numpy() for p in model.parameters()]
        with path.with_suffix(f".{self.group}").open("wb") as file:
            numpy.save(file, numpy.concatenate(parts), allow_pickle=False)
        path.with_suffix(f".{self.group}").rename(path)


def main() -> None:
    """Reads the flags and runs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=6)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--odd-shard", type=int, default=-1)
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--die", default="")
    parser.add_argument("--die-group", default="")
    parser.add_argument("--die-shard", type=int, default=0)
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--wait-at-load", default="")
    parser.add_argument("--wait-at", default="")
    parser.add_argument("--wait-group", default="")
    parser.add_argument("--wait-file", default="")
    parser.add_argument("--dump", action="store_true")
    parser.add_argument("--delay-s", type=float, default=0.0)
    Job(parser.parse_args()).run()


if __name__ == "__main__":
    main()
