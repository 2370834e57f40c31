"""The list of deliberate mistakes does not rot: each still applies. `make proof` has them all killed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from simulation.mutants import MUTATIONS, SMALL_ONLY, UNIT_ONLY, Tree, rotten
from simulation.mutation import Mutation

BY_SMALL_WORLDS = (
    "a number is used and not stored",
    "the base is stored before its claim",
    "the oldest is the base, since all can level",
    "an abandoned generation commits",
    "a base lost with its stream is not told again",
    "ranks are not told of what is abandoned",
    "two keep one slot",
    "one slot too many for one",
    "asked again, it does not answer",
    "sums survive a commit",
    "a reconnecting agent is fenced",
    "one shard's vote is enough",
    "a fenced incarnation is heard",
    "the last rank's end is not noticed",
)


def test_every_mutant_still_applies() -> None:
    assert rotten(MUTATIONS) == []
    assert len(MUTATIONS) >= 36
    assert max(Counter(m.name for m in MUTATIONS).values()) == 1
    assert len({m.path for m in MUTATIONS}) >= 15


def test_a_mutant_whose_text_is_gone_is_named() -> None:
    gone = Mutation("lighthouse/deal.py", "a name", "text that nobody wrote", "")
    (problem,) = rotten([gone])
    assert "is there 0 times" in problem and "a name" in problem


@pytest.mark.timeout(120)
def test_a_mutant_is_killed_in_a_tree_of_its_own(tmp_path: Path, root: Path) -> None:
    tree = Tree(tmp_path)
    mutation = next(m for m in MUTATIONS if m.path == "lighthouse/deal.py")
    before = (root / mutation.path).read_text()
    verdict = tree.judge(mutation, seeds=UNIT_ONLY)
    assert verdict.killed_by.startswith("unit/test_deal.py")
    assert (tmp_path / mutation.path).read_text() == before == (root / mutation.path).read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_small_worlds_alone_find_mistakes(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for name in BY_SMALL_WORLDS:
        mutation = next(m for m in MUTATIONS if m.name == name)
        assert tree.judge(mutation, SMALL_ONLY).killed_by, f"{name}: survived"
