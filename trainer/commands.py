"""The flags of each `bellrock` command, as values. A docstring under a field is the help of its flag.

Relations between flags are checked when a value is made, so a wrong command line ends before anything was started. The
lighthouse's own options are its package's; these are those of the other commands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from lighthouse.deadlines import DEFAULTS, Knobs, derive
from lighthouse.program import LighthouseOptions
from trainer.config import FixTheConfiguration, TrainConfig, flag

Train = Annotated[TrainConfig, tyro.conf.arg(name="")]

DEFAULT_ADDRESS = f"127.0.0.1:{LighthouseOptions.port}"
DEFAULT_RUN = "default"


@dataclass(frozen=True, kw_only=True)
class StatusCommand:
    """Prints the quorum of a run: its generation, its version, and how each group stands."""

    lighthouse: str = DEFAULT_ADDRESS
    """Address of the run's lighthouse, host:port."""
    run_id: str = ""
    """The run, if the lighthouse leads several."""
    token_file: Path | None = None
    """File with the run's token; by default as for `bellrock group`."""

    def __post_init__(self) -> None:
        check_address(self.lighthouse)


@dataclass(frozen=True, kw_only=True)
class ColdStartCommand:
    """Has a run that holds go on from the newest weights that are here, though others may have newer ones, or be at
    work out of reach: what they have made since is dropped, and they heal when they are back. For someone who knows
    that those the run waits for are gone."""

    lighthouse: str = DEFAULT_ADDRESS
    """Address of the run's lighthouse, host:port."""
    run_id: str = ""
    """The run, if the lighthouse leads several."""
    token_file: Path | None = None
    """File with the run's token; by default as for `bellrock group`."""
    by: str = "an operator"
    """Who wants it: kept with the incident."""

    def __post_init__(self) -> None:
        check_address(self.lighthouse)


@dataclass(frozen=True, kw_only=True)
class SkipSlotCommand:
    """Has a run that holds for a slot which was in hand at two deaths commit the step without it. The samples of that
    slot are not trained on; ledgers and events name it. For someone who has looked at why the ranks died."""

    lighthouse: str = DEFAULT_ADDRESS
    """Address of the run's lighthouse, host:port."""
    run_id: str = ""
    """The run, if the lighthouse leads several."""
    token_file: Path | None = None
    """File with the run's token; by default as for `bellrock group`."""
    by: str = "an operator"
    """Who wants it: kept with the incident."""

    def __post_init__(self) -> None:
        check_address(self.lighthouse)


@dataclass(frozen=True, kw_only=True)
class GroupCommand:
    """Runs one replica group: an agent and its ranks. Behind a bare `--`: the command of a rank, in place of the byte
    model's program."""

    name: str
    """Name of the group, one for each in a run; started twice, the newer wins and the older ends."""
    shards: int = 1
    """Ranks in the group; each holds its part of one copy of the model."""
    train: Train = field(default_factory=TrainConfig)
    lighthouse: str = DEFAULT_ADDRESS
    """Address of the run's lighthouse, host:port."""
    run_id: str = DEFAULT_RUN
    """Name of the run: groups of one name train together."""
    token_file: Path | None = None
    """File with the run's token. Without it: the text in BELLROCK_TOKEN, or the file that BELLROCK_TOKEN_FILE names, or
    ~/.local/state/bellrock/token, where the lighthouse of this machine puts it."""
    folder: Path | None = None
    """Where the group's ledger lies; ~/.local/state/bellrock/RUN_ID by default."""
    bind: str = "127.0.0.1"
    """Interface that the ranks listen and connect on. Give one that the other groups' machines reach."""
    restart_limit: int = 3
    """So many identical failures of the ranks in a row end the group."""
    standby: Literal["none", "warm"] = "warm"
    """warm: for each rank, keep a process that has imported torch and waits, so that ranks that died are back sooner.
    It takes about 230 MB of host memory, no GPU, and is made while all is well. Needs a command that runs Python."""
    standby_imports: tuple[str, ...] = ()
    """Modules that a warm standby imports besides torch and replica: those that your program spends time on."""
    lease_s: float | None = None
    """Deadlines are the lighthouse's, and taken from it. If this is given and the lighthouse has another, the group
    ends, saying so."""
    stall_patience_s: float | None = None
    """As --lease-s."""
    connect_s: float | None = None
    """As --lease-s; before, it is also how long the group tries to reach a lighthouse: 60 s if nothing is said."""
    explain: bool = False
    """Print all deadlines, what they follow from, and what happens when they run out; then go on."""
    verbose: bool = False
    """Log every message and decision of the agent."""

    def __post_init__(self) -> None:
        check_address(self.lighthouse)
        for name in ("name", "run_id"):
            if not getattr(self, name):
                raise FixTheConfiguration(f"{flag(name)} is empty: give a name.")
        for name in ("shards", "restart_limit"):
            if getattr(self, name) < 1:
                raise FixTheConfiguration(f"{flag(name)} is {getattr(self, name)}: give 1 or more.")


