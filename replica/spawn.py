"""Becomes a rank: the last moment before a rank's command runs.

    python -I -S …/replica/spawn.py AGENT_PID COMMAND [ARGUMENT …]

The kernel is asked to end this process when its agent goes, and that outlives `exec`. It is a program of its own,
isolated from the working directory (`-I`) so that nobody's `signal.py` there is taken for the standard library's, and
imports next to nothing: it costs some 15 ms.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
CANNOT_RUN = 127
"""Exit code of a rank whose command cannot be run, as shells have it."""


def _become(agent_pid: int, command: list[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent_pid:  # it went before the kernel was asked
        os._exit(CANNOT_RUN)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec would hand that on
        signal.signal(number, signal.SIG_DFL)
    os.environ["BELLROCK_BEGUN"] = f"{time.monotonic()} cold"  # see environment.py, which is not to be imported here
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(CANNOT_RUN)


if __name__ == "__main__":
    _become(int(sys.argv[1]), sys.argv[2:])
