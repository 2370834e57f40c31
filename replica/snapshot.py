"""A host copy of a training state at one version, staged on the training thread and served by other threads.

The copy is one run of bytes, packed as the manifest says, or the stripes of it that this donor holds. Extra memory is
those bytes and, for a moment, one non-contiguous tensor.
"""

from __future__ import annotations

import ctypes
import json
import logging
import mmap
from collections.abc import Sequence
from typing import Any

import torch

from lighthouse.values import Version
from replica.beside import Beside, give_way, let_go
from replica.manifest import Chunks, Segments, TensorSpec, flat_bytes, is_direct, merged_ranges, packed_bytes
from replica.plain import dumps
from replica.state import Description, TrainingState

log = logging.getLogger("replica.snapshot")


_MOST_CHUNKS = 4096
_SMALL = 1 << 20
"""Bytes of a piece that torch does not copy: it takes ten times as long to begin, with the interpreter's lock held."""


class Room:
    """Host memory for a snapshot to come, allocated and touched ahead of time on a thread of its own.

    Fresh memory costs several times the copy itself (page faults, pinning). Made between steps, when a snapshot is
    announced, with the same stripes and chunks as the snapshot, for as much as there was of the state when it was last
    gone through; if it has grown since, staging does without.
    spare: memory that another snapshot lay in, given away. If it has the right sizes nothing is allocated, and it is
    ready now
    make: whether memory is to be made if it has not; else staging does without
    """

    def __init__(
        self,
        state: TrainingState,
        stripes: Sequence[tuple[int, int]] = (),
        chunk_bytes: int | None = None,
        spare: list[torch.Tensor] | None = None,
        make: bool = True,
    ) -> None:
        chunks = _chunks(state.extent.bytes, chunk_bytes)
        sizes = [end - start for start, end in _spans(chunks, _held(chunks, stripes))]
        pinned = state.extent.on_gpu
        spare = spare or []
        fits = [(run.numel(), run.is_pinned()) for run in spare] == [(size, pinned) for size in sizes]
        self._runs = spare if fits else []
        if not fits:
            let_go(spare)
        self.short = False
        """Whether this host has too little memory for it."""
        self._made = Beside(lambda: self._make(sizes, pinned), "room") if make and not fits else None

    @property
    def ready(self) -> bool:
        """Whether the memory is there, or is known not to be had."""
        return self._made is None or self._made.done

    def take(self, sizes: Sequence[int]) -> list[torch.Tensor] | None:
        """The memory, once, if it has these sizes; waits for it to be ready."""
        if self._made is not None:
            self._made.result()
        runs, self._runs = self._runs, []
        return runs if [run.numel() for run in runs] == list(sizes) else None

    def _make(self, sizes: list[int], pinned: bool) -> None:
        give_way()
        try:
            self._runs = [_touched(size, pinned) for size in sizes]
        except (RuntimeError, MemoryError) as error:
            self.short = True
            log.warning("no_room bytes=%d reason=%s", sum(sizes), json.dumps(str(error)))


