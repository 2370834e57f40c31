"""Trains in four groups while they, their hosts and the lighthouse die, stop, leave and come back; then counts.

PYTHONPATH=.:tests python -m chaos.soak [--minutes 60] [--seed N] [--shards 1] [--contributors 0]

The minutes are counted from the first process on: a slow machine has fewer faults, not a longer soak. What comes after
them (everybody back, the reference, the count) takes about one more.

At the end everybody is back and the run ends of itself: all weights are bit-equal and close to those of a run that
nothing happened to, each step of the history consumed each slot once, nobody lost its ranks but for a kill, no process
is left, and the lighthouse's journal decides as it did. Prints its seed and its schedule, and where the records are if
something does not hold.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy
from chaos.schedule import LIGHTHOUSE, Act, Batch, schedule
from e2e.cluster import Cluster, alive, processes_of

LEASE_S = 4.0
STALL_S = 20.0
"""Short, so that ranks which stand still are put out within a soak."""
BACK_S = 120.0
"""How long a group may take to train again, on a machine with too few cores, after whatever happened."""
STARTING_S = 15.0
"""Within this time of its start an agent may end by SIGTERM as any program does that is still being loaded."""
CALM_S = 8.0
"""How long the undisturbed stretch is that goodput is compared with."""


@dataclass
class Soak:
    """One soak: the run, what was done to it, and what has to be done yet (`later`: a condition, then a deed)."""

    run: Cluster
    groups: int
    shards: int
    say: Callable[[str], None] = print
    later: list[tuple[Callable[[], bool], Callable[[], None]]] = field(default_factory=list)
    present: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    kills: Counter[str] = field(default_factory=Counter)
    starts: dict[str, list[float]] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)

    # ---- the run ---------------------------------------------------------------------------------------------------

    def carry_out(self, batches: tuple[Batch, ...], seconds: float) -> int:
        """The whole soak; the last step. Raises AssertionError saying what did not hold."""
        until = time.monotonic() + seconds
        self.run.lighthouse()
        for i in range(self.groups):
            self.start(f"g{i}")
        for i in range(self.groups):
            self.until(partial(self.trains, f"g{i}", time.time()), f"g{i} trains")
        calm = self.rate(CALM_S)
        first, start = self.steps(), time.monotonic()
        for batch in batches:
            if time.monotonic() >= until:
                break
            self.carry_out_batch(batch)
        self.until(lambda: time.monotonic() >= until, "the time is over", seconds + BACK_S)
        rate = (self.steps() - first) / (time.monotonic() - start)
        self.say(f"undisturbed {calm:.2f} steps/s, in chaos {rate:.2f} steps/s: goodput {100 * rate / calm:.0f} %")
        return self.end()

    def carry_out_batch(self, batch: Batch) -> None:
        """Waits for the pause and the keeper, then does what the batch says."""
        after = time.monotonic() + batch.pause_s
        self.until(lambda: time.monotonic() >= after, "the pause is over")
        self.until(partial(self.trains, batch.keeper, time.time()), f"{batch.keeper} trains")
        start = time.monotonic()
        for act in batch.acts:
            self.until(lambda at=start + act.after_s: time.monotonic() >= at, "the act is due")
            self.act(act)

    def act(self, act: Act) -> None:
        """Does one act, and says so; one whose target is not there is passed over."""
        busy = act.target in self.away if act.target == LIGHTHOUSE else act.target not in self.present - self.away
        joins = act.kind == "guest" and act.target not in self.present and act.target not in self.leaving
        if (busy and not joins) or (act.kind in ("kill_rank", "stop_rank") and not self.rank(act)):
            self.tell(f"passed over: {act}")
            return
        self.tell(str(act))
        self.done[act.kind] += 1
        getattr(self, act.kind)(act)

    # ---- acts ------------------------------------------------------------------------------------------------------

    def kill_rank(self, act: Act) -> None:
        self.kills[act.target] += 1
        self.signal_all([self.rank(act)], signal.SIGKILL)

    def kill_agent(self, act: Act) -> None:
        self.run.kill(act.target)
        self.again_later(act)

    def drain(self, act: Act) -> None:
        self.run.kill(act.target, signal.SIGTERM)
        self.again_later(act)

    def guest(self, act: Act) -> None:
        if act.target not in self.present:
            self.start(act.target)
            return
        self.present.discard(act.target)
        self.leaving.add(act.target)
        self.run.kill(act.target, signal.SIGTERM)
        self.later.append((partial(self.has_left, act.target), lambda: self.leaving.discard(act.target)))

    def kill_lighthouse(self, act: Act) -> None:
        self.run.kill(LIGHTHOUSE)
        self.away.add(LIGHTHOUSE)
        at = time.monotonic() + act.for_s
        self.later.append((lambda: time.monotonic() >= at, self.lighthouse_again))

    def stop_rank(self, act: Act) -> None:
        self.kills[act.target] += 1  # it may be evicted for it
        self.stop(act, [self.rank(act)])

    def stop_agent(self, act: Act) -> None:
        self.stop(act, [self.run.pid(act.target)])

    stop_lighthouse = stop_agent

    def stop_host(self, act: Act) -> None:
        self.stop(act, [self.run.pid(act.target), *self.run.rank_pids(act.target).values()])

    # ---- pieces of acts --------------------------------------------------------------------------------------------

    def rank(self, act: Act) -> int:
        """Process id of the rank that an act means, 0 if it is not there."""
        return self.run.rank_pids(act.target).get(act.shard, 0)

    def stop(self, act: Act, pids: list[int]) -> None:
        """Stops processes, and lets them go on later."""
        self.away.add(act.target)
        self.signal_all(pids, signal.SIGSTOP)
        at = time.monotonic() + act.for_s

        def go_on() -> None:
            self.signal_all(pids, signal.SIGCONT)
            self.away.discard(act.target)

        self.later.append((lambda: time.monotonic() >= at, go_on))

    def signal_all(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            if alive(pid):
                os.kill(pid, number)

    def again_later(self, act: Act) -> None:
        """Starts the group of an act again, so long after its agent has ended."""
        self.away.add(act.target)
        ended: list[float] = []

        def due() -> bool:
            if not ended and self.has_left(act.target, killed=act.kind == "kill_agent"):
                ended.append(time.monotonic())
            return bool(ended) and time.monotonic() >= ended[0] + act.for_s

        def again() -> None:
            self.away.discard(act.target)
            self.start(act.target)

        self.later.append((due, again))

    def has_left(self, name: str, killed: bool = False) -> bool:
        """Whether the agent has ended, as it should."""
        code = self.run.exit_of(name)
        wanted = {-signal.SIGKILL} if killed else {0}
        if time.time() - self.starts[name][-1] < STARTING_S:
            wanted.add(-signal.SIGTERM)  # it came before the agent could heed it
        assert code is None or code in wanted, f"{name} ended with exit code {code}"
        return code is not None

    def start(self, name: str) -> None:
        """Starts a group."""
        self.present.add(name)
        self.starts.setdefault(name, []).append(time.time())
        fsdp = ["--fsdp"] if self.shards > 1 else []
        job = ["--steps", "1000000", "--delay-s", "0.02", *fsdp]
        self.run.group(name, *job, shards=self.shards, flags=("--restart-limit", "1000"))

    def lighthouse_again(self) -> None:
        self.run.start_lighthouse()
        self.away.discard(LIGHTHOUSE)

    # ---- waiting and counting --------------------------------------------------------------------------------------

    def until(self, true: Callable[[], bool], what: str, timeout_s: float = BACK_S) -> None:
        """Waits for a condition, doing what falls due meanwhile. Nobody may end who was not told to."""

        def step() -> bool:
            for pair in list(self.later):
                if pair[0]():
                    self.later.remove(pair)
                    pair[1]()
            for name in (self.present | {LIGHTHOUSE}) - self.away:
                code = self.run.exit_of(name)
                assert code is None, f"{name} ended with exit code {code}, though nobody told it to"
            return true()

        self.run.until(step, what, timeout_s)

    def trains(self, name: str, since: float) -> bool:
        """Whether the group has committed three steps since then (wall clock), as a member."""
        if name in self.away:
            return False
        lines = self.run.ledger_tail(name)
        return sum(line["event"] == "commit" and line["time_s"] > since for line in lines) >= 3

    def steps(self) -> int:
        """The newest step that anybody has committed."""
        tails = (self.run.ledger_tail(name) for name in self.present)
        return max((line["step"] for lines in tails for line in lines if line["event"] == "commit"), default=0)

    def rate(self, seconds: float) -> float:
        """Steps per second over so long."""
        first, start = self.steps(), time.monotonic()
        self.until(lambda: time.monotonic() >= start + seconds, "the stretch is over")
        return (self.steps() - first) / (time.monotonic() - start)

    def tell(self, text: str) -> None:
        clock = time.strftime("%H:%M:%S")
        self.say(f"{clock} {time.monotonic() - self.began:7.1f} s  step {self.steps()}  {text}")

    # ---- the end ---------------------------------------------------------------------------------------------------

    def end(self) -> int:
        """Waits until everybody is back, ends the run and checks it; the last step."""
        self.until(lambda: not self.later, "everybody was let go on")
        for name in sorted(self.present):
            self.until(partial(self.trains, name, time.time()), f"{name} is back")
        self.tell("everybody is back")
        self.present, names = set(), tuple(sorted(self.present))
        steps = self.run.finish(self.undisturbed, names)
        for name in self.starts:
            self.check_lives(name)
        self.run.kill(LIGHTHOUSE, signal.SIGTERM)
        assert self.run.wait_exit(LIGHTHOUSE) == 0, self.run.log(LIGHTHOUSE)[-2000:]
        self.run.until(lambda: not processes_of(self.run.folder), "no process is left", 20.0)
        journal = self.run.folder / "lighthouse.db.journal"
        again = subprocess.run(
            [sys.executable, "-P", "-m", "trainer.cli", "replay", str(journal)], capture_output=True, check=False
        )
        assert again.returncode == 0, f"the journal decides otherwise: {again.stdout.decode()[-4000:]}"
        return steps

    def undisturbed(self, steps: int) -> numpy.ndarray:
        """Weights after so many steps of one group that nothing happens to."""
        other = Cluster(self.run.folder / "undisturbed")
        try:
            other.lighthouse()
            other.group("g0", "--steps", str(steps))
            assert other.wait_exit("g0", 60.0 + 0.1 * steps) == 0, other.logs()
        finally:
            other.close()
        return numpy.load(other.out / "g0.0.npy", allow_pickle=False)

    def check_lives(self, name: str) -> None:
        """Asserts that the group lost its ranks for kills only, and computed no slot twice in a life."""
        lost = re.findall(r"group_lost reason=(.*)", self.run.log(name))
        assert len(lost) <= self.kills[name], f"{name}: killed {self.kills[name]} times, lost {lost}"
        assert all("signal 9" in reason or "stalled" in reason for reason in lost), f"{name}: {lost}"
        begun = [line for line in self.run.ledger(name) if line["event"] == "slot" and line["mark"] == "begun"]
        counts = Counter(
            (sum(start < line["time_s"] for start in self.starts[name]), line["life"], line["shard_rank"], line["step"])
            + (line["slot"],)
            for line in begun
        )
        twice = [key for key, count in counts.items() if count > 1]
        assert not twice, f"{name}: (start, life, shard, step, slot) computed twice: {twice[:5]} of {len(twice)}"


def soak(
    folder: Path,
    *,
    seed: int,
    minutes: float,
    shards: int = 1,
    contributors: int = 0,
    say: Callable[[str], None] = print,
) -> int:
    """Carries one out in `folder`; the last step. Raises AssertionError; the records stay."""
    batches = schedule(seed, batches=int(minutes * 30) + 1, groups=4, shards=shards, lease_s=LEASE_S)
    say(f"seed {seed}, {minutes:g} minutes, {shards} shards, contributors {contributors}; records in {folder}")
    for batch in batches:
        say(f"  {batch}")
    flags = ["--groups-wanted", "4", "--join-wait-s", "120", "--contributors", str(contributors)]
    flags += ["--stall-patience-s", str(STALL_S)]
    run = Cluster(folder, "--lease-s", str(LEASE_S), *flags)
    try:
        one = Soak(run=run, groups=4, shards=shards, say=say)
        steps = one.carry_out(batches, 60.0 * minutes)
        say(f"held: {steps} steps, {dict(one.done)}")
        return steps
    finally:
        run.close()


def main() -> int:
    """Reads the flags; 0 if everything held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--contributors", type=int, default=0)
    flags = parser.parse_args()
    seed = int(time.time()) if flags.seed is None else flags.seed
    root = Path(__file__).resolve().parents[2]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH", "")]))
    folder = Path(tempfile.mkdtemp(prefix="bellrock-soak-")) / "run"
    say = partial(print, flush=True)
    try:
        soak(folder, seed=seed, minutes=flags.minutes, shards=flags.shards, contributors=flags.contributors, say=say)
    except AssertionError as wrong:
        say(f"{wrong}\nseed {seed}: this did not hold; the records are in {folder}")
        return 1
    shutil.rmtree(folder.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
