"""The deadlines in force at a rank: those it was started with, and the lighthouse's as soon as the agent tells them."""

from __future__ import annotations

from collections.abc import Callable

from lighthouse.deadlines import Deadlines, Knobs, derive
from replica.values import Patience


class InForce:
    """Holds them. `now` may be read on any thread.

    changed: called with the new ones, on the thread that `heed` is called on
    """

    def __init__(self, knobs: Knobs, changed: Callable[[Deadlines], None] = lambda now: None) -> None:
        self._changed = changed
        self.now: Deadlines = derive(knobs)

    def heed(self, message: Patience) -> bool:
        """The run's are these. True: nobody else need hear of it."""
        self.now = derive(
            Knobs(lease_s=message.lease_s, stall_patience_s=message.stall_patience_s, connect_s=message.connect_s)
        )
        self._changed(self.now)
        return True
