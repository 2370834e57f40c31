"""Scenarios: text files that read like stories, told by the real cores.

    # Lines like this are for the reader.
    a run of A B C at step 2: slots 6, min_groups 2
        what happened until then, indented
    kill rank B.0
    until all commit step 3
        ...

A line that is not indented is a sentence: `a run of ...` (once; fields of `Spec` after the colon; how it came to the
step named is not told), `until CONDITION` (nothing else for up to 60 virtual seconds), `for N s`, or an act
(scenario_commands.py and scenario_poison.py have them). The lines under it are what happened while it was carried out;
they are compared, and every checker of the simulation is on.

    python -m simulation.scenario                     compares all scenarios
    python -m simulation.scenario --rewrite NAME ...  writes what happened into the files, for a person to read

Under pytest, BELLROCK_REWRITE=1 rewrites instead of comparing.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import msgspec

import simulation.scenario_poison  # noqa: F401 declares what it has
from simulation.checkers import Broken
from simulation.scenario_commands import ACTS, CONDITIONS, NotSo, find
from simulation.stage import Stage
from simulation.world import Spec

FOLDER = Path(__file__).parent / "scenarios"
PATIENCE_S = 60.0
"""What a scenario waits for happens within so many virtual seconds."""

_USUAL = Spec(groups=0, slots=6, unkind=False, drift=0.0, marks=False, join_wait_s=2.0, delay_s=(0.001, 0.001))


class ScenarioError(Exception):
    """A scenario cannot be told: the message says which line, and why."""


def tell(text: str, name: str) -> str:
    """The scenario with what happens now under each sentence. Raises ScenarioError."""
    stage: Stage | None = None
    told: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("    "):
            continue
        told.append(line.rstrip())
        sentence = line.strip()
        if not sentence or sentence.startswith("#"):
            continue
        try:
            if sentence.startswith("a run of "):
                stage = _stage(sentence)
            elif stage is None:
                raise NotSo("a scenario begins with: a run of A B C")
            else:
                _carry_out(stage, sentence)
        except (NotSo, Broken) as wrong:
            so_far = "\n".join(told[-20:] + (["    " + s for s in stage.story.take()[-40:]] if stage else []))
            raise ScenarioError(f"{name}:{number}: {sentence}: {wrong}\n{so_far}") from None
        told += ["    " + said for said in stage.story.take()]
    return "\n".join(told) + "\n"


def _stage(sentence: str) -> Stage:
    names, _, fields = sentence.removeprefix("a run of ").partition(":")
    names, _, step = names.partition(" at step ")
    groups = tuple(names.split())
    changed: dict[str, object] = {"groups_wanted": len(groups)}
    for field in filter(None, (f.strip() for f in fields.split(","))):
        key, value = field.split()
        if not hasattr(_USUAL, key):
            raise NotSo(f"a run has no {key}")
        kind = type(getattr(_USUAL, key))
        changed[key] = value if kind is str else kind(float(value))
    stage = Stage(msgspec.structs.replace(_USUAL, **changed), groups)
    if step:
        _carry_out(stage, f"until all commit step {step}")
        lines = stage.story.take()
        stage.story.say(lines[-1])
    return stage


def _carry_out(stage: Stage, sentence: str) -> None:
    waits = re.fullmatch(r"for ([\d.]+) s", sentence)
    if waits:
        stage.run(float(waits[1]))
    elif sentence.startswith("until "):
        holds, words = find(CONDITIONS, sentence.removeprefix("until "))
        stage.story.tells.clear()
        stage.since_s = stage.engine.now
        stage.run(PATIENCE_S, lambda: holds(stage, *words))
        if not holds(stage, *words):
            raise NotSo(f"that did not happen in {PATIENCE_S:g} s")
    else:
        act, words = find(ACTS, sentence)
        act(stage, *words)
        stage.watch.raise_broken()


def scenarios() -> list[Path]:
    """All scenario files, by name."""
    return sorted(FOLDER.glob("*.txt"))


def retold(path: Path) -> tuple[str, str]:
    """What the file says, and what happens now."""
    text = path.read_text(encoding="utf-8")
    return text, tell(text, path.name)


def main(argv: list[str]) -> int:
    """Compares or rewrites. 0 if all files say what happens."""
    parser = argparse.ArgumentParser(prog="python -m simulation.scenario", description="Tells scenarios.")
    parser.add_argument("names", nargs="*", help="parts of file names; all files without")
    parser.add_argument("--rewrite", action="store_true", help="write what happens into the files")
    options = parser.parse_args(argv)
    differing = 0
    for path in scenarios():
        if options.names and not any(part in path.name for part in options.names):
            continue
        try:
            expected, now = retold(path)
        except ScenarioError as wrong:
            print(wrong)
            differing += 1
            continue
        if now == expected:
            continue
        if options.rewrite:
            path.write_text(now, encoding="utf-8")
            print(f"rewritten: {path.name}")
        else:
            print(f"{path.name} tells another story now; --rewrite writes it")
            differing += 1
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
