"""The order of groups: natural by name, so that g2 comes before g10, and stable over restarts."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"(\d+)")


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts names as a person would: runs of digits by their value, the rest as text; equal only for equal names."""
    parts = _DIGITS.split(name)
    keys = tuple((0, int(p), p) if p.isdigit() else (1, 0, p) for p in parts if p)
    return keys
