"""Reducing a step's gradients over the groups, in backward where that can be, afterwards where it cannot.

A `Reduction` is one attempt over one communicator. Buckets are launched in the static order of the layout, by whoever
completes the next one: a post-accumulate hook in backward of the last slot, or the flush after it. Hooks never raise
(FSDP2 would be left broken) and a lost communicator is only noted: backward goes on, `.grad` stays the local raw sum,
and the next attempt starts from there.

A parameter whose hook fires more than once in one backward (a module used twice, with some wrappers) cannot be copied
at its first firing. Which those are is learnt from a backward before; until one has been seen there is no overlap. That
is a local choice: it changes when buckets are launched, not what is in them or their order. A parameter that no slot
uses holds back its bucket, and those after it, until the flush.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from replica.communicator import Communicator, CommunicatorLost, Pending
from replica.errors import ReplicaError
from replica.gradients import Gradients, squared_norm


@dataclass(frozen=True, kw_only=True)
class Reduced:
    """What an attempt gave: sums over all members.

    buckets: raw sums in the static layout; presence: by parameter, whether this member has a gradient; after the roll
    call (`with_presence`), whether any has
    grad_sq: squared 2-norm of what this shard counts, float64; inf or nan if any element is not finite
    """

    buckets: tuple[torch.Tensor, ...]
    presence: tuple[bool, ...]
    grad_sq: float

    @property
    def presence_bits(self) -> bytes:
        """What a rank says in the roll call of its presence: a bit for each parameter."""
        return np.packbits(self.presence).tobytes()

    def with_presence(self, bits: np.ndarray) -> Reduced:
        """With what all members said: uint8[members, bytes]."""
        some = np.unpackbits(np.bitwise_or.reduce(bits, axis=0), count=len(self.presence))
        return replace(self, presence=tuple(some.astype(bool).tolist()))


class Reduction:
    """One attempt. `tensors` are laid out as `Layout.allocate` does and belong to the attempt from here on.

    on_launch: called before each bucket is sent
    """

    def __init__(
        self, gradients: Gradients, tensors: Sequence[torch.Tensor], on_launch: Callable[[], None] = lambda: None
    ) -> None:
        self._on_launch = on_launch
        self._gradients = gradients
        self._tensors = tuple(tensors)
        self._filled = [False] * len(gradients.parameters)
        self._missing = [len(b.parameters) for b in gradients.layout.buckets]
        self._at_once = [b.device.type == "cpu" for b in gradients.layout.buckets]
        self._present = [False] * len(gradients.parameters)
        self._communicator: Communicator | None = None
        self._pendings: list[Pending] = []
        self._failure: BaseException | None = None
        self._added = False

    def over(self, communicator: Communicator) -> None:
        """Complete buckets may be launched over `communicator` from now on."""
        self._communicator = communicator

    def fill(self, parameter: int) -> None:
        """The gradient of parameter number `parameter` is final for this attempt: launches what is complete with it.

        A bucket in host memory is copied at once, when its last gradient has come: copies one by one cost more than the
        bytes. Where there are streams each is copied on the stream of its hook, before anything else may touch it.
        For hooks: never raises. `failure` tells what went wrong.
        """
        try:
            if self._failure is None:
                bucket = self._gradients.layout.places[parameter].bucket
                again = self._note(parameter, bucket)
                complete = self._missing[bucket] == 0
                if again or not self._at_once[bucket]:
                    self._copy([parameter])
                elif complete:
                    self._copy(self._gradients.layout.buckets[bucket].parameters)
                if complete:
                    self._launch()
        except BaseException as failure:  # noqa: B036 whatever it is, a hook must not let it out
            self._failure = failure

    def launched(self, parameter: int) -> bool:
        """Whether the bucket of this parameter is on its way already."""
        return self._gradients.layout.places[parameter].bucket < len(self._pendings)

    def flush(self) -> None:
        """Fills what no hook has, from `.grad`, and adds up over the shards what is not sharded.

        All shards of the group call it in every attempt, also if the communicator is lost by then.
        """
        if self._failure is not None and not isinstance(self._failure, CommunicatorLost):
            raise self._failure
        self._complete()
        self._present = self._gradients.add_over_shards(self._tensors, self._present)
        self._added = True

    def finish(self, communicator: Communicator, first_done: Callable[[], None]) -> Reduced:
        """Launches the rest and waits for all of it. Raises CommunicatorLost, after which `.grad` is as it was.

        first_done: called once a bucket is complete, which proves that every member began this step
        """
        self.over(communicator)
        if self._failure is not None:
            raise CommunicatorLost(str(self._failure)) from self._failure
        self._launch()
        total = torch.zeros((), dtype=torch.float64, device=self._tensors[0].device)
        for number, pending in enumerate(self._pendings):
            pending.wait()
            if number == 0:
                first_done()
            if self._gradients.counted(number):
                total = total + squared_norm(self._tensors[number]).to(total.device)
        if communicator.abandoned:
            raise CommunicatorLost("abandoned while buckets were reduced")
        return Reduced(buckets=self._tensors, presence=tuple(self._present), grad_sq=float(total))

    def _note(self, parameter: int, bucket: int) -> bool:
        """Takes note that a gradient is there; whether it was before, and has changed."""
        if self._filled[parameter]:
            if self.launched(parameter):
                raise ReplicaError(
                    f"the gradient of {self._gradients.names[parameter]} was completed twice in one backward, after it "
                    "had been sent: give Replica(overlap=False)"
                )
            return True
        self._filled[parameter] = True
        self._missing[bucket] -= 1
        return False

    def _complete(self) -> None:
        """Copies all buckets that are not complete from `.grad`, and all that might have been copied too early."""
        for bucket, layout in enumerate(self._gradients.layout.buckets):
            if bucket >= len(self._pendings):
                self._copy(layout.parameters)
                self._missing[bucket] = 0
        self._filled = [True] * len(self._filled)

    def _copy(self, parameters: Sequence[int]) -> None:
        for parameter, present in zip(parameters, self._gradients.copy_out(parameters, self._tensors), strict=True):
            self._present[parameter] = present

    def _launch(self) -> None:
        """Launches buckets as far as they are complete, in order; those of unsharded parameters after the flush."""
        if self._communicator is None:
            return
        for number in range(len(self._pendings), len(self._missing)):
            if self._missing[number] or (self._gradients.layout.buckets[number].whole and not self._added):
                return
            self._on_launch()
            self._pendings.append(self._communicator.all_reduce(self._tensors[number]))


class Hooks:
    """The post-accumulate hooks of all parameters: they fill the armed reduction, and learn which fire repeatedly."""

    def __init__(self, gradients: Gradients, *, overlap: bool) -> None:
        self._armed: Reduction | None = None
        self._fired = [0] * len(gradients.parameters)
        self._late = [False] * len(gradients.parameters)
        self._learnt = False
        self._overlap = overlap
        self._handles = [
            p.register_post_accumulate_grad_hook(self._hook(i)) for i, p in enumerate(gradients.parameters)
        ]

    def arm(self, reduction: Reduction) -> bool:
        """Lets the next backward fill `reduction`, if a backward has been seen before. Whether it will."""
        if self._overlap and self._learnt:
            self._armed = reduction
        return self._armed is not None

    def backward_done(self) -> None:
        """Call after each backward: disarms, and learns from what fired."""
        self._armed = None
        if any(self._fired):
            self._late = [late or count > 1 for late, count in zip(self._late, self._fired, strict=True)]
            self._fired = [0] * len(self._fired)
            self._learnt = True

    def remove(self) -> None:
        """Takes the hooks off the parameters."""
        for handle in self._handles:
            handle.remove()

    def _hook(self, parameter: int) -> Callable[[torch.Tensor], None]:
        def fired(_: torch.Tensor) -> None:
            self._fired[parameter] += 1
            if self._armed is not None and not self._late[parameter]:
                self._armed.fill(parameter)

        return fired
