"""A cable that can be cut, for machines where a test may not have hosts of its own: a TCP proxy.

    python proxy.py LISTEN TARGET [CUTS]

LISTEN is "unix:PATH" or "host:port". While the file CUTS says "to" or "from" (or both), nothing passes to, or from,
TARGET: not a byte, nor a connection's end or beginning. What was under way waits, as TCP would send it again. Ends when
its standard input does; says a line on its standard output once it listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

LOOK_S = 0.02
CHUNK_BYTES = 1 << 16


class Cable:
    """What passes, and what not: read from the file each time that something is to pass."""

    def __init__(self, file: str) -> None:
        self._file = Path(file) if file else None

    def cut(self, way: str) -> bool:
        """Whether nothing passes this way."""
        if self._file is None:
            return False
        try:
            return way in self._file.read_text().split()
        except FileNotFoundError:
            return False

    async def whole(self, *ways: str) -> None:
        """Waits until these ways are whole."""
        while any(self.cut(way) for way in ways):
            await asyncio.sleep(LOOK_S)


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cable: Cable, way: str) -> None:
    """Carries bytes one way, then the end."""
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            await cable.whole(way)
            writer.write(data)
            await writer.drain()
    await cable.whole(way)
    with contextlib.suppress(OSError):
        writer.close()


async def main() -> None:
    """Serves until standard input ends."""
    listen, target, file = [*sys.argv[1:], ""][:3]
    cable = Cable(file)
    host, _, port = target.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await cable.whole("to", "from")  # to connect, both sides have to hear each other
        try:
            there = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(carry(reader, there[1], cable, "to"), carry(there[0], writer, cable, "from"))

    if listen.startswith("unix:"):
        await asyncio.start_unix_server(serve, listen.removeprefix("unix:"))
    else:
        await asyncio.start_server(serve, listen.rpartition(":")[0], int(listen.rpartition(":")[2]))
    print("listens", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
