"""What happens in a run, as the lighthouse tells it, across restarts of the lighthouse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from lighthouse.client import Unreachable, watch
from lighthouse.core_values import Happened

RETRY_S = 0.25


async def follow(address: str, token: str, run_id: str) -> AsyncIterator[Happened]:
    """All that happened and happens, each once, in order; goes on when the lighthouse comes back. Never ends."""
    newest_s, told = 0.0, list[Happened]()  # those told at newest_s: several may share a time
    while True:
        try:
            async for one in watch(address, token=token, run_id=run_id, history=True):
                if one.time_s > newest_s:
                    newest_s, told = one.time_s, []
                if one.time_s == newest_s and one not in told:
                    told.append(one)
                    yield one
        except Unreachable:
            pass
        await asyncio.sleep(RETRY_S)
