"""A donor and a joiner of Bellrock, and a bare socket between the same two processes: heal_pair.py TURNS NAME MB

The joiner takes turns: "bare" is one connection, sendall and recv_into; "heal" loads a staged snapshot into the
joiner's training state, each chunk verified. What *first* and *warm* mean is said in heal_transfer.py.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection

from bench.heal_transfer import HEAL, PIECE, TOKEN, memory, receive_bare, send_bare
from bench.programs.ballast import training_state
from bench.turns import Performer

from lighthouse.values import Version
from replica.digest import digest
from replica.entry import EntryLog
from replica.snapshot import Snapshot
from replica.state import TrainingState
from replica.transfer_client import load_snapshot
from replica.transfer_server import WeightServer


def donor(mb: int, pipe: Connection) -> None:
    """A weight server with a staged snapshot, and a bare sender of as many bytes."""
    state = TrainingState(*training_state(mb, filled=True))
    snapshot = Snapshot.stage(state, Version(1, 1), 8, False)
    snapshot.wait()
    server = WeightServer("127.0.0.1", TOKEN, EntryLog())
    server.stage(HEAL, snapshot)
    listener = socket.create_server(("127.0.0.1", 0))
    content = memoryview(bytearray(os.urandom(PIECE)) * (snapshot.bytes // PIECE + 1))[: snapshot.bytes]

    threading.Thread(target=send_bare, args=(listener, content), daemon=True).start()
    pipe.send((server.address, listener.getsockname()[1], snapshot.bytes, digest(state)))
    pipe.recv()


def main() -> None:
    turns, name, mb = sys.argv[1], sys.argv[2], int(sys.argv[3])
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=donor, args=(mb, theirs), daemon=True)
    process.start()
    state = TrainingState(*training_state(mb, filled=False))
    address, port, size, wanted = ours.recv()
    into = memory(size, sum(tensor.nbytes for tensor in state.flatten()[0].values()))
    turn = Performer(turns, f"{name}/joiner")
    while turn.next():
        began = time.perf_counter()
        if turn.wishes["kind"] == "bare":
            receive_bare(port, into)
        else:
            load_snapshot([address], HEAL, state, TOKEN)
        turn.notes = {"gb_s": size / (time.perf_counter() - began) / 1e9}
        if turn.wishes["kind"] != "bare" and digest(state) != wanted:
            raise RuntimeError("what was loaded differs from what was staged")


if __name__ == "__main__":
    main()
