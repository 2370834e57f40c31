"""`bellrock cold-start` against a real lighthouse: a run whose store was lost goes on from what its group has."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from lighthouse.client import Session
from lighthouse.core import CORE
from lighthouse.values import ROOT, Abandon, Base, Died, Holding, Report, Version, Welcome
from tests.unit.test_service import TOKEN, lighthouse, run
from trainer.cli import cold_start, skip_slot
from trainer.commands import ColdStartCommand, SkipSlotCommand

T = TypeVar("T")
OLD = Version(8, 70)


async def heard(session: Session, kind: type[T]) -> T:
    """The next message of this kind."""
    while not isinstance(message := await session.receive(), kind):
        assert message is not None
    return message


def test_a_person_has_a_run_go_on_that_holds_for_it(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    said = Console(record=True, width=200, highlight=False)

    async def asks(address: str, **fields: Any) -> int:
        command = ColdStartCommand(lighthouse=address, token_file=token, by="Ann", **fields)
        return await asyncio.to_thread(cold_start, command, {}, said)

    async def test() -> None:
        async with lighthouse(tmp_path, CORE, groups_wanted=2) as place:
            assert await asks(place.address) == 1
            assert "run '' is not led here" in said.export_text()
            session = await place.session("g1")
            await heard(session, Welcome)
            assert await asks(place.address) == 1
            assert "does not wait for a cold start: waits for the first groups" in said.export_text()
            other = await place.session("g2")
            number = (await heard(session, Abandon)).number
            for one in (session, other):
                await one.send(Report(abandoned=number, version=OLD, cursor=64, generation=70))
            assert "live weights" in (await heard(session, Holding)).reason
            assert await asks(place.address) == 0
            assert "goes on" in said.export_text()
            base = await heard(session, Base)
            assert (base.number, base.version, base.cursor) == (number, OLD, 64)
            assert place.store.read("run").bases[-1].version == OLD
            assert await asks(place.address, run_id="run") == 1
            assert "does not wait for a cold start: a generation is at work" in said.export_text()
            await session.close()
            await other.close()

    run(test)


def test_a_person_has_a_slot_skipped_that_two_groups_died_of(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    said = Console(record=True, width=200, highlight=False)

    async def asks(address: str) -> int:
        command = SkipSlotCommand(lighthouse=address, token_file=token, by="Ann")
        return await asyncio.to_thread(skip_slot, command, {}, said)

    async def reports(session: Session, *slots: int) -> None:
        number = (await heard(session, Abandon)).number
        await session.send(
            Report(abandoned=number, version=ROOT, cursor=0, answers=slots, step_slots=4 if slots else 0)
        )

    async def test() -> None:
        async with lighthouse(tmp_path, CORE, groups_wanted=3) as place:
            sessions = [await place.session(name) for name in ("g1", "g2", "g3")]
            for session in sessions:
                await reports(session)
            for session in sessions:
                await heard(session, Base)
            assert await asks(place.address) == 1
            assert "does not hold for a slot: a generation is at work" in said.export_text()
            for session in sessions[1:]:
                await session.send(Died(reason="signal 9", shard_rank=0, slot=3, killed=True))
            await reports(sessions[0], 0, 1)
            assert "slot 3 of step 1" in (await heard(sessions[0], Holding)).reason
            assert {death.group for death in place.store.read("run").deaths} == {"g2", "g3"}
            assert await asks(place.address) == 0
            base = await heard(sessions[0], Base)
            assert base.set_aside == (3,) and 3 not in base.slots
            assert place.store.read("run").bases[-1].set_aside == (3,)
            for session in sessions:
                await session.close()

    run(test)
