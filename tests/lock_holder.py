"""Holds a group's lock in a process of its own: FOLDER NAME MARK BEHAVIOUR ("yields" or "stays").

Has a rank, and a process that left the rank's session. Prints their pids once it holds the lock.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from replica.lock import YIELD_SIGNAL, GroupLock, Process
from replica.processes import KIN_VARIABLE, start_time


async def main() -> None:
    folder, name, mark, behaviour = sys.argv[1:5]
    if behaviour == "yields":
        asyncio.get_running_loop().add_signal_handler(YIELD_SIGNAL, os._exit, 0)
    else:
        signal.signal(YIELD_SIGNAL, signal.SIG_IGN)
    lock = GroupLock(Path(folder), "r", name, mark)
    await lock.take_over(0.3, 10.0)
    sleep = ["sleep", "600"]
    ranks = [
        subprocess.Popen(sleep, start_new_session=True, env={**os.environ, KIN_VARIABLE: kin_mark})
        for kin_mark in (mark, "another")
    ]
    loose = subprocess.Popen(sleep, start_new_session=True, env={**os.environ, KIN_VARIABLE: mark})
    lock.record([Process(pid=rank.pid, started=start_time(rank.pid) or 0) for rank in ranks])
    print(*(rank.pid for rank in ranks), loose.pid, flush=True)
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main())
