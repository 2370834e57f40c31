"""Measures communicators over gloo among processes of this host: python -m tests.bench.bench_communicator

Prints, for 2, 3 and 4 members: the time of a roll call's gather, of an opening, and of an abandonment with a stopped
peer; the gather beside a second communicator with another in opening; and what 1,000 generations leave behind (with
--changes only that).
"""

from __future__ import annotations

import signal
import statistics
import sys
import time

from replica.communicator import Rendezvous
from tests.e2e.gloo_member import GRAVE_DESCRIPTORS, GRAVE_THREADS
from tests.e2e.test_gloo_faults import Process, ask_all, open_all


def gathers(group: list[Process], number: int, rounds: int = 1000) -> str:
    ask_all(group, "gather", number, 50)
    answers = ask_all(group, "gather", number, rounds)
    slowest = max(answers, key=lambda answer: answer["median_us"])
    return f"median {slowest['median_us']:.0f} us, 90 % below {slowest['p90_us']:.0f} us"


def opening_ms(group: list[Process], first: int, rendezvous: str, rounds: int = 30) -> float:
    took = []
    for number in range(first, first + rounds):
        start = time.monotonic()
        for place, member in enumerate(group):
            member.tell("opening", number, place, len(group), rendezvous)
        for member in group:
            member.hear()
        ask_all(group, "opened", number)
        took.append(1e3 * (time.monotonic() - start))
        ask_all(group, "close", number)
    return statistics.median(took)


def abandonments_ms(group: list[Process], first: int, rendezvous: str, rounds: int = 20) -> list[float]:
    """From the call of abandon to the end of all works, at the survivors of a stopped peer."""
    took = []
    *survivors, victim = group
    for number in range(first, first + rounds):
        open_all(group, number, rendezvous)
        victim.signal(signal.SIGSTOP)
        ask_all(survivors, "sum", number, 1_000_000, 1)
        for answer in ask_all(survivors, "abandon_then_finish", number):
            assert answer["undone"] == 0
            took.append(1e3 * (answer["done_at"] - answer["abandoned_at"]))
        victim.signal(signal.SIGCONT)
        victim.ask("abandon", number)
    return sorted(took)


def measure(size: int, rendezvous: str) -> None:
    group = [Process(place) for place in range(size)]
    try:
        for member in group:
            member.hear()
        open_all(group, 1, rendezvous)
        print(f"{size} members: gather of 256 bytes: {gathers(group, 1)}", flush=True)
        open_all(group, 2, rendezvous)
        group[0].ask("opening", 3, 0, size, rendezvous)
        print(f"{size} members: the same beside another, and one in opening: {gathers(group, 1)}", flush=True)
        group[0].ask("give_up", 3)
        print(f"{size} members: opening, told over pipes: {opening_ms(group, 10, rendezvous):.1f} ms", flush=True)
        ended = abandonments_ms(group, 100, rendezvous)
        print(f"{size} members: abandoned to ended: median {statistics.median(ended):.1f}, most {ended[-1]:.1f} ms")
    finally:
        for member in group:
            member.end()


def cycles(rendezvous: str, count: int = 1000) -> None:
    for abandon, how in ((0, "closed"), (1, "abandoned")):
        group = [Process(place) for place in range(2)]
        try:
            for member in group:
                member.hear()
            before = ask_all(group, "cycle", 1, 51, 2, rendezvous, abandon)
            start = time.monotonic()
            after = ask_all(group, "cycle", 51, 51 + count, 2, rendezvous, abandon)
            each_ms = 1e3 * (time.monotonic() - start) / count
            print(f"{count} generations {how}, {each_ms:.1f} ms each: before {before[0]}, after {after[0]}", flush=True)
            left = after[0]["threads"] - before[0]["threads"], after[0]["descriptors"] - before[0]["descriptors"]
            graves = after[0]["graveyard"] - before[0]["graveyard"]
            of_graves = (GRAVE_THREADS * graves, GRAVE_DESCRIPTORS * graves)
            print(f"  (threads, descriptors) left over: {left}; of {graves} that gloo could not end: {of_graves}")
        finally:
            for member in group:
                member.end()


def main() -> None:
    rendezvous = Rendezvous()
    for size in () if "--changes" in sys.argv[1:] else (2, 3, 4):
        measure(size, rendezvous.address)
    cycles(rendezvous.address)
    rendezvous.close()


if __name__ == "__main__":
    main()
