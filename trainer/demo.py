"""`bellrock demo`: a run in several groups, one of them killed in the middle of a step, and the proof that all is well.

The end is judged from records, not from what was meant to happen: the agents' ledgers, the lighthouse's events, and the
digests that the ranks leave behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lighthouse.core_values import Happened
from lighthouse.program import LighthouseOptions
from trainer.commands import DemoCommand
from trainer.config import TrainConfig, to_argv
from trainer.evidence import Ledgers, Line, Tempo, amid_step, back, microbatches, not_exactly_once, parse_ledger
from trainer.launcher import BYTE_MODEL_IMPORTS, LocalPlan, LocalRun, rank_argv, standby_flags
from trainer.show import Story

LEASE_S = 5.0
"""Two cores carry seven processes: a short lease would judge the scheduler, not the groups."""

MOST_STEPS = 1000
"""The run is stopped long before, once the killed group has been back for a while."""

LOOK_S = 0.005

LONGEST_S = 240.0
"""After that the demo is given up."""

Row = tuple[str, str, bool | None]


@dataclass(frozen=True, kw_only=True)
class Records:
    """All that is known at the end of a demo."""

    config: TrainConfig
    victim: str
    killed_s: float
    """Wall clock; 0 if it did not come to that."""
    killed_step: int
    """Steps committed when it was killed."""
    happened: Sequence[Happened]
    ledgers: Ledgers
    digests: Mapping[str, tuple[str, ...]]
    """Of each group: by shard, the digest of the weights and the optimizer at the end."""
    exits: Mapping[str, int]


def judge(records: Records) -> list[Row]:
    """The rows of the table at the end: (what, value, whether it held)."""
    victim, killed_s = records.victim, records.killed_s
    tempo = Tempo.of(records.happened)
    steps = max(tempo.committed_s, default=0)
    losses = [loss for _, loss in sorted(tempo.losses.items())] or [math.nan]
    returned = back(records.ledgers.get(victim, ()))
    alone = returned["step"] - 1 - records.killed_step if returned else 0
    back_words = (
        f"{returned['time_s'] - killed_s:.1f} s after the kill, in step {returned['step']}" if returned else "no"
    )
    wrong = not_exactly_once(records.ledgers, records.config.slots, steps)
    computed, twice = microbatches({name: lines for name, lines in records.ledgers.items() if name != victim})
    cost_s = tempo.cost_s(killed_s)
    digests = set(records.digests.values())
    equal = len(digests) == 1 and set(records.digests) == set(records.exits) and all(all(d) for d in digests)
    return [
        ("steps committed", str(steps), any(one.kind == "finished" for one in records.happened)),
        ("loss, first and last step", f"{losses[0]:.3f} -> {losses[-1]:.3f}", losses[-1] < losses[0]),
        ("killed by SIGKILL", f"all ranks of {victim}, amid step {records.killed_step + 1}", killed_s > 0),
        ("steps made without it", str(alone), alone > 0),
        ("seconds lost by the survivors", f"{cost_s:.2f}", not math.isnan(cost_s)),
        ("microbatches computed twice", f"{twice} of {computed}", computed > 0 and twice == 0),
        ("slots in exactly one sum", wrong[0] if wrong else f"all {steps * records.config.slots}", not wrong),
        ("full strength again", back_words, returned is not None),
        ("where that time went", _way_words(records), None),
        ("digests of weights and optimizer", _digest_words(records.digests), equal),
        ("exit codes of the groups", _exit_words(records.exits), not any(records.exits.values())),
    ]


def _way_words(records: Records) -> str:
    """By part, the seconds from the new start of the victim's ranks to their first contribution."""
    ways = [one for one in records.happened if one.kind == "contributes" and one.group == records.victim]
    parts = ways[-1].fields if ways and ways[-1].time_s > records.killed_s > 0 else {}
    names = ("start", "import", "build", "transfer", "replay", "switch")
    return "\n".join(f"{name:<9}{float(parts[f'{name}_s']):6.2f} s" for name in names if parts)


def _digest_words(digests: Mapping[str, tuple[str, ...]]) -> str:
    return "\n".join(f"{name} {' '.join(shards)}" for name, shards in sorted(digests.items())) or "none"


def _exit_words(exits: Mapping[str, int]) -> str:
    return " ".join(f"{name}: {code}" for name, code in exits.items())


