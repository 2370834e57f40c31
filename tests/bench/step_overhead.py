"""Table 1: what a step costs more than that of a plain job, nothing failing.

For each size and shape a plain job, torchft's and Bellrock's are alive at once, and do blocks of a few steps in turn:
see `bench.turns`. All train the same model on microbatches of the same size with the same optimizer and clip the
gradient; every rank has one thread.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.children import PROGRAMS, BellrockRun, Children, stage, torchft_lighthouse
from bench.measure import Rounds, Spread, interleave, ratios
from bench.tables import Table
from bench.turns import Conductor

from replica.ranks import free_port

PLAIN, TORCHFT, BELLROCK = "plain", "torchft", "bellrock"
GROUPS = 2
TARGETS = {"1M": 1.05, "25M": 1.02}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured. rounds: turns of each job; steps: of each turn; warm_up: turns before that."""

    rounds: int
    steps: int
    warm_up: int = 2


PLANS = {"1M": Plan(rounds=24, steps=8), "25M": Plan(rounds=12, steps=3)}
QUICK = {"1M": Plan(rounds=5, steps=5, warm_up=1), "25M": Plan(rounds=3, steps=2, warm_up=1)}


def measure(size: str, shards: int, plan: Plan, python: Path | None) -> Rounds:
    """Seconds a step in each round: of the plain job, of torchft's (one shard, and if there is its Python), of ours."""
    with stage() as (children, turns):
        start_plain(children, turns, size, shards)
        expected = {f"{PLAIN}/{rank}" for rank in range(GROUPS * shards)}
        start_bellrock(children, turns, size, shards)
        expected |= {f"{BELLROCK}/g{group}.{rank}" for group in range(GROUPS) for rank in range(shards)}
        if python is not None and shards == 1:
            start_torchft(children, turns, size, python)
            expected |= {f"{TORCHFT}/g{group}" for group in range(GROUPS)}
        turns.wait_for(expected, 120.0)
        jobs = sorted({name.partition("/")[0] for name in expected}, reverse=True)
        return interleave(
            {job: partial(turns.seconds, job, plan.steps) for job in jobs}, plan.rounds, warm_up=plan.warm_up
        )


def start_plain(children: Children, turns: Conductor, size: str, shards: int) -> None:
    """One gloo job of as many ranks as the others have in all their groups."""
    world, port = GROUPS * shards, free_port("127.0.0.1")
    for rank in range(world):
        variables = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        arguments = (turns.path, PLAIN, size, str(shards))
        told = {key: str(value) for key, value in variables.items()}
        children.program(f"{PLAIN}.{rank}", sys.executable, "plain_job.py", *arguments, **told)


def start_bellrock(children: Children, turns: Conductor, size: str, shards: int) -> None:
    """A run of two groups."""
    run = BellrockRun(children, BELLROCK, "--groups-wanted", str(GROUPS), "--min-groups", str(GROUPS))
    job = PROGRAMS / "bellrock_job.py"
    for group in range(GROUPS):
        run.group(f"g{group}", shards, [sys.executable, job, turns.path, BELLROCK, size, str(GROUPS)])


def start_torchft(children: Children, turns: Conductor, size: str, python: Path) -> None:
    """Two replica groups of torchft, with its defaults."""
    address = torchft_lighthouse(children, f"{TORCHFT}.lighthouse", python)
    for group in range(GROUPS):
        arguments = (turns.path, TORCHFT, size, str(group), address)
        children.program(f"{TORCHFT}.g{group}", python, "torchft_job.py", *arguments)


def table(quick: bool, python: Path | None, sizes: tuple[str, ...] = ("1M", "25M")) -> Table:
    """Measures all of it."""
    rows: list[list[str | int | Spread]] = []
    targets: list[tuple[str, bool | None]] = []
    for size in sizes:
        for shards in (1, 2) if not quick or size == "1M" else (1,):
            plan = (QUICK if quick else PLANS)[size]
            rounds = measure(size, shards, plan, python)
            ours = ratios(rounds, BELLROCK, PLAIN)
            theirs = ratios(rounds, TORCHFT, PLAIN) if TORCHFT in rounds else "–"
            plain_ms = Spread.of((1e3 * s for s in rounds[PLAIN]), digits=0)
            shape = f"{GROUPS} × {shards}"
            rows.append([f"{size}", shape, "DDP" if shards == 1 else "HSDP", plain_ms, theirs, ours])
            words = f"Bellrock at {size}, {shape}, at most {TARGETS[size]} × plain"
            targets.append((words, ours.median <= TARGETS[size]))
    return Table(
        number=1,
        title="What a step costs when nothing fails",
        command="make bench ONLY=steps",
        text="Seconds of a step over those of a plain job's, in the same round; blocks of a few steps in turn, all "
        "jobs alive at once. Two groups on two cores.",
        columns=[
            "parameters",
            "groups × shards",
            "plain is",
            "a plain step, ms",
            "torchft / plain",
            "Bellrock / plain",
        ],
        rows=rows,
        targets=targets,
        notes=[
            "torchft with its DistributedDataParallel and its defaults; it has no wrapper of its own for groups of "
            "several shards",
        ],
    )
