"""Simulated sessions with a real lighthouse over gRPC: session_fleet.py TURNS NAME ADDRESS TOKEN_FILE RUN GROUPS

One process stands for all groups: each has a Session of its own (a few to a connection), is told what agents are told,
and answers what agents answer when nothing else fails. What agents do on hosts of their own it does beforehand, as far
as it can: it takes messages as bytes, and has its answers ready. In a turn one group says that it died; the seconds
are those until the last survivor was told the base of the next generation, and those of a core that the process
"lighthouse" used meanwhile. A turn with "beat_s" and "lease_s" lets everybody beat as agents with that lease do, and
the first member tell of a step a second, for so long.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import grpc
from bench.measure import cpu_s
from bench.turns import Performer

from lighthouse.auth import read_token, token_metadata
from lighthouse.values import ROOT, Beat, Committed, Died, EntryName, Hello, Report, Start, Version
from lighthouse.wire import DOWN, UP, LighthouseMessage

METHOD = "/bellrock.lighthouse.Lighthouse/Session"
SESSIONS_A_CONNECTION = 32
WELCOME, ABANDON, BASE = 1, 4, 5
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
SETTLE_S, SETTLE_LEASE_S = 2.0, 2.0


class Group:
    """One group's end of a Session."""

    def __init__(self, fleet: Fleet, name: str, call: Any) -> None:
        self.name = name
        self.call = call
        self.alive = True
        self.incarnation = 0
        self.slots: tuple[int, ...] = ()
        self._fleet = fleet
        self._ready: tuple[int, bytes] = (0, b"")

    async def run(self) -> None:
        """Answers what it is told, until it is dead."""
        await self.say(self._hello())
        while self.alive:
            data = await self.call.read()
            if data is grpc.aio.EOF:
                return
            kind = data[0] >> 3
            if kind == ABANDON:
                number = LighthouseMessage.FromString(data).abandon.number
                await self.say(self._ready[1] if number == self._ready[0] else self._report(number))
            elif kind == BASE:
                self._fleet.based(self, data)

    async def say(self, message: Any) -> None:
        """Sends a message, or bytes that carry one."""
        await self.call.write(message if isinstance(message, bytes) else UP.encode(message))

    def prepare(self, number: int) -> None:
        """Has its answer ready for when it is told to abandon everything below `number`."""
        self._ready = number, UP.encode(self._report(number))

    def _report(self, number: int) -> Report:
        version = self._fleet.version
        before = Version(version.step - 1, version.generation) if version.step > 1 else ROOT
        return Report(
            abandoned=number,
            version=version,
            cursor=version.step * self._fleet.count,
            generation=self._fleet.number,
            answers=self.slots,
            entries=(EntryName(start=before, end=version),) if version.step else (),
        )

    def _hello(self) -> Hello:
        return Hello(
            run_id=self._fleet.run_id,
            name=self.name,
            incarnation=0,
            host=f"host-of-{self.name}",
            took_over=True,
            setup={"slots": str(self._fleet.count), "steps": "1000000"},
            rendezvous=("127.0.0.1:1",),
            weights=("127.0.0.1:2",),
            digest=7,
            report=self._report(0),
        )


class Fleet:
    """All groups."""

    def __init__(self, address: str, token: str, run_id: str, count: int) -> None:
        self.address, self.token, self.run_id, self.count = address, token, run_id, count
        self.version, self.start, self.number = ROOT, ROOT, 0
        self.groups: list[Group] = []
        self._bases: dict[str, bytes] = {}
        self._all_based = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.based_at = 0.0

    async def form(self) -> None:
        """All groups say hello, and the first generation forms."""
        channel = None
        for i in range(self.count):
            if i % SESSIONS_A_CONNECTION == 0:
                channel = grpc.aio.insecure_channel(self.address, options=OPTIONS)
                await channel.channel_ready()
            assert channel is not None
            group = Group(self, f"g{i}", channel.stream_stream(METHOD)(metadata=token_metadata(self.token)))
            self.groups.append(group)
            self._tasks.append(asyncio.create_task(group.run()))
        await self._wait_based()
        await self._first_step()

    def based(self, group: Group, data: bytes) -> None:
        """A group was told a base."""
        self._bases[group.name] = data
        if len(self._bases) == sum(each.alive for each in self.groups):
            self.based_at = time.perf_counter()
            self._all_based.set()

    async def kill(self, lighthouse: int) -> tuple[float, float]:
        """The last group dies; seconds until all others know the base of what follows, and those of a core that the
        process `lighthouse` used until then."""
        victim = [group for group in self.groups if group.alive][-1]
        message = UP.encode(Died(reason="signal 9", shard_rank=0, killed=True))
        self._bases.clear()
        self._all_based.clear()
        victim.alive = False
        for group in self.groups:
            group.prepare(self.number + 1)
        cpu_before_s, began = cpu_s(lighthouse), time.perf_counter()
        await victim.say(message)
        await self._wait_based()
        took, used = self.based_at - began, cpu_s(lighthouse) - cpu_before_s
        victim.call.cancel()
        await self._first_step()
        return took, used

    async def beat(self, seconds: float, lease_s: float) -> None:
        """Everybody beats at a third of the lease, spread evenly; the first member tells of one step a second."""
        alive = [group for group in self.groups if group.alive]
        began = next_step = time.perf_counter()
        number = 0
        while (now := time.perf_counter()) < began + seconds:
            due = int((now - began) * len(alive) / (lease_s / 3))
            message = UP.encode(Beat(version=self.version))
            while number < due:
                await alive[number % len(alive)].say(message)
                number += 1
            if now >= next_step:
                next_step += 1.0
                await self.commit(alive[:1])
            await asyncio.sleep(0.002)

    async def commit(self, groups: list[Group]) -> None:
        """One step more, told by these groups."""
        self.version = Version(self.version.step + 1, self.number)
        start = Start(number=self.number, version=self.start)
        done = Committed(version=self.version, start=start, loss=2.5, tokens=1000, grad_norm=1.0, step_s=0.1)
        message = UP.encode(done)
        for group in groups:
            await group.say(message)

    async def _wait_based(self) -> None:
        """Beats meanwhile are what answers are for: all of this takes less than a lease."""
        await asyncio.wait_for(self._all_based.wait(), 120)

    async def _first_step(self) -> None:
        """Takes in what was told, and the step that all tell of; returns when the lighthouse is done with it."""
        for group in self.groups:
            if group.alive:
                base = DOWN.decode(self._bases[group.name])
                self.number, self.start, group.slots = base.number, base.version, base.slots
        await self.commit([group for group in self.groups if group.alive])
        await self.beat(SETTLE_S, SETTLE_LEASE_S)


def main() -> None:
    turns, name, address, token_file, run_id, count = *sys.argv[1:6], int(sys.argv[6])
    loop = asyncio.new_event_loop()
    fleet = Fleet(address, read_token(Path(token_file)), run_id, count)
    loop.run_until_complete(fleet.form())
    turn = Performer(turns, f"{name}/fleet")
    while turn.next():
        if beat_s := turn.wishes.get("beat_s"):
            loop.run_until_complete(fleet.beat(beat_s, turn.wishes["lease_s"]))
        else:
            change_s, used_s = loop.run_until_complete(fleet.kill(turn.wishes["lighthouse"]))
            turn.notes = {"change_s": change_s, "used_s": used_s}


if __name__ == "__main__":
    main()
