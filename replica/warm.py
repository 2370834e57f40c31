"""A rank in waiting: a process that has imported what a rank needs, and runs its program when it is told to.

    python [FLAG …] …/replica/warm.py SOCKET IMPORTS PROGRAM [ARGUMENT …]        PROGRAM: FILE, or -m MODULE

It is started by the agent, through `spawn.py`, with the flags and the environment of a rank. On the socket it says that
it is ready, and waits for {"command", "environ"}: then it becomes the rank. What the program can see is what it would
see in a process of its own: `__main__`, `sys.argv`, `sys.path`, the environment, signals, descriptors, tracebacks.
Where that cannot be (the file cannot be compiled, something imported has changed on disk since) it executes the
command anew: nothing is lost but the head start. It holds no GPU, and ends when its agent goes.

Imports go on in a thread of low priority: an unprivileged process cannot raise its own again, but threads differ.
"""

from __future__ import annotations

import sys

NICE = 10
"""Of the thread that imports: a group trains beside it."""
ALWAYS = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.device_mesh", "replica.api")
"""Imported by every standby: what a rank's library loads, and what torch loads as soon as an optimizer is made."""
CANNOT_BE = 3
"""Exit code: there can be no standby here; the reason was told."""


def _path_of(program: list[str]) -> str:
    """What a process that runs `program` has as the first folder of its module path."""
    import os

    return os.getcwd() if program[0] == "-m" else os.path.dirname(os.path.realpath(program[0]))


def _import(names: list[str]) -> dict[str, str]:
    """Imports modules; by name, why those that failed did."""
    import contextlib
    import importlib
    import os
    import threading

    failed = {}

    def load() -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        for name in names:
            try:
                importlib.import_module(name)
            except BaseException as error:  # noqa: BLE001 the program will meet it where it imports it
                failed[name] = f"{type(error).__name__}: {error}"

    # Its threads, made as it is imported, must not keep the low priority.
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy")
    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    return failed


def _stamps(paths: list[str]) -> dict[str, tuple[int, int]]:
    """Of files, when each was changed last and how large it is; those that are gone are left out."""
    import contextlib
    import os

    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            about = os.stat(path)
            found[path] = (about.st_mtime_ns, about.st_size)
    return found


def _name_process(name: str) -> str:
    """Gives this process the name that `ps` and `top` show; the one it had."""
    with open("/proc/self/comm", "r+", encoding="utf-8") as file:
        before = file.read().strip()
        file.write(name)
    return before


def _private_bytes() -> int:
    """Memory that only this process has."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        lines = [line.split() for line in file]
    return sum(int(line[1]) << 10 for line in lines if line[0].startswith("Private_"))


def _wait(descriptor: int, imports: list[str]) -> tuple[list[str], dict[str, str], bool]:
    """Imports, says so, and waits: the command and its environment, and whether something has changed meanwhile.

    Ends this process if it is not needed or not possible.
    """
    import ctypes
    import gc
    import json
    import os
    import socket

    before = _name_process("standby...")
    sock = socket.socket(fileno=descriptor)
    os.set_inheritable(descriptor, False)
    failed = _import([*ALWAYS, *imports])
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    why = failed.get("torch") or failed.get("replica.api") or ""
    if cuda is not None and cuda.is_initialized():
        why = f"importing {', '.join(imports)} takes hold of the GPU"
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    left_out = {name: failed[name] for name in imports if name in failed}
    _name_process("standby")
    told = {"cannot": why, "left_out": left_out, "bytes": _private_bytes()}
    stamps = _stamps([path for module in sys.modules.values() if (path := getattr(module, "__file__", None))])
    reader = sock.makefile("rb")
    try:
        sock.sendall(json.dumps(told).encode() + b"\n")
        if why:
            os._exit(CANNOT_BE)
        line = reader.readline()
        if not line.endswith(b"\n"):  # the agent is gone, or has no use for it
            os._exit(0)
        sock.sendall(b"{}\n")
    except OSError:
        os._exit(0)
    reader.close()
    sock.close()
    _name_process(before)
    go = json.loads(line)
    return go["command"], go["environ"], _stamps(list(stamps)) != stamps


def _compiled(program: list[str]):  # type: ignore[no-untyped-def]  # a code object has no public name
    """The program's code, None for a module. Raises what compiling it raises."""
    import os

    if program[0] == "-m":
        return None
    path = os.path.abspath(program[0])
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _run(program: list[str], code) -> None:  # type: ignore[no-untyped-def]
    """Runs the program as `__main__`. Raises what it raises."""
    import builtins
    import runpy
    import types
    from importlib.machinery import SourceFileLoader

    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    if program[0] == "-m":
        sys.argv = ["-m", *program[2:]]
        runpy._run_module_as_main(program[1])  # type: ignore[attr-defined]  # what `python -m` itself calls
        return
    sys.argv = list(program)
    main.__file__ = code.co_filename
    main.__dict__["__cached__"] = None
    main.__loader__ = SourceFileLoader("__main__", code.co_filename)
    exec(code, main.__dict__)


def _become(descriptor: int, imports: list[str], program: list[str]) -> None:
    import os
    import time

    command, environ, changed = _wait(descriptor, imports)
    os.environ.clear()
    os.environ.update(environ)
    os.environ["BELLROCK_BEGUN"] = f"{time.monotonic()} {'cold' if changed else 'warm'}"  # see environment.py
    sys.orig_argv[:] = command
    try:
        code = None if changed else _compiled(program)
    except Exception:  # noqa: BLE001 Python itself shall say what is wrong with it
        changed, code = True, None
    if changed:
        os.execvp(command[0], command)
    try:
        _run(program, code)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 shown as if this file were not there
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)


if __name__ == "__main__":
    if not sys.flags.safe_path:  # where this file lies is nobody's business
        sys.path[0] = _path_of(sys.argv[3:])
    _become(int(sys.argv[1]), [name for name in sys.argv[2].split(",") if name], sys.argv[3:])
