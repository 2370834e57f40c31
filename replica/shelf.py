"""Marks of a rank that are not worth waking its agent for yet, where the agent finds them should the rank end.

The first slot of a step follows its verdict, and its roll call the end of the last one: an agent that is woken for
those takes a core from a rank, where cores are few, and learns nothing that it could use. So they lie on a shelf until
something else is said, or for a moment: a file of the agent's folder that is mapped into the rank, which costs no call
of the kernel. A rank that is killed leaves it as it was, so that a slot which ends processes is known for it, however
soon.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from replica.frames import Frames
from replica.values import Mark
from replica.wire import RANK_UP

SHELF_BYTES = 4096
"""Room for what lies there and its length: about a hundred marks."""
_LENGTH = struct.Struct("=I")


class Shelf:
    """The rank's end. Its methods are called by one thread at a time.

    path: the file that the agent made; "": the agent will not look
    """

    def __init__(self, path: str) -> None:
        if not path:
            self._map = mmap.mmap(-1, SHELF_BYTES)
            return
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), SHELF_BYTES)

    @property
    def frames(self) -> bytes:
        """What lies there, as it was put."""
        return self._map[_LENGTH.size : _LENGTH.size + self._bytes]

    def put(self, frame: bytes) -> bool:
        """Puts a frame behind the others; False if there is no room."""
        begin = _LENGTH.size + self._bytes
        end = begin + len(frame)
        if end > SHELF_BYTES:
            return False
        self._map[begin:end] = frame
        _LENGTH.pack_into(self._map, 0, end - _LENGTH.size)
        return True

    def clear(self) -> None:
        """Takes everything away, once it has been said."""
        _LENGTH.pack_into(self._map, 0, 0)

    @property
    def _bytes(self) -> int:
        return int(_LENGTH.unpack_from(self._map)[0])


def shelf_file(folder: Path, life: int, shard_rank: int) -> Path:
    """Where the shelf of a rank lies in the agent's folder."""
    return folder / str(life) / f"marks.{shard_rank}"


def make_shelf(path: Path) -> str:
    """Makes the file of an empty one; its path, "" on a disk that takes none: no reason not to start a rank."""
    try:
        path.write_bytes(bytes(SHELF_BYTES))
    except OSError:
        return ""
    return str(path)


def left_on(path: Path) -> list[Mark]:
    """The marks on the shelf of a rank that has ended; none if it cannot be read."""
    try:
        data = path.read_bytes()
        frames, marks = Frames(SHELF_BYTES), []
        frames.feed(data[_LENGTH.size : _LENGTH.size + _LENGTH.unpack_from(data)[0]])
        while (got := frames.next()) is not None:
            mark = RANK_UP.decode(got[1])
            if isinstance(mark, Mark):
                marks.append(mark)
    except (OSError, ValueError, struct.error):
        return []
    return marks
