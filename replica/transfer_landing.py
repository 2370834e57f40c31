"""Where received bytes land: straight in tensors' memory, or beside it for a moment.

Host tensors are written in place. For a tensor on a device each chunk's part of it has a pinned host buffer of its
own, which is copied over when its bytes are verified. A tensor that is not contiguous has a buffer of its own size
until it is complete. Bytes that failed verification are simply received again.

What has landed can be read again, for other joiners, with the hash that came with it: should the memory have changed
since then, the hash is wrong for whoever gets it.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import torch

from replica.manifest import Chunks, Segments, TensorSpec, byte_view, flat_bytes, is_direct, merged_ranges


class _Detour:
    """Bytes [start, end) of the run, which cannot be received where they belong."""

    def __init__(self, start: int, end: int, target: torch.Tensor, whole: bool) -> None:
        self.start, self.end = start, end
        self._target, self._whole = target, whole
        self._buffer: torch.Tensor | None = None
        self.missing = end - start

    def view(self, start: int, end: int) -> memoryview:
        """Memory for bytes [start, end) of the run, for as long as they are on their way."""
        if self._buffer is None:
            pinned = self._target.device.type == "cuda"
            self._buffer = torch.empty(self.end - self.start, dtype=torch.uint8, pin_memory=pinned)
        return byte_view(self._buffer[start - self.start : end - self.start])

    def complete(self) -> None:
        """Copies the bytes to where they belong and frees the buffer."""
        if self._buffer is None:
            return
        with torch.no_grad():
            if self._whole:
                typed = self._buffer.view(self._target.dtype)
                self._target.copy_(typed.view(self._target.shape))
            else:
                self._target.copy_(self._buffer)
        self._buffer = None

    @property
    def readable(self) -> bool:
        """Whether its bytes lie in one piece once they are complete."""
        return not self._whole

    def read(self, start: int, end: int) -> memoryview:
        """Bytes [start, end) of the run, copied to the host."""
        return byte_view(self._target.cpu())[start - self.start : end - self.start]


class Landing:
    """The tensors of a manifest as memory to receive chunks into. Any thread; each chunk by one thread at a time."""

    def __init__(self, specs: Sequence[TensorSpec], chunks: Chunks, targets: Mapping[str, torch.Tensor]) -> None:
        self.chunks = chunks
        self._lock = threading.Condition()
        self._hashes: dict[int, int] = {}
        self._over = False
        self._detours: list[_Detour] = []
        direct = []
        for spec in specs:
            target = targets[spec.name]
            if is_direct(target):
                direct.append((spec.offset, target))
            elif target.numel() == 0:
                continue
            elif target.is_contiguous() and not target.is_conj() and not target.is_neg():
                self._detours.extend(_by_chunk(spec, chunks, flat_bytes(target)))
            else:
                self._detours.append(_Detour(spec.offset, spec.offset + spec.bytes, target, whole=True))
        self._detours.sort(key=lambda detour: detour.start)
        self._starts = [detour.start for detour in self._detours]
        self._direct = Segments(direct)

    def views(self, chunk: int) -> list[memoryview]:
        """Memory for a chunk's bytes, in order."""
        start, end = self.chunks.span(chunk)
        found = []
        for low, high, detour in self._parts(start, end):
            if detour is None:
                found.extend(self._direct.views(low, high))
            else:
                with self._lock:
                    found.append(detour.view(low, high))
        return found

    def landed(self, chunk: int, hash_: int) -> None:
        """The chunk's bytes are verified to have this hash; called once a chunk."""
        start, end = self.chunks.span(chunk)
        with self._lock:
            parts = self._parts(start, end)
            for low, high, detour in parts:
                if detour is not None:
                    detour.missing -= high - low
                    if detour.missing == 0:
                        detour.complete()
            if all(detour is None or detour.readable for *_, detour in parts):
                self._hashes[chunk] = hash_
                self._lock.notify_all()

    # ---- for other joiners -----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Nobody waits for more to land."""
        with self._lock:
            self._over = True
            self._lock.notify_all()

    def readable(self, known: int, wait_s: float) -> tuple[tuple[int, int], ...]:
        """Ranges [first, end) of chunks that can be read again; waits up to `wait_s` for some more than are known."""
        enough = known + max(1, self.chunks.count // 64)
        with self._lock:
            self._lock.wait_for(lambda: self._over or len(self._hashes) >= enough, timeout=wait_s)
            return merged_ranges((chunk, chunk + 1) for chunk in self._hashes)

    def read(self, chunk: int) -> tuple[list[memoryview], int]:
        """A landed chunk's bytes, not copied where they are in host memory, and its hash. Raises LookupError."""
        start, end = self.chunks.span(chunk)
        with self._lock:
            hash_ = self._hashes[chunk]
            views: list[memoryview] = []
            for low, high, detour in self._parts(start, end):
                views.extend(self._direct.views(low, high) if detour is None else [detour.read(low, high)])
        return views, hash_

    def _parts(self, start: int, end: int) -> list[tuple[int, int, _Detour | None]]:
        parts: list[tuple[int, int, _Detour | None]] = []
        for at in range(max(bisect_right(self._starts, start) - 1, 0), len(self._detours)):
            detour = self._detours[at]
            if detour.start >= end:
                break
            if start < detour.end:
                low, high = max(start, detour.start), min(end, detour.end)
                if start < low:
                    parts.append((start, low, None))
                parts.append((low, high, detour))
                start = high
        if start < end:
            parts.append((start, end, None))
        return parts


def _by_chunk(spec: TensorSpec, chunks: Chunks, memory: torch.Tensor) -> list[_Detour]:
    found = []
    start, end = spec.offset, spec.offset + spec.bytes
    for chunk in range(start // chunks.size, (end - 1) // chunks.size + 1):
        first, last = chunks.span(chunk)
        low, high = max(start, first), min(end, last)
        found.append(_Detour(low, high, memory[low - start : high - start], whole=False))
    return found
