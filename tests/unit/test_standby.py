"""Which commands can be run by a process that was made ahead."""

from __future__ import annotations

import sys

from replica.standby import python_program


def test_which_commands_are_python_programs() -> None:
    def parts(*command: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        program = python_program(command)
        return program and (program.interpreter, program.program)

    assert parts("python", "a.py", "-m", "x") == (("python",), ("a.py", "-m", "x"))
    assert parts("/usr/bin/python3.12", "-P", "-uO", "-m", "a.b", "-c") == (
        ("/usr/bin/python3.12", "-P", "-uO"),
        ("-m", "a.b", "-c"),
    )
    assert parts(sys.executable, "-X", "dev", "-Wignore", "a.py") == (
        (sys.executable, "-X", "dev", "-Wignore"),
        ("a.py",),
    )
    for command in (
        ("python", "-c", "pass"), ("python", "-"), ("python",), ("python", "-m"), ("python", "-i", "a.py"),
        ("bash", "a.sh"), ("torchrun", "a.py"), ("pythonic", "a.py"), ("python", "-X"), ("python", ""),
    ):  # fmt: skip
        assert python_program(command) is None, command
