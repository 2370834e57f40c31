"""The programs as a user starts them: the demonstration, and a script of one's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.evidence import commits, not_exactly_once
from trainer.launcher import bellrock_argv


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demonstration_holds(tmp_path: Path) -> None:
    shown = subprocess.run(
        bellrock_argv("demo", "--folder", str(tmp_path)), capture_output=True, text=True, timeout=280, check=False
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert " NO " not in shown.stdout and "full strength again" in shown.stdout


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("shards", [1, 2])
def test_a_script_of_ones_own_trains_in_two_groups(root: Path, tmp_path: Path, shards: int) -> None:
    script = str(root / "docs" / "example_train.py")
    argv = [*bellrock_argv("run", "--groups", "2", "--shards", str(shards)), "--folder", str(tmp_path), "--quiet"]
    ran = subprocess.run(
        [*argv, "--", sys.executable, script], capture_output=True, text=True, timeout=160, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    ledgers = {
        name: [json.loads(line) for line in (tmp_path / f"{name}.ledger").read_text().splitlines()]
        for name in ("g0", "g1")
    }
    assert not_exactly_once(ledgers, slots=6, steps=30) == []
    losses = [line["loss"] / line["tokens"] for line in ledgers["g0"] if line["event"] == "commit"]
    assert losses[-1] < losses[0] / 4
    assert "step 20: loss" in (tmp_path / "g0.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize("flags", [(), ("--stream",)])
def test_data_sets_of_ones_own_feed_a_batch_that_grows(root: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """Three groups, of which two may contribute: 120 slots, two for each of the two, until the data is through."""
    argv = [*bellrock_argv("run", "--groups", "3", "--allowed-groups", "1,2"), "--folder", str(tmp_path), "--quiet"]
    script = [sys.executable, str(root / "docs" / "example_data.py"), *flags]
    ran = subprocess.run([*argv, "--", *script], capture_output=True, text=True, timeout=160, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    ledgers = {
        name: [json.loads(line) for line in (tmp_path / f"{name}.ledger").read_text().splitlines()]
        for name in ("g0", "g1", "g2")
    }
    summed = commits(ledgers)
    assert [step for step, _ in sorted(summed)] == list(range(1, 31))
    assert all(sorted(map(len, own.values()))[-2:] == [2, 2] for own in summed.values())
    losses = [line["loss"] / line["tokens"] for line in ledgers["g0"] if line["event"] == "commit"]
    assert losses[-1] < losses[0] / 3
