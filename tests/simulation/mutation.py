"""One deliberate mistake, as a value: a line of the cores, and what stands there instead."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Mutation(NamedTuple):
    """In the file at `path`, `old` becomes `new`; `name` says what somebody got wrong."""

    path: str
    name: str
    old: str
    new: str


class Rotten(Exception):
    """The text that a mutation changes is not there (any more), or not there once."""


def of(path: str) -> Callable[[str, str, str], Mutation]:
    """Makes mutations of that file."""
    return lambda name, old, new: Mutation(path, name, old, new)


def mutated(root: Path, mutation: Mutation) -> str:
    """The text of the file with the mistake in it. Raises Rotten."""
    text = (root / mutation.path).read_text()
    found = text.count(mutation.old)
    if found != 1 or mutation.old == mutation.new:
        raise Rotten(f"{mutation.path}: {mutation.old!r} is there {found} times, not once ({mutation.name})")
    return text.replace(mutation.old, mutation.new)
