"""Which groups' ranks can be reached: real sockets, and what the kernel knows of them."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.network import Network, why_not

from lighthouse.values import Source
from replica.reach import unreached


def test_who_listens_is_reached_and_who_refuses_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.create_server(("127.0.0.1", 0)) as gone:
        address, refused = (f"127.0.0.1:{s.getsockname()[1]}" for s in (here, gone))
        gone.close()
        targets = [Source(name="a", weights=(address,)), Source(name="b", weights=(refused, address))]
        assert unreached(targets) == () == unreached([])


def test_a_full_backlog_answers_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = full.getsockname()[:2]
        waiting = [socket.socket() for _ in range(3)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(address)
        targets = [Source(name="a", weights=(f"127.0.0.1:{address[1]}",))]
        assert unreached(targets, 0.3) == ("a",)
        for sock in waiting:
            sock.close()


LOOK = """
import sys
from lighthouse.values import Source
from replica.reach import unreached
told = [told.split(",") for told in sys.argv[1:]]
targets = [Source(name=name, weights=(f"{address}:{port}",)) for name, address, port in told]
print(*unreached(targets, 1.0))
"""
SERVE = "import socket, sys; s = socket.create_server((sys.argv[1], 7)); print(flush=True); sys.stdin.read()"


@pytest.mark.skipif(bool(why_not()), reason=f"no network namespaces: {why_not()}")
@pytest.mark.parametrize(("sender", "receiver"), [("a", "b"), ("b", "a")])
def test_a_cut_in_either_direction_is_seen(root: Path, sender: str, receiver: str) -> None:
    network = Network(("a", "b", "c"))
    servers = [
        subprocess.Popen(
            [*network.enter(name), sys.executable, "-c", SERVE, network.address(name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for name in ("b", "c")
    ]
    try:
        for server in servers:
            assert server.stdout is not None and server.stdout.readline()
        network.cut(sender, receiver)
        targets = [f"{name},{network.address(name)},7" for name in ("b", "c")]
        look = [*network.enter("a"), sys.executable, "-c", LOOK, *targets]
        assert subprocess.run(look, capture_output=True, check=True, cwd=root).stdout.split() == [b"b"]
        network.heal()
        assert subprocess.run(look, capture_output=True, check=True, cwd=root).stdout.split() == []
    finally:
        for server in servers:
            server.communicate()
        network.close()
