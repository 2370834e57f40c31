"""Data sets of your own, and a batch that grows with its groups. Start it once for each group:

bellrock group --name g0 -- python docs/example_data.py
bellrock group --name g0 -- python docs/example_data.py --stream

It learns y = sin(3x) as example_train.py does; here the samples come from a map-style data set that a worker process
reads ahead, or from an iterable one with a cursor. The run ends when they were gone through twice.
"""

import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from replica import Replica

SAMPLES = 480
PASSES = 2
SEED = 1

Sample = tuple[torch.Tensor, torch.Tensor]


class Sines(Dataset[Sample]):
    """Map-style: Bellrock says which index comes when, in another order for each pass."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Sample:
        x = torch.rand(1, generator=torch.Generator().manual_seed(index)) * 2 - 1
        return x, torch.sin(3 * x)


class Stream:
    """Iterable: it says itself what comes when. What follows is a function of the cursor alone, shuffling included."""

    def __init__(self) -> None:
        self._sines, self._cursor = Sines(), 0

    def seek(self, cursor: int) -> None:
        """Samples that the whole run consumed before those that come next."""
        self._cursor = cursor

    def __iter__(self) -> Iterator[Sample]:
        order, known = torch.empty(0), -1
        for place in range(self._cursor, PASSES * SAMPLES):
            epoch, index = divmod(place, SAMPLES)
            if epoch != known:
                order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(SEED + epoch))
                known = epoch
            yield self._sines[int(order[index])]


def main(stream: bool) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    replica = Replica(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        slots_per_group=2,  # each contributing group brings two microbatches: elastic
        slot_size=8,
        dataset_length=None if stream else SAMPLES,
        samples=PASSES * SAMPLES,  # the data is through then; for a map-style one, epochs=PASSES says the same
        seed=SEED,
        data="stream" if stream else "map",  # must be equal in all groups
    )
    data = replica.data(Stream()) if stream else replica.data(Sines(), workers=1)
    for step in replica.steps():
        for _slot, (xs, ys) in data.batches(step):
            step.backward(((model(xs) - ys) ** 2).sum(), len(xs))
        step.apply()
        if step.result and step.number % 10 == 0:
            print(f"step {step.number}: loss {step.result.loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main("--stream" in sys.argv)
