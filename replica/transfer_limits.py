"""How patient and how large transfers are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TransferLimits:
    """Deadlines in seconds and sizes in bytes of transfers; the defaults fit a data centre."""

    connect_s: float = 5.0
    """A source that has not accepted a connection by then is not used."""
    handshake_s: float = 5.0
    """Both sides have proved the token by then, or the connection ends."""
    stall_s: float = 10.0
    """A piece (256 KiB) that has not moved by then ends the connection: donor too slow, or reader too slow."""
    connections: int = 16
    """Authenticated connections that a server serves at once; strangers have a pool of their own of this size."""
    links: int = 2
    """Connections that a joiner opens to each source."""
    chunk_bytes: int = 4 << 20
    """Bytes that are verified and, when wrong, asked for again as one."""
