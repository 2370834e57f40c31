"""Shards are told from plain tensors, and nobody imports what makes them who has none."""

from __future__ import annotations

import subprocess
import sys

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from replica.sharded import dtensor_type, is_dtensor, is_fsdp


def test_a_rank_without_shards_does_not_import_sharding() -> None:
    look = "import sys, replica.api, replica.assembly; print(*(name for name in sys.argv[1:] if name in sys.modules))"
    heavy = ("torch.distributed.tensor", "torch.distributed.fsdp", "torch._dynamo", "sympy")
    done = subprocess.run([sys.executable, "-c", look, *heavy], capture_output=True, check=True, text=True)
    assert done.stdout == "\n"


def test_what_is_not_sharded_is_seen_to_be_so_once_something_could_be() -> None:
    assert dtensor_type() is DTensor
    assert not is_dtensor(torch.ones(2)) and not is_fsdp(nn.Linear(2, 2))
