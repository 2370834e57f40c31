"""What a rank learns from its environment: the one place where that is read, and the one where it is written.

Names are `BELLROCK_…`, and beside them what torch's `env://` reads, so that a program which knows nothing of Bellrock
can still make its in-group process group. `MASTER_PORT` is a port that was free a moment before; a life that finds it
taken fails and is started again with another. `BELLROCK_INIT_METHOD` has no such race: a file of this life alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass

from lighthouse.deadlines import KNOBS, Knobs


class NotARankError(Exception):
    """This process was not started by an agent, or by one of another version; the message says what is missing."""


@dataclass(frozen=True, kw_only=True)
class RankEnvironment:
    """A rank's place in its group, and how it reaches its agent."""

    agent: str
    """Address of the agent's Attach listener: "unix:path" or "host:port"."""
    token_file: str
    """File with the run's token, which Attach and the ranks' own listeners ask for."""
    run_id: str
    """The run."""
    group: str
    """Name of the group."""
    shard_rank: int
    """This rank's place in the group, from 0."""
    shards: int
    """Ranks in the group."""
    bind: str = "127.0.0.1"
    """Interface that this rank's own listeners and communicators use."""
    life: int = 1
    """How often the agent has started its ranks, this time included."""
    marks_file: str = ""
    """Where marks lie that the agent is not woken for (`shelf.py`); "": nowhere."""
    init_method: str = ""
    """For `init_process_group` of the in-group process group: a "file://" URL of this life alone."""
    master_port: int = 0
    """A port that was free on `bind` when the rank was started, for torch's `env://`."""
    begun_s: float = 0.0
    """When the rank's program began to run, in seconds of the host's monotonic clock; 0.0 if that was not told."""
    warm: bool = False
    """It began in a standby."""
    knobs: Knobs = Knobs()
    """What this rank's deadlines follow from, until its agent says otherwise."""

    def __post_init__(self) -> None:
        if not 0 <= self.shard_rank < self.shards:
            raise NotARankError(
                f"BELLROCK_SHARD_RANK is {self.shard_rank} of BELLROCK_SHARDS {self.shards}: it must be below"
            )


def read_environment(environ: Mapping[str, str]) -> RankEnvironment:
    """What the agent wrote into `environ`. Raises NotARankError, for people."""
    missing = [name for name in _TEXTS | _NUMBERS if name not in environ and name not in _OPTIONAL]
    if missing:
        raise NotARankError(
            f"{', '.join(missing)} not set: start this program with `bellrock group … -- COMMAND`, which sets it"
        )
    fields: dict[str, str | float] = {field: environ[name] for name, field in _TEXTS.items() if name in environ}
    for name, field in _NUMBERS.items():
        if name in environ:
            try:
                fields[field] = int(environ[name])
            except ValueError:
                raise NotARankError(f"{name} is {environ[name]!r}: it must be a whole number") from None
    begun_s, _, how = environ.get(BEGUN_VARIABLE, "").partition(" ")
    with contextlib.suppress(ValueError):
        fields["begun_s"], fields["warm"] = float(begun_s), how == "warm"
    return RankEnvironment(**fields, knobs=_knobs(environ.get(_DEADLINES, "")))  # type: ignore[arg-type]


def _knobs(text: str) -> Knobs:
    try:
        return Knobs(**dict(zip(KNOBS, map(float, text.split()), strict=True))) if text else Knobs()
    except ValueError as wrong:
        raise NotARankError(f"{_DEADLINES} is {text!r}: it must be {' '.join(KNOBS)} ({wrong})") from None


NCCL_ENVIRONMENT = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
    "NCCL_RUNTIME_CONNECT": "0",
}
"""What torch and NCCL must find when the first process group of a rank is made; see replica/nccl.py.

In order: an error of a peer ends nothing here, nor does a watchdog that is late; nothing is dumped, and the watchdog
does not sleep four times so long over a dump (15 s by default) while its group cannot be destroyed; a wait orders
streams and blocks nobody; all channels are connected while opening, not in the first collective, amid the switch.
"""


def write_environment(rank: RankEnvironment) -> dict[str, str]:
    """The variables that tell a rank what it is, torch's own ones included."""
    ours = {name: str(getattr(rank, field)) for name, field in (_TEXTS | _NUMBERS).items()}
    return {
        **ours,
        **NCCL_ENVIRONMENT,
        _DEADLINES: " ".join(str(getattr(rank.knobs, name)) for name in KNOBS),
        "MASTER_ADDR": rank.bind,
        "RANK": str(rank.shard_rank),
        "LOCAL_RANK": str(rank.shard_rank),
        "WORLD_SIZE": str(rank.shards),
        "LOCAL_WORLD_SIZE": str(rank.shards),
        "GROUP_RANK": "0",
    }


_DEADLINES = "BELLROCK_DEADLINES"
_TEXTS = {
    "BELLROCK_AGENT": "agent",
    "BELLROCK_TOKEN_FILE": "token_file",
    "BELLROCK_RUN_ID": "run_id",
    "BELLROCK_GROUP": "group",
    "BELLROCK_BIND": "bind",
    "BELLROCK_MARKS_FILE": "marks_file",
    "BELLROCK_INIT_METHOD": "init_method",
}
_NUMBERS = {
    "BELLROCK_SHARD_RANK": "shard_rank",
    "BELLROCK_SHARDS": "shards",
    "BELLROCK_LIFE": "life",
    "MASTER_PORT": "master_port",
}
_OPTIONAL = {"BELLROCK_BIND", "BELLROCK_MARKS_FILE", "BELLROCK_INIT_METHOD", "BELLROCK_LIFE", "MASTER_PORT"}
BEGUN_VARIABLE = "BELLROCK_BEGUN"
"""Set by whoever runs a rank's program, just before: seconds of the monotonic clock, and "cold" or "warm"."""
OF_ONE_LIFE = frozenset(
    {"BELLROCK_AGENT", "BELLROCK_MARKS_FILE", "BELLROCK_INIT_METHOD", "BELLROCK_LIFE", "MASTER_PORT"}
)
"""Variables that differ from one start of the ranks to the next."""
