"""Staging from a GPU: on a side stream, into pinned memory, and of its version whatever is done to the state next."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lighthouse.values import Version
from replica.digest import digests
from replica.entry import EntryLog
from replica.snapshot import Room, Snapshot
from replica.state import TrainingState
from replica.transfer_client import load_snapshot
from replica.transfer_server import WeightServer

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
TOKEN = b"a secret of the run"


def state(seed: int) -> TrainingState:
    torch.manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(8))).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.ones(2, 2048, device="cuda")).square().sum().backward()
    optimizer.step()
    return TrainingState(model, optimizer)


@pytest.mark.parametrize("room", [False, True])
def test_a_snapshot_is_of_its_version_though_the_state_is_written_at_once(room: bool) -> None:
    donor, joiner = state(1), state(2)
    expected = digests(donor)
    made = Room(donor) if room else None
    torch.cuda.synchronize()
    snapshot = Snapshot.stage(donor, Version(12, 3), 96, False, room=made)
    assert all(run.is_pinned() for _, run in snapshot._runs)
    snapshot.fence()
    for tensor in donor.flatten()[0].values():
        if tensor.is_floating_point():
            tensor.add_(1)  # on the present stream, with no wait of the host
    log = EntryLog()
    server = WeightServer("127.0.0.1", TOKEN, log)
    try:
        server.stage(7, snapshot)
        load_snapshot([server.address], 7, joiner, TOKEN)
    finally:
        server.close()
    torch.cuda.synchronize()
    assert digests(joiner) == expected != digests(donor)
