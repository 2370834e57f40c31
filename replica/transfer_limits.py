"""How patient and how large transfers are."""

from __future__ import annotations

from dataclasses import dataclass

from lighthouse.deadlines import DEFAULTS, Deadlines


@dataclass(frozen=True, kw_only=True)
class TransferLimits:
    """Deadlines in seconds and sizes in bytes of transfers; the defaults fit a data centre."""

    connect_s: float = DEFAULTS.dial_s
    """A source that has not accepted a connection by then is not used."""
    handshake_s: float = DEFAULTS.dial_s
    """Each message of the proof of the token has come by then, or the connection ends."""
    stall_s: float = DEFAULTS.move_s
    """A piece (at most 1 MiB) that has not moved by then ends the connection: donor too slow, or reader too slow."""
    idle_s: float = DEFAULTS.idle_s
    """A joiner that asks for nothing for this long is dropped; two stalls at least, since it may wait for others."""
    hurry_s: float = DEFAULTS.hurry_s
    """A chunk that a source is busy with for this long is asked of another source that has nothing else to do."""
    connections: int = 32
    """Connections that a server serves at once; strangers have a pool of their own of this size."""
    links: int = 2
    """Connections that a joiner opens to each source of a snapshot."""
    wait_limit_s: float = DEFAULTS.waiting_s
    """A server does not let anybody wait longer than this for an entry or a snapshot."""

    @classmethod
    def of(cls, deadlines: Deadlines) -> TransferLimits:
        """As the run's deadlines have it."""
        return cls(
            connect_s=deadlines.dial_s,
            handshake_s=deadlines.dial_s,
            stall_s=deadlines.move_s,
            idle_s=deadlines.idle_s,
            hurry_s=deadlines.hurry_s,
            wait_limit_s=deadlines.waiting_s,
        )

    def __post_init__(self) -> None:
        for name in (
            "connect_s",
            "handshake_s",
            "stall_s",
            "idle_s",
            "hurry_s",
            "connections",
            "links",
            "wait_limit_s",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if self.idle_s < 2 * self.stall_s:
            raise ValueError(f"idle_s is {self.idle_s}; it must be at least twice stall_s, {2 * self.stall_s}")
