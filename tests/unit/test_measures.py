"""Each moment of a step is charged to one part."""

from __future__ import annotations

from dataclasses import asdict

from replica.measures import Part, Stopwatch, Times


def test_all_parts_together_are_the_step() -> None:
    moments = iter((0.0, 1.0, 3.0, 3.5, 7.5, 8.5, 8.75, 9.75, 10.0))
    watch = Stopwatch(lambda: next(moments))
    for part in (Part.PROGRAM, Part.REDUCE, Part.OWN, Part.PROGRAM, Part.ROLL_CALL, Part.VERDICT, Part.APPLY):
        watch.charge(part)
    times = watch.lap()
    assert times == Times(program=5.0, reduce=2.0, roll_call=1.0, verdict=0.25, apply=1.0, own=0.5)
    assert sum(asdict(times).values()) == 9.75
    assert times.protocol == 1.75
    watch.charge(Part.OWN)
    assert watch.lap() == Times(own=0.25)
