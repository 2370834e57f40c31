"""The simulated network keeps what is assumed of a stream."""

from __future__ import annotations

from typing import Any

import pytest

from simulation.engine import Engine
from simulation.network import DOWN, LIGHTHOUSE, UP, Network


@pytest.mark.parametrize("way", [UP, DOWN])
def test_a_stream_keeps_its_order_through_cuts(way: int) -> None:
    """What is sent shortly before a cut ends is still under way when that which waited goes on."""
    for seed in range(20):
        engine, heard = Engine(seed), list[Any]()
        network = Network(engine, delay_s=(0.001, 0.05))
        stream = network.open("g1", heard.append, heard.append)
        for number in range(100):
            engine.after(0.001 * number, stream.send, way, number)
        ends = ("g1", LIGHTHOUSE) if way == UP else (LIGHTHOUSE, "g1")
        for start_s in (0.02, 0.06):
            engine.after(start_s, network.cut, *ends)
            engine.after(start_s + 0.02, network.mend, *ends)
        engine.run(10.0)
        assert heard == list(range(100)), seed
