"""A bare gRPC stream over a Unix socket, as a rank and its agent have one, and nothing else: echo_pair.py TURNS NAME

A turn of so many steps is so many messages of 400 bytes there and back; the answer has the milliseconds of each.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import queue
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
from bench.turns import Performer

MESSAGE = bytes(400)


def serve(address: str) -> None:
    """Sends back what comes."""

    async def echo(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield request

    async def run() -> None:
        server = grpc.aio.server()
        handlers = {"Echo": grpc.stream_stream_rpc_method_handler(echo)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", handlers),))
        server.add_insecure_port(address)
        await server.start()
        await server.wait_for_termination()

    asyncio.run(run())


def main() -> None:
    turns, name = sys.argv[1:3]
    address = f"unix:{Path(tempfile.mkdtemp()) / 'echo'}"
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(address,), daemon=True)
    process.start()
    outgoing: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def requests() -> Iterator[bytes]:
        while True:
            yield outgoing.get()

    replies = grpc.insecure_channel(address).stream_stream("/bench.Echo/Echo")(requests(), wait_for_ready=True)
    took: list[float] = []
    turn = Performer(turns, f"{name}/0")
    while turn.next():
        if turn.first:
            took = []
        began = time.perf_counter()
        outgoing.put(MESSAGE)
        next(replies)
        took.append(1e3 * (time.perf_counter() - began))
        turn.notes = {"ms": took}


if __name__ == "__main__":
    main()
