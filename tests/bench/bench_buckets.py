"""How large buckets should be on gloo: PYTHONPATH=.:tests python tests/bench/bench_buckets.py

Two members in processes of their own, on loopback, with the real layout, hooks, reduction and communicator. Timed is
one backward with its reduction, from the call of backward until all sums are here; bucket sizes take turns, step by
step, so that all see the same machine. Prints medians in ms, and the same without overlap and in bf16.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from torch import nn

from replica.buckets import ScratchPool
from replica.communicator import Communicator, Opening
from replica.gradients import Gradients
from replica.reduction import Hooks, Reduction
from replica.rendezvous import Rendezvous

MIB = 1 << 20
SIZES = (MIB // 4, MIB, 4 * MIB, 10 * MIB, 25 * MIB)
WIDTHS = {"1M": 250, "25M": 1250}
LAYERS = 16
MEMBERS = 2


@dataclass(frozen=True)
class Way:
    """One way to reduce."""

    bucket_bytes: int
    overlap: bool = True
    dtype: torch.dtype | None = None

    def __str__(self) -> str:
        words = [f"{self.bucket_bytes / MIB:g} MiB"]
        words += [] if self.overlap else ["no overlap"]
        words += [str(self.dtype).removeprefix("torch.")] if self.dtype else []
        return ", ".join(words)


WAYS = (
    *map(Way, SIZES),
    Way(25 * MIB, overlap=False),
    Way(25 * MIB, dtype=torch.bfloat16),
)


class Made:
    """A model and what reduces it in one way."""

    def __init__(self, model: nn.Module, way: Way) -> None:
        self.gradients = Gradients(
            model, shards=1, shard_rank=0, group=None, bucket_bytes=way.bucket_bytes, reduce_dtype=way.dtype
        )
        self.hooks = Hooks(self.gradients, overlap=way.overlap)
        self.pool = ScratchPool(self.gradients.layout)

    def step(self, model: nn.Module, inputs: torch.Tensor, communicator: Communicator) -> float:
        """Seconds of a backward with its reduction."""
        self.gradients.drop()
        loss = model(inputs).sum()
        communicator.all_gather(torch.zeros(8, dtype=torch.uint8))[0].wait()  # both begin at once
        began = time.perf_counter()
        reduction = Reduction(self.gradients, self.pool.take())
        reduction.over(communicator)
        self.hooks.arm(reduction)
        loss.backward()
        self.hooks.backward_done()
        reduction.flush()
        reduction.finish(communicator, lambda: None)
        return time.perf_counter() - began


def member(place: int, address: str, width: int, steps: int, results: Any) -> None:
    """One member; the first one puts the seconds of all steps by way into `results`."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    inputs = torch.randn(32, width)
    communicator = Opening("gloo", 1, place, MEMBERS, address, "bench", 60.0).result(60.0)
    took: dict[str, list[float]] = {str(way): [] for way in WAYS}
    ways = [(str(way), Made(model, way)) for way in WAYS]
    for number in range(steps + 2):
        for name, made in ways:
            seconds = made.step(model, inputs, communicator)
            for _, other in ways:
                other.hooks.backward_done()  # each counts what fires, armed or not
            if number >= 2:  # hooks have learnt, memory is there
                took[name].append(seconds)
    communicator.close()
    if place == 0:
        results.put(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    told = parser.parse_args()
    context = get_context("spawn")
    print("| backward and reduction, ms | " + " | ".join(f"{n}: median | lowest | highest" for n in WIDTHS) + " |")
    print("|---" * (1 + 3 * len(WIDTHS)) + "|")
    columns = []
    for width in WIDTHS.values():
        rendezvous, results = Rendezvous(), context.Queue()
        arguments = (rendezvous.address, width, told.steps, results)
        processes = [context.Process(target=member, args=(place, *arguments), daemon=True) for place in range(MEMBERS)]
        for process in processes:
            process.start()
        columns.append(results.get(timeout=600))
        for process in processes:
            process.join(30)
        rendezvous.close()
    for way in map(str, WAYS):
        cells = [f"{1e3 * f(took[way]):.1f}" for took in columns for f in (statistics.median, min, max)]
        print(f"| {way} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
