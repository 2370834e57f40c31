"""Processes of this host, told apart for certain, and ended without leaving any.

A pid alone names nobody: it is used again. So a process is named by its pid and its start time, is looked at through a
pidfd, and is signalled through that same pidfd only after it was recognised. What ranks start themselves (loaders,
compilers, whatever daemonises) is found by the *kin mark*, a variable in the environment that all of them inherit:
process groups miss those that made a group of their own.

Run as a program, this module is the *keeper* of an agent: it waits for the end of its standard input, which comes
when the agent is gone however it went, and ends all kin then. It is started with `python -I -S`, so it imports
nothing but the standard library. Linux only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Collection

KIN_VARIABLE = "BELLROCK_KIN"
"""Environment variable that holds the kin mark of an agent in all of its ranks and in what they start."""

PF_EXITING = 0x4
"""Flag of a task that is being torn down (Linux, include/linux/sched.h)."""


def this_boot() -> str:
    """A name of this boot and this pid namespace: pids and start times mean something only within one."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def start_time(pid: int) -> int | None:
    """When the process was started, in clock ticks since boot; None if there is no such process, or only its zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_dying(pid: int) -> bool:
    """Whether the process has begun to exit: its sockets may be closed some time before it can be waited for."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return fields[0] in (b"Z", b"X") or bool(int(fields[6]) & PF_EXITING)


def signal_process(pid: int, started: int, number: int) -> bool:
    """Sends a signal to the process that has this pid and start time; whether there is one."""
    pidfd = _open(pid)
    if pidfd is None:
        return False
    try:
        if start_time(pid) != started:
            return False
        signal.pidfd_send_signal(pidfd, number)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(pidfd)


def wait_gone(pid: int, started: int, timeout_s: float) -> bool:
    """Waits for the end of the process that has this pid and start time; whether it is gone. It need not be a child."""
    pidfd = _open(pid)
    if pidfd is None:
        return True
    try:
        if start_time(pid) != started:
            return True
        return bool(select.select([pidfd], [], [], timeout_s)[0])
    finally:
        os.close(pidfd)


def end_session(pid: int, started: int) -> None:
    """SIGKILL to the process group that the process with this pid and start time leads, if it is still that one.

    A leader that is a zombie keeps its pid, and so its group's number, from being used again; one that is gone
    altogether is left alone: what it started is found as kin.
    """
    if start_time(pid) == started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


def kill_group(pid: int) -> None:
    """SIGKILL to the process group that the child `pid` leads, which is not reaped yet, so that the number is its."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left in it but the zombie
        os.killpg(pid, signal.SIGKILL)


def kin(mark: str, spare: Collection[int] = ()) -> list[int]:
    """Pids of all processes of this host, but for this one, that were started with the kin mark `mark`.

    spare: sessions whose processes are left out
    """
    wanted = f"{KIN_VARIABLE}={mark}".encode()
    found = [int(name) for name in os.listdir("/proc") if name.isdigit() and _carries(int(name), wanted)]
    return [pid for pid in found if _session(pid) not in spare] if spare else found


def end_kin(mark: str, timeout_s: float, spare: Collection[int] = (), sessions: Collection[int] = ()) -> list[int]:
    """Ends all kin with SIGKILL, also those that are started meanwhile; pids of those left after `timeout_s`.

    Once it has returned, they hold nothing any more. A process that dies gives its environment up first and closes its
    files last: in between, which takes long where there is much memory to give back, nobody knows it for kin by its
    mark. So whoever was sent a signal is waited for by its pidfd.

    spare: sessions whose processes are let live
    sessions: sessions that were sent SIGKILL before; those of their processes that are dying are waited for, too
    """
    wanted = f"{KIN_VARIABLE}={mark}".encode()
    deadline = time.monotonic() + timeout_s
    dying: dict[int, int] = {}
    try:
        while True:
            found = kin(mark, spare)
            for pid in found:
                _end(pid, wanted, dying)
            if sessions:
                _find_dying(sessions, dying)
            _forget_gone(dying)
            left = {*found, *dying}
            if not left or time.monotonic() > deadline:
                return sorted(left)
            time.sleep(0.002)
    finally:
        for pidfd in dying.values():
            os.close(pidfd)


def _find_dying(sessions: Collection[int], dying: dict[int, int]) -> None:
    """Adds the pidfds of those processes of the sessions that have begun to exit, by pid."""
    for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
        if pid in dying or _session(pid) not in sessions:
            continue
        pidfd = _open(pid)
        if pidfd is None:
            continue
        if is_dying(pid):
            dying[pid] = pidfd
        else:
            os.close(pidfd)


def _forget_gone(dying: dict[int, int]) -> None:
    """Closes and takes out the pidfds of processes that are gone."""
    gone = select.poll()
    for pidfd in dying.values():
        gone.register(pidfd, select.POLLIN)
    ended = {pidfd for pidfd, _ in gone.poll(0)}
    for pid, pidfd in list(dying.items()):
        if pidfd in ended:
            os.close(dying.pop(pid))


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def _carries(pid: int, wanted: bytes) -> bool:
    if pid == os.getpid():
        return False
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return wanted in file.read().split(b"\0")
    except OSError:  # gone meanwhile, or of another user
        return False


def _end(pid: int, wanted: bytes, dying: dict[int, int]) -> None:
    """Sends SIGKILL to the process if it carries the mark, and puts its pidfd into `dying`."""
    pidfd = _open(pid)
    if pidfd is None:
        return
    try:
        if _carries(pid, wanted):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if pid not in dying:
                dying[pid], pidfd = pidfd, -1
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def _keep(mark: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the agent, whose end is what matters here
    while os.read(0, 4096):
        pass
    end_kin(mark, timeout_s=30.0)


if __name__ == "__main__":
    _keep(sys.argv[1])
