"""A member of generations, told through a pipe what to do; answers each with JSON.

It is told [verb, argument, …], in JSON as well; times in answers are CLOCK_MONOTONIC seconds, which all
processes of a host share. Communicators and collectives are kept by number; a verb acts on the generation given first.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import torch

from replica.communicator import Communicator, CommunicatorLost, Opening, Pending
from replica.descriptors import Held
from replica.gloo import graveyard_size

Answer = dict[str, Any]
GRAVE_THREADS = 3
"""What a communicator of two that could not be ended yet keeps, ..."""
GRAVE_DESCRIPTORS = 4
"""... with its connection, its listener, and what they are watched by."""


class Member:
    def __init__(self, place: int) -> None:
        self.place = place
        self.openings: dict[int, Opening] = {}
        self.open: dict[int, Communicator] = {}
        self.works: list[tuple[Pending, torch.Tensor]] = []
        self.usual_threads = 0

    def opening(self, number: int, place: int, size: int, rendezvous: str, timeout_s: float = 30) -> Answer:
        self.openings[number] = Opening("gloo", number, place, size, rendezvous, f"run/{number}/0", timeout_s)
        return {}

    def opened(self, number: int, timeout_s: float = 30) -> Answer:
        start = time.monotonic()
        try:
            self.open[number] = self.openings[number].result(timeout_s)
        except CommunicatorLost as error:
            return {"lost": str(error), "took_s": time.monotonic() - start}
        return {"took_s": time.monotonic() - start}

    def give_up(self, number: int) -> Answer:
        self.openings[number].abandon("told to give up")
        return self.opened(number)

    def sum(self, number: int, count: int, seed: int, dtype: str = "float32") -> Answer:
        """Start an all-reduce of this place's random numbers."""
        generator = torch.Generator().manual_seed(1000 * seed + self.place)
        tensor = torch.randn(count, generator=generator).to(getattr(torch, dtype))
        self.works.append((self.open[number].all_reduce(tensor), tensor))
        return {"at": time.monotonic()}

    def finish(self, timeout_s: float = 30) -> Answer:
        """Wait for all collectives; the sums' digests and the first numbers."""
        digests, lost = [], []
        for work, tensor in self.works:
            try:
                work.wait(timeout_s)
                digests.append(hash(tensor.view(torch.uint8).numpy().tobytes()))
            except CommunicatorLost as error:
                lost.append(str(error))
        at = time.monotonic()
        while not all(work.done() for work, _ in self.works) and time.monotonic() < at + 1:
            time.sleep(0.0005)
        undone = sum(not work.done() for work, _ in self.works)
        done_at = time.monotonic()
        first = [float(tensor[0]) for _, tensor in self.works]
        self.works = []
        return {"digests": digests, "first": first, "lost": lost, "at": at, "done_at": done_at, "undone": undone}

    def abandon(self, number: int) -> Answer:
        start = time.monotonic()
        self.open[number].abandon("told to")
        return {"at": start, "took_s": time.monotonic() - start}

    def cut(self, number: int, after_s: float) -> Answer:
        """End the connections at a moment of a sum, and tell nobody, as if this process were killed."""
        time.sleep(after_s)
        held = Held(self.open[number]._sockets)  # type: ignore[attr-defined]
        held.shut_down(socket.SHUT_RDWR)
        held.close()
        return {"at": time.monotonic()}

    def abandon_then_finish(self, number: int) -> Answer:
        return {"abandoned_at": self.abandon(number)["at"], **self.finish()}

    def gather(self, number: int, rounds: int, close: int = 0) -> Answer:
        """Gather 256-byte records again and again; the median time of one; close right after the last if told."""
        record = torch.full((256,), self.place + 1, dtype=torch.uint8)
        took, lost, matrix = [], "", record
        try:
            for _ in range(rounds):
                start = time.perf_counter()
                pending, matrix = self.open[number].all_gather(record)
                pending.wait(30)
                took.append(time.perf_counter() - start)
        except CommunicatorLost as error:
            lost = str(error)
        if close:
            self.open[number].close()
        took.sort()
        return {
            "median_us": 1e6 * took[len(took) // 2] if took else None,
            "p90_us": 1e6 * took[int(0.9 * len(took))] if took else None,
            "sum": int(matrix.sum()),
            "lost": lost,
        }

    def close(self, number: int) -> Answer:
        self.open[number].close()
        return {}

    def cycle(self, first: int, last: int, size: int, rendezvous: str, abandon: int) -> Answer:
        """Open, use and end the generations first … last - 1; what the process holds afterwards."""
        for number in range(first, last):
            self.opening(number, self.place, size, rendezvous)
            lost = self.opened(number).get("lost")
            if lost:
                return {"lost": lost}
            self.sum(number, 10_000, number)
            answer = self.finish()
            if answer["lost"]:
                return {"lost": answer["lost"]}
            if abandon:
                self.sum(number, 10_000, number)
                self.open[number].abandon("next")
                self.finish()
            else:
                self.gather(number, 1)
                self.open[number].close()
            del self.open[number], self.openings[number]
        return self.footprint()

    def footprint(self) -> Answer:
        """What this process holds, once all that ends by itself has ended, or after a while.

        The kernel lists a thread for a moment after it was joined, on a busy machine for longer. So, if there are more
        than when this was asked first, they are waited for.
        """
        end = time.monotonic() + 5
        while time.monotonic() < end and any(t.name.startswith("reap") for t in threading.enumerate()):
            time.sleep(0.01)
        graves = graveyard_size()
        usual = self.usual_threads + GRAVE_THREADS * graves
        while self.usual_threads and time.monotonic() < end and threads() > usual:
            time.sleep(0.01)
        self.usual_threads = self.usual_threads or threads()
        with open("/proc/self/statm") as file:
            rss = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        descriptors = len(os.listdir("/proc/self/fd"))
        return {"threads": threads(), "descriptors": descriptors, "rss": rss, "graveyard": graves}


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def main(place: int, pipe: Connection) -> None:
    """Entry of the process. Ends when the pipe does."""
    torch.set_num_threads(1)
    member = Member(place)
    with contextlib.suppress(EOFError):
        while True:
            verb, *arguments = json.loads(pipe.recv_bytes())
            try:
                answer = getattr(member, verb)(*arguments)
            except CommunicatorLost as error:
                answer = {"lost": str(error)}
            pipe.send_bytes(json.dumps(answer).encode())
