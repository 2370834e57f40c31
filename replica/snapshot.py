"""A host copy of a training state at one version, staged on the training thread and served by other threads.

The copy is one run of bytes, packed as the manifest says, or the stripes of it that this donor holds. Extra memory is
those bytes and, for a moment, one non-contiguous tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lighthouse.values import Version
from replica.manifest import Chunks, Segments, TensorSpec, byte_view, flat_bytes
from replica.plain import dumps
from replica.state import TrainingState


class Snapshot:
    """Immutable once staged; extra memory is one copy of this shard's state, or of the stripes asked for.

    version, cursor, stop: what the state is of: as in `Work`, and whether a committed roll call had asked for the end
    specs, scalars: the manifest's tensors, and the JSON text of everything else
    chunks, held: how the run is cut, and which ranges of chunks [first, end) lie here
    """

    def __init__(
        self,
        version: Version,
        cursor: int,
        stop: bool,
        specs: tuple[TensorSpec, ...],
        scalars: bytes,
        chunks: Chunks,
        held: tuple[tuple[int, int], ...],
    ) -> None:
        self.version = version
        self.cursor = cursor
        self.stop = stop
        self.specs = specs
        self.scalars = scalars
        self.chunks = chunks
        self.held = held
        self._runs: list[tuple[int, torch.Tensor]] = []
        self._copied: torch.cuda.Event | None = None

    @classmethod
    def stage(
        cls,
        state: TrainingState,
        version: Version,
        cursor: int,
        stop: bool,
        stripes: Sequence[tuple[int, int]] = (),
        chunk_bytes: int = 4 << 20,
    ) -> Snapshot:
        """Copies `state` to host memory on the calling thread and returns. Between steps only.

        On a GPU the copy runs on a side stream; `fence` before the state is next written. stripes: (part, of) pairs
        of which only these parts are held; empty: everything. Raises RuntimeError if the state is not usable.
        """
        if not state.usable:
            raise RuntimeError("a state that is being loaded, or whose load failed, cannot be staged")
        specs, tensors, scalars = state.describe()
        chunks = Chunks(total=sum(spec.bytes for spec in specs), size=chunk_bytes)
        held = _merged([chunks.stripe(part, of) for part, of in stripes]) if stripes else ((0, chunks.count),)
        snapshot = cls(version, cursor, stop, specs, dumps(scalars), chunks, held)
        devices = {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}
        with torch.no_grad():
            if devices:
                snapshot._copy_on_side_stream(tensors, devices.pop())
            else:
                snapshot._copy(tensors, pinned=False)
        return snapshot

    @property
    def bytes(self) -> int:
        """Host memory that the snapshot takes."""
        return sum(run.numel() for _, run in self._runs)

    def fence(self) -> None:
        """What the present CUDA stream does next comes after the copy. Call it before the state is next written."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)

    def wait(self) -> None:
        """Returns once the copy is complete: at once on CPU. For threads that read it."""
        if self._copied is not None:
            self._copied.synchronize()

    def segments(self) -> Segments:
        """The memory of what is held, by its place in the run. Call `wait` before reading."""
        return Segments((start, byte_view(run)) for start, run in self._runs)

    def _copy_on_side_stream(self, tensors: dict[str, torch.Tensor], device: torch.device) -> None:
        side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            self._copy(tensors, pinned=True)
            self._copied = side.record_event()

    def _copy(self, tensors: dict[str, torch.Tensor], pinned: bool) -> None:
        for first, end in self.held:
            start = first * self.chunks.size
            size = min(end * self.chunks.size, self.chunks.total) - start
            run = torch.empty(max(size, 0), dtype=torch.uint8, pin_memory=pinned)
            for spec in self.specs:
                low, high = max(spec.offset, start), min(spec.offset + spec.bytes, start + size)
                if low < high:
                    content = flat_bytes(tensors[spec.name].resolve_conj().resolve_neg().contiguous())
                    run[low - start : high - start].copy_(
                        content[low - spec.offset : high - spec.offset], non_blocking=pinned
                    )
            self._runs.append((start, run))


def _merged(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same chunks as ranges that do not touch, in order."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return tuple(found)
