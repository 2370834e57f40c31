"""The program that end-to-end tests train: tiny, easy to follow to the last bit, and able to die at a named moment.

python job.py --out FOLDER --steps 12 [--fsdp] [--die PHASE@STEP --die-group g1 --die-shard 0] [--delay-s 0.02]

PHASE is where this rank ends itself with SIGKILL, once in the life of FOLDER: forward, backward, bucket, gradients,
roll_call, voted, apply, applied, open, load, loading. FOLDER/die-GROUP.SHARD says at any time in which phase to.
Whoever computes slot --poison-slot of the run ends itself, every time; --leave-out is a slot whose samples are passed
over. The run ends after the step that follows the appearance of FOLDER/enough; then each rank writes its weights to
FOLDER/GROUP.SHARD.npy. --dump writes those of every step to FOLDER/steps.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from replica import Replica, Slot, Step

SAMPLES = 1000


class Draws(Dataset[tuple[int, torch.Tensor]]):
    """A map-style data set."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, draw([index])[0]


class Stream:
    """An iterable data set with a cursor: sample c of the run is c * 7 modulo SAMPLES, up to `length` samples."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.cursor = 0

    def seek(self, cursor: int) -> None:
        """Where to go on."""
        self.cursor = cursor

    def __iter__(self) -> Iterator[tuple[int, torch.Tensor]]:
        for cursor in range(self.cursor, self.length):
            yield cursor * 7 % SAMPLES, draw([cursor * 7 % SAMPLES])[0]


def draw(samples: Sequence[int]) -> torch.Tensor:
    """What the samples are: each a function of its index."""
    return torch.stack([torch.rand(8, generator=torch.Generator().manual_seed(i)) for i in samples])


def counted(samples: Sequence[int]) -> list[int]:
    """Places of the samples that count in an uneven run: between none and all of a slot's, whichever they are."""
    return [place for place, sample in enumerate(samples) if sample % 5 < 2 + sample // 300]


def loss(model: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """Sum of squared errors."""
    return ((model(inputs) - inputs.sum(1, keepdim=True).sin()) ** 2).sum()


def build(width: int) -> nn.Sequential:
    """The model at the start of the run."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1))


def optimizers(model: nn.Module) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """Optimizer and schedule of the run."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 / (1 + 0.1 * n))


def sharded(model: nn.Sequential) -> None:
    """Shards every layer over this group."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def uncompiled() -> None:
    """Keeps torch's optimizers from importing its compiler, as they do when they are made: here nothing is compiled.

    That is half of what a rank takes to start, and some five hundred start in these tests. A standby has imported it.
    """
    if "torch._dynamo" in sys.modules:
        return
    absent = types.ModuleType("torch._dynamo")
    absent.disable = lambda function, recursive=True, wrapping=True: function  # type: ignore[attr-defined]
    absent.graph_break = lambda *_: None  # type: ignore[attr-defined]
    sys.modules["torch._dynamo"] = torch._dynamo = absent  # type: ignore[assignment]


class Job:
    """One rank of the job; `observe` is called by the library at each phase of a step."""

    def __init__(self, flags: argparse.Namespace) -> None:
        self.flags = flags
        self.group = os.environ["BELLROCK_GROUP"]
        self.shard = int(os.environ["BELLROCK_SHARD_RANK"])
        self.phase, _, step = flags.die.partition("@")
        self.die_step = int(step or -1)
        self.out = Path(flags.out)
        self.lock = threading.Lock()
        self.waited = False

    def observe(self, phase: str, step: int) -> None:
        """Ends this rank if this is the moment that it was told; waits before its first load while a file is there."""
        if phase == "load" and self.flags.spare_mb:
            self.limit_memory()
        if phase == "load" and self.flags.wait_at_load:
            wait, self.flags.wait_at_load = Path(self.flags.wait_at_load), ""
            wait.touch()
            while wait.exists():
                time.sleep(0.01)
        if phase == "loading" and self.flags.wait_loading:
            self.wait_loading(Path(self.flags.wait_loading))
        self.wait(phase, step)
        if self.told_to_die(phase):
            os.kill(os.getpid(), signal.SIGKILL)
        mine = self.group == self.flags.die_group and self.shard == self.flags.die_shard
        if not mine or phase != self.phase or step < self.die_step:
            return
        try:
            (self.out / f"died-{self.group}").touch(exist_ok=self.flags.die_always)
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def told_to_die(self, phase: str) -> bool:
        """Whether a test says that this is the moment; it says so once."""
        told = self.out / f"die-{self.group}.{self.shard}"
        if not told.exists() or told.read_text() != phase:
            return False
        told.unlink()
        return True

    def wait_loading(self, wait: Path) -> None:
        """Stands still amid a load, on every link of it, after the first piece and as long as a file is there."""
        with self.lock:
            if not self.waited:
                self.waited = True
                wait.touch()
        while wait.exists():
            time.sleep(0.01)

    def limit_memory(self) -> None:
        """Leaves this process, in its first life, little more memory than it has now."""
        try:
            (self.out / f"limited-{self.group}").touch(exist_ok=False)
        except FileExistsError:
            return
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + (self.flags.spare_mb << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    def wait(self, phase: str, step: int) -> None:
        """Where one group is to wait once at a moment, while a file is there, and all say that they have come to it."""
        if f"{phase}@{step}" != self.flags.wait_at:
            return
        self.flags.wait_at = ""
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
        dist.init_process_group("gloo")
        model = build(flags.width)
        if flags.fsdp:
            sharded(model)
        else:
            uncompiled()
        optimizer, scheduler = optimizers(model)
        replica = Replica(
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            slots=None if flags.slots_per_group else flags.slots,
            slots_per_group=flags.slots_per_group or None,
            slot_size=4,
            seed=flags.seed + (self.shard == flags.odd_shard),
            steps=flags.steps,
            samples=flags.samples or None,
            drop_last=not flags.keep_last,
            dataset_length=None if flags.data == "stream" else SAMPLES,
            data="made up",
            max_grad_norm=1.0,
            bucket_bytes=2048,
            reduce_dtype=flags.reduce_dtype or None,
            heal=flags.heal,
            heal_log_bytes=flags.log_bytes or None,
            observer=self.observe,
        )
        if flags.dump:
            (self.out / "steps").mkdir(exist_ok=True)
        batches = self.batches(replica)
        for step in replica.steps():
            for slot, samples, inputs in batches(step):
                self.observe("forward", step.number)
                if flags.raise_at == step.number and self.group == flags.die_group:
                    raise RuntimeError("the user's own mistake")
                self.read(slot.number, samples)
                if slot.number == flags.poison_slot:
                    os.kill(os.getpid(), signal.SIGKILL)
                if slot.number == flags.leave_out:
                    inputs = inputs[:0]
                if flags.uneven:
                    inputs = inputs[counted(samples)]
                loss_sum = loss(model, inputs)
                time.sleep(flags.delay_s)
                loss_sum.register_hook(lambda grad, at=step.number: self.observe("backward", at))
                step.backward(loss_sum, len(inputs))
            step.apply()
            if flags.dump:
                self.write(model, self.out / "steps" / f"{step.number}.npy")
            if (self.out / "enough").exists():
                replica.request_stop()
        self.write(model, self.out / f"{self.group}.{self.shard}.npy")
        dist.destroy_process_group()

    def batches(self, replica: Replica) -> Callable[[Step], Iterator[tuple[Slot, list[int], torch.Tensor]]]:
        """How the slots of a step come with their samples: as indices, or through one of the library's readers."""
        flags = self.flags
        if not flags.data:
            return lambda step: ((slot, list(slot.samples), draw(slot.samples)) for slot in step)
        dataset = Stream(flags.stream_length) if flags.data == "stream" else Draws()
        data = replica.data(dataset, workers=int(bool(flags.worker)), start_method=flags.worker or "spawn")
        return lambda step: ((slot, b[0].tolist(), b[1]) for slot, b in data.batches(step))

    def read(self, number: int, samples: list[int]) -> None:
        """Notes what slot `number` of the run was computed from."""
        with (self.out / f"{self.group}.{self.shard}.samples").open("a") as file:
            file.write(json.dumps([number, samples]) + "\n")

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
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--slots", type=int, default=6)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--odd-shard", type=int, default=-1)
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--die", default="")
    parser.add_argument("--die-group", default="")
    parser.add_argument("--die-shard", type=int, default=0)
    parser.add_argument("--poison-slot", type=int, default=-1)
    parser.add_argument("--leave-out", type=int, default=-1)
    parser.add_argument("--raise-at", type=int, default=-1)
    parser.add_argument("--heal", choices=["log", "pause"], default="log")
    parser.add_argument("--log-bytes", type=int, default=0)
    parser.add_argument("--die-always", action="store_true")
    parser.add_argument("--wait-at-load", default="")
    parser.add_argument("--wait-loading", default="")
    parser.add_argument("--spare-mb", type=int, default=0)
    parser.add_argument("--wait-at", default="")
    parser.add_argument("--wait-group", default="")
    parser.add_argument("--wait-file", default="")
    parser.add_argument("--slots-per-group", type=int, default=0)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--uneven", action="store_true")
    parser.add_argument("--keep-last", action="store_true")
    parser.add_argument("--data", choices=["map", "stream", ""], default="")
    parser.add_argument("--stream-length", type=int, default=1 << 60)
    parser.add_argument("--worker", choices=["fork", "spawn", ""], default="")
    parser.add_argument("--reduce-dtype", default="")
    parser.add_argument("--dump", action="store_true")
    parser.add_argument("--delay-s", type=float, default=0.0)
    Job(parser.parse_args()).run()


if __name__ == "__main__":
    main()
