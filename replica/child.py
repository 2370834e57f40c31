"""A child of the agent that is or may become a rank: its process, its end, and what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from replica import processes, spawn
from replica.output import Output, Stream


@dataclass
class Child:
    """A started process, which leads a session. pidfd tells its end; out, errors: what it prints."""

    process: subprocess.Popen[bytes]
    pidfd: int
    out: Stream
    errors: Stream

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: Output,
        prefix: str,
        descriptors: Sequence[int] = (),
    ) -> Child:
        """Starts `command` as a child that ends with this process. Raises OSError. descriptors: handed on to it."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", spawn.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment,
            pass_fds=descriptors,
        )
        assert process.stdout is not None and process.stderr is not None
        # The output thread closes these descriptors; Popen's file objects must not.
        out, err = (os.dup(pipe.fileno()) for pipe in (process.stdout, process.stderr))
        process.stdout.close()
        process.stderr.close()
        return cls(
            process=process,
            pidfd=os.pidfd_open(process.pid),
            out=output.follow(out, prefix, err=False),
            errors=output.follow(err, prefix, err=True),
        )

    def end(self) -> int:
        """Ends its process group, also if only its zombie is left; its exit code, or minus the signal."""
        processes.kill_group(self.process.pid)
        os.close(self.pidfd)
        return self.process.wait()
