"""How far a heal is can be seen: in events, in the status, and in the terminal's view of both."""

from __future__ import annotations

from lead import Lead
from rich.console import Console

from lighthouse.core import status
from lighthouse.core_values import Happened, Tell
from lighthouse.values import Heal, Progress, Version
from trainer.show import event_line, status_table


def shown(lead: Lead) -> str:
    """The status as a terminal has it."""
    console = Console(width=220)
    with console.capture() as capture:
        console.print(status_table(status(lead.state, lead.now)))
    return capture.get()


def test_bytes_rate_donors_and_lag_are_told_and_shown() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g0", "g1")
    lead.hello("j")
    heal = lead.told("j", Heal)[0].heal
    assert "heals from g0 g1" in shown(lead)
    nowhere = Version(-1, 0)
    seen = Progress(
        heal=heal, bytes=3_000_000, total=8_000_000, seconds=2.0, rate=1.5e6, donors=("g0", "g1"), version=nowhere
    )
    lead.say("j", seen)
    assert "loads 3.0 of 8.0 MB at 1.5 MB/s from g0 g1" in shown(lead)
    done = Progress(
        heal=heal, bytes=8_000_000, total=8_000_000, seconds=5.0, rate=1.6e6, donors=("g0",), version=version
    )
    lead.say("j", done)
    for step in (version.step + 1, version.step + 2):
        lead.commit(step, "g0", "g1")
    lead.say("j", Progress(**{name: getattr(done, name) for name in done.__struct_fields__} | {"rate": 1.0}))
    assert "loaded 8.0 MB, 2 steps behind" in shown(lead)
    events = [e for e in lead.effects if isinstance(e, Tell) and e.kind in ("progress", "loaded")]
    assert [e.kind for e in events] == ["progress", "loaded", "progress", "progress"]
    first, loaded, _, last = (event.fields for event in events)
    assert (first["bytes"], first["total"], first["mb_per_s"], first["donors"]) == (
        "3000000",
        "8000000",
        "1.5",
        "g0 g1",
    )
    assert (loaded["bytes"], loaded["seconds"], last["lag"]) == ("8000000", "5.000", "2")
    happened = Happened(
        time_s=12.0, kind="progress", number=1, version=version, group="j", text=events[0].text, fields=events[0].fields
    )
    assert "j  loads 3.0 of 8.0 MB at 1.5 MB/s from g0 g1" in event_line(happened, 10.0, 1).plain
