"""The history of a run: which versions its present weights descend from.

Every generation has a base, the version it started from. Walking back from the newest base visits a chain of
generations: (s, g) is in the history iff the chain visits g, s is above g's base, and s is not above the step at which
the chain leaves g. (0, 0) is the root. A version outside it may have a larger step and still be nobody's ancestor.
"""

from __future__ import annotations

from lighthouse.values import ROOT, Value, Version

OPEN = 1 << 62
"""Upper end of the newest generation: nothing has left it yet."""

KEPT_LINKS = 1024
"""A version that is more than so many generations back is not looked for: its group heals."""


class Link(Value, frozen=True):
    """The chain passes through `generation` from above step `above` up to step `upto`."""

    generation: int
    above: int
    upto: int


class History(Value, frozen=True):
    """Links of the chain, oldest first; the last one is the newest generation with a base."""

    links: tuple[Link, ...] = ()

    @property
    def base(self) -> Version:
        """The version that the newest generation started from."""
        if not self.links:
            return ROOT
        below = self.links[-2].generation if len(self.links) > 1 else 0
        return Version(self.links[-1].above, below)

    def contains(self, version: Version) -> bool:
        """Whether `version` is an ancestor of, or made by, the newest generation."""
        if version == ROOT:
            return True
        return any(
            link.generation == version.generation and link.above < version.step <= link.upto
            for link in reversed(self.links)
        )

    def begun(self, number: int, base: Version) -> History:
        """As `extended`; if `base` is not in the history (a cold start), everything before it is cut off."""
        if self.contains(base):
            return self.extended(number, base)
        origin = Link(generation=base.generation, above=base.step - 1, upto=base.step)
        return History(links=(origin, Link(generation=number, above=base.step, upto=OPEN)))

    def extended(self, number: int, base: Version) -> History:
        """The history once generation `number` starts from `base`. Raises ValueError if `base` is not in it."""
        if not self.contains(base):
            raise ValueError(f"{base} is not in the history, so generation {number} cannot start from it")
        kept: list[Link] = []
        for link in self.links:
            if link.above < base.step:
                kept.append(link)
            if link.generation == base.generation:
                break
        if kept and kept[-1].generation == base.generation:
            kept[-1] = Link(generation=base.generation, above=kept[-1].above, upto=base.step)
        return History(links=(*kept[-KEPT_LINKS:], Link(generation=number, above=base.step, upto=OPEN)))
