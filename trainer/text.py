"""Bytes to train on, as samples of a fixed length, without reading more than what is asked for.

The files of a source are laid end to end, in an order that depends on their names alone, and cut into windows: sample i
is the i-th. In which order a run goes through the samples is not decided here but by `replica`'s data plan.

The standard library is here because every machine has it. Only those packages count that distributors neither
leave out nor change, so that machines with the same Python version agree.
"""

from __future__ import annotations

import itertools
import os
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import xxhash

from trainer.config import FixTheConfiguration

STDLIB = "stdlib"

LEFT_OUT = frozenset("ensurepip idlelib lib2to3 site sitecustomize sysconfig test this tkinter turtledemo venv".split())
"""Not in every installation (test suites, graphical parts, installers) or written when Python was built."""

MOST_FILES = 30_000
"""Each file is one mapping; systems allow 65,530 of them in a process."""

HASHED_WHOLE_BYTES = 1 << 28
HASHED_PIECES = 4096
HASHED_PIECE_BYTES = 1 << 16


class Text:
    """Files laid end to end, read as windows of `length + 1` bytes; neighbouring windows share one byte."""

    def __init__(self, files: Sequence[tuple[str, Path]], length: int) -> None:
        """files: (name in the fingerprint, its place). Raises FixTheConfiguration if they hold less than a sample."""
        self._names = [name for name, _ in files]
        self._maps = [np.memmap(path, dtype=np.uint8, mode="r") for _, path in files]
        self._starts = np.cumsum([0] + [len(m) for m in self._maps])
        self._length = length
        self.total_bytes = int(self._starts[-1])
        self.count = (self.total_bytes - 1) // length
        if self.count < 1:
            raise FixTheConfiguration(
                f"The text has {self.total_bytes} bytes, and one sample needs {length + 1}: "
                f"give more text with --data, or a smaller --context."
            )

    def samples(self, indices: Iterable[int]) -> np.ndarray:
        """int64 [number of indices, length + 1]: the bytes of these samples, each index from 0 to `count` - 1."""
        return np.stack([self._read(i * self._length, self._length + 1) for i in indices]).astype(np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal text: names, sizes and bytes (of more than 256 MiB: 4096 pieces spread evenly over it)."""
        digest = xxhash.xxh3_128()
        for name, content in zip(self._names, self._maps, strict=True):
            digest.update(f"{name}\0{len(content)}\0".encode())
        if self.total_bytes <= HASHED_WHOLE_BYTES:
            for content in self._maps:
                digest.update(content.data)
        else:
            for start in np.linspace(0, self.total_bytes - HASHED_PIECE_BYTES, HASHED_PIECES).astype(int):
                digest.update(self._read(int(start), HASHED_PIECE_BYTES).data)
        return f"{self.total_bytes} bytes in {len(self._maps)} files, xxh3 {digest.hexdigest()}"

    def _read(self, start: int, count: int) -> np.ndarray:
        pieces = []
        file = int(np.searchsorted(self._starts, start, side="right")) - 1
        while count:
            piece = self._maps[file][start - self._starts[file] :][:count]
            pieces.append(piece)
            start, count, file = start + len(piece), count - len(piece), file + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def open_text(source: str, length: int) -> Text:
    """The text of `source`: a file, a folder, or "stdlib". Raises FixTheConfiguration if there is none to read."""
    return Text(find_files(source), length)


def find_files(source: str) -> list[tuple[str, Path]]:
    """(name, path) of the files of `source`, in an order that is the same on every machine, without empty ones."""
    if source == STDLIB:
        found = _stdlib_files(Path(sysconfig.get_path("stdlib")))
    else:
        path = Path(source).expanduser()
        if path.is_dir():
            found = [(p.relative_to(path).as_posix(), p) for p in _walk(path)]
        elif path.is_file():
            found = [("", path)]
        else:
            raise FixTheConfiguration(
                f'--data {source}: there is no such file or folder. Give one that exists, or "{STDLIB}".'
            )
    unreadable = [p for _, p in found if not os.access(p, os.R_OK)]
    if unreadable:
        raise FixTheConfiguration(f"--data {source}: {unreadable[0]} cannot be read by this user.")
    files = sorted((name, p) for name, p in found if p.stat().st_size > 0)
    if not files:
        raise FixTheConfiguration(f"--data {source}: no text there, each file is empty. Give a source that has some.")
    if len(files) > MOST_FILES:
        raise FixTheConfiguration(
            f"--data {source}: {len(files)} files; at most {MOST_FILES} can be mapped at once. "
            f"Join them into fewer files."
        )
    return files


def _walk(folder: Path) -> list[Path]:
    paths = (Path(base, name) for base, _, names in os.walk(folder) for name in names)
    return [p for p in paths if not any(part.startswith(".") for part in p.relative_to(folder).parts) and p.is_file()]


def _stdlib_files(folder: Path) -> list[tuple[str, Path]]:
    names = sorted(n for n in sys.stdlib_module_names - LEFT_OUT if not n.startswith("_sysconfig"))
    modules = [folder / f"{name}.py" for name in names]
    packages = itertools.chain.from_iterable((folder / name).rglob("*.py") for name in names)
    kept = [p for p in [*modules, *packages] if p.is_file() and not {"test", "tests"} & set(p.parts)]
    return [(p.relative_to(folder).as_posix(), p) for p in kept]
