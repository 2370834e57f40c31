"""The rings and the limits of the code, proved by parsing it.

Each rule is a function from one parsed module to its complaints, so that the rules are themselves tested below on
sources that break them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("lighthouse", "replica", "trainer")

CORE = (
    "lighthouse/values.py",
    "lighthouse/codec.py",
    "lighthouse/batch.py",
    "lighthouse/deadlines.py",
    "lighthouse/deal.py",
    "lighthouse/history.py",
    "lighthouse/core*.py",
    "lighthouse/names.py",
    "lighthouse/table.py",
    "replica/values.py",
    "replica/rollcall.py",
    "replica/roster.py",
    "replica/work.py",
    "replica/agent_core.py",
    "replica/agent_heal.py",
    "replica/agent_life.py",
    "replica/agent_plan.py",
    "replica/agent_progress.py",
    "replica/agent_session.py",
    "replica/agent_split.py",
    "replica/agent_state.py",
    "replica/agent_step.py",
    "replica/agent_values.py",
)
"""Modules that decide, from values alone."""

ENTRY_POINTS = ("trainer/cli.py", "replica/api.py", "replica/spawn.py", "replica/warm.py", "replica/processes.py")
"""Modules that may read the environment or argv: the program, a rank's start, and the agent's small helpers."""

NOT_IN_CORE = frozenset(
    "asyncio concurrent datetime grpc logging multiprocessing os pathlib random secrets select selectors shutil signal "
    "socket sqlite3 subprocess sys tempfile threading time torch uuid".split()
)
UNPICKLERS = frozenset("pickle _pickle cPickle dill cloudpickle shelve marshal".split())
UNPICKLING_CALLS = frozenset(
    "all_gather_object broadcast_object_list gather_object scatter_object_list send_object_list "
    "recv_object_list".split()
)
ACTS_AT_IMPORT = frozenset("asyncio open os print random signal socket sqlite3 subprocess sys threading time".split())

MOST_LINES_OF_A_FUNCTION = 60
MOST_LINES_OF_A_MODULE = 400
MOST_PUBLIC_METHODS = 12


@dataclass(frozen=True)
class Module:
    """A parsed source file; `name` is its path from the top of the repository, with slashes."""

    name: str
    source: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return self.name.split("/")[0]

    @property
    def is_core(self) -> bool:
        return any(fnmatch(self.name, pattern) for pattern in CORE)


def parse(name: str, source: str) -> Module:
    return Module(name, source, ast.parse(source))


@cache
def modules() -> list[Module]:
    files = sorted(p for package in PACKAGES for p in (ROOT / package).rglob("*.py"))
    names = [p.relative_to(ROOT).as_posix() for p in files]
    return [parse(n, (ROOT / n).read_text()) for n in names if not n.endswith(("_pb2.py", "_pb2_grpc.py"))]


def imports(node: ast.AST) -> Iterator[str]:
    """Full names of all that is imported anywhere below `node`; `from a import b` gives "a" and "a.b"."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Import):
            yield from (alias.name for alias in inner.names)
        elif isinstance(inner, ast.ImportFrom):
            yield inner.module or ""
            yield from (f"{inner.module}.{alias.name}" for alias in inner.names)


