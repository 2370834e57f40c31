"""What a program or its start gets wrong before there is an agent to talk to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from replica import MisuseError, Replica
from replica.environment import RankEnvironment


@pytest.fixture
def environment(tmp_path: Path) -> RankEnvironment:
    token = tmp_path / "token"
    token.write_text("a-token")
    return RankEnvironment(agent="127.0.0.1:1", token_file=str(token), run_id="run", group="g", shard_rank=0, shards=2)


def make(environment: RankEnvironment | None, **changed: Any) -> Replica:
    model = nn.Linear(2, 2)
    told = {
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "slots": 2,
        "slot_size": 4,
        "seed": 0,
        "steps": 3,
        "environment": environment,
    }
    return Replica(**{**told, **changed})


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"optimizer": None}, "no optimizer"),
        ({"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)}, "after fully_shard"),
        ({"slot_size": 3}, "not divisible by the 2 shards"),
        ({"slots": 0}, "slots is 0"),
        ({"reduce_dtype": "fp8"}, "must be fp32 or bf16"),
        ({"dataset_length": 0}, "dataset_length is 0"),
        ({"slots_per_group": 2}, "either slots"),
        ({"slots": None}, "either slots"),
        ({"steps": None}, "nothing says when the run ends"),
        ({"epochs": 1, "samples": 40, "dataset_length": 40}, "give one of them"),
        ({"epochs": 1, "dataset_length": None}, "give dataset_length too"),
        ({"samples": 3}, "no step can be made"),
        ({}, "init_process_group"),
    ],
)
def test_what_cannot_be_is_refused(environment: RankEnvironment, changed: dict[str, Any], says: str) -> None:
    with pytest.raises(MisuseError, match=says):
        make(environment, **changed)


def test_a_program_that_no_agent_started_is_told_how_to_start() -> None:
    with pytest.raises(MisuseError, match="bellrock group"):
        make(None)
