"""The Session streams of one run, seen from the loop that owns it: numbered outboxes that never hold it up."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec

from lighthouse.values import Base, Down, Prepare, RosterChange, Welcome
from lighthouse.wire import DOWN, LighthouseMessage

WAITING = 500
"""Messages that may wait for one session. A healthy agent reads each at once, so more means that it does not read."""

_EMPTY = RosterChange(previous=0)


class Stream:
    """One Session stream: what is to be sent on it, and whether it was welcomed."""

    def __init__(self, conn: int, name: str) -> None:
        self.conn = conn
        self.name = name
        self.incarnation = 0
        self.answered = asyncio.Event()
        """Set once the hello was answered, by a welcome or by an end."""
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the stream has failed, with the reason."""
        self._waiting: deque[Down] = deque()
        self._changed = asyncio.Event()
        self._over = False

    @property
    def over(self) -> bool:
        """Nothing more will be taken to be sent."""
        return self._over

    def send(self, message: Down) -> None:
        """Queues a message. Never waits; a stream with too many waiting is ended."""
        if self._over:
            return
        if len(self._waiting) >= WAITING:
            self.fail(f"{WAITING} messages wait for this session, which does not read them")
            return
        if isinstance(message, Welcome):
            self.incarnation = message.incarnation
            self.answered.set()
        self._waiting.append(message)
        self._changed.set()

    def end(self) -> None:
        """Ends the stream once what waits is sent."""
        self._over = True
        self.answered.set()
        self._changed.set()

    def fail(self, reason: str) -> None:
        """Ends the stream at once; what waits is dropped, and the peer is told the reason if it reads."""
        if not self.failed.done():
            self.failed.set_result(reason)
        self._waiting.clear()
        self.end()

    async def next(self) -> Down | None:
        """The next message to send, waiting for it; None at the end."""
        while not self._waiting:
            if self._over:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft()


class Carrier:
    """Makes wire messages. A roster told to many members at once is converted once: it is most of the bytes."""

    def __init__(self) -> None:
        self._roster: RosterChange | None = None
        self._carried: Any = None

    def carry(self, message: Down) -> LighthouseMessage:
        """The wire message that carries `message`."""
        if not isinstance(message, Base | Prepare):
            plain: LighthouseMessage = DOWN.wrap(message)
            return plain
        roster = message.roster
        if roster is not self._roster:
            self._roster = roster
            self._carried = DOWN.wrap(Prepare(number=0, roster=roster, rendezvous=())).prepare.roster
        envelope: LighthouseMessage = DOWN.wrap(msgspec.structs.replace(message, roster=_EMPTY))
        body = envelope.base if isinstance(message, Base) else envelope.prepare
        body.roster.CopyFrom(self._carried)
        return envelope
