"""The journal of a simulated run's lighthouses, as the file that real ones keep: for `bellrock replay`."""

from __future__ import annotations

from pathlib import Path

from lighthouse.core import CORE
from lighthouse.journal import Journal
from simulation.beacon import Beacon
from simulation.world import World


def write_journal(world: World, path: Path) -> int:
    """Writes what the lighthouses of `world` heard and decided, one life after another. Returns how many turns."""
    for beacon in world.lives:
        journal = Journal(path, limit_bytes=1 << 30, waiting_turns=1 << 30)
        try:
            _write_life(beacon, journal)
            journal.flush(60.0)
        finally:
            journal.close()
    return sum(len(beacon.turns) for beacon in world.lives)


def _write_life(beacon: Beacon, journal: Journal) -> None:
    """The states are decided again: a journal makes its anchors from them."""
    config = beacon.state.config
    state = CORE.new_run(config)
    for turn in beacon.turns:
        if not turn.raised:
            for at_s, event in turn.events:
                state = CORE.record(state, event, at_s)
            state, _ = CORE.decide(state, turn.decided_s)
        journal.put(config, turn.events, turn.decided_s, turn.effects, state, turn.raised)
