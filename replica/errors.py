"""What a training process can be told, typed by what its catcher does about it."""

from __future__ import annotations


class ReplicaError(Exception):
    """Base of everything that this package raises in a training process."""


class MisuseError(ReplicaError):
    """The training program, or how it was started, has to be changed; the message says what."""


class Left(SystemExit):
    """The group left in order (drained, or the run finished elsewhere), and its state is not the run's last one.

    Ends the process with exit code 0, so that what follows the loop runs only where the run's final state is.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(0)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class LeaveError(ReplicaError):
    """This process must end, applying nothing more; whoever started it decides whether to start it again."""
