"""`bellrock replay`: an incident, decided again from the journal that a lighthouse or an agent kept of it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from lighthouse.core import CORE
from lighthouse.journal import replay, segments
from lighthouse.store import StoreError
from replica.agent_journal import replay as replay_agent

_SQLITE = b"SQLite format 3\0"


class Count(NamedTuple):
    """Turns decided again, and how many of them differently."""

    turns: int
    otherwise: int


class NoJournal(ValueError):
    """The file is not a journal, or cannot be read as one; the message says what is the matter."""


def replay_journal(path: Path, turns: bool, console: Console) -> int:
    """Prints the turns if asked for, and what is decided otherwise today; 1 if anything is, 2 if it is no journal."""
    try:
        count = (
            _replay_lighthouse(path, turns, console) if _is_lighthouses(path) else _replay_agent(path, turns, console)
        )
    except (StoreError, NoJournal) as problem:
        console.print(f"error: {problem}", style="red", markup=False, soft_wrap=True)
        return 2
    console.print(f"{count.turns} turns, {count.otherwise} of them decided otherwise today")
    return 1 if count.otherwise else 0


def _is_lighthouses(path: Path) -> bool:
    """Whose journal it is: a lighthouse keeps a database, an agent lines. Raises NoJournal."""
    try:
        with path.open("rb") as file:
            start = file.read(len(_SQLITE))
    except FileNotFoundError:
        raise NoJournal(
            f"{path}: there is no journal; a lighthouse keeps one beside its store, as STORE.journal"
        ) from None
    except OSError as error:
        raise NoJournal(f"{path}: {error.strerror or error}") from error
    if not start:
        raise NoJournal(f"{path} is empty: nothing was journalled yet")
    if start == _SQLITE:
        beside = path.with_name(path.name + ".journal")
        if beside.exists():
            raise NoJournal(f"{path} is a store; its journal is {beside}")
        return True
    if start[:1] not in (b"{", b"["):
        raise NoJournal(f"{path} is neither the journal of a lighthouse nor that of an agent")
    return False


def _replay_lighthouse(path: Path, turns: bool, console: Console) -> Count:
    count = 0
    for _, run_id, _, segment in segments(path):
        for turn in segment.turns:
            count += 1
            if turns:
                for at_s, event in turn.events:
                    console.print(f"{at_s:12.3f}  {run_id}  {event}", markup=False, soft_wrap=True)
                for effect in turn.effects or ():
                    console.print(f"{turn.decided_s:12.3f}  {run_id}    -> {effect}", markup=False, soft_wrap=True)
    differences = replay(path, CORE)
    for one in differences:
        console.print(f"{one.decided_s:12.3f}  {one.run_id}  turn {one.turn} of segment {one.segment}:", markup=False)
        console.print(f"  then: {one.was}\n  now:  {one.now}", markup=False, soft_wrap=True)
    return Count(count, len(differences))


def _replay_agent(path: Path, turns: bool, console: Console) -> Count:
    count = otherwise = 0
    try:
        with path.open("rb") as file:
            for turn in replay_agent(file):
                count += 1
                otherwise += not turn.same
                if turns or not turn.same:
                    for event in turn.events or ("nothing came",):
                        console.print(f"{turn.now:12.3f}  {event}", markup=False, soft_wrap=True)
                    for effect in turn.effects:
                        console.print(f"{turn.now:12.3f}    -> {effect}", markup=False, soft_wrap=True)
                    if turn.raised:
                        console.print(f"{turn.now:12.3f}    raises {turn.raised}", markup=False, soft_wrap=True)
                if not turn.same:
                    console.print("  it was decided otherwise then (of an agent only a digest is kept)", markup=False)
    except ValueError as error:
        raise NoJournal(f"{path}: {error}") from error
    if not count:
        raise NoJournal(f"{path}: it holds no turn that can be decided again: its first line is torn")
    return Count(count, otherwise)
