"""`bellrock replay`: an incident, decided again from the journal that the lighthouse kept of it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from lighthouse.journal import replay, segments
from lighthouse.program import _own_core
from lighthouse.store import StoreError


def replay_journal(path: Path, turns: bool, console: Console) -> int:
    """Prints the turns if asked for, and what is decided otherwise today; 1 if anything is, 2 if it is no journal."""
    try:
        count = 0
        for _, run_id, _, segment in segments(path):
            for turn in segment.turns:
                count += 1
                if turns:
                    for at_s, event in turn.events:
                        console.print(f"{at_s:12.3f}  {run_id}  {event}", markup=False, soft_wrap=True)
                    for effect in turn.effects or ():
                        console.print(f"{turn.decided_s:12.3f}  {run_id}    -> {effect}", markup=False, soft_wrap=True)
        differences = replay(path, _own_core())
    except StoreError as problem:
        console.print(f"error: {problem}", style="red", markup=False, soft_wrap=True)
        return 2
    for one in differences:
        console.print(f"{one.decided_s:12.3f}  {one.run_id}  turn {one.turn} of segment {one.segment}:", markup=False)
        console.print(f"  then: {one.was}\n  now:  {one.now}", markup=False, soft_wrap=True)
    console.print(f"{count} turns, {len(differences)} of them decided otherwise today")
    return 1 if differences else 0
