"""The programs that Bellrock is compared with, in an environment of their own: python -m bench.peers

torchft comes from the package index that pip is set up for, with the torch that constraints.txt names, so that both
sides compute with the same one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "peers"
TORCHFT = "torchft==0.2.0"


def install() -> Path:
    """The Python of the peers' environment, made if it is not there. Raises RuntimeError if pip fails."""
    python = FOLDER / "bin" / "python"
    stamp = FOLDER / ".installed"
    wanted = f"{TORCHFT}\n{(ROOT / 'constraints.txt').read_text()}"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {TORCHFT} into {FOLDER}", file=sys.stderr, flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", FOLDER], check=True)
    constraints = ["-c", str(ROOT / "constraints.txt")]
    quiet = ["--quiet", "--disable-pip-version-check"]
    packages = ["torch", "numpy", TORCHFT]
    # Isolated: what lies on PYTHONPATH is not to be looked at as if it were installed there.
    command = [python, "-I", "-m", "pip", "install", *quiet, *constraints, *packages]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"cannot install {TORCHFT}: {done.stdout}{done.stderr}")
    stamp.write_text(wanted)
    return python


def environment() -> dict[str, str]:
    """The environment of any program of the benchmarks: this checkout first, one thread for each rank."""
    paths = [str(ROOT), str(ROOT / "tests"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(p for p in paths if p)),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }


if __name__ == "__main__":
    print(install())
