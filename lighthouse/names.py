"""The order of groups: natural by name, so that g2 comes before g10, and stable over restarts."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"([0-9]+)")


def natural_key(name: str) -> tuple[tuple[str | int, ...], str]:
    """Sorts names so that runs of digits count as numbers: "g2" before "g10". Names that differ are never equal."""
    parts = _DIGITS.split(name)
    return tuple(int(part) if i % 2 else part for i, part in enumerate(parts)), name
