"""Files that an agent appends to: real files, and a real limit to how large they may grow."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from replica.agent_files import Appender

LIMITED = """
import logging, resource, sys
from pathlib import Path
from replica.agent_files import Appender
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
file = Appender(Path(sys.argv[1]))
for number in range(10):
    file.append(b"line %023d" % number)
file.close(10.0)
"""


def test_lines_that_come_together_wake_the_thread_once(tmp_path: Path) -> None:
    file, appended = Appender(tmp_path / "sub" / "lines", together_s=2.0), 200
    thread = next(t for t in threading.enumerate() if t.name == "bellrock-lines")
    before = sleeps_of(thread)
    for number in range(appended):
        file.append(b"%d" % number)
        time.sleep(0.001)
    waits = sleeps_of(thread) - before
    file.close(10.0)
    assert (tmp_path / "sub" / "lines").read_bytes().split() == [b"%d" % number for number in range(appended)]
    assert waits < appended / 10


def sleeps_of(thread: threading.Thread) -> int:
    """How often a thread has waited."""
    status = Path(f"/proc/{os.getpid()}/task/{thread.native_id}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_a_disk_that_is_full_amid_the_lines_keeps_those_that_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    told = subprocess.run([sys.executable, "-c", LIMITED, path], capture_output=True, check=True, text=True).stderr
    assert path.read_bytes() == b"".join(b"line %023d\n" % number for number in range(3))
    assert told.count("cannot write") == 1


def test_what_is_appended_after_a_rotation_goes_to_a_new_file(tmp_path: Path) -> None:
    file = Appender(tmp_path / "lines")
    file.append(b"before")
    file.rotate()
    file.append(b"after")
    file.close(10.0)
    assert (tmp_path / "lines.1").read_bytes() == b"before\n"
    assert (tmp_path / "lines").read_bytes() == b"after\n"
