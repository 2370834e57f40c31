"""Table 4: what the lighthouse costs, with simulated sessions over real gRPC, beside torchft's.

Of Bellrock: a membership change, from a group's death notice until the last survivor was told the base of the next
generation; and the lighthouse's share of a core when everybody beats and a step is made every second. Of torchft: the
quorum round that each of its steps waits for. Both lighthouses are processes of their own, real ones, on one core; the
groups are simulated by one process for each side, on another core, which costs as much again. Rounds alternate.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from bench.children import BellrockRun, pinned, stage, torchft_lighthouse
from bench.measure import Rounds, Spread, cpu_s, interleave, ratios
from bench.tables import Table

SIZES = (8, 64, 128, 512, 1024)
QUICK_SIZES = (8, 1024)
LONG_LEASE_S = 30
"""In the runs whose changes are timed: no beats then, which simulated groups would have to send in time."""
LEASES_S = (2.0, 6.0)
"""The default one, and a longer one: agents beat at a third of it."""
CHANGE_S = 0.25
SHARE = 0.10


def measure(
    count: int, rounds: int, beat_s: float, python: Path | None
) -> tuple[Rounds, dict[str, list[float]], list[float]]:
    """Seconds of each membership change and quorum round; those of a core that the lighthouse used in them; and its
    share of a core with each lease."""
    with stage() as (children, turns):
        with pinned(0):
            run = BellrockRun(children, "bellrock", "--groups-wanted", str(count), "--lease-s", str(LONG_LEASE_S))
            if python is not None:
                address = torchft_lighthouse(
                    children, "torchft.lighthouse", python, "--join_timeout_ms", "60000", "--quorum_tick_ms", "100"
                )
        with pinned(1):
            fleet = ("bellrock", run.address, run.token_file, run.key, str(count))
            children.program("fleet", sys.executable, "session_fleet.py", turns.path, *fleet)
            if python is not None:
                children.program("quorums", python, "quorum_fleet.py", turns.path, "torchft", address, str(count))
        sides = ["bellrock", "torchft"][: 1 if python is None else 2]
        turns.wait_for({f"{side}/fleet" for side in sides}, 180.0)
        used: dict[str, list[float]] = {side: [] for side in sides}

        def change(side: str) -> float:
            answer = turns.turn(side, 1, lighthouse=children.pid(f"{side}.lighthouse"))[f"{side}/fleet"]
            used[side].append(float(answer["used_s"]))
            return float(answer["change_s"])

        taken = interleave({side: lambda side=side: change(side) for side in sides}, rounds)  # type: ignore[misc]
        lighthouse = children.pid("bellrock.lighthouse")
        shares = []
        for lease_s in LEASES_S:
            before = cpu_s(lighthouse)
            answers: dict[str, Any] = turns.turn("bellrock", 1, beat_s=beat_s, lease_s=lease_s)
            shares.append((cpu_s(lighthouse) - before) / float(answers["bellrock/fleet"]["seconds"]))
        return taken, {side: seconds[-rounds:] for side, seconds in used.items()}, shares


def table(quick: bool, python: Path | None) -> Table:
    """Measures all of it."""
    rows: list[list[str | int | Spread]] = []
    change_s, shares = 0.0, [0.0]
    for count in QUICK_SIZES if quick else SIZES:
        rounds = 2 if quick else min(7, count // 2)  # each costs a group
        taken, used, shares = measure(count, rounds, 2.0 if quick else 10.0, python)
        times = {side: Spread.of((1e3 * s for s in taken[side]), digits=1) for side in taken}
        cores = {side: f"{1e3 * Spread.of(used[side]).median:.1f}" for side in taken}
        change_s = times["bellrock"].median / 1e3
        ratio = ratios(taken, "bellrock", "torchft") if "torchft" in taken else "–"
        rows.append(
            [
                count,
                times["bellrock"],
                cores["bellrock"],
                times.get("torchft", "–"),
                cores.get("torchft", "–"),
                ratio,
                "0",
                *(f"{100 * share:.1f} %" for share in shares),
            ]
        )
    return Table(
        number=4,
        title="The control plane",
        command="make bench ONLY=control",
        text="A membership change of Bellrock, from the death notice until the last member knows the next generation, "
        "against a quorum round of torchft, which each of its steps waits for; N simulated groups over real gRPC.",
        columns=[
            "groups",
            "Bellrock: a change, ms",
            "its lighthouse's CPU in it, ms",
            "torchft: a quorum round, ms",
            "its lighthouse's CPU in it, ms",
            "change / round",
            "Bellrock: waits of a step for the lighthouse",
            *(f"Bellrock: of a core, lease {lease_s:g} s" for lease_s in LEASES_S),
        ],
        rows=rows,
        targets=[
            ("a change at 1,024 groups in at most 250 ms", change_s <= CHANGE_S),
            ("at most 10 % of a core at 1,024 groups and a step a second, lease 2 s", shares[0] <= SHARE),
        ],
        notes=[
            "of a core: CPU time of the lighthouse's process alone while everybody beats at a third of the lease and a "
            "step is told every second; nearly all is beats",
            "lighthouses run on one core, the simulated groups, one process for each side, on the other; a change ends "
            "with two messages to and one from each member, so that the time of the simulated groups is part of it",
        ],
    )
