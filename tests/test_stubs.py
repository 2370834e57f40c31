"""The checked-in protobuf stubs are what protoc makes of proto/ today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def protoc(root: Path, kinds: tuple[str, ...], protos: list[Path], folder: Path) -> None:
    outputs = [f"--{kind}={folder}" for kind in kinds]
    files = [str(p.relative_to(root)) for p in protos]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-Iproto", *outputs, *files], cwd=root, check=True, timeout=60
    )


def test_stubs_are_fresh(root: Path, tmp_path: Path) -> None:
    protos = sorted((root / "proto").rglob("*.proto"))
    protoc(root, ("python_out", "pyi_out"), protos, tmp_path)
    protoc(root, ("grpc_python_out",), [p for p in protos if "\nservice " in p.read_text()], tmp_path)
    made = {p.relative_to(tmp_path) for p in tmp_path.rglob("*") if p.is_file()}
    kept = {p.relative_to(root) for package in ("lighthouse", "replica") for p in (root / package).glob("*_pb2*.py*")}
    assert made == kept, "run `make stubs`"
    stale = [str(name) for name in sorted(made) if (tmp_path / name).read_bytes() != (root / name).read_bytes()]
    assert stale == [], "run `make stubs`"
