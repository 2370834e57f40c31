"""Table 6: where the protocol's own time goes in one step, and the limit that it could reach.

Bellrock's ranks tell when each phase of a step ends (the library's observer). In the same run, in turn, what the parts
cannot do without is measured alone: a gather of the record over gloo, a message there and back over a bare socket,
a copy and a norm of the gradients. A plain job beside them says what compute and the reduction take in any case.

Nobody's gather can end before the last rank has begun it, whatever the protocol is, and ranks compute for unlike times.
All run on one host and tell when they begin theirs, on its one monotonic clock. So what a rank waits for others to come
is told apart ("skew"), and "gather" is the rest.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from pathlib import Path

from bench.children import Children, stage
from bench.measure import Spread
from bench.step_overhead import BELLROCK, GROUPS, PLAIN, start_bellrock, start_plain
from bench.tables import Table
from bench.turns import Answers, Conductor

from replica.ranks import free_port

SIZE = "1M"
FLAME = 40
"""Characters of the longest bar."""
EXPLAINED = {
    "deal": ("from the verdict to the next slot: seeds, marks", ""),
    "forward": ("the program's own", ""),
    "backward": ("the program's own, with hooks that copy gradients into buckets and start their reduction", ""),
    "flush": ("copying what no hook has", "copy"),
    "reduce": ("waiting for the buckets that backward did not hide, their norm", "norm"),
    "skew": ("of who waits there: in the roll call, until the last rank comes to it", ""),
    "gather": ("the roll call from then on: gather, told to the agent", "gather"),
    "verdict": ("rank to agent to rank: merge, decide, answer", "echo"),
    "apply": ("write back, scale, optimizer, schedule", "copy"),
    "after": ("the program's own bookkeeping", ""),
}
OWN = ("deal", "flush", "gather", "verdict")
"""The parts that are the protocol's alone."""


def measure(rounds: int, steps: int) -> tuple[dict[str, list[float]], dict[str, list[float]], Spread]:
    """Milliseconds of each part; of each thing measured alone; and Bellrock's step over the plain one's."""
    with stage() as (children, turns):
        start_plain(children, turns, SIZE, 1)
        start_bellrock(children, turns, SIZE, 1)
        start_bare(children, turns)
        names = {f"{PLAIN}/{i}" for i in range(GROUPS)} | {f"{BELLROCK}/g{i}.0" for i in range(GROUPS)}
        turns.wait_for(names | {f"bare/{i}" for i in range(GROUPS)} | {"echo/0"}, 120.0)
        parts: dict[str, list[float]] = defaultdict(list)
        alone: dict[str, list[float]] = defaultdict(list)
        over = []
        for number in range(rounds + 2):
            plain_s = turns.seconds(PLAIN, steps)
            answers = turns.turn(BELLROCK, steps)
            bare, echo = turns.turn("bare", steps), turns.turn("echo", steps)
            if number < 2:
                continue
            over.append(max(answer["seconds"] for answer in answers.values()) / steps / plain_s)
            for those, told in ((parts, answers), (alone, bare)):
                for took in without_skew(told):
                    for part, ms in took.items():
                        those[part] += [one for one in ms if one or part != "skew"]
            alone["echo"] += echo["echo/0"]["ms"]
        return parts, alone, Spread.of(over)


def without_skew(answers: Answers) -> list[dict[str, list[float]]]:
    """Of each rank, its milliseconds of each part of each step: "gather" from when the last rank came to it, and "skew"
    what it waited there before."""
    last = [max(entered) for entered in zip(*(answer["entered"] for answer in answers.values()), strict=True)]
    found = []
    for answer in answers.values():
        skew = [1e3 * (end - entered) for end, entered in zip(last, answer["entered"], strict=True)]
        gather = [ms - waited for ms, waited in zip(answer["parts"]["gather"], skew, strict=True)]
        found.append({**answer["parts"], "skew": skew, "gather": gather})
    return found


def start_bare(children: Children, turns: Conductor) -> None:
    """What is measured alone."""
    children.program("echo", sys.executable, "echo_pair.py", turns.path, "echo")
    port = free_port("127.0.0.1")
    for rank in range(GROUPS):
        variables = {"RANK": rank, "WORLD_SIZE": GROUPS, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        told = {key: str(value) for key, value in variables.items()}
        children.program(f"bare.{rank}", sys.executable, "gather_pair.py", turns.path, "bare", SIZE, **told)


def table(quick: bool, python: Path | None) -> Table:
    """Measures all of it."""
    parts, alone, over = measure(4 if quick else 20, 8)
    middle = {part: statistics.median(parts[part]) for part in EXPLAINED}
    whole = sum(middle.values())
    rows: list[list[str | int | Spread]] = []
    for part, (words, bare) in EXPLAINED.items():
        limit = Spread.of(alone[bare], 3) if bare else "–"
        share = middle[part] / whole
        bar = "█" * max(1, round(FLAME * share / max(m / whole for m in middle.values())))
        rows.append([part, words, Spread.of(parts[part], 2), f"{100 * share:.1f} %", f"`{bar}`", limit])
    own = sum(middle[part] for part in OWN)
    limits = sum(statistics.median(alone[EXPLAINED[part][1]]) for part in OWN if EXPLAINED[part][1])
    return Table(
        number=6,
        title="Where the time of a step goes",
        command="make bench ONLY=breakdown",
        text=f"Two groups of one rank, {SIZE} parameters; a step of this run took {over} of a plain one.",
        columns=["part", "what it is", "ms", "of the step", "", "the least it needs, measured alone, ms"],
        rows=rows,
        targets=[("the protocol's own parts under 1 ms at the median", own < 1.0)],
        notes=[
            f"the protocol's own parts ({', '.join(OWN)}): {own:.2f} ms, {100 * own / whole:.1f} % of the step; what "
            f"they cannot do without takes {limits:.2f} ms when it is alone",
            "skew is no part of it: nobody's gather can end before the last rank has begun its own. Ranks tell when "
            "they did, on the one clock that they share; of the ranks of a step all but the last wait",
        ],
    )
