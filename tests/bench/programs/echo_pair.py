"""A bare Unix socket between two processes, as a rank and its agent have one, and nothing else: echo_pair.py TURNS NAME

A step of a turn is a message of 400 bytes there and back; the answer has the milliseconds of each.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import time

from bench.turns import Performer

MESSAGE = bytes(400)


def echo(peer: socket.socket) -> None:
    """Sends back what comes."""
    while data := peer.recv(len(MESSAGE), socket.MSG_WAITALL):
        peer.sendall(data)


def main() -> None:
    turns, name = sys.argv[1:3]
    ours, theirs = socket.socketpair()
    process = multiprocessing.get_context("fork").Process(target=echo, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    took: list[float] = []
    turn = Performer(turns, f"{name}/0")
    while turn.next():
        if turn.first:
            took = []
        began = time.perf_counter()
        ours.sendall(MESSAGE)
        ours.recv(len(MESSAGE), socket.MSG_WAITALL)
        took.append(1e3 * (time.perf_counter() - began))
        turn.notes = {"ms": took}
    ours.close()


if __name__ == "__main__":
    main()
