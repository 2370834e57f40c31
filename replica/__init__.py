"""The side of a replica group: the library in its training processes, and its agent.

The names that a training program uses are here. They load torch, which the agent must not: so they are loaded when they
are first asked for.
"""

from __future__ import annotations

import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from replica.api import Replica as Replica
    from replica.api import Slot as Slot
    from replica.api import Step as Step
    from replica.api import StepResult as StepResult
    from replica.apply import Update as Update
    from replica.apply import scale as scale
    from replica.data import SeekableData as SeekableData
    from replica.data_plan import DataPlan as DataPlan
    from replica.errors import LeaveError as LeaveError
    from replica.errors import MisuseError as MisuseError
    from replica.errors import ReplicaError as ReplicaError

_HOME = {
    "DataPlan": "replica.data_plan",
    "LeaveError": "replica.errors",
    "MisuseError": "replica.errors",
    "Replica": "replica.api",
    "ReplicaError": "replica.errors",
    "SeekableData": "replica.data",
    "Slot": "replica.api",
    "Step": "replica.api",
    "StepResult": "replica.api",
    "Update": "replica.apply",
    "scale": "replica.apply",
}

imported_s: float
"""When the first of these names was there: seconds of the monotonic clock. Not set before."""

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals().setdefault("imported_s", time.monotonic())
    return value
