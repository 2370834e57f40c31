"""Stand-ins for the agents of a few groups and the lighthouse over them, run by the test's own thread.

They speak the real protocol on real sockets and merge with the real functions; they know just enough to form
generations, to take over from a group that died, and to heal a joiner, and they can be told to do so at a given mark.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from e2e import forked, rank_program

from lighthouse.values import EntryName, Source, Version
from replica.frames import MESSAGE_BYTES, Frames, Kind, frame
from replica.rollcall import Invalid, merge
from replica.values import (
    Abandoned,
    Apply,
    Attach,
    Commit,
    Fetch,
    Go,
    Held,
    Load,
    Loaded,
    Mark,
    Open,
    Quit,
    RankFailed,
    RankOpened,
    ReadyFor,
    RollCall,
    StageFor,
    UpToDate,
    Work,
)
from replica.wire import RANK_DOWN, RANK_UP

TOKEN = "a-token-for-tests"


class Server:
    """One Attach server for all groups: the token is not looked at, the first message says who is who."""

    def __init__(self, events: queue.SimpleQueue[tuple[int, Any]]) -> None:
        self._events = events
        self.down: dict[int, queue.SimpleQueue[Any]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accepts nobody any more. Streams end with the ranks."""
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        down: queue.SimpleQueue[Any] = queue.SimpleQueue()
        pid = 0
        for message in _messages(sock):
            if not pid:
                pid, self.down[message.pid] = message.pid, down
                threading.Thread(target=self._write, args=(sock, down), daemon=True).start()
            self._events.put((pid, message))
        self._events.put((pid, None))
        down.put(None)

    def _write(self, sock: socket.socket, down: queue.SimpleQueue[Any]) -> None:
        with contextlib.suppress(OSError), sock:
            while (command := down.get()) is not None:
                sock.sendall(frame(Kind.MESSAGE, RANK_DOWN.encode(command)))


def _messages(sock: socket.socket) -> Iterator[Any]:
    frames = Frames(MESSAGE_BYTES)
    with contextlib.suppress(OSError):
        while data := sock.recv(1 << 16):
            frames.feed(data)
            while (got := frames.next()) is not None:
                if got[0] is Kind.MESSAGE:
                    yield RANK_UP.decode(got[1])


class Group:
    """What the stand-in for an agent knows of its group."""

    def __init__(self, name: str, shards: int) -> None:
        self.name = name
        self.processes: list[Any] = []
        self.attached: dict[int, Attach] = {}
        self.pids: dict[int, int] = {}
        self.version = Version(0, 0)
        self.cursor = 0
        self.work: Work | None = None
        self.calls: dict[tuple[int, int], dict[int, bytes]] = {}
        self.said: list[tuple[int, Any]] = []
        self.merged: list[Any] = []
        self.shards = shards
        self.dead = False
        self.left = False

    def all_said(self, message: Any) -> bool:
        return {shard for shard, said in self.said if said == message} == set(range(self.shards))

    def died_early(self) -> bool:
        return not self.dead and any(
            process.exitcode is not None and shard not in self.attached for shard, process in enumerate(self.processes)
        )

    def source(self) -> Source:
        return Source(name=self.name, weights=tuple(self.attached[s].weights for s in range(self.shards)))


