"""History: which versions the present weights descend from. Compared with a walk over bases, written the slow way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.history import KEPT_LINKS, History
from lighthouse.values import ROOT, Version


def walked(bases: list[tuple[int, Version]], version: Version) -> bool:
    """DESIGN §4.5, read aloud: back from the newest base, from generation to generation."""
    by_number = dict(bases)
    number, upto = bases[-1][0], 1 << 62
    while number:
        base = by_number[number]
        if version.generation == number and base.step < version.step <= upto:
            return True
        number, upto = base.generation, base.step
    return version == ROOT


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), min_size=1, max_size=12))
def test_history_is_the_walk_back_from_the_newest_base(moves: list[tuple[int, int]]) -> None:
    history, bases, number = History(), [], 0
    for more, choice in moves:
        number += more
        known = [ROOT] + [Version(s, g) for g, _ in bases for s in range(12) if history.contains(Version(s, g))]
        base = known[choice % len(known)]
        history = history.extended(number, base)
        bases.append((number, base))
        assert history.base == base
        for generation in range(number + 1):
            for step in range(14):
                version = Version(step, generation)
                assert history.contains(version) == walked(bases, version), (bases, version)


def test_a_step_number_alone_proves_nothing() -> None:
    history = History().extended(1, ROOT).extended(3, Version(5, 1))
    assert history.contains(Version(5, 1)) and history.contains(Version(6, 3))
    assert not history.contains(Version(6, 1)), "made by those who did not hear of generation 3"
    assert not history.contains(Version(5, 3)), "nobody can have made it: generation 3 starts at step 5"


def test_a_rollback_cuts_off_what_came_after() -> None:
    history = (
        History().extended(1, ROOT).extended(2, Version(5, 1)).extended(3, Version(9, 2)).extended(4, Version(3, 1))
    )
    assert history.contains(Version(3, 1)) and not history.contains(Version(4, 1))
    assert not history.contains(Version(7, 2)) and not history.contains(Version(10, 3))
    assert history.contains(Version(4, 4))


def test_a_base_outside_the_history_is_refused() -> None:
    with pytest.raises(ValueError, match="not in the history"):
        History().extended(1, Version(3, 7))


def test_history_is_bounded() -> None:
    history = History()
    for number in range(1, 3 * KEPT_LINKS):
        history = history.extended(number, Version(number - 1, number - 1) if number > 1 else ROOT)
    assert len(history.links) <= KEPT_LINKS + 1
    assert history.contains(Version(3 * KEPT_LINKS - 2, 3 * KEPT_LINKS - 2))


def test_a_base_from_outside_cuts_off_the_history() -> None:
    history = History().extended(1, ROOT).begun(5, Version(7, 3))
    assert history.base == Version(7, 3)
    assert history.contains(Version(7, 3)) and history.contains(Version(8, 5)) and history.contains(ROOT)
    assert (
        not history.contains(Version(6, 3))
        and not history.contains(Version(1, 1))
        and not history.contains(Version(7, 1))
    )
    assert History().extended(1, ROOT).begun(2, Version(3, 1)) == History().extended(1, ROOT).extended(2, Version(3, 1))
