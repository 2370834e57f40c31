"""A rank without torch, for tests of the agent: it speaks Attach as ranks do, and sums nothing.

    plain_rank.py FOLDER BEHAVIOUR [STEPS]

It writes its pid to FOLDER/LIFE-SHARD_RANK.pid. Behaviours, in what they differ from "train", which votes in each step
that it is told of and leaves when it is told to: "raise" raises when it is attached, "early" before it is, "tell" tells
the agent and prints nothing, "fork" leaves two processes behind (pids in …kin), "hang" never votes, "close" ends its
stream when it is told to go, and sleeps, "poison" is killed as soon as it has begun its last slot.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lighthouse.auth import read_token
from replica.attach import AgentLink
from replica.environment import read_environment
from replica.errors import LeaveError
from replica.rollcall import Record, pack
from replica.shelf import Shelf
from replica.values import Attach, Commit, Go, Mark, MarkKind, Quit, Raised, RankUp, RollCall, Work

SLOTS = 4


def _leave_kin(path: Path) -> None:
    sleeper = "import os,sys,time; print(os.getpid(), flush=True); time.sleep(600)"
    pids = []
    for own_session in (False, True):
        child = subprocess.Popen(
            [sys.executable, "-c", sleeper], stdout=subprocess.PIPE, start_new_session=own_session, text=True
        )
        assert child.stdout is not None
        pids.append(child.stdout.readline().strip())
    path.write_text(" ".join(pids))


def _votes(work: Work, shard_rank: int) -> list[RankUp]:
    record = Record(
        generation=work.generation,
        version=work.version,
        slots=work.slots,
        tokens=len(work.slots),
        loss_sum=float(len(work.slots)),
        grad_sq=1.0 if work.slots else 0.0,
        digest=7 if work.digest else None,
    )
    step = work.version.step
    marks: list[RankUp] = [Mark(kind=MarkKind.SLOT_BEGUN, step=step, slot=slot) for slot in work.slots[:1]]
    return [*marks, RollCall(generation=work.generation, step=step, records=pack(record, SLOTS) * work.size)]


def main() -> None:
    folder, behaviour, steps = Path(sys.argv[1]), sys.argv[2], int((*sys.argv, "3")[3])
    me = read_environment(os.environ)
    name = f"{me.life}-{me.shard_rank}"
    if behaviour == "early":
        raise ValueError("no such file of tokens")
    shelf = Shelf(me.marks_file)
    link = AgentLink(me.agent, read_token(Path(me.token_file)), lambda command: False, lambda reason: None, shelf)
    setup = {"slots": str(SLOTS), "steps": str(steps)}
    if behaviour == "fork":
        _leave_kin(folder / f"{name}.kin")
    link.attach(Attach(shard_rank=me.shard_rank, pid=os.getpid(), setup=setup, rendezvous="", weights="", digest=7))
    (folder / f"{name}.tmp").write_text(str(os.getpid()))
    (folder / f"{name}.tmp").rename(folder / f"{name}.pid")
    print(f"rank {me.shard_rank} of life {me.life} is here")
    if behaviour == "raise":
        raise ValueError("the loss is a goat")
    if behaviour == "tell":
        link.say(Raised(traceback="Traceback (most recent call last):\n  in a thread\nValueError: told, not printed"))
        time.sleep(600)
    if behaviour == "close":
        link.next()
        link.close()
        time.sleep(600)
    while True:
        try:
            message = link.next()
        except LeaveError:
            sys.exit(3)
        if isinstance(message, Quit) or (isinstance(message, Commit) and message.leave):
            link.close()
            sys.exit(0 if message.success else 1)
        work = message.work if isinstance(message, Go) else message.next if isinstance(message, Commit) else None
        if work is not None and work.slots and behaviour == "poison":
            link.say_soon(Mark(kind=MarkKind.SLOT_BEGUN, step=work.version.step, slot=work.slots[-1]))
            os.kill(os.getpid(), signal.SIGKILL)
        if work is not None and behaviour != "hang":
            for vote in _votes(work, me.shard_rank):
                link.say(vote)


if __name__ == "__main__":
    main()
