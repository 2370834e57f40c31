"""What a training process can be told, typed by what its catcher does about it."""

from __future__ import annotations


class ReplicaError(Exception):
    """Base of everything that this package raises in a training process."""


class MisuseError(ReplicaError):
    """The training program, or how it was started, has to be changed; the message says what."""


class LeaveError(ReplicaError):
    """This process must end, applying nothing more; whoever started it decides whether to start it again."""