class Snapshot:
    """Immutable once staged; extra memory is one copy of this shard's state, or of the stripes asked for.

    version, cursor, stop: what the state is of: as in `Work`, and whether a committed roll call had asked for the end
    specs: the manifest's tensors
    chunks, held: how the run is cut, and which ranges of chunks [first, end) lie here
    """

    def __init__(
        self,
        version: Version,
        cursor: int,
        stop: bool,
        specs: tuple[TensorSpec, ...],
        plain: dict[str, Any],
        chunks: Chunks,
        held: tuple[tuple[int, int], ...],
    ) -> None:
        self.version = version
        self.cursor = cursor
        self.stop = stop
        self.specs = specs
        self._plain = plain
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
        where there would be fewer than 64 chunks, so that small states have stripes too, more where there would be
        more than 4096, since a joiner looks through them.
        Raises RuntimeError if the state is not usable.
        """
        if not state.usable:
            raise RuntimeError("a state that is being loaded, or whose load failed, cannot be staged")
        found = state.describe()
        chunks = _chunks(packed_bytes(found.specs), chunk_bytes)
        held = _held(chunks, stripes)
        snapshot = cls(version, cursor, stop, found.specs, found.scalars, chunks, held)
        devices = {tensor.device for tensor in found.tensors.values() if tensor.is_cuda}
        spans = _spans(chunks, held)
        sizes = [end - start for start, end in spans]
        runs = room.take(sizes) if room is not None else None
        if runs is None:
            runs = [torch.empty(size, dtype=torch.uint8, pin_memory=bool(devices)) for size in sizes]
        snapshot._runs = [(start, run) for (start, _), run in zip(spans, runs, strict=True)]
        with torch.no_grad():
            if devices:
                snapshot._copy_on_side_stream(found, devices.pop())
            else:
                at_once = [spec for spec in found.specs if spec.name in found.changing]
                snapshot._copy(at_once, found.tensors, overlapped=False)
                snapshot._beside = Beside(lambda: snapshot._copy_the_rest(found), "stage")
        return snapshot

    @property
    def scalars(self) -> bytes:
        """The JSON text of everything that is no tensor. Made anew each time, on whichever thread asks."""
        return dumps(self._plain)

    @property
    def bytes(self) -> int:
        """Host memory that the snapshot takes."""
        return sum(run.numel() for _, run in self._runs)

    @property
    def memory(self) -> list[torch.Tensor]:
        """That memory, to be a `spare` once the snapshot is served no more."""
        return [run for _, run in self._runs]

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

    def _copy_the_rest(self, found: Description) -> None:
        self._copy([spec for spec in found.specs if spec.name not in found.changing], found.tensors, overlapped=False)

    def _copy_on_side_stream(self, found: Description, device: torch.device) -> None:
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            self._copy(found.specs, found.tensors, overlapped=True)
            self._copied = side.record_event()

    @torch.no_grad()
    def _copy(self, specs: Sequence[TensorSpec], tensors: dict[str, torch.Tensor], overlapped: bool) -> None:
        """Copies what is held of some of the manifest's tensors."""
        for start, run in self._runs:
            end, to = start + run.numel(), run.data_ptr()
            for spec in specs:
                tensor, offset = tensors[spec.name], spec.offset
                low, high = max(offset, start), min(offset + tensor.nbytes, end)
                if low >= high:
                    continue
                if high - low < _SMALL and is_direct(tensor):
                    ctypes.memmove(to + low - start, tensor.data_ptr() + low - offset, high - low)
                    continue
                content = flat_bytes(tensor.resolve_conj().resolve_neg().contiguous())
                run[low - start : high - start].copy_(content[low - offset : high - offset], non_blocking=overlapped)


def _touched(size: int, pinned: bool) -> torch.Tensor:
    """Memory whose pages are there. Not large ones: where a hypervisor takes back what is free (it does so in large
    pages), getting one again takes six times as long as as many small ones."""
    run = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    if not pinned:
        run.numpy()[:: mmap.PAGESIZE] = 0
    return run


def _chunks(total: int, chunk_bytes: int | None) -> Chunks:
    """The chunks of a run of so many bytes; of the same size at all donors, since it is a function of the state."""
    return Chunks(total=total, size=chunk_bytes or max(min(4 << 20, max(4 << 10, total // 64)), total // _MOST_CHUNKS))


def _held(chunks: Chunks, stripes: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges of chunks of some stripes; of all chunks if none are named."""
    return merged_ranges([chunks.stripe(part, of) for part, of in stripes or ((0, 1),)])


def _spans(chunks: Chunks, held: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    """First byte and the byte behind the last, by range of chunks."""
    return [(first * chunks.size, min(end * chunks.size, chunks.total)) for first, end in held]
