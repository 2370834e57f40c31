"""The promises of DESIGN §1 as questions about one state of a small world, and about the end of a story."""

from __future__ import annotations

from lighthouse.core_values import StoreBase, StoreRecord
from lighthouse.values import ROOT, EntryName, Version
from simulation.small_lighthouse import Waits
from simulation.small_values import Members, Weights
from simulation.small_view import HostView


def broken_by_commit(stored: StoreRecord, name: EntryName) -> list[str]:
    """One history: nobody commits more than one step beyond a base of a later generation."""
    end = name.end
    return [
        f"{end} is committed though generation {base.number} started from {base.version}: two histories"
        for base in stored.bases
        if base.number > end.generation and end.step > base.version.step + 1
    ]


def broken_by_base(base: StoreBase, views: list[HostView]) -> list[str]:
    """One history: nobody is more than one step beyond a base that is written, nor entered it from elsewhere."""
    wrong = []
    for host in views:
        version = host.version
        ahead = version is not None and version.generation < base.number and version.step > base.version.step + 1
        if ahead and host.generation:  # a joiner may have loaded what only the dead had
            wrong.append(f"{host.name} stands on {version}, and generation {base.number} starts from {base.version}")
        if host.generation == base.number and host.start != base.version:
            wrong.append(f"{host.name} entered {base.number} from {host.start}, but its base is {base.version}")
    return wrong


def broken_in(views: list[HostView], stored: StoreRecord) -> list[str]:
    """Equal versions have equal weights; a generation has one membership and one start."""
    wrong: list[str] = []
    weights: dict[Version, Weights] = {}
    members: dict[int, Members] = {c.number: tuple((m.name, m.incarnation) for m in c.roster) for c in stored.claims}
    starts: dict[int, Version] = {b.number: b.version for b in stored.bases}
    for host in views:
        for version, held in host.stands:
            made = made_by(stored, version)
            if made is not None and held != made:
                wrong.append(f"{host.name} has weights {held} at {version}, and by the bases they are {made}")
            if weights.setdefault(version, held) != held:
                wrong.append(f"{host.name} has weights {held} at {version}, others {weights[version]}")
            if len(held) != version.step or (held and held[-1] != version.generation):
                wrong.append(f"{host.name} has weights {held} at {version}")
        if host.generation and host.live:
            number = host.generation
            if members.setdefault(number, host.members[number]) != host.members[number]:
                wrong.append(f"{number} has members {members[number]}, for {host.name} {host.members[number]}")
            if starts.setdefault(number, host.start) != host.start:
                wrong.append(f"{number} starts from {starts[number]}, for {host.name} from {host.start}")
    return wrong


def made_by(stored: StoreRecord, version: Version) -> Weights | None:
    """The weights that `version` has by the bases that are stored; None if one of them is not known yet."""
    if version == ROOT:
        return ()
    base = next((b.version for b in stored.bases if b.number == version.generation), None)
    before = made_by(stored, base) if base is not None and base.generation < version.generation else None
    if base is None or before is None:
        return None
    return (*before, *(version.generation,) * (version.step - base.step))


def in_history(stored: StoreRecord, version: Version) -> bool:
    """Whether the walk back from the newest base comes past `version`."""
    bases = {base.number: base.version for base in stored.bases}
    number, top = max(bases, default=0), 1 << 62
    while number in bases:
        base = bases[number]
        if version == base or (version.generation == number and base.step < version.step <= top):
            return True
        number, top = base.generation, base.step
    return version == ROOT


def stuck(
    views: list[HostView], waits: Waits, stored: StoreRecord, groups: int, min_groups: int, harmed: bool
) -> tuple[str, str]:
    """(what the end of a story is, why it must not end so or ""). Nothing can happen any more but faults."""
    alive = [host for host in views if host.alive]
    if waits.finished:
        left = [f"{h.name} ({h.hold})" for h in alive if h.ranks]
        bad = [f"{h.name} left with {h.code}" for h in views if h.code not in ((None, 0, 1) if harmed else (None, 0))]
        return "finished", "; ".join([*(f"{x} is still there" for x in left), *bad])
    if waits.ended:
        best = max((h.version for h in views if h.version is not None), default=None)
        left = [f"{h.name} is still there" for h in alive if h.ranks and h.version and h.version.step > 0]
        return "ended", "; ".join(left) if best is not None else ""
    able = [host for host in alive if host.ranks]
    if waits.hold == "FORMING" and not stored.bases:
        return "holds: forming", "" if len(able) < groups else "all groups are here"
    if waits.hold == "TOO_FEW":
        return "holds: too few", "" if len(able) < min_groups else f"{len(able)} groups are here"
    if waits.hold == "COLD_START":
        standing = [(h.name, h.version) for h in able if h.version is not None and h.version.step > 0]
        there = [f"{name} stands on {version}" for name, version in standing if in_history(stored, version)]
        fallen = any(h.born > 1 or not h.alive and h.code is None for h in views)
        return "holds: cold start", "; ".join(there) if fallen else "nothing was lost"
    if waits.hold == "FENCE":
        return "holds: fence", "" if len(able) < groups else "all groups are here"
    return "stuck", f"hold {waits.hold or 'none'}: " + ", ".join(f"{h.name}: {h.hold or 'gone'}" for h in views)
