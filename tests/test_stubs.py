"""The checked-in protobuf stubs are what protoc makes of proto/ today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROTOS = ("lighthouse/wire.proto", "replica/wire.proto")


def test_stubs_are_fresh(root: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-Iproto"]
        + [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
        + [f"proto/{name}" for name in PROTOS],
        cwd=root,
        check=True,
        timeout=60,
    )
    made = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    kept = {
        path.relative_to(root) for package in ("lighthouse", "replica") for path in (root / package).glob("*_pb2*.py*")
    }
    assert made == kept, "run `make stubs`"
    stale = [str(name) for name in sorted(made) if (tmp_path / name).read_bytes() != (root / name).read_bytes()]
    assert stale == [], "run `make stubs`"


def test_every_contract_has_stubs(root: Path) -> None:
    assert sorted(str(p.relative_to(root / "proto")) for p in (root / "proto").rglob("*.proto")) == sorted(PROTOS)
