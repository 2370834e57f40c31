"""`bellrock`: the command line. The only place that reads argv and the environment of these programs.

It imports little at the top: an agent lives beside ranks that need the machine, and `--help` should be quick.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import tyro
from rich.console import Console

from lighthouse.auth import TokenError, read_token
from lighthouse.client import NotAllowed, Unreachable, cold_start_now, skip_slot_now, status_now
from lighthouse.program import LighthouseOptions, run_lighthouse
from replica.agent import AgentOptions, run_agent
from trainer.commands import (
    ColdStartCommand,
    Command,
    DemoCommand,
    GroupCommand,
    ReplayCommand,
    RunCommand,
    SkipSlotCommand,
    StatusCommand,
    command_line,
)
from trainer.config import FixTheConfiguration, TrainConfig, to_argv
from trainer.demo import Demo, judge
from trainer.launcher import BYTE_MODEL_IMPORTS, LocalPlan, LocalRun, make_token, rank_argv, standby_flags
from trainer.replay import replay_journal
from trainer.show import Story, deadline_table, report_table, status_table

DESCRIPTION = "Bellrock keeps one synchronous training run alive while its machines die."

USAGE_ERROR = 2
INTERRUPTED = 130


def main() -> int:
    """Entry point of the console script. Returns the exit code: 2 for a command line that has to be changed."""
    arguments, command = split_command(sys.argv[1:])
    console = Console(highlight=False)
    try:
        home = state_folder(os.environ)
        lighthouse = LighthouseOptions(store=home / "lighthouse.db", token_file=token_file(None, os.environ))
        chosen = tyro.cli(command_line(lighthouse), prog="bellrock", description=DESCRIPTION, args=arguments)
        return run_command(chosen, command, os.environ, console)
    except (FixTheConfiguration, TokenError, ValueError) as wrong:
        Console(stderr=True, highlight=False).print(f"error: {wrong}", style="red", markup=False, soft_wrap=True)
        return USAGE_ERROR
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `bellrock … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def split_command(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """(our arguments, the command behind the first bare "--")."""
    if "--" not in argv:
        return list(argv), ()
    place = list(argv).index("--")
    return list(argv[:place]), tuple(argv[place + 1 :])


def run_command(chosen: Command, command: tuple[str, ...], environ: Mapping[str, str], console: Console) -> int:
    """Carries out a parsed command line; the exit code. Raises FixTheConfiguration."""
    if command and not isinstance(chosen, GroupCommand | RunCommand):
        raise FixTheConfiguration(f"A command behind -- is for `group` and `run` only: leave out {' '.join(command)}")
    match chosen:
        case LighthouseOptions():
            return lighthouse(chosen, console)
        case GroupCommand():
            return group(chosen, command, environ, console)
        case RunCommand():
            return asyncio.run(run(chosen, command, environ, console))
        case DemoCommand():
            return demo(chosen, environ, console)
        case StatusCommand():
            return status(chosen, environ, console)
        case ColdStartCommand():
            return cold_start(chosen, environ, console)
        case SkipSlotCommand():
            return skip_slot(chosen, environ, console)
        case ReplayCommand():
            return replay(chosen, console)


def state_folder(environ: Mapping[str, str]) -> Path:
    """Where tokens, stores and ledgers lie if no flag says otherwise."""
    state = environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "bellrock"


def token_file(named: Path | None, environ: Mapping[str, str]) -> Path:
    """The file with the token, whether or not it is there: from the flag, the environment, or where it lies by default.

    A token that the environment holds as text is put into a file that only this user can read, and that goes with this
    process.
    """
    if named is not None:
        return named
    if environ.get("BELLROCK_TOKEN"):
        folder = tempfile.TemporaryDirectory(prefix="bellrock-token-")
        atexit.register(folder.cleanup)
        path = Path(folder.name) / "token"
        path.touch(0o600)
        path.write_text(environ["BELLROCK_TOKEN"])
        return path
    return Path(environ.get("BELLROCK_TOKEN_FILE") or state_folder(environ) / "token")


def lighthouse(chosen: LighthouseOptions, console: Console) -> int:
    """`bellrock lighthouse`, until it is ended."""
    chosen.store.parent.mkdir(parents=True, exist_ok=True)
    if chosen.token_file is not None:
        make_token(chosen.token_file)
        console.print(f"groups need the token in {chosen.token_file}", markup=False, soft_wrap=True)
    if chosen.explain:
        console.print(deadline_table(chosen.knobs))
    return asyncio.run(run_lighthouse(chosen))


def group(chosen: GroupCommand, command: tuple[str, ...], environ: Mapping[str, str], console: Console) -> int:
    """`bellrock group`, until it is ended or the run is."""
    imports = chosen.standby_imports if command else BYTE_MODEL_IMPORTS
    command = command or byte_model(chosen.train, chosen.shards)
    folder = chosen.folder or state_folder(environ) / chosen.run_id
    options = AgentOptions(
        lighthouse=chosen.lighthouse,
        token=read_token(token_file(chosen.token_file, environ)),
        run_id=chosen.run_id,
        name=chosen.name,
        shards=chosen.shards,
        command=command,
        environ=children_environ(environ),
        bind=chosen.bind,
        ledger=folder / f"{chosen.name}.ledger",
        journal=folder / f"{chosen.name}.journal",
        restart_limit=chosen.restart_limit,
        lease_s=chosen.lease_s,
        stall_patience_s=chosen.stall_patience_s,
        connect_s=chosen.connect_s,
        standby=chosen.standby,
        standby_imports=imports,
        verbose=chosen.verbose,
    )
    if chosen.explain:
        console.print(deadline_table(options.knobs))
        console.print("These hold until the lighthouse has welcomed the group; its own do then.", soft_wrap=True)
    return asyncio.run(run_agent(options))


def byte_model(config: TrainConfig, shards: int) -> tuple[str, ...]:
    """Command of a rank of the byte model's program. Raises FixTheConfiguration here and now, where each rank would
    else say it with a traceback, as often as it is restarted."""
    from trainer.text import open_text  # with numpy, which no other command needs

    config.check_shards(shards)
    open_text(config.data, config.context)
    return tuple(rank_argv(*to_argv(config)))


async def run(chosen: RunCommand, command: tuple[str, ...], environ: Mapping[str, str], console: Console) -> int:
    """`bellrock run`: 0 if every group ended well, having finished the run."""
    imports = () if command else BYTE_MODEL_IMPORTS
    command = command or byte_model(chosen.train, chosen.shards)
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="bellrock-run-"))
    plan = LocalPlan(
        folder=folder,
        names=tuple(f"g{i}" for i in range(chosen.groups)),
        shards=chosen.shards,
        lighthouse=LighthouseOptions(
            run_id="local",
            min_groups=chosen.min_groups,
            groups_wanted=chosen.groups,
            contributors=chosen.contributors,
            allowed_groups=chosen.allowed_groups,
            lease_s=chosen.lease_s,
            stall_patience_s=chosen.stall_patience_s,
            connect_s=chosen.connect_s,
            port=chosen.port,
        ),
        group_flags=("--restart-limit", str(chosen.restart_limit), *standby_flags(chosen.standby, imports)),
        command=command,
        quiet=chosen.quiet,
        environ=children_environ(environ),
    )
    local = LocalRun(plan, lambda line: console.print(line, markup=False, soft_wrap=True))
    if chosen.explain:
        console.print(deadline_table(chosen.knobs))
    console.print(f"records of this run: {folder}", soft_wrap=True)
    exits = await local.carry_out(Story(console, time.time()).tell)
    return 0 if not any(exits.values()) else 1


def children_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for processes that share this machine: one thread each, if nothing else is said."""
    return {"OMP_NUM_THREADS": "1", **environ}


