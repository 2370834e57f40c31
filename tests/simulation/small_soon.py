"""What the lighthouse of a small world may hear before all else that can happen, because nothing is hidden by it.

A word that has no effects and is no news, or only one of several that are waited for, makes no difference by when it
comes: unless something comes in between that it depends on. What that is, and whether it may come yet, is said here of
one word of one stream; `small_product` asks it of the whole state, and `small_confluence` of all pairs of moves.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from lighthouse.core_state import RunState, in_grace, is_over
from lighthouse.values import (
    Beat,
    Committed,
    Died,
    Failure,
    Finished,
    Goodbye,
    HealFailed,
    Hello,
    Opened,
    Progress,
    Report,
)
from simulation.small_values import NOW, Numbers

NEVER, HARMLESS, CALM, ALWAYS = 0, 1, 2, 3
"""When something may go first: never; once no fault and no restart is left; while at most restarts are left, or crashes
of those who do not return; always."""

IDLE = (Beat, Committed, Failure, Finished, HealFailed, Opened, Progress, Report)
"""What says nothing that matters to a lighthouse whose run is finished."""

_OTHER = Finished | Died | Goodbye | Report
"""What may be news later, though it changes nothing now."""


class Soon(NamedTuple):
    """Whether something may be heard before all else. Groups by name:

    hellos: from whom no hello must be on its way over another stream than the one that is known
    ends: nor the end of a stream after a report or a farewell
    known: whose streams must not be at their ends: they count as long as they are not
    there: whose ranks must be there, so that the first lease of a lighthouse does not pass without them
    still: who must be in no step, and have nothing on its way that may bring it into one
    kin: who must be the members of the generation at work, or gone
    """

    how: int
    hellos: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    there: tuple[str, ...] = ()
    still: tuple[str, ...] = ()
    kin: tuple[str, ...] = ()


def soon(state: RunState, key: tuple[Any, ...], after: RunState, silent: bool, numbers: Numbers, hasty: bool) -> Soon:
    """Whether the event that `key` names may go first. after: the state that it leads to; silent: without effects;
    hasty: as in `Spec`."""
    kind, everybody = key[0], tuple(f"g{i + 1}" for i in range(state.config.groups_wanted))
    message = numbers.values[key[4]] if kind == "said" else numbers.values[key[2]] if kind == "hello" else None
    grace, over, change = in_grace(state, NOW), state.finished is not None, state.change
    if isinstance(message, Hello):
        member = _is_member(state, message.name, message.incarnation)
        if over:
            return Soon(HARMLESS if member else NEVER, there=(message.name,))
        known = tuple(group.name for group in state.groups.values())
        there = everybody if hasty else (message.name,)
        return Soon(HARMLESS if member and grace else NEVER, (), (), known, there, everybody, everybody)
    if over:
        return Soon(ALWAYS if message is None or isinstance(message, IDLE) else NEVER)
    if silent and (isinstance(message, Beat | Failure) or after == state and not isinstance(message, _OTHER)):
        return Soon(CALM)
    there, member = everybody if grace else (), kind == "said" and _is_member(state, key[2], key[3])
    if isinstance(message, Report) and after == state and member and change is None and not grace:
        return Soon(HARMLESS)
    if isinstance(message, Report) and (message.stagings or (grace and (state.retry_s or len(state.odd)))):
        return Soon(NEVER)
    if isinstance(message, Report) and change is not None:
        known = tuple(group.name for group in state.groups.values() if group.report.abandoned >= change.number)
        if key[2] in known:
            return Soon(HARMLESS if after == state and not grace else NEVER)
        return Soon(HARMLESS, everybody, everybody, known, there, (), everybody)
    if isinstance(message, Report) and silent and not member and not grace:
        return Soon(HARMLESS)
    routine = isinstance(message, Report | Committed)
    joins = state.current is not None and state.current.committed and not is_over(after, after.newest, False)
    if silent and routine and (change is not None or not len(state.odd) or joins):
        calm = not grace and isinstance(message, Committed)
        return Soon(CALM if calm else HARMLESS, everybody, there=there)
    return Soon(NEVER)


def _is_member(state: RunState, name: str, incarnation: int) -> bool:
    return state.current is not None and state.current.members.get(name) == incarnation
