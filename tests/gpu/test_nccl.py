"""Communicators over NCCL. One GPU cannot hold two ranks: with one, only what needs no peer is tested."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from replica.communicator import CommunicatorLost, Opening, Rendezvous

GPUS = torch.cuda.device_count() if dist.is_nccl_available() else 0
pytestmark = pytest.mark.timeout(300)
needs_one = pytest.mark.skipif(GPUS < 1, reason="no GPU, or a torch without NCCL")
needs_two = pytest.mark.skipif(GPUS < 2, reason="fewer than two GPUs")

MEMBER = """
import os, sys
place, address = int(sys.argv[1]), sys.argv[2]
from replica.environment import NCCL_ENVIRONMENT
os.environ.update(NCCL_ENVIRONMENT)
import torch
from replica.communicator import CommunicatorLost, Opening
torch.cuda.set_device(place)
opened = Opening("nccl", 1, place, 2, address, "run/1/0", 120).result(120)
tensor = torch.full((1001,), place + 1.0, device="cuda")
opened.all_reduce(tensor).wait(60)
assert bool((tensor == 3).all())
pending, matrix = opened.all_gather(torch.full((256,), place + 1, dtype=torch.uint8))
pending.wait(60)
assert matrix[:, 7].tolist() == [1, 2]
print("works", flush=True)
if place == 0:
    stuck = opened.all_reduce(torch.ones(1001, device="cuda"))
    opened.abandon("enough")
    try:
        stuck.wait(60)
    except CommunicatorLost:
        print("lost", flush=True)
else:
    sys.stdin.read()
os._exit(0)
"""


@pytest.mark.skipif(GPUS > 0, reason="there is a GPU")
def test_without_a_gpu_the_error_says_what_to_change() -> None:
    with pytest.raises(ValueError, match="gloo"):
        Opening("nccl", 1, 0, 1, "", "", 1)


@needs_one
def test_alone() -> None:
    opened = Opening("nccl", 1, 0, 1, "", "", 10).result(10)
    tensor = torch.ones(10, device="cuda")
    opened.all_reduce(tensor).wait()
    pending, matrix = opened.all_gather(torch.ones(5, dtype=torch.uint8))
    pending.wait()
    assert matrix.sum() == 5 and tensor.sum() == 10


@needs_one
def test_opening_is_abandoned_while_a_peer_never_comes() -> None:
    rendezvous = Rendezvous()
    alone = Opening("nccl", 1, 0, 2, rendezvous.address, "run/1/0", 60)
    alone.abandon("not needed")
    with pytest.raises(CommunicatorLost, match="not needed"):
        alone.result(10)
    rendezvous.close()


@needs_two
def test_two_members_sum_gather_and_abandon() -> None:
    rendezvous = Rendezvous()
    members = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(place), rendezvous.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        for place in range(2)
    ]
    try:
        out, _ = members[0].communicate(timeout=200)
        assert out == "works\nlost\n"
    finally:
        for member in members:
            member.kill()
            with contextlib.suppress(ValueError):
                member.communicate()
        rendezvous.close()