@dataclass(frozen=True, kw_only=True)
class RunCommand:
    """Runs a lighthouse and several groups on this machine, until the run is finished or Ctrl-C drains it. Behind a
    bare `--`: the command of a rank, in place of the byte model's program."""

    groups: int = 3
    """Replica groups, named g0, g1, …"""
    shards: int = 2
    """Ranks in each group."""
    train: Train = field(default_factory=TrainConfig)
    min_groups: int = 1
    """With fewer groups at the newest weights the run holds, and says so."""
    contributors: int = 0
    """Groups beyond this number are kept as spares; 0 means that all contribute."""
    allowed_groups: str = ""
    """Counts of contributing groups that are allowed, as in 1,2,4; what is surplus is a spare. Empty allows any."""
    lease_s: float = 5.0
    """A group that was not heard of for so long is lost. Long, because all groups share this machine's cores."""
    stall_patience_s: float = DEFAULTS.knobs.stall_patience_s
    """Seconds without a step after which who the others wait for is evicted: see bellrock lighthouse --help."""
    connect_s: float = DEFAULTS.knobs.connect_s
    """Seconds to wait for others that should be there."""
    explain: bool = False
    """Print all deadlines, what they follow from, and what happens when they run out; then go on."""
    restart_limit: int = 3
    """So many identical failures of a group's ranks in a row end that group."""
    standby: Literal["none", "warm"] = "none"
    """As for `bellrock group`; none, because all groups share this machine's cores."""
    port: int = 0
    """Port of the lighthouse; 0 takes a free one."""
    folder: Path | None = None
    """Where token, store, ledgers and journals are kept; a new temporary folder by default. With the folder of an
    earlier run, that run goes on."""
    quiet: bool = False
    """Agents and ranks print to files in the folder, not here."""

    def __post_init__(self) -> None:
        for name in ("groups", "shards", "min_groups", "restart_limit"):
            if getattr(self, name) < 1:
                raise FixTheConfiguration(f"{flag(name)} is {getattr(self, name)}: give 1 or more.")
        if self.min_groups > self.groups:
            raise FixTheConfiguration(
                f"--min-groups {self.min_groups} is above --groups {self.groups}: the run could never begin."
            )
        derive(self.knobs)

    @property
    def knobs(self) -> Knobs:
        """The three deadlines from which all others are derived. Raises ValueError where they contradict each other."""
        return Knobs(lease_s=self.lease_s, stall_patience_s=self.stall_patience_s, connect_s=self.connect_s)


@dataclass(frozen=True, kw_only=True)
class DemoCommand:
    """Shows what Bellrock is for: trains in several groups on this machine, kills one in the middle of a step, watches
    it come back, and checks at the end that nothing was lost. Takes about a minute on two cores."""

    groups: int = 3
    """Replica groups."""
    shards: int = 2
    """Ranks in each group."""
    kill_step: int = 8
    """The group is killed in the middle of a step, once this many were committed."""
    steps_after: int = 10
    """The run goes on for so many steps once the killed group is at full strength again."""
    folder: Path | None = None
    """Where everything is kept; by default a new folder that is removed again if all is well."""
    standby: Literal["none", "warm"] = "none"
    """warm: keep processes ready in which killed ranks begin again. The kill waits for them, and two cores need a
    while to make them."""
    verbose: bool = False
    """Show what agents and ranks print too."""

    def __post_init__(self) -> None:
        if self.groups < 2:
            raise FixTheConfiguration(f"--groups is {self.groups}: one is killed, others must survive; give 2 or more.")
        if self.shards < 1:
            raise FixTheConfiguration(f"--shards is {self.shards}: give 1 or more.")
        if not 2 <= self.kill_step <= 100:
            raise FixTheConfiguration(f"--kill-step is {self.kill_step}: give 2 to 100.")
        if not 1 <= self.steps_after <= 100:
            raise FixTheConfiguration(f"--steps-after is {self.steps_after}: give 1 to 100.")


@dataclass(frozen=True, kw_only=True)
class ReplayCommand:
    """Feeds the journal of a lighthouse or of an agent to its pure core again, and prints what it decides otherwise
    today."""

    file: Annotated[Path, tyro.conf.Positional]
    """The journal: of a lighthouse the file beside its store, named STORE.journal; of an agent what --journal named."""
    turns: bool = False
    """Print every event and what followed from it."""


_ForPeople = StatusCommand | ColdStartCommand | SkipSlotCommand | ReplayCommand
Command = LighthouseOptions | GroupCommand | RunCommand | DemoCommand | _ForPeople


def command_line(lighthouse: LighthouseOptions) -> Any:
    """The type that tyro parses into a `Command`; `lighthouse`: the defaults of that one."""
    sub = tyro.conf.subcommand
    leads = "Leads runs: keeps their membership, and tells every group what it needs to know."
    return (
        Annotated[LighthouseOptions, sub("lighthouse", description=leads, default=lighthouse, prefix_name=False)]
        | Annotated[GroupCommand, sub("group", prefix_name=False)]
        | Annotated[RunCommand, sub("run", prefix_name=False)]
        | Annotated[DemoCommand, sub("demo", prefix_name=False)]
        | Annotated[StatusCommand, sub("status", prefix_name=False)]
        | Annotated[ColdStartCommand, sub("cold-start", prefix_name=False)]
        | Annotated[SkipSlotCommand, sub("skip-slot", prefix_name=False)]
        | Annotated[ReplayCommand, sub("replay", prefix_name=False)]
    )


def check_address(address: str) -> None:
    """Raises FixTheConfiguration unless it is of the form host:port."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise FixTheConfiguration(f"--lighthouse {address!r} is not of the form host:port.")
