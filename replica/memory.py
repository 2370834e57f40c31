"""Host memory for what is moved: fresh memory costs several times the copy into it, a page at a time."""

from __future__ import annotations

import ctypes
import mmap

import torch

_WORTH_BYTES = 4 << 20
"""Smaller pieces have no large page to themselves."""


def touched(size: int, pinned: bool) -> torch.Tensor:
    """uint8[size] whose pages are there."""
    run = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    if not pinned:
        large_pages(run)
        run.numpy()[:: mmap.PAGESIZE] = 0
    return run


def large_pages(tensor: torch.Tensor) -> torch.Tensor:
    """The new tensor. If it is on the host, its memory comes in large pages where the kernel has some: much sooner."""
    if tensor.nbytes >= _WORTH_BYTES and tensor.device.type == "cpu":
        first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (tensor.data_ptr() + tensor.nbytes - first) // mmap.PAGESIZE * mmap.PAGESIZE
        ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(length), mmap.MADV_HUGEPAGE)
    return tensor
