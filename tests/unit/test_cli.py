"""The command line: what flags become, and what wrong ones are told, before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tyro

from lighthouse.auth import read_token
from lighthouse.deadlines import ROWS
from lighthouse.program import LighthouseOptions
from trainer.cli import split_command, token_file
from trainer.commands import Command, DemoCommand, GroupCommand, RunCommand, StatusCommand, command_line
from trainer.config import FixTheConfiguration, TrainConfig, to_argv
from trainer.launcher import bellrock_argv, check_port_is_free, make_token, rank_argv


def parse(*arguments: str) -> Command:
    chosen: Command = tyro.cli(command_line(LighthouseOptions()), args=list(arguments))
    return chosen


def bellrock(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line as a user does, with a home of its own."""
    env = {**os.environ, "HOME": str(cwd), "XDG_STATE_HOME": "", "COLUMNS": "200", **environ}
    return subprocess.run(bellrock_argv(*arguments), cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


def test_train_flags_stand_beside_the_groups_own() -> None:
    chosen = parse("group", "--name", "g0", "--shards", "2", "--slots", "8", "--slot-size", "4", "--lr", "0.1")
    assert isinstance(chosen, GroupCommand)
    assert (chosen.name, chosen.shards, chosen.train) == ("g0", 2, TrainConfig(slots=8, slot_size=4, lr=0.1))


def test_flags_survive_the_way_to_a_child() -> None:
    config = TrainConfig(seed=7, lr=1e-4, data="/a b/c", always_shard=True, sleep_s=0.5)
    assert tyro.cli(TrainConfig, args=to_argv(config)) == config
    assert to_argv(TrainConfig()) == []
    options = LighthouseOptions(store=Path("/x y/db"), run_id="r", min_groups=2, lease_s=5.0, until_ended=True)
    assert parse("lighthouse", *to_argv(options)) == options


def test_what_stands_behind_two_dashes_is_the_users() -> None:
    assert split_command(["group", "--name", "g0", "--", "python", "x.py", "--", "--lr"]) == (
        ["group", "--name", "g0"],
        ("python", "x.py", "--", "--lr"),
    )
    assert split_command(["demo"]) == (["demo"], ())


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: TrainConfig(slots=0), "--slots is 0"),
        (lambda: TrainConfig(lr=0.0), "--lr is 0.0"),
        (lambda: TrainConfig(lr=float("nan")), "--lr is nan"),
        (lambda: TrainConfig(warmup_steps=-1), "--warmup-steps is -1"),
        (lambda: TrainConfig(width=100, heads=3), "make --width a multiple of 6"),
        (lambda: TrainConfig(slot_size=5).check_shards(2), "Make --slot-size a multiple of 2"),
        (lambda: TrainConfig().check_shards(0), "--shards is 0"),
        (lambda: GroupCommand(name=""), "--name is empty"),
        (lambda: GroupCommand(name="g0", lighthouse="nowhere"), "host:port"),
        (lambda: GroupCommand(name="g0", run_id=""), "--run-id is empty"),
        (lambda: StatusCommand(lighthouse="127.0.0.1"), "host:port"),
        (lambda: RunCommand(groups=2, min_groups=3), "--min-groups 3 is above --groups 2"),
        (lambda: DemoCommand(groups=1), "others must survive"),
        (lambda: DemoCommand(kill_step=1), "--kill-step is 1"),
        (lambda: DemoCommand(steps_after=0), "--steps-after is 0"),
    ],
)
def test_relations_are_checked_and_the_message_says_what_to_change(make: object, says: str) -> None:
    with pytest.raises(FixTheConfiguration, match=says):
        make()  # type: ignore[operator]


def test_errors_are_one_line_and_exit_code_two(tmp_path: Path) -> None:
    wrong = bellrock("group", "--name", "g0", "--shards", "3", "--slot-size", "4", cwd=tmp_path)
    assert wrong.returncode == 2
    assert wrong.stderr.strip().startswith("error: --slot-size 4 is not divisible by --shards 3")
    assert "Traceback" not in wrong.stderr


