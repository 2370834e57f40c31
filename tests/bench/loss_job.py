"""The job of the end-to-end tests, which also writes down when its rank leaves a communicator: see bench_loss.py.

Each line of FOLDER/left.GROUP.SHARD: generation, and the time (seconds since 1970) at which nothing of its communicator
was left in this process: every collective had ended, and its sockets were given back.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from e2e import job

from replica.descriptors import fork_guard
from replica.gloo import GlooCommunicator

POLL_S = 0.002


def watch(path: Path) -> None:
    """Writes a line for each communicator that was there and is not any more."""
    there: set[int] = set()
    with path.open("a", buffering=1) as file:
        while True:
            now = {owner.number for owner in fork_guard.owners() if isinstance(owner, GlooCommunicator)}
            for number in there - now:
                file.write(f"{number} {time.time()}\n")
            there = now
            time.sleep(POLL_S)


if __name__ == "__main__":
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    name = f"left.{os.environ['BELLROCK_GROUP']}.{os.environ['BELLROCK_SHARD_RANK']}"
    threading.Thread(target=watch, args=(out / name,), daemon=True).start()
    job.main()
