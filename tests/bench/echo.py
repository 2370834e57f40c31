"""Echoes on one asyncio loop, as an agent has: a bare Unix socket at PATH.socket, a gRPC stream at PATH.grpc."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc


class Echo(asyncio.Protocol):
    """Sends back what comes."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


async def echo(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def main(path: str) -> None:
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", {"Echo": handler}),))
    server.add_insecure_port(f"unix:{path}.grpc")
    await server.start()
    await asyncio.get_running_loop().create_unix_server(Echo, f"{path}.socket")
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