class Demo:
    """One demonstration; `run` carries it out and returns its records."""

    def __init__(self, command: DemoCommand, folder: Path, environ: Mapping[str, str], console: Console) -> None:
        self._folder = folder
        self._console = console
        self._kill_step = command.kill_step
        self._steps_after = command.steps_after
        self._stop_file = folder / "stop"
        self._config = TrainConfig(
            steps=MOST_STEPS,
            slots=2 * command.groups,  # two for each group, so that there is a middle of a step
            stop_file=str(self._stop_file),
            finals=str(folder),
        )
        self._names = tuple(f"g{i}" for i in range(command.groups))
        self._victim = self._names[1]
        self._shards = command.shards
        self._standbys = command.shards if command.standby == "warm" else 0
        self._story = Story(console, time.time())
        self._happened: list[Happened] = []
        self._killing: asyncio.Task[None] | None = None
        self._killed_s = 0.0
        self._killed_step = 0
        plan = LocalPlan(
            folder=folder,
            names=self._names,
            shards=command.shards,
            lighthouse=LighthouseOptions(run_id="demo", groups_wanted=command.groups, lease_s=LEASE_S, port=0),
            group_flags=standby_flags(command.standby, BYTE_MODEL_IMPORTS),
            command=tuple(rank_argv(*to_argv(self._config))),
            quiet=not command.verbose,
            environ=environ,
        )
        self._run = LocalRun(plan, console.print)

    async def run(self) -> Records:
        """Starts everything, kills, waits for the end, and leaves nothing running."""
        exits: Mapping[str, int] = dict.fromkeys(self._names, -1)
        try:
            async with asyncio.timeout(LONGEST_S):
                exits = await self._run.carry_out(self._saw)
        except TimeoutError:
            self._console.print(f"The run did not end within {LONGEST_S:.0f} s; giving up.", style="bold red")
        return Records(
            config=self._config,
            victim=self._victim,
            killed_s=self._killed_s,
            killed_step=self._killed_step,
            happened=self._happened,
            ledgers={name: read_ledger(self._folder, name) for name in self._names},
            digests={name: read_finals(self._folder, name, self._shards) for name in self._names},
            exits=exits,
        )

    def _saw(self, one: Happened) -> None:
        self._happened.append(one)
        self._story.tell(one)
        if one.kind != "step":
            return
        if self._killing is None:
            if one.version.step >= self._kill_step:
                self._killing = asyncio.create_task(self._kill())
        elif self._killed_s and not self._stop_file.exists():
            returned = back(read_ledger(self._folder, self._victim))
            if returned is not None and one.version.step >= returned["step"] + self._steps_after:
                self._story.say(time.time(), "stop", "is asked for: the killed group has been back for a while", "")
                self._stop_file.touch()

    async def _kill(self) -> None:
        """SIGKILL to every rank of the victim, as soon as it is seen in the middle of a step."""
        agent_pid = self._run.agent_pid(self._victim)
        while len(ranks_of(agent_pid, standby=True)) < self._standbys:
            await asyncio.sleep(10 * LOOK_S)
        while (step := amid_step(read_ledger(self._folder, self._victim))) is None:
            await asyncio.sleep(LOOK_S)
        ranks = ranks_of(agent_pid)
        self._killed_step, self._killed_s = step, time.time()
        for pid in ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        words = f"to all ranks of {self._victim} {ranks}, amid step {step + 1}"
        self._story.say(self._killed_s, "SIGKILL", words, "bold white on red")


def ranks_of(agent_pid: int, *, standby: bool = False) -> list[int]:
    """Process ids of the ranks that an agent started, or of its standbys that are ready (Linux: from /proc)."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                # The command in parentheses may hold anything; behind it come the state and the parent.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                ours = parent == agent_pid and b"BELLROCK_SHARD_RANK=" in (entry / "environ").read_bytes()
                name = (entry / "comm").read_text().strip()
                if ours and (name == "standby" if standby else not name.startswith("standby")):
                    found.append(int(entry.name))
    return sorted(found)


def read_ledger(folder: Path, name: str) -> list[Line]:
    """A group's ledger; empty if it wrote none."""
    path = folder / f"{name}.ledger"
    return parse_ledger(path.read_text()) if path.exists() else []


def read_finals(folder: Path, name: str, shards: int) -> tuple[str, ...]:
    """By shard, the digest that the rank left at the end; "" where it left none."""
    paths = [folder / f"{name}.{shard_rank}.final" for shard_rank in range(shards)]
    return tuple(json.loads(path.read_text())["digest"] if path.exists() else "" for path in paths)
