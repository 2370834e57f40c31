"""Simulated groups of torchft at its lighthouse: python quorum_fleet.py TURNS NAME ADDRESS GROUPS

Each group is a thread with torchft's own client. A turn is one quorum round, as every step of torchft needs one: all
ask at once; the seconds are those until the last one has its answer, and those of a core that the process "lighthouse"
used meanwhile.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from bench.measure import cpu_s
from bench.turns import Performer
from torchft.coordination import LighthouseClient

PATIENCE = timedelta(seconds=60)


def main() -> None:
    turns, name, address, count = *sys.argv[1:4], int(sys.argv[4])
    threading.stack_size(256 << 10)
    clients = [LighthouseClient(address, timedelta(seconds=20)) for _ in range(count)]
    step = 0

    def ask(place: int) -> float:
        clients[place].quorum(
            replica_id=f"g{place}",
            timeout=PATIENCE,
            address=f"http://127.0.0.1:{place}",
            store_address="127.0.0.1:1",
            step=step,
            world_size=1,
            shrink_only=False,
        )
        return time.perf_counter()

    def beat(place: int) -> None:
        clients[place].heartbeat(f"g{place}")

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(beat, range(count)))
        list(pool.map(ask, range(count)))
        turn = Performer(turns, f"{name}/fleet")
        while turn.next():
            step += 1
            list(pool.map(beat, range(count)))  # who has not beaten for 5 s is not waited for
            lighthouse = turn.wishes["lighthouse"]
            cpu_before_s, began = cpu_s(lighthouse), time.perf_counter()
            took = max(pool.map(ask, range(count))) - began
            turn.notes = {"change_s": took, "used_s": cpu_s(lighthouse) - cpu_before_s}


if __name__ == "__main__":
    main()