def demo(chosen: DemoCommand, environ: Mapping[str, str], console: Console) -> int:
    """`bellrock demo`: 0 if everything that the demonstration claims held."""
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="bellrock-demo-"))
    records = asyncio.run(Demo(chosen, folder, children_environ(environ), console).run())
    rows = judge(records)
    console.print(report_table("What happened, and whether it held", rows))
    held = all(row[2] is not False for row in rows)
    if held and chosen.folder is None:
        shutil.rmtree(folder)
    else:
        console.print(f"records and logs: {folder}", soft_wrap=True)
    return 0 if held else 1


def status(chosen: StatusCommand, environ: Mapping[str, str], console: Console) -> int:
    """`bellrock status`: 1 if the lighthouse does not answer or refuses."""
    token = read_token(token_file(chosen.token_file, environ))
    try:
        console.print(status_table(status_now(chosen.lighthouse, token=token, run_id=chosen.run_id)))
    except (Unreachable, NotAllowed) as problem:
        console.print(f"error: {problem}", style="red", markup=False, soft_wrap=True)
        return 1
    return 0


def cold_start(chosen: ColdStartCommand, environ: Mapping[str, str], console: Console) -> int:
    """`bellrock cold-start`: 1 if nothing was done, or the lighthouse does not answer or refuses."""
    done = "the run goes on from the newest weights that are here; `bellrock status` shows how"
    return _ask(cold_start_now, done, chosen, environ, console)


def skip_slot(chosen: SkipSlotCommand, environ: Mapping[str, str], console: Console) -> int:
    """`bellrock skip-slot`: 1 if nothing was done, or the lighthouse does not answer or refuses."""
    return _ask(skip_slot_now, "the step is committed without that slot", chosen, environ, console)


def _ask(
    call: Callable[..., str],
    done: str,
    chosen: ColdStartCommand | SkipSlotCommand,
    environ: Mapping[str, str],
    console: Console,
) -> int:
    token = read_token(token_file(chosen.token_file, environ))
    try:
        refused = call(chosen.lighthouse, by=chosen.by, token=token, run_id=chosen.run_id)
    except (Unreachable, NotAllowed) as problem:
        refused = str(problem)
    if refused:
        console.print(f"error: {refused}", style="red", markup=False, soft_wrap=True)
        return 1
    console.print(done)
    return 0


def replay(chosen: ReplayCommand, console: Console) -> int:
    """`bellrock replay`: 1 if the core decides otherwise today than it did then."""
    return replay_journal(chosen.file, chosen.turns, console)


if __name__ == "__main__":
    sys.exit(main())
