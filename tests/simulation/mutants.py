"""Deliberate mistakes in the cores: each must turn something red. A tree of its own is changed, never this one.

python -m simulation.mutants                    all of them; the kill table
python -m simulation.mutants --only fence       those with "fence" in their name or path
python -m simulation.mutants --check            only whether each still applies
python -m simulation.mutants --small            which of them small worlds alone find

A mutant that survives means that a checker, a test or a seed is missing. One that changes nothing that matters is
replaced by another.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from simulation.mutation import Mutation, Rotten, mutated
from simulation.mutations_data import DATA
from simulation.mutations_heals import HEALS
from simulation.mutations_lighthouse import LIGHTHOUSE
from simulation.mutations_replica import REPLICA

MUTATIONS = (*LIGHTHOUSE, *HEALS, *REPLICA, *DATA)

ROOT = Path(__file__).resolve().parent.parent.parent

COPIED = ("lighthouse", "replica", "trainer", "tests", "proto", "pyproject.toml")

SEEDS = 300
"""So many seeds are tried before a mutant has survived; the first one that fails ends them."""

UNIT_ONLY, SMALL_ONLY = -1, -2
"""In place of a number of seeds: only the unit tests of the module; only small worlds."""

_WORLDS = "two-crash,two-restart,two-break,two-crash-restart,two-shards,two-forming,three-restart,three-gone-twice"
"""Small worlds that are explored within seconds, those of two groups first."""

LIMIT_S = 900.0
"""A mutant that makes a test hang is killed by that."""

_UNIT = {
    "lighthouse/batch": ("unit/test_batch.py",),
    "lighthouse/core": ("unit/test_lighthouse_core*.py", "unit/test_core.py"),
    "lighthouse/history": ("unit/test_history.py",),
    "lighthouse/deal": ("unit/test_deal.py",),
    "replica/agent_": ("unit/test_agent_*.py",),
    "replica/roster": ("unit/test_roster.py",),
    "replica/rollcall": ("unit/test_rollcall.py",),
    "replica/work": ("unit/test_work.py",),
}
"""The tests of a module, by the beginning of its path: they are the fastest, and come first."""

_SOON = 30
"""So many seeds come before the slower tests, which are:"""

_THEN = ("simulation/test_promises.py", "simulation/test_scen*.py", "property/test_agent_core.py")


class Verdict(NamedTuple):
    """What became of a mutant. killed_by is empty if it survived, or could not be applied (then `rotten` says why)."""

    mutation: Mutation
    killed_by: str
    seconds: float
    rotten: str = ""


class Tree:
    """A copy of the sources that mutants are tried in, one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
            else:
                shutil.copy2(source, folder / name)

    def judge(self, mutation: Mutation, seeds: int) -> Verdict:
        """Applies the mutation, runs test after test until one fails, and takes it back. seeds: how many at most; see
        also `UNIT_ONLY` and `SMALL_ONLY`."""
        began = time.monotonic()
        path = self._folder / mutation.path
        original = path.read_text()
        try:
            path.write_text(mutated(self._folder, mutation))
            _forget_compiled(path)
            killed_by = next(filter(None, self._reds(mutation, seeds)), "")
        except Rotten as rotten:
            return Verdict(mutation, "", 0.0, str(rotten))
        finally:
            path.write_text(original)
            _forget_compiled(path)
        return Verdict(mutation, killed_by, time.monotonic() - began)

    def _reds(self, mutation: Mutation, seeds: int) -> Iterator[str]:
        if seeds == SMALL_ONLY:
            yield self._small()
            return
        yield self._pytest(self._found(next((p for start, p in _UNIT.items() if mutation.path.startswith(start)), ())))
        if seeds == UNIT_ONLY:
            return
        yield self._seeds(0, min(_SOON, seeds))
        yield self._pytest(self._found(_THEN))
        yield self._seeds(_SOON, seeds - _SOON)

    def _small(self) -> str:
        """What small worlds say is wrong, empty if they say nothing."""
        code, out = self._run("-m", "simulation.small", "--jobs", "1", "--world", _WORLDS)
        if code == 0:
            return ""
        found = re.search(rf"^(?:{_WORLDS.replace(',', '|')}): (?!all |ONLY THE FIRST).*$", out, re.MULTILINE)
        return found.group(0) if found else f"small worlds: {_last(out)}"

    def _found(self, patterns: Sequence[str]) -> list[str]:
        tests = self._folder / "tests"
        return [str(path.relative_to(self._folder)) for pattern in patterns for path in sorted(tests.glob(pattern))]

    def _pytest(self, files: Sequence[str]) -> str:
        """The first test that fails, empty if none does (or there is none)."""
        if not files:
            return ""
        code, out = self._run("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n0", "-m", "not slow", *files)
        if code == 0:
            return ""
        found = re.search(r"^(?:FAILED|ERROR) (?:tests/)?(.+?)(?: - .*)?$", out, re.MULTILINE)
        return found.group(1) if found else f"pytest: {_last(out)}"

    def _seeds(self, first: int, count: int) -> str:
        if count <= 0:
            return ""
        asked = ("--first", str(first), "--count", str(count), "--until-failure")
        code, out = self._run("-m", "simulation.seeds", *asked)
        if code == 0:
            return ""
        found = re.search(r"^seed \d+: .*$", out, re.MULTILINE)
        return found.group(0) if found else f"seeds: {_last(out)}"

    def _run(self, *arguments: str) -> tuple[int, str]:
        environ = {**os.environ, "PYTHONPATH": ".:tests", "OMP_NUM_THREADS": "1"}
        environ.pop("PYTEST_ADDOPTS", None)
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=self._folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                text=True,
            )
        except subprocess.TimeoutExpired:
            return 1, f"it hangs: no end in {LIMIT_S:g} s"
        return done.returncode, done.stdout


