"""Packing: whatever tensors there are and however they are cut, each byte lies in one place, the same on both sides."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.manifest import Chunks, Segments, Tensors, byte_view, dtype_named, is_direct, pack, packed_bytes
from replica.transfer_landing import Landing

DTYPES = st.sampled_from(["uint8", "bool", "bfloat16", "float32", "int64", "complex128", "float8_e4m3fn"])
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
TENSORS = st.lists(st.tuples(DTYPES, SHAPES), max_size=12)
SIZES = st.integers(1, 70)


def filled(dtype: str, shape: tuple[int, ...], start: int) -> torch.Tensor:
    count = dtype_named(dtype).itemsize * torch.Size(shape).numel()
    raw = (torch.arange(start, start + count) % 251).to(torch.uint8)
    return raw.view(dtype_named(dtype)).reshape(shape) if dtype != "bool" else (raw % 2).bool().reshape(shape)


def made(kinds: list[tuple[str, tuple[int, ...]]]) -> dict[str, torch.Tensor]:
    return {f"t{i}": filled(dtype, shape, 7 * i) for i, (dtype, shape) in enumerate(kinds)}


def run_of(tensors: dict[str, torch.Tensor]) -> bytes:
    return b"".join(bytes(byte_view(tensor)) for tensor in tensors.values())


@given(TENSORS, SIZES)
@settings(max_examples=150)
def test_chunks_are_the_run_of_bytes_cut(kinds: list[tuple[str, tuple[int, ...]]], size: int) -> None:
    tensors = made(kinds)
    specs = pack(tensors.items(), frozenset(), frozenset())
    chunks = Chunks(total=packed_bytes(specs), size=size)
    segments = Segments((spec.offset, tensors[spec.name]) for spec in specs)
    pieces = [b"".join(segments.views(*chunks.span(chunk))) for chunk in range(chunks.count)]
    assert b"".join(pieces) == run_of(tensors)
    assert all(len(piece) == size for piece in pieces[:-1])


@given(TENSORS, st.integers(0, 1 << 12), st.integers(0, 1 << 12))
@settings(max_examples=150)
def test_columns_are_the_same_tensors(kinds: list[tuple[str, tuple[int, ...]]], sharded: int, on_host: int) -> None:
    tensors = made(kinds)
    marked = [frozenset(f"t{i}" for i in range(12) if bits >> i & 1) for bits in (sharded, on_host)]
    specs = pack(tensors.items(), *marked)
    columns = Tensors.of(specs)
    assert columns.specs() == specs
    assert packed_bytes(columns.specs()) == sum(tensor.nbytes for tensor in tensors.values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"names": ("a", "a")},
        {"names": ("a",)},
        {"dims": (1, 2)},
        {"dims": (-1, 3)},
        {"extents": (2, -3)},
        {"dtypes": ("float32", "quaternion")},
        {"sharded": b"\0"},
        {"on_host": b""},
    ],
)
def test_columns_that_do_not_fit_each_other_are_refused(wrong: dict[str, Any]) -> None:
    fits = {"names": ("a", "b"), "dtypes": ("float32", "bool"), "dims": (1, 1), "extents": (2, 3)}
    columns = Tensors(**(fits | {"sharded": b"\0\0", "on_host": b"\0\0"}))  # type: ignore[arg-type]
    assert packed_bytes(columns.specs()) == 11
    with pytest.raises((ValueError, AttributeError)):
        msgspec.structs.replace(columns, **wrong).specs()


@given(st.integers(0, 10_000), st.integers(1, 300), st.integers(1, 9))
def test_stripes_partition_the_chunks(total: int, size: int, of: int) -> None:
    chunks = Chunks(total=total, size=size)
    seen = [chunk for part in range(of) for chunk in range(*chunks.stripe(part, of))]
    assert seen == list(range(chunks.count))


@given(TENSORS, SIZES, st.randoms(use_true_random=False))
@settings(max_examples=150)
def test_chunks_land_in_any_order_in_tensors_of_any_layout(kinds: list, size: int, chance: object) -> None:  # type: ignore[type-arg]
    tensors = made(kinds)
    specs = pack(tensors.items(), frozenset(), frozenset())
    chunks = Chunks(total=packed_bytes(specs), size=size)
    content = run_of(tensors)
    targets = {name: torch.zeros(t.shape[::-1], dtype=t.dtype) for name, t in tensors.items()}
    targets = {name: t.permute(tuple(range(t.ndim))[::-1]) for name, t in targets.items()}
    landing = Landing(specs, chunks, targets)
    order = list(range(chunks.count))
    chance.shuffle(order)  # type: ignore[attr-defined]
    for chunk in order:
        start, _ = chunks.span(chunk)
        for _ in range(2):  # the first time as if its hash had been wrong
            at = start
            for view in landing.views(chunk):
                view[:] = content[at : at + len(view)]
                at += len(view)
        landing.landed(chunk, 7 * chunk)
    assert run_of({name: t.contiguous() for name, t in targets.items()}) == content
    for first, end in landing.readable(0, 0.0):  # what can be passed on is what has landed, with its hash
        for chunk in range(first, end):
            views, hash_ = landing.read(chunk)
            start, behind = chunks.span(chunk)
            assert b"".join(views) == content[start:behind] and hash_ == 7 * chunk
    for tensor in targets.values():
        tensor.zero_()
    direct = all(is_direct(tensor) for tensor in targets.values() if tensor.numel())
    assert not direct or landing.readable(0, 0.0) == ((0, chunks.count),) or not chunks.count
