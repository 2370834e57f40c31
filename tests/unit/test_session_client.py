"""What an agent's end of a Session puts on the wire, and when."""

from __future__ import annotations

import asyncio

from lighthouse.values import ROOT, Beat, Committed, Member, Role, Start, Version
from lighthouse.wire import Steps
from replica.agent_values import SessionOpened
from replica.session_client import BRISK_S, SessionClient
from tests.scripted import TOKEN, ScriptedLighthouse

MEMBER = Member(name="g1", incarnation=1, role=Role.CONTRIBUTOR)


def step(number: int, step_s: float = BRISK_S / 2, generation: int = 1, promoted: tuple[Member, ...] = ()) -> Committed:
    return Committed(
        version=Version(number, generation),
        start=Start(number=generation, version=ROOT, cursor=0),
        loss=1.0,
        tokens=4,
        grad_norm=1.0,
        step_s=step_s,
        promoted=promoted,
    )


def test_short_steps_are_told_together_and_in_order_and_all_else_at_once() -> None:
    async def story() -> None:
        lighthouse = ScriptedLighthouse()
        await lighthouse.start()
        opened = asyncio.Event()
        client = SessionClient(
            lighthouse.address, TOKEN, lambda event: opened.set() if isinstance(event, SessionOpened) else None
        )
        try:
            client.open(1)
            await opened.wait()
            slow, other, grown = step(6, BRISK_S), step(9, generation=2), step(10, generation=2, promoted=(MEMBER,))
            said = [*map(step, range(1, 6)), slow, step(7), Beat(version=ROOT), step(8), other, grown]
            for message in said:
                client.send(message)
            together = Steps(committed=tuple(map(step, range(2, 6))))
            await lighthouse.heard(Committed, lambda committed: committed == grown)
            assert lighthouse.written == [step(1), together, *said[5:]]
            client.send(step(11, generation=2))
            client.send(step(12, generation=2))
            await lighthouse.heard(Committed, lambda committed: committed.version.step == 12)
            client.send(step(13, generation=2))
            await client.finish(5.0)
            await lighthouse.heard(Committed, lambda committed: committed.version.step == 13)
            last = Steps(committed=(step(11, generation=2), step(12, generation=2)))
            assert lighthouse.written[-2:] == [last, step(13, generation=2)]
            assert [message for _, message in lighthouse.said if isinstance(message, Committed)] == [
                message for message in said if isinstance(message, Committed)
            ] + [step(number, generation=2) for number in (11, 12, 13)]
        finally:
            await client.finish(5.0)
            await lighthouse.stop()

    asyncio.run(story())
