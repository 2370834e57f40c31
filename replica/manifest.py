"""What there is to transfer: tensors packed one after another into one run of bytes, cut into chunks.

Both sides lay tensors out in the same order without gaps, so that chunk i is the same bytes of the run everywhere,
and many small tensors travel in one chunk without being copied together: `Segments` gives the pieces of memory that a
span of the run lies in.
"""

from __future__ import annotations

import ctypes
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence, Set
from math import prod
from operator import itemgetter

import torch

from lighthouse.values import Value
from replica.plain import dtype_named

__all__ = [
    "Chunks",
    "Segments",
    "TensorSpec",
    "Tensors",
    "byte_view",
    "dtype_named",
    "flat_bytes",
    "is_direct",
    "merged_ranges",
    "pack",
]


_WRITABLE = 0x200
"""PyBUF_WRITE"""
_memory: Callable[[int, int, int], memoryview] = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int
)(("PyMemoryView_FromMemory", ctypes.pythonapi))


class TensorSpec(Value, frozen=True, gc=False):
    """One tensor of a manifest: its *local* shape, and where its bytes start in the packed run.

    dtype: torch's name without "torch."; sharded: a DTensor's local shard
    on_host: lies in host memory though its parameter is on a device
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    sharded: bool = False
    on_host: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of the tensor. Raises ValueError if this torch does not know the dtype."""
        return prod(self.shape) * dtype_named(self.dtype).itemsize


class Tensors(Value, frozen=True):
    """The same tensors column by column, as they are sent: thousands of them cost a few columns.

    dims: how many of `extents` are the shape of each; sharded, on_host: a byte each, 0 or 1
    """

    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    dims: tuple[int, ...]
    extents: tuple[int, ...]
    sharded: bytes
    on_host: bytes

    @classmethod
    def of(cls, specs: Sequence[TensorSpec]) -> Tensors:
        """The columns of tensors that lie one after another, in this order."""
        return cls(
            names=tuple(spec.name for spec in specs),
            dtypes=tuple(spec.dtype for spec in specs),
            dims=tuple(len(spec.shape) for spec in specs),
            extents=tuple(extent for spec in specs for extent in spec.shape),
            sharded=bytes(spec.sharded for spec in specs),
            on_host=bytes(spec.on_host for spec in specs),
        )

    def specs(self) -> tuple[TensorSpec, ...]:
        """The tensors. Raises ValueError if the columns do not fit each other, or a dtype is not known here."""
        if len(set(self.names)) < len(self.names) or min(self.extents, default=0) < 0 or min(self.dims, default=0) < 0:
            raise ValueError("manifest: a name comes twice, or an extent is below 0")
        if sum(self.dims) != len(self.extents):
            raise ValueError(f"manifest: {len(self.extents)} extents for {sum(self.dims)} dimensions")
        found = []
        offset = at = 0
        sizes = {dtype: dtype_named(dtype).itemsize for dtype in set(self.dtypes)}
        columns = zip(self.names, self.dtypes, self.dims, self.sharded, self.on_host, strict=True)
        for name, dtype, dims, sharded, on_host in columns:
            shape = self.extents[at : at + dims]
            found.append(TensorSpec(name, dtype, shape, offset, bool(sharded), bool(on_host)))
            at += dims
            offset += prod(shape) * sizes[dtype]
        return tuple(found)


class Chunks(Value, frozen=True):
    """How a run of `total` bytes is cut: chunk i is bytes [i * size, (i + 1) * size), the last one shorter."""

    total: int
    size: int

    @property
    def count(self) -> int:
        """How many chunks there are."""
        return -(-self.total // self.size)

    def span(self, chunk: int) -> tuple[int, int]:
        """First byte of a chunk, and the byte behind its last."""
        return chunk * self.size, min((chunk + 1) * self.size, self.total)

    def stripe(self, part: int, of: int) -> tuple[int, int]:
        """First chunk of part `part` of `of` even contiguous parts, and the chunk behind its last."""
        return part * self.count // of, (part + 1) * self.count // of


def pack(
    tensors: Iterable[tuple[str, torch.Tensor]], sharded: Set[str], on_host: Set[str], offset: int = 0
) -> tuple[TensorSpec, ...]:
    """Lays tensors out in the given order, from `offset` on. sharded, on_host: names of which that is true."""
    specs = []
    for name, tensor in tensors:
        spec = TensorSpec(
            name=name,
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            offset=offset,
            sharded=name in sharded,
            on_host=name in on_host,
        )
        specs.append(spec)
        offset += tensor.nbytes
    return tuple(specs)


def packed_bytes(specs: Sequence[TensorSpec]) -> int:
    """Bytes of the whole run. Raises ValueError if this torch does not know the last dtype."""
    return specs[-1].offset + specs[-1].bytes if specs else 0


def is_direct(tensor: torch.Tensor) -> bool:
    """Whether bytes can be read from and written to the tensor's memory in logical order: host, contiguous, plain."""
    return tensor.is_cpu and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory as uint8[bytes], on its device."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def byte_view(tensor: torch.Tensor) -> memoryview:
    """The memory of a direct tensor, writable. It stays valid while the view lives."""
    return flat_bytes(tensor).numpy().data


def merged_ranges(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The same numbers as ranges [first, end) that do not touch, in order."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return tuple(found)


class Segments:
    """Direct tensors by where their memory lies in a packed run; there may be holes."""

    def __init__(self, pieces: Iterable[tuple[int, torch.Tensor]]) -> None:
        ordered = sorted(((start, tensor) for start, tensor in pieces if tensor.nbytes), key=itemgetter(0))
        self._tensors = [tensor for _, tensor in ordered]
        self._starts = [start for start, _ in ordered]
        self._ends = [start + tensor.nbytes for start, tensor in ordered]
        # One view from the first of all these tensors in memory to the last: what lies between them is never touched.
        self._places = [tensor.data_ptr() for tensor in self._tensors]
        self._low = min(self._places, default=0)
        high = max(
            (place + tensor.nbytes for place, tensor in zip(self._places, self._tensors, strict=True)), default=0
        )
        self._memory = _memory(self._low, high - self._low, _WRITABLE) if ordered else memoryview(b"")

    def views(self, start: int, end: int) -> list[memoryview]:
        """The memory of bytes [start, end) of the run, in order, not copied. Raises LookupError at a hole.

        It is good for as long as these segments are. Views are cheap: a state may have tens of thousands of tensors.
        """
        found = []
        at = max(bisect_right(self._starts, start) - 1, 0)
        while start < end:
            if at >= len(self._starts) or not self._starts[at] <= start < self._ends[at]:
                raise LookupError(f"byte {start} of the run is not held")
            until = min(end, self._ends[at])
            place = self._places[at] - self._low - self._starts[at]
            found.append(self._memory[place + start : place + until])
            start = until
            at += 1
        return found
