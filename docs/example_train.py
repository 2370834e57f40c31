"""A training script of your own, whole. Start it once for each group:

bellrock group --name g0 --shards 2 -- python docs/example_train.py

Bellrock starts `--shards` copies of it and sets what torch.distributed wants to know about them. It learns the function
y = sin(3x) from made-up samples; what matters is where `replica` comes in.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from replica import Replica

SAMPLES = 4096
STEPS = 30
SEED = 1


def sample(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A sample is a function of its index, as in any map-style data set."""
    x = torch.rand(1, generator=torch.Generator().manual_seed(index)) * 2 - 1
    return x, torch.sin(3 * x)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(SEED)  # every rank of every group begins with the same weights

    # The ranks of this group share one copy of the model. Other groups are none of torch's business.
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    if dist.get_world_size() > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    replica = Replica(
        model=model,
        optimizer=optimizer,
        slots=6,  # microbatches of a step, dealt to whatever groups there are
        slot_size=16,  # samples in each
        dataset_length=SAMPLES,
        seed=SEED,
        steps=STEPS,
        max_grad_norm=1.0,
        data=f"sin(3x), {SAMPLES} samples",  # must be equal in all groups, as all of the above
    )
    for step in replica.steps():
        for slot in step:  # also yields the slots of a group that just died
            xs, ys = (torch.stack(part) for part in zip(*map(sample, slot.samples), strict=True))
            loss_sum = ((model(xs) - ys) ** 2).sum()  # a sum, not a mean: Bellrock divides once, by all samples
            step.backward(loss_sum, len(xs))
        step.apply()  # clips, steps the optimizer; the same in every group
        if step.result and step.number % 10 == 0:
            print(f"step {step.number}: loss {step.result.loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