def _forget_compiled(path: Path) -> None:
    """Python takes a source of the same second and length for the same: what it compiled of this one must go."""
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def _last(out: str) -> str:
    lines = [line for line in out.splitlines() if line.strip()]
    return lines[-1] if lines else "it failed without a word"


@contextmanager
def trees(count: int) -> Iterator[SimpleQueue[Tree]]:
    """So many copies of the sources, to be taken and given back."""
    with tempfile.TemporaryDirectory(prefix="bellrock-mutants-") as folder:
        free: SimpleQueue[Tree] = SimpleQueue()
        for index in range(count):
            place = Path(folder) / str(index)
            place.mkdir()
            free.put(Tree(place))
        yield free


def judge_all(mutations: Sequence[Mutation], seeds: int, jobs: int) -> list[Verdict]:
    """Tries all mutations, `jobs` at a time, and prints each verdict as it comes."""
    with trees(jobs) as free, ThreadPoolExecutor(jobs) as pool:

        def judge(mutation: Mutation) -> Verdict:
            tree = free.get()
            try:
                verdict = tree.judge(mutation, seeds)
            finally:
                free.put(tree)
            print(line(verdict), flush=True)
            return verdict

        return list(pool.map(judge, mutations))


def line(verdict: Verdict) -> str:
    """A row of the kill table."""
    module = verdict.mutation.path.rsplit("/", 1)[-1].removesuffix(".py")
    said = verdict.rotten or verdict.killed_by or "SURVIVED"
    return f"{module:14} {verdict.mutation.name:52.52} {verdict.seconds:6.1f} s  {said:.110}"


def rotten(mutations: Sequence[Mutation]) -> list[str]:
    """Those that do not apply to the sources as they are, with the reason."""
    found = []
    for mutation in mutations:
        try:
            compile(mutated(ROOT, mutation), mutation.path, "exec")
        except (Rotten, SyntaxError) as problem:
            found.append(f"{mutation.name}: {problem}")
    return found


def main(argv: Sequence[str]) -> int:
    """0 if every mutant applied and was killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only whether each still applies")
    parser.add_argument("--only", default="", help="mutants with this in their name or path")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--fast", action="store_true", help="only the unit tests of each module")
    parser.add_argument("--small", action="store_true", help="only small worlds")
    options = parser.parse_args(argv)
    chosen = [m for m in MUTATIONS if options.only in m.name or options.only in m.path]
    if options.check:
        problems = rotten(chosen)
        print("\n".join(problems) or f"all {len(chosen)} mutants apply")
        return 1 if problems else 0
    began = time.monotonic()
    seeds = UNIT_ONLY if options.fast else SMALL_ONLY if options.small else options.seeds
    verdicts = judge_all(chosen, seeds, options.jobs)
    alive = [v for v in verdicts if not v.killed_by]
    print(f"{len(verdicts)} mutants, {len(verdicts) - len(alive)} killed, {time.monotonic() - began:.0f} s")
    for verdict in alive:
        print(f"not killed: {line(verdict)}")
    return 1 if alive or not verdicts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
