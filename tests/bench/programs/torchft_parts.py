"""The parts of a torchft job that the benchmarks share.

Annotations are evaluated here: DistributedDataParallel looks at those of its hook.
"""

import logging
from datetime import timedelta

import torch
from torch import distributed as dist
from torch import nn
from torchft.ddp import DistributedDataParallel
from torchft.manager import Manager
from torchft.process_group import ProcessGroupGloo


class CorrectedDDP(DistributedDataParallel):
    """torchft's wrapper, with a hook that survives a step with an error.

    In 0.2.0 the hook returns the inner future of what `allreduce` gave, which there is not where a collective of the
    step has failed: the survivors of a loss in the middle of backward end with an AssertionError or AttributeError.
    Here it then returns one that is complete, with whatever is in the bucket: the step is discarded anyway.
    """

    @staticmethod
    def _comm_hook(state: Manager, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        work = state.allreduce(bucket.buffer())
        work.wait()
        inner: torch.futures.Future[torch.Tensor] | None = getattr(work.get_future(), "_fut", None)
        if inner is None:
            inner = torch.futures.Future()
            inner.set_result(bucket.buffer())
        return inner


def make_manager(
    model: nn.Module, optimizer: torch.optim.Optimizer, group: str, lighthouse: str, timeout_s: float
) -> Manager:
    """A manager over gloo for a group of one rank; timeout_s: of everything that it gives a timeout for."""
    logging.disable(logging.INFO)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    timeout = timedelta(seconds=timeout_s)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timeout),
        load_state_dict=lambda state: (
            model.load_state_dict(state["model"]),
            optimizer.load_state_dict(state["optim"]),
        ),
        state_dict=lambda: {"model": model.state_dict(), "optim": optimizer.state_dict()},
        min_replica_size=1,
        timeout=timeout,
        quorum_timeout=timeout,
        connect_timeout=timeout,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        replica_id=group,
        hostname="127.0.0.1",
    )
    manager._kept_store = store
    return manager