class Fleet:
    """All groups of a test. `pump` and what uses it run on the test's thread."""

    def __init__(self, folder: Path, *, kind: str, shards: int, slots: int, steps: int) -> None:
        self.folder, self.kind, self.shards, self.slots, self.steps = folder, kind, shards, slots, steps
        (folder / "token").write_text(TOKEN)
        self.events: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self.server = Server(self.events)
        self.port = self.server.port
        self.groups: dict[str, Group] = {}
        self.by_pid: dict[int, tuple[Group, int]] = {}
        self.number = 0
        self.roster: list[Group] = []
        self.contributors: list[Group] = []
        self.at_mark: Callable[[Group, int, Mark], None] = lambda group, shard, mark: None
        self.stage: tuple[int, ...] = ()
        self.planned: tuple[int, list[Group], list[Group]] | None = None
        self.takes_over = True
        self.digests = True

    # ---- processes -------------------------------------------------------------------------------------------------

    def spawn(self, name: str, **told: Any) -> Group:
        group = self.groups[name] = Group(name, self.shards)
        for shard in range(self.shards):
            out = str(self.folder / f"{name}-{shard}")
            environment = {
                "agent": f"127.0.0.1:{self.port}",
                "token_file": str(self.folder / "token"),
                "run_id": "test",
                "group": name,
                "shard_rank": shard,
                "shards": self.shards,
            }
            text = json.dumps(
                {
                    "environment": environment,
                    "store": str(self.folder / f"{name}-store"),
                    "kind": self.kind,
                    "slots": self.slots,
                    "steps": self.steps,
                    "out": out,
                    **told,
                }
            )
            process = forked.start(rank_program.main, text)
            assert process.pid is not None
            group.processes.append(process)
            group.pids[shard] = process.pid
            self.by_pid[process.pid] = (group, shard)
        return group

    def kill(self, group: Group) -> None:
        for pid in group.pids.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        for group in self.groups.values():
            self.kill(group)
            for process in group.processes:
                process.join(10)
        self.server.close()

    # ---- events ----------------------------------------------------------------------------------------------------

    def until(self, condition: Callable[[], bool], within_s: float = 60.0) -> None:
        end = time.monotonic() + within_s
        while not condition():
            left = end - time.monotonic()
            if left <= 0 or any(g.died_early() for g in self.groups.values()):
                raise AssertionError(self.story())
            with contextlib.suppress(queue.Empty):
                pid, message = self.events.get(timeout=min(left, 0.5))
                self._on(*self.by_pid[pid], message)

    def story(self) -> str:
        lines = []
        for group in self.groups.values():
            lines.append(f"{group.name}: {group.version} work {group.work}; last said {group.said[-3:]}")
            lines += [p.read_text()[-2000:] for p in sorted(self.folder.glob(f"{group.name}-*.log"))]
        return "\n".join(lines)

    def send(self, group: Group, command: Any, shard: int | None = None) -> None:
        for s in range(self.shards) if shard is None else (shard,):
            self.server.down[group.pids[s]].put(command)

    def _on(self, group: Group, shard: int, message: Any) -> None:
        if message is None:
            if not group.left and not group.dead:
                self._died(group)
            return
        group.said.append((shard, message))
        if isinstance(message, Attach):
            group.attached[shard] = message
        elif isinstance(message, Mark):
            self.at_mark(group, shard, message)
        elif isinstance(message, RollCall):
            self._called(group, shard, message)
        elif isinstance(message, RankFailed):
            pass
        elif isinstance(message, RankOpened) and self.planned is not None:
            number, members, _ = self.planned
            if all(m.all_said(RankOpened(number=number)) for m in members):
                for m in members:
                    self.send(m, ReadyFor(number=number))

    def _called(self, group: Group, shard: int, call: RollCall) -> None:
        calls = group.calls.setdefault((call.generation, call.step), {})
        calls[shard] = call.records
        if len(calls) < self.shards or call.generation != self.number or group.dead:
            return
        work = group.work
        assert work is not None
        merged = merge(
            [calls[s] for s in range(self.shards)],
            members=work.size,
            generation=work.generation,
            version=work.version,
            slots=self.slots,
            farewell=work.farewell,
        )
        assert not isinstance(merged, Invalid), merged
        group.merged.append(merged)
        if work.farewell:
            group.left = True
            self.send(group, Commit(merged=merged, next=work, leave=True))
            return
        roster, contributors, number = self.roster, self.contributors, work.generation
        if merged.switch:
            assert self.planned is not None and merged.switch == self.planned[0]
            number, roster, contributors = self.planned
        group.version, group.cursor = merged.end, group.cursor + self.slots
        group.work = self.deal(group, number, roster, contributors, farewell=group.version.step >= self.steps)
        staged = tuple(h.heal for h in merged.heals if h.records == work.size * self.shards)
        self.send(group, Commit(merged=merged, next=group.work, stage=staged))

    # ---- decisions -------------------------------------------------------------------------------------------------

    def deal(
        self, group: Group, number: int, roster: list[Group], contributors: list[Group], *, farewell: bool = False
    ) -> Work:
        mine: tuple[int, ...] = ()
        if group in contributors and not farewell:
            mine = tuple(range(contributors.index(group), self.slots, len(contributors)))
        return Work(
            generation=number,
            place=roster.index(group) if group in roster else 0,
            size=len(roster) if group in roster else 0,
            version=group.version,
            cursor=group.cursor,
            slots=mine,
            step_slots=self.slots,
            digest=self.digests,
            farewell=farewell,
        )

    def attach_all(self) -> None:
        self.until(lambda: all(len(g.attached) == self.shards for g in self.groups.values() if not g.dead), 200)

    def form(self, members: list[Group], contributors: list[Group] | None = None) -> None:
        """A generation of members that all stand on one version."""
        self.number += 1
        self.roster, self.contributors = members, contributors or members
        for group in members:
            group.work = self.deal(group, self.number, members, self.contributors)
            self.go(group)

    def go(self, group: Group) -> None:
        assert group.work is not None
        for shard in range(self.shards):
            self.send(group, Go(work=group.work, rendezvous=self.roster[0].attached[shard].rendezvous), shard)

    def _died(self, group: Group) -> None:
        group.dead = True
        self.kill(group)
        if group in self.roster and self.takes_over:
            self.change([g for g in self.roster if not g.dead])

    def change(self, members: list[Group]) -> None:
        """An unplanned change: abandon, level, and go on with what nobody answers for dealt to all."""
        self.number += 1
        self.roster, self.contributors = members, [g for g in self.contributors if g in members] or members
        for group in members:
            self.send(group, Abandoned(number=self.number))
        base = max(g.version for g in members)
        ahead = next(g for g in members if g.version == base)
        for group in members:
            if group.version != base:
                self.fetch(group, ahead)
        answers = {g.name: list(g.work.slots) if g.work and g.version == base else [] for g in members}
        for group in members:
            if group.version != base:
                self.level(group)
        missing = set(range(self.slots)) - {s for mine in answers.values() for s in mine}
        for slot in sorted(missing):
            min((answers[g.name] for g in members), key=len).append(slot)
        farewell = base.step >= self.steps
        for group in members:
            group.work = Work(
                generation=self.number,
                place=members.index(group),
                size=len(members),
                version=base,
                cursor=group.cursor,
                slots=() if farewell else tuple(sorted(answers[group.name])),
                step_slots=self.slots,
                digest=True,
                farewell=farewell,
            )
            self.go(group)

    def fetch(self, group: Group, source: Group) -> None:
        self.send(group, Fetch(version=group.version, sources=(source.source(),)))

    def level(self, group: Group) -> Any:
        """Waits until the group holds the entry after its version, and lets it apply it."""
        start = group.version

        def held() -> set[int]:
            return {s for s, m in group.said if isinstance(m, Held) and m.name.start == start}

        self.until(lambda: len(held()) == self.shards)
        merged = next(m.merged for _, m in group.said if isinstance(m, Held) and m.name.start == start)
        group.version, group.cursor, group.work = merged.end, group.cursor + self.slots, None
        group.merged.append(merged)
        self.send(group, Apply(name=EntryName(start=start, end=merged.end), cursor=group.cursor))
        return merged

    def plan(self, members: list[Group], contributors: list[Group]) -> int:
        """Everybody opens the next generation in the background; who is in a step switches when all name it."""
        number = self.number + 1
        self.planned = (number, members, contributors)
        for group in members:
            for shard in range(self.shards):
                rendezvous = members[0].attached[shard].rendezvous
                self.send(
                    group,
                    Open(number=number, place=members.index(group), size=len(members), rendezvous=rendezvous),
                    shard,
                )
        return number

    def heal(self, joiner: Group, donors: list[Group], heal: int = 1) -> None:
        """Snapshot from the donors, then entries until the joiner is up to date."""
        for place, donor in enumerate(donors):
            self.send(donor, StageFor(heal=heal, now=False, place=place, donors=len(donors)))
        self.send(joiner, Load(heal=heal, sources=tuple(d.source() for d in donors)))
        self.until(lambda: len([m for _, m in joiner.said if isinstance(m, Loaded)]) == self.shards)
        loaded = next(m for _, m in joiner.said if isinstance(m, Loaded))
        joiner.version, joiner.cursor = loaded.version, loaded.cursor

    def finish(self) -> None:
        """Waits until every group that lives has left, and its processes ended."""
        self.until(lambda: all(g.left for g in self.groups.values() if not g.dead))
        for group in self.groups.values():
            if group.dead:
                continue
            for process in group.processes:
                process.join(30)
                assert process.exitcode == 0, self.story()

    def quit(self, group: Group, reason: str) -> None:
        group.left = True
        self.send(group, Quit(success=False, reason=reason))

    def did(self, group: Group, shard: int = 0) -> dict[str, Any]:
        return json.loads((self.folder / f"{group.name}-{shard}.json").read_text())

    def up_to_date(self, group: Group) -> bool:
        return group.all_said(UpToDate(version=group.version))
