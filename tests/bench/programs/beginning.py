"""When this process became what it is. Imported first of all by programs whose start is measured."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def process_started() -> float:
    """When this process was started, in seconds since 1970."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - (uptime_s - ticks / os.sysconf("SC_CLK_TCK"))


STARTED = time.time() if "torch" in sys.modules else process_started()
"""Of a standby that had imported torch and waited: when it was told to run this program."""
