"""The Session streams of one run, seen from the loop that owns it: numbered, with a hold on what they take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import grpc
import msgspec

from lighthouse.calls import Call
from lighthouse.values import ROOT, Base, Down, RosterChange, Welcome
from lighthouse.wire import DOWN

WAITING = 500
"""Messages that may wait for one session. A healthy agent reads each at once, so more means that it does not read."""


_OWN = Base(number=0, roster=RosterChange(previous=0), version=ROOT, cursor=0, slots=(), step_slots=0, rendezvous=())
"""A base that says nothing."""


class Carrier:
    """Encodes messages. What many members are told alike is encoded once: a whole message, or all of a base but what
    is its receiver's own, which follows it as another half (protobuf reads the halves as one message)."""

    def __init__(self) -> None:
        self._last: Down | None = None
        self._data = b""
        self._alike: Base | None = None
        self._half = b""

    def carry(self, message: Down) -> bytes:
        """The bytes that carry `message`."""
        if message is not self._last:
            self._data = self._base(message) if isinstance(message, Base) else DOWN.encode(message)
            self._last = message
        return self._data

    def _base(self, base: Base) -> bytes:
        alike = msgspec.structs.replace(base, slots=(), sources=())
        if alike != self._alike:
            self._alike, self._half = alike, DOWN.encode(alike)
        return self._half + DOWN.encode(msgspec.structs.replace(_OWN, slots=base.slots, sources=base.sources))


class Stream:
    """One Session stream: a call whose hello was heard. failed: is told why, should the stream fail."""

    def __init__(
        self,
        conn: int,
        name: str,
        call: Call,
        carrier: Carrier,
        failed: Callable[[Stream, str], None],
        *,
        farewell_s: float,
    ) -> None:
        self.conn = conn
        self.name = name
        self.incarnation = 0
        self.call = call
        self.over = False
        """Nothing more is sent on it, and nothing heard."""
        self._carrier = carrier
        self._failed = failed
        self._farewell_s = farewell_s

    def send(self, message: Down) -> None:
        """Sends a message. Never waits; a stream on which too many wait to be read fails."""
        if self.over:
            return
        if self.call.waiting >= WAITING:
            self.fail(f"{WAITING} messages wait for this session, which does not read them")
            return
        if isinstance(message, Welcome):
            self.incarnation = message.incarnation
            self.call.read(on=True)
        self.call.send(self._carrier.carry(message))

    def end(self) -> None:
        """Ends the stream once what waits is sent, or has not been for `farewell_s`."""
        if not self.over:
            self.over = True
            self.call.finish()
            asyncio.get_running_loop().call_later(self._farewell_s, partial(self.call.finish, at_once=True))

    def fail(self, reason: str) -> None:
        """Ends the stream at once; what waits is dropped, and the peer is told the reason if it reads."""
        if not self.over:
            self.over = True
            self.call.finish(grpc.StatusCode.ABORTED, reason, at_once=True)
            self._failed(self, reason)
