"""Whether the ranks of other groups can be reached from here: a connection to each, as the kernel sees it.

A host that answers, were it that nobody listens, is reached. What counts is what the kernel knows in the end, not how
soon this process came to look: it may be slow.
"""

from __future__ import annotations

import asyncio
import errno
import selectors
import socket
import time
from collections.abc import Callable, Sequence

from lighthouse.deadlines import DEFAULTS
from lighthouse.values import Source
from replica.agent_values import PeersTried, TryPeers
from replica.rendezvous import split_address


async def try_peers(effect: TryPeers, then: Callable[[PeersTried], None], timeout_s: float) -> None:
    """Carries the effect out beside the loop."""
    names = await asyncio.to_thread(unreached, effect.targets, timeout_s)
    then(PeersTried(number=effect.number, unreached=names))


def unreached(targets: Sequence[Source], timeout_s: float = DEFAULTS.probe_s) -> tuple[str, ...]:
    """Names of those whose ranks cannot all be reached. Blocks for `timeout_s` at most, for nobody to be left out."""
    tries = [(target.name, _Try(address)) for target in targets for address in target.weights]
    until = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for _, one in tries:
            if one.under_way:
                selector.register(one.socket, selectors.EVENT_WRITE)
        while selector.get_map() and (left_s := until - time.monotonic()) > 0:
            for key, _ in selector.select(left_s):
                selector.unregister(key.fileobj)
    failed = {name for name, one in tries if not one.ends_answered()}
    return tuple(target.name for target in targets if target.name in failed)


class _Try:
    """One connection that is tried."""

    def __init__(self, address: str) -> None:
        host, port = split_address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._error = self.socket.connect_ex((host, port))

    @property
    def under_way(self) -> bool:
        """Whether it is not known yet how it ends."""
        return self._error == errno.EINPROGRESS

    def ends_answered(self) -> bool:
        """Closes it: whether the other host has said anything to it."""
        with self.socket as sock:
            if self.under_way:
                self._error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or self._connected()
        return self._error in (0, errno.ECONNREFUSED)

    def _connected(self) -> int:
        try:
            self.socket.getpeername()
        except OSError as error:
            return error.errno or errno.ENOTCONN
        return 0