def test_missing_data_is_told_before_anything_starts(tmp_path: Path) -> None:
    wrong = bellrock("group", "--name", "g0", "--data", "nowhere.txt", cwd=tmp_path)
    assert wrong.returncode == 2 and "there is no such file or folder" in wrong.stderr
    (tmp_path / "short.txt").write_bytes(b"abc")
    wrong = bellrock("run", "--data", "short.txt", cwd=tmp_path)
    assert wrong.returncode == 2 and "smaller --context" in wrong.stderr


def test_unknown_flags_are_named(tmp_path: Path) -> None:
    wrong = bellrock("demo", "--stesp", "3", cwd=tmp_path)
    assert wrong.returncode == 2 and "--stesp" in wrong.stderr + wrong.stdout


def test_no_token_says_where_it_was_looked_for(tmp_path: Path) -> None:
    wrong = bellrock("status", cwd=tmp_path)
    assert wrong.returncode == 2
    assert str(tmp_path / ".local/state/bellrock/token") in wrong.stderr


def test_each_command_has_help_for_each_flag(tmp_path: Path) -> None:
    for command in ("lighthouse", "group", "run", "demo", "status", "replay"):
        helped = bellrock(command, "--help", cwd=tmp_path)
        assert helped.returncode == 0, helped.stderr
        for line in helped.stdout.splitlines():
            # A flag with no sentence is followed at once by its default.
            assert not line.rstrip().endswith(("STR (default:", "INT (default:", "FLOAT (default:")), line


def test_a_users_own_trainer_does_not_shadow_ours(tmp_path: Path) -> None:
    for name in ("trainer", "replica", "lighthouse"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('shadowed')")
    assert bellrock("--help", cwd=tmp_path).returncode == 0
    helped = subprocess.run(rank_argv("--help"), cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "shadowed" not in helped.stderr and helped.returncode == 0, helped.stderr


def test_agent_and_command_line_start_without_torch() -> None:
    code = "import sys, trainer.cli, replica.agent; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_token_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "token"
    first = make_token(path)
    assert len(first) >= 32 and make_token(path) == first == read_token(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_where_the_token_is_looked_for(tmp_path: Path) -> None:
    named = {"BELLROCK_TOKEN_FILE": str(tmp_path / "b"), "XDG_STATE_HOME": "/s"}
    assert token_file(tmp_path / "a", {**named, "BELLROCK_TOKEN": "direct"}) == tmp_path / "a"
    direct = token_file(None, {**named, "BELLROCK_TOKEN": "direct"})
    assert read_token(direct) == "direct" and direct.stat().st_mode & 0o077 == 0
    assert token_file(None, named) == tmp_path / "b"
    assert token_file(None, {"XDG_STATE_HOME": "/s"}) == Path("/s/bellrock/token")


def test_a_taken_port_is_told() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(FixTheConfiguration, match="give another port"):
            check_port_is_free(taken.getsockname()[1])


def test_deadlines_are_explained_before_the_lighthouse_listens(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": "", "COLUMNS": "200"}
    flags = ("--port", "0", "--lease-s", "4", "--explain")
    process = subprocess.Popen(bellrock_argv("lighthouse", *flags), env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        told = ""
        for line in process.stdout:
            told += line
            if "listening on" in line:
                break
        for name in ("lease_s", "stall_patience_s", "connect_s", *(row.name for row in ROWS)):
            assert f" {name} " in told
        assert "4 s" in told and "lease_s × 1.5" in told and "who others wait for is evicted" in told
    finally:
        process.kill()
        process.communicate(timeout=60)


def test_deadlines_that_contradict_each_other_are_told(tmp_path: Path) -> None:
    wrong = bellrock("run", "--connect-s", "600", cwd=tmp_path)
    assert wrong.returncode == 2 and "raise stall_patience_s to 120" in " ".join(wrong.stderr.replace("│", "").split())
    wrong = bellrock("group", "--name", "g0", "--lease-s", "-1", cwd=tmp_path)
    assert wrong.returncode == 2
