"""The text loader: what a sample is, that sources agree, and what bad sources are told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.config import FixTheConfiguration
from trainer.text import Text, find_files, open_text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x.txt").write_bytes(bytes(range(100, 160)))
    (tmp_path / "a.txt").write_bytes(bytes(range(100)))
    (tmp_path / "empty.txt").touch()
    (tmp_path / ".hidden").write_bytes(b"secret")
    return tmp_path


def test_files_lie_end_to_end_in_order_of_their_names(folder: Path) -> None:
    assert [name for name, _ in find_files(str(folder))] == ["a.txt", "b/x.txt"]
    text = open_text(str(folder), length=10)
    assert (text.total_bytes, text.count) == (160, 15)
    samples = text.samples(range(15))
    assert samples.shape == (15, 11) and samples.dtype == np.int64
    assert samples[:, 0].tolist() == list(range(0, 150, 10))
    assert all(row.tolist() == list(range(row[0], row[0] + 11)) for row in samples)
    assert np.array_equal(text.samples([9, 3, 9]), samples[[9, 3, 9]])


def test_fingerprint_tells_a_flipped_byte_and_a_renamed_file(folder: Path) -> None:
    before = open_text(str(folder), length=4).fingerprint
    assert open_text(str(folder), length=8).fingerprint == before
    content = bytearray((folder / "a.txt").read_bytes())
    content[50] ^= 1
    (folder / "a.txt").write_bytes(content)
    flipped = open_text(str(folder), length=4).fingerprint
    assert flipped != before
    (folder / "a.txt").rename(folder / "c.txt")
    assert open_text(str(folder), length=4).fingerprint not in (before, flipped)


def test_large_text_is_hashed_in_pieces(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(300 << 20)  # sparse
    before = open_text(str(large), length=64).fingerprint
    with large.open("r+b") as file:
        file.seek(-10, 2)
        file.write(b"x")
    assert open_text(str(large), length=64).fingerprint != before


def test_the_standard_library_is_there_and_is_enough() -> None:
    files = find_files("stdlib")
    names = [name for name, _ in files]
    assert names == sorted(names) and "asyncio/base_events.py" in names
    assert not [n for n in names if "site-packages" in n or "/test" in n or n.startswith(("test", "idlelib"))]
    text = open_text("stdlib", length=64)
    assert text.total_bytes > 5_000_000
    assert b"import" in text.samples(range(200)).astype(np.uint8).tobytes()


def test_bad_sources_are_told_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(FixTheConfiguration, match="no such file or folder"):
        find_files(str(tmp_path / "nowhere"))
    (tmp_path / "empty").touch()
    with pytest.raises(FixTheConfiguration, match="each file is empty"):
        find_files(str(tmp_path / "empty"))
    with pytest.raises(FixTheConfiguration, match="each file is empty"):
        find_files(str(tmp_path))
    (tmp_path / "short").write_bytes(b"abc")
    with pytest.raises(FixTheConfiguration, match="smaller --context"):
        Text([("", tmp_path / "short")], length=64)
