"""A host copy of a training state at one version, staged on the training thread and served by other threads.

The copy is one run of bytes, packed as the manifest says, or the stripes of it that this donor holds. Extra memory is
those bytes and, for a moment, one non-contiguous tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property

import torch

from lighthouse.values import Version
from replica.beside import Beside
from replica.manifest import Chunks, Segments, Tensors, TensorSpec, flat_bytes, packed_bytes
from replica.plain import dumps
from replica.state import TrainingState


class Room:
    """Host memory for a snapshot to come, allocated and touched ahead of time on a thread of its own.

    Fresh memory costs several times the copy itself (page faults, pinning). Made between steps, when a snapshot is
    announced, with the same stripes and chunks as the snapshot; if the state has grown since, staging does without it.
    """

    def __init__(
        self, state: TrainingState, stripes: Sequence[tuple[int, int]] = (), chunk_bytes: int | None = None
    ) -> None:
        specs, tensors, _ = state.describe()
        chunks = _chunks(specs, chunk_bytes)
        sizes = [end - start for start, end in _spans(chunks, _held(chunks, stripes))]
        pinned = any(tensor.device.type == "cuda" for tensor in tensors.values())
        self._runs: list[torch.Tensor] = []
        self._thread = threading.Thread(target=self._touch, args=(sizes, pinned), name="room", daemon=True)
        self._thread.start()

    @property
    def ready(self) -> bool:
        """Whether the memory is there."""
        return not self._thread.is_alive()

    def take(self, sizes: Sequence[int]) -> list[torch.Tensor] | None:
        """The memory, once, if it has these sizes; waits for it to be ready."""
        self._thread.join()
        runs, self._runs = self._runs, []
        return runs if [run.numel() for run in runs] == list(sizes) else None

    def _touch(self, sizes: list[int], pinned: bool) -> None:
        self._runs = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned).zero_() for size in sizes]


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
        self._beside: Beside[None] | None = None

    @classmethod
    def stage(
        cls,
        state: TrainingState,
        version: Version,
        cursor: int,
        stop: bool,
        stripes: Sequence[tuple[int, int]] = (),
        chunk_bytes: int | None = None,
        room: Room | None = None,
    ) -> Snapshot:
        """Begins to copy `state` to host memory and returns. Between steps only.

        What only `apply` changes is copied beside the next forward and backward, on a thread or, on a GPU, on a side
        stream: `fence` before the state is next written. The rest is copied at once. stripes: (part, of) pairs of which
        only these parts are held; empty: everything. room: memory made ahead for it. chunk_bytes: None: 4 MiB, less
        where there would be fewer than 64 chunks, so that small states have stripes too.
        Raises RuntimeError if the state is not usable.
        """
        if not state.usable:
            raise RuntimeError("a state that is being loaded, or whose load failed, cannot be staged")
        specs, tensors, scalars = state.describe()
        chunks = _chunks(specs, chunk_bytes)
        held = _held(chunks, stripes)
        snapshot = cls(version, cursor, stop, specs, dumps(scalars), chunks, held)
        devices = {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}
        spans = _spans(chunks, held)
        sizes = [end - start for start, end in spans]
        runs = room.take(sizes) if room is not None else None
        if runs is None:
            runs = [torch.empty(size, dtype=torch.uint8, pin_memory=bool(devices)) for size in sizes]
        snapshot._runs = [(start, run) for (start, _), run in zip(spans, runs, strict=True)]
        with torch.no_grad():
            if devices:
                snapshot._copy_on_side_stream(tensors, devices.pop())
            else:
                snapshot._copy({n: t for n, t in tensors.items() if not state.steady(n)}, overlapped=False)
                steady = {n: t for n, t in tensors.items() if state.steady(n)}
                snapshot._beside = Beside(lambda: snapshot._copy(steady, overlapped=False), "stage")
        return snapshot

    @cached_property
    def tensors(self) -> Tensors:
        """The manifest's tensors as they are sent."""
        return Tensors.of(self.specs)

    @property
    def bytes(self) -> int:
        """Host memory that the snapshot takes."""
        return sum(run.numel() for _, run in self._runs)

    def fence(self) -> None:
        """What is done next, by the present CUDA stream too, comes after the copy. Call it before the state is next
        written."""
        if self._beside is not None:
            self._beside.result()
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)

    def wait(self) -> None:
        """Returns once the copy is complete. For threads that read it."""
        if self._beside is not None:
            self._beside.result()
        if self._copied is not None:
            self._copied.synchronize()

    def segments(self) -> Segments:
        """The memory of what is held, by its place in the run. Call `wait` before reading."""
        return Segments(self._runs)

    def _copy_on_side_stream(self, tensors: dict[str, torch.Tensor], device: torch.device) -> None:
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            self._copy(tensors, overlapped=True)
            self._copied = side.record_event()

    @torch.no_grad()
    def _copy(self, tensors: dict[str, torch.Tensor], overlapped: bool) -> None:
        """Copies what is held of `tensors`, some of the manifest's."""
        for start, run in self._runs:
            end = start + run.numel()
            for spec in self.specs:
                low, high = max(spec.offset, start), min(spec.offset + spec.bytes, end)
                if low < high and spec.name in tensors:
                    content = flat_bytes(tensors[spec.name].resolve_conj().resolve_neg().contiguous())
                    part = content[low - spec.offset : high - spec.offset]
                    run[low - start : high - start].copy_(part, non_blocking=overlapped)


def _chunks(specs: Sequence[TensorSpec], chunk_bytes: int | None) -> Chunks:
    """The chunks of a run; of the same size at all donors, since it is a function of the state alone."""
    total = packed_bytes(specs)
    return Chunks(total=total, size=chunk_bytes or min(4 << 20, max(4 << 10, total // 64)))


def _held(chunks: Chunks, stripes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges of chunks of some stripes; of all chunks if none are named."""
    return _merged([chunks.stripe(part, of) for part, of in stripes or ((0, 1),)])


def _spans(chunks: Chunks, held: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """First byte and the byte behind the last, by range of chunks."""
    return [(first * chunks.size, min(end * chunks.size, chunks.total)) for first, end in held]


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