def dotted(node: ast.AST) -> str:
    """ "os.environ.get" for that expression, "" where it is not a plain chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


def packages_import_inwards_only(module: Module) -> Iterator[str]:
    barred = {
        "lighthouse": {"torch", "replica", "trainer"},
        "replica": {"trainer"},
        "trainer": {"grpc", "grpc_health"},
    }[module.package]
    for name in imports(module.tree):
        if name.split(".")[0] in barred:
            yield f"imports {name}"


def cores_are_pure(module: Module) -> Iterator[str]:
    if not module.is_core:
        return
    for name in imports(module.tree):
        top = name.split(".")[0]
        if top in NOT_IN_CORE:
            yield f"imports {name}: cores take time, chance and devices as arguments"
        path = name.replace(".", "/") + ".py"
        if top in PACKAGES and (ROOT / path).exists() and not any(fnmatch(path, pattern) for pattern in CORE):
            yield f"imports {name}, which is not a core module"


def stubs_stay_in_wire(module: Module) -> Iterator[str]:
    for name in imports(module.tree):
        ours = name.split(".")[0] in PACKAGES
        if ours and any(part.endswith(("_pb2", "_pb2_grpc")) for part in name.split(".")):
            if not module.name.endswith(("/wire.py", "_wire.py")):
                yield f"imports {name}: only wire modules do"
            elif name.split(".")[0] != module.package:
                yield f"imports {name} of another package"


def nothing_is_unpickled(module: Module) -> Iterator[str]:
    for name in imports(module.tree):
        if name.split(".")[0] in UNPICKLERS or name in ("torch.load", "torch.save"):
            yield f"imports {name}"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and (
            dotted(node) in ("torch.load", "torch.save") or node.attr in UNPICKLING_CALLS
        ):
            yield f"line {node.lineno}: {dotted(node) or node.attr} pickles"
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            yield f"line {node.value.lineno}: allow_pickle"


def environment_is_read_at_entry_points(module: Module) -> Iterator[str]:
    if module.name in ENTRY_POINTS:
        return
    for node in ast.walk(module.tree):
        if dotted(node) in ("os.environ", "os.getenv", "os.putenv", "sys.argv"):
            yield f"line {getattr(node, 'lineno', 0)}: {dotted(node)}"
    for name in imports(module.tree):
        if name in ("os.environ", "os.getenv", "sys.argv"):
            yield f"imports {name}"


def nothing_happens_at_import(module: Module) -> Iterator[str]:
    for statement in module.tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue  # a docstring, of the module or of the constant above it
        if isinstance(statement, ast.If) and dotted(statement.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            continue
        if isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'":
            continue
        if not isinstance(statement, ast.Assign | ast.AnnAssign):
            yield f"line {statement.lineno}: {type(statement).__name__} at import"
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and dotted(node.func).split(".")[0] in ACTS_AT_IMPORT:
                yield f"line {node.lineno}: calls {dotted(node.func)} at import"


def fits_the_screen(module: Module) -> Iterator[str]:
    lines = module.source.count("\n")
    if lines > MOST_LINES_OF_A_MODULE:
        yield f"{lines} lines"
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            if length > MOST_LINES_OF_A_FUNCTION:
                yield f"{node.name}: {length} lines"
        if isinstance(node, ast.ClassDef):
            methods = [f for f in node.body if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
            public = [f.name for f in methods if not f.name.startswith("_")]
            if len(public) > MOST_PUBLIC_METHODS:
                yield f"{node.name}: {len(public)} public methods"


RULES: tuple[Callable[[Module], Iterator[str]], ...] = (
    packages_import_inwards_only,
    cores_are_pure,
    stubs_stay_in_wire,
    nothing_is_unpickled,
    environment_is_read_at_entry_points,
    nothing_happens_at_import,
    fits_the_screen,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[Module], Iterator[str]]) -> None:
    assert [f"{module.name}: {complaint}" for module in modules() for complaint in rule(module)] == []


BROKEN = (
    (packages_import_inwards_only, "lighthouse/x.py", "import torch.nn"),
    (packages_import_inwards_only, "lighthouse/x.py", "def f():\n    from replica.values import Mark"),
    (packages_import_inwards_only, "replica/x.py", "from trainer import model"),
    (packages_import_inwards_only, "trainer/x.py", "from grpc import aio"),
    (cores_are_pure, "lighthouse/core.py", "import time"),
    (cores_are_pure, "lighthouse/core_members.py", "from random import Random"),
    (cores_are_pure, "replica/agent_core.py", "from replica.wire import RANK_UP"),
    (cores_are_pure, "replica/rollcall.py", "import torch.distributed as dist"),
    (stubs_stay_in_wire, "replica/x.py", "from replica.wire_pb2 import RankMessage"),
    (stubs_stay_in_wire, "replica/x.py", "from replica import wire_pb2"),
    (stubs_stay_in_wire, "replica/wire.py", "from lighthouse.wire_pb2 import Event"),
    (nothing_is_unpickled, "replica/x.py", "import pickle"),
    (nothing_is_unpickled, "replica/x.py", "state = torch.load(path)"),
    (nothing_is_unpickled, "replica/x.py", "import torch.distributed as dist\ndist.broadcast_object_list(x)"),
    (nothing_is_unpickled, "replica/x.py", "x = np.load(path, allow_pickle=True)"),
    (environment_is_read_at_entry_points, "replica/x.py", "import os\ndef f(): return os.environ['A']"),
    (environment_is_read_at_entry_points, "replica/x.py", "from os import getenv"),
    (nothing_happens_at_import, "replica/x.py", "for x in y:\n    pass"),
    (nothing_happens_at_import, "replica/x.py", "main()"),
    (nothing_happens_at_import, "replica/x.py", "LOCK = threading.Lock()"),
    (nothing_happens_at_import, "replica/x.py", "TEXT: str = open('x').read()"),
    (fits_the_screen, "replica/x.py", "def f():\n" + "    pass\n" * 60),
    (fits_the_screen, "replica/x.py", "x = 1\n" * 401),
    (fits_the_screen, "replica/x.py", "class A:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(13))),
)


@pytest.mark.parametrize(
    ("rule", "name", "source"), BROKEN, ids=[f"{r.__name__}-{i}" for i, (r, *_) in enumerate(BROKEN)]
)
def test_rule_sees_what_breaks_it(rule: Callable[[Module], Iterator[str]], name: str, source: str) -> None:
    assert list(rule(parse(name, source))) != []


def test_the_agent_and_the_command_line_load_no_torch() -> None:
    """An agent must answer while a rank compiles or holds the GIL: it stays small, and starts in a moment."""
    known = {m.name: m for m in modules()}
    for start in ("replica/agent.py", "trainer/cli.py"):
        if start in known:
            reached = _reached_at_import(start, known)
            assert "torch" not in reached, f"{start} imports torch: {' -> '.join(reached['torch'])}"


def _reached_at_import(start: str, known: dict[str, Module]) -> dict[str, tuple[str, ...]]:
    """Top-level names of outside packages (and our files) that importing `start` imports too, each with its path."""
    reached: dict[str, tuple[str, ...]] = {start: (start,)}
    queue = [start]
    while queue:
        here = queue.pop()
        for name in _imported_at_once(known[here].tree):
            parts = name.split(".")
            if parts[0] not in PACKAGES:
                reached.setdefault(parts[0], (*reached[here], name))
            for path in (f"{parts[0]}/__init__.py", "/".join(parts) + ".py"):
                if path in known and path not in reached:
                    reached[path] = (*reached[here], path)
                    queue.append(path)
    return reached


def _imported_at_once(tree: ast.Module) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from imports(statement)


def test_proto_holds_contracts_only() -> None:
    """`proto` is the import name of the proto-plus package: a package of ours by that name would break it."""
    assert [p for p in (ROOT / "proto").rglob("*") if p.is_file() and p.suffix != ".proto"] == []


def test_the_simulation_fits_the_screen_too() -> None:
    files = sorted((ROOT / "tests" / "simulation").glob("*.py"))
    found = [Module(name=path.name, source=path.read_text(), tree=ast.parse(path.read_text())) for path in files]
    assert len(found) > 10
    assert [f"{module.name}: {wrong}" for module in found for wrong in fits_the_screen(module)] == []
