"""Small worlds, explored completely: every interleaving of messages, collectives, deadlines and faults.

What is run: the lighthouse's core and the agents' cores, `replica.work.Book`, `replica.rollcall.merge` and the store's
compare-and-set, all real. A state is everything: cores, books, weights (known by the generations that made them), logs
and snapshots, each message on each stream, each collective operation. From a state every move is tried: the first
message of any stream arrives (FIFO within a stream, nothing assumed between streams, but that hellos of one host keep
their order); a reduction or roll call that all members launched completes at one member, or fails at one once some
member has left; a plan opens or fails to at one member; an entry or a snapshot arrives, or cannot be had; a deadline of
something dead or out of reach passes (leases, reports, the first lease of a restarted lighthouse, openings, pauses).
Faults, anywhere: a rank dies and its agent tells ("crash"); a host is lost without a word, and the tail of its stream
may be ("host"); a stream breaks, and either end hears any part of the tail, whenever ("break"); a deadline of something
healthy passes ("slow"); the lighthouse crashes, also after any part of its effects, and another reads the store.

How: the parts of a state (lighthouse with store, each site, operations) have numbers, a state is a row of them, and
what an event makes of a part is asked of the cores once and remembered (`small_world`, `small_moves`). A whole layer of
states is expanded by looking up columns (`small_tables`, `small_product`). States are told apart by 64-bit hashes:
among a hundred million, two are mixed up with a probability of about 3 in 10,000, and then one of them goes untried.

What is abstracted. Time stands still: deadlines are moves. Computing takes none, agent and ranks speak without delay,
ranks start and streams open at once, the next lighthouse leads at once; each of these only makes more happen elsewhere,
and a late one looks like a late message. A roll call's reduction and record are two moves, single buckets are not seen.
A deadline that waits for something healthy to be slow in a transfer or an opening passes only where nothing else can
happen. In a world that is not `hasty` the first lease of a lighthouse passes without the healthy only as a "slow"
fault; else it may, before they have said hello, as soon as somebody who is missing is dead. After `RETRIES` failed
heals a joiner is not told again. No beats, drains, wishes to stop or save, lost stores, stalls, slots in hand at a
death, two lighthouses, newcomers under new names; a joiner has one donor. A world that is `formed` begins with the
first bases on their way.

What is one state. States that differ only in what nobody can ask for any more: words and figures for people (reasons,
losses, seconds; so Contributed is not sent), what a report brought that was taken when it came, and what it says once
another has to come before it is asked for; an operation that is over or cannot complete, what a rank knows of
generations before the one in work, when the lighthouse looked last at who is awaited (`small_lighthouse.turn` asks at
each event that it makes no difference). Once the run is finished, a lighthouse answers hellos alike whoever it knew,
and hears nothing else: so it knows nobody, numbers count no more, and streams carry only hellos. Each is left out where
`plain`, `_plain`, `_plain_rank`, `_plain_group`, `_plain_report`, `bare`, `heeded`, `over` or `settled` says so, with
its reason. Of those that concern one part (all but the last two and `bare`) that is asked, too: `small_merge` explores
raw worlds, in which nothing is left out, and asks whether states that would be one do alike (`--merge`). Groups are not
interchangeable: place 0 tells commits, names are sorted; so no symmetry is used.

What is not tried in every order, because nothing is hidden by it. Some moves may go first, all others later (`_kept`):
 - the end of a stream that was replaced, and words of an incarnation that was, but for its Finished: they are no news,
   whenever they come;
 - while no fault and no restart is left, all moves of one site: where nothing else can come to it (something
   is on its way on each of its streams, or the lighthouse is gone; it is in no transfer, opening or collective, or in
   such as can come to nothing, or have come to an end but were left by somebody), and nobody else sees a difference (it
   does not tell who it is, and changes nothing that others load, fetch or open or that a promise is about). Once the
   run is finished others may see one, if they ask for nothing any more; and so too if it is told to heal, since then
   nobody needs what it has;
 - what the lighthouse hears (`small_soon`), if nothing older of that group is on its way, and nothing of it can get
   lost: beats, failures of generations that are being abandoned, and what changes nothing; commits without effects; a
   report of a joiner, and one of those that are awaited; a hello of a member to a lighthouse that has just started; all
   but deaths, hellos and joins once the run is finished. Each only where nothing can come in between that it depends
   on: a hello over a new stream, the end of the stream of somebody who has reported, a first lease that passes, a
   farewell, a fault that is left. A restart may be left where there are no effects: what the lighthouse knows is gone
   with it, whether it has heard this or not.
That each of these leaves every other move possible, and is left possible by it, in either order with the same end, or
that one makes no difference beside the other, is not only argued: `small_confluence` explores worlds without any of
this and asks it of every state and every pair of moves (`--confluence`). Of larger ones `small_cover` compares what is
met with and without it (`--cover`): all that happens to any host, in which state, and what comes of it; all bases that
are written; and all ends. The promises are asked of every state; what they look at is not changed by these moves, or it
is asked too when the other one comes (of a base that is written, how far everybody is; of a step that is committed,
which bases there are).

A world with `delays` is explored in part: there is an order in which things happen by themselves, and at most so many
times something (with all that comes the same way after it) is made to wait until nothing else can happen. Faults happen
between any two of these moves. So every story is seen that needs no more than so many things to be late.

python -m simulation.small                    the worlds of a normal run
python -m simulation.small --all              and those of `make proof`
python -m simulation.small --confluence       what is not tried twice, asked of all pairs of moves
python -m simulation.small --cover [--all]    what is met with and without it, compared
python -m simulation.small --merge [--all]    whether states that are one do alike
python -m simulation.small --world NAME --replay "MOVE; MOVE; ..."   tells a story again
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from simulation.small_confluence import Confluence
from simulation.small_cover import Cover
from simulation.small_explore import Found, explore, replayed
from simulation.small_host import Spec
from simulation.small_merge import Merge

ALL = ("crash", "host", "break", "slow")

NORMAL = (
    Spec(name="three-crash", faults=1, kinds=("crash",)),
    Spec(name="three-harm-short", steps=1, faults=1, kinds=ALL),
    Spec(name="two-harm", groups=2, faults=1, kinds=ALL),
    Spec(name="three-gone-restart", faults=1, restarts=1, kinds=("crash",), returns=False, hasty=False),
    Spec(name="three-restart", restarts=1, kinds=()),
    Spec(name="three-gone-twice", faults=2, kinds=("crash",), returns=False),
    Spec(name="two-shards", groups=2, shards=2, faults=1, kinds=("crash",), returns=False),
    Spec(name="two-forming", groups=2, steps=1, faults=1, kinds=("crash", "host"), formed=False, returns=False),
    Spec(name="two-crash-restart", groups=2, steps=1, faults=1, restarts=1, kinds=("crash",), returns=False),
    Spec(name="two-break", groups=2, steps=1, faults=1, kinds=("break", "slow")),
    Spec(name="two-crash", groups=2, steps=1, faults=1, kinds=("crash",)),
    Spec(name="two-restart", groups=2, restarts=1, kinds=()),
    Spec(name="three-forming", faults=1, kinds=("crash",), formed=False, returns=False),
)
"""Explored in every normal run, the larger ones first."""

PROOF = (
    Spec(name="three-lost-all", faults=2, restarts=1, kinds=("crash", "host"), returns=False, hasty=False),
    Spec(name="three-all-gone", faults=2, restarts=1, kinds=("crash",), returns=False, hasty=False),
    Spec(name="three-harm", faults=1, kinds=ALL),
    Spec(name="three-lost-twice", faults=2, kinds=("crash", "host"), returns=False),
    Spec(name="two-gone-restart", groups=2, faults=2, restarts=1, kinds=("crash", "host"), returns=False),
    Spec(name="three-gone", faults=1, kinds=("crash", "host"), returns=False),
    Spec(name="three-crash-restart", faults=1, restarts=1, kinds=("crash",), hasty=False),
)
"""Larger ones, for `make proof`."""

OPEN = (
    Spec(name="three-lost-restart", faults=1, restarts=1, kinds=("crash", "host"), hasty=False),
    Spec(name="two-shards-harm", groups=2, shards=2, faults=1, kinds=ALL),
    Spec(name="two-twice", groups=2, faults=2, kinds=ALL),
    Spec(name="three-harm-restart-delay", faults=1, restarts=1, kinds=ALL, delays=1),
    Spec(name="three-all-orderly", faults=2, restarts=1, kinds=ALL, delays=0),
    Spec(name="three-all", faults=2, restarts=1, kinds=ALL),
)
"""Nobody has waited for their ends; explored on request, as far as --states and --seconds allow."""

CONFLUENCE = (
    Spec(name="restart", groups=2, steps=1, restarts=1, kinds=()),
    Spec(name="host", groups=2, steps=1, faults=1, kinds=("host",), returns=False),
    Spec(name="crash-restart", groups=2, steps=1, faults=1, restarts=1, kinds=("crash",), returns=False),
    Spec(name="crash", groups=2, steps=1, faults=1, kinds=("crash",)),
    Spec(name="break", groups=2, steps=1, faults=1, kinds=("break",), returns=False),
    Spec(name="slow", groups=2, steps=1, faults=1, kinds=("slow",), returns=False),
    Spec(name="twice", groups=2, faults=2, restarts=1, kinds=("crash",), returns=False, hasty=False),
    Spec(
        name="host-restart",
        groups=2,
        steps=1,
        faults=1,
        restarts=1,
        kinds=("crash", "host"),
        returns=False,
        hasty=False,
    ),
    Spec(name="three", steps=1, faults=2, kinds=("crash",), returns=False),
    Spec(name="three-restart", steps=1, restarts=1, kinds=()),
    Spec(name="crash-restart-back", groups=2, steps=1, faults=1, restarts=1, kinds=("crash",), hasty=False),
    Spec(name="join", groups=2, faults=1, kinds=("crash",)),
)
"""Explored without reductions, all pairs of moves asked whether they may change places; and, raw, what is one state."""

MERGED = 10
"""So many of these are asked for what is one state in a normal run; raw, the others have up to 1.6 million states."""

COVER = (
    Spec(name="restart", steps=1, restarts=1, kinds=()),
    Spec(name="crash-short", steps=1, faults=1, kinds=("crash",)),
    Spec(name="harm", groups=2, faults=1, kinds=ALL),
    Spec(name="crash-restart", groups=2, steps=1, faults=1, restarts=1, kinds=("crash",), hasty=False),
    Spec(name="gone-restart", steps=1, faults=1, restarts=1, kinds=("crash",), returns=False, hasty=False),
    Spec(name="gone-twice", steps=1, faults=2, kinds=("crash",), returns=False),
)
"""Explored with and without what may go first, in a normal run."""

COVER_PROOF = (
    Spec(name="host-restart", groups=2, steps=1, faults=1, restarts=1, kinds=("host",), hasty=False),
    Spec(name="slow-twice", groups=2, steps=1, faults=2, kinds=("crash", "slow"), returns=False),
    Spec(name="crash", faults=1, kinds=("crash",)),
    Spec(name="harm-short", steps=1, faults=1, kinds=ALL),
    Spec(name="crash-twice", groups=2, steps=1, faults=2, kinds=("crash",)),
    Spec(name="break-twice", groups=2, steps=1, faults=2, kinds=("break",), returns=False),
)
"""Larger ones, for `make proof`."""


def told(found: Found) -> str:
    """One line on an explored world."""
    spec = found.spec
    what = f"{spec.groups} groups x {spec.shards}, {spec.steps} steps, {spec.faults} faults of {'/'.join(spec.kinds)}"
    what += f", {spec.restarts} restarts" + (" and hasty" if spec.restarts and spec.hasty else "")
    what += "" if spec.returns else ", nobody returns"
    what += f", {spec.delays} delays" if spec.delays >= 0 else ""
    ends = ", ".join(f"{count} {kind}" for kind, count in sorted(found.ends.items()))
    state = "all" if found.complete else "ONLY THE FIRST"
    return (
        f"{spec.name}: {state} {found.states} states, {found.moves} moves, {found.cpu_s:.0f} s ({what}; ends: {ends})"
    )


def story(found: Found) -> str:
    """A broken promise: the shortest way to it, and how to see it again."""
    moves = "; ".join(" ".join(str(word) for word in move) for move in found.path)
    command = f'PYTHONPATH=.:tests .venv/bin/python -m simulation.small --world {found.spec.name} --replay "{moves}"'
    lines = replayed(found.spec, found.path)
    return "\n".join([f"{found.spec.name}: {found.wrong}", *(f"  {line}" for line in lines), command])


def explore_all(specs: Sequence[Spec], jobs: int, states: int = 1 << 40, seconds: float = 1e9) -> Iterator[Found]:
    """Explores worlds, each in one process, at most `jobs` at a time, and gives them in their order. Those that were
    not begun are left out once nobody asks for more."""
    with ProcessPoolExecutor(jobs) as pool:
        waiting = [pool.submit(explore, spec, states, seconds) for spec in specs]
        try:
            for done in waiting:
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def confluence(spec: Spec) -> str:
    """One line on what is not tried twice, asked of an unreduced world; it begins with the name, and ends with what is
    wrong."""
    asked = Confluence(spec)
    wrong = asked.wrong()
    text = ", ".join(f"{claim}: {count}" for claim, count in wrong.most_common()) or "nothing is hidden"
    return f"{spec.name}: {len(asked.next)} states, {asked.asked} pairs of moves, {text}"


def merge(spec: Spec) -> str:
    """One line on what is one state, asked of a raw world; it begins with the name, and ends with what is wrong."""
    asked = Merge(spec)
    wrong = asked.wrong()
    text = ", ".join(f"{moves}: {count}" for moves, count in wrong.most_common()) or "nothing is told apart"
    return f"{spec.name}: {asked.states} raw states are {asked.merged}, {text}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Explores small worlds completely.")
    parser.add_argument("--all", action="store_true", help="the worlds of make proof too")
    parser.add_argument("--confluence", action="store_true", help="ask whether what is not tried twice hides anything")
    parser.add_argument("--cover", action="store_true", help="compare all that happens with it and without")
    parser.add_argument("--merge", action="store_true", help="ask whether states that are one do alike")
    parser.add_argument("--world", default="", help="only the worlds of these names, with commas between them")
    parser.add_argument("--replay", default="", help="moves to tell again")
    parser.add_argument("--states", type=int, default=400_000_000, help="stop a world after so many states")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop a world after so many seconds")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args(argv)
    named = {spec.name: spec for spec in (*NORMAL, *PROOF, *OPEN, *COVER, *COVER_PROOF)}
    wanted = [named[name] for name in filter(None, options.world.split(","))]
    specs = wanted or list(NORMAL + PROOF * options.all)
    if options.replay:
        moves = [tuple(int(w) if w.isdigit() else w for w in m.split()) for m in options.replay.split(";")]
        print("\n".join(replayed(specs[0], moves)))
        return 0
    if options.confluence:
        lines = [confluence(spec) for spec in CONFLUENCE]
        print("\n".join(lines))
        return 0 if all(line.endswith("nothing is hidden") for line in lines) else 1
    if options.cover:
        hidden = False
        for cover in map(Cover, wanted or COVER + COVER_PROOF * options.all):
            print(cover, flush=True)
            hidden |= bool(cover.hidden)
        return int(hidden)
    if options.merge:
        lines = [merge(spec) for spec in CONFLUENCE[: None if options.all else MERGED]]
        print("\n".join(lines))
        return 0 if all(line.endswith("nothing is told apart") for line in lines) else 1
    states = 0
    for found in explore_all(specs, options.jobs, options.states, options.seconds):
        print(told(found), flush=True)
        states += found.states
        if found.wrong:
            print(story(found), flush=True)
            return 1
    print(f"{len(specs)} worlds, {states} states, no promise is broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
