"""A host copy of a training state at one version, staged on the training thread and served by other threads."""

from __future__ import annotations

from lighthouse.values import Version
from replica.state import TrainingState


class Snapshot:
    """Immutable once staged; extra memory is one copy of this shard's state.

    version, cursor, stop: what the state is of: as in `Work`, and whether a committed roll call had asked for the end
    """

    version: Version
    cursor: int
    stop: bool

    @classmethod
    def stage(
        cls, state: TrainingState, version: Version, cursor: int, stop: bool, stripes: tuple[tuple[int, int], ...] = ()
    ) -> Snapshot:
        """Copies `state` to host memory on the calling thread and returns. Between steps only.

        On a GPU the copy runs on a side stream; `wait` before the state is next written. stripes: (part, of) pairs of
        which only these parts are held; empty: everything.
        """
        raise NotImplementedError

    def wait(self) -> None:
        """Returns once the copy is complete (at once on CPU): the next `apply` waits for this, never for a network."""
        raise NotImplementedError
