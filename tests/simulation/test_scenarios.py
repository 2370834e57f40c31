"""Every scenario tells today what its file says. BELLROCK_REWRITE=1 writes the files anew instead; read the diff."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from simulation.scenario import FOLDER, ScenarioError, retold, scenarios, tell


@pytest.mark.parametrize("path", scenarios(), ids=lambda path: path.stem)
def test_a_scenario_happens_as_told(path: Path) -> None:
    expected, now = retold(path)
    if os.environ.get("BELLROCK_REWRITE"):
        path.write_text(now, encoding="utf-8")
    else:
        assert now.splitlines() == expected.splitlines(), "BELLROCK_REWRITE=1 writes what happens now"


def test_a_sentence_that_means_nothing_is_refused() -> None:
    with pytest.raises(ScenarioError, match="x:2: do something: nobody knows"):
        tell("a run of A B\ndo something\n", "x")


def test_what_never_happens_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="did not happen"):
        tell("a run of A B\nuntil A commits step 5000\n", "x")


def test_a_wrong_claim_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="A paused for"):
        tell("a run of A B\nuntil all commit step 2\nA has not paused for 0.1 s\n", "x")


def test_every_story_that_the_index_names_is_there() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\b(?:[a-z]\d\d[a-z]?|takeover)\b", index))
    assert len(named) > 70
    assert named <= {path.stem.split("_")[0] for path in scenarios()}
