"""The roll call: one fixed record per member and shard, and what all records together decide.

Each shard rank gathers the records of all members on its own communicator. The agent, holding the gathers of all its
shards, merges the matrix of (shard, place) into one value. Merging is the same function of the same matrix in every
group, down to the last bit: whoever commits decides the same. So sums that people or programs act on are formed in a
way that depends neither on the machine nor on the order of addition.

A record is little-endian, of a length that depends only on the number of slots of a step: the fields of `_Row`, the
last of them one bit per slot, slot 0 in the lowest bit of the first byte.

Every step waits for the merge. Most runs have a handful of groups, where each call into an array library costs more
than what it computes; so records are cut into columns of plain numbers, and built-in functions work on those.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache, reduce
from itertools import chain
from operator import or_
from typing import Any, NamedTuple

from lighthouse.values import Value, Version
from replica.values import HealCount, Merged

MAGIC = 0x31435242
"""First word of a record, "BRC1": a wiped buffer does not have it."""

_STOP, _SAVE, _NONFINITE, _DIGESTED = 1, 2, 4, 8

_PREFIX = struct.Struct("<Iqqqq")
"""The first five fields, which all records of a roll call have in common."""


class _Row(NamedTuple):
    """The fields of a record, in their order; or what all places said, each field a tuple by place."""

    magic: Any
    generation: Any
    step: Any
    from_generation: Any
    step_slots: Any
    flags: Any
    opened: Any
    heal: Any
    tokens: Any
    loss_sum: Any
    grad_sq: Any
    compute_s: Any
    protocol_s: Any
    digest: Any
    bitmap: Any


class Record(Value, frozen=True):
    """What one rank of one member says in a roll call.

    generation, version: the communicator's, and the one that the step starts from
    slots: those in this rank's sum; opened: newest planned generation that it opened and was told to be ready, or 0
    heal: one heal that it was asked to stage for and has not, or 0
    stop, save, nonfinite: wishes, and whether its sums or reduced gradients are not finite
    loss_sum, tokens: over its share of `slots`; grad_sq: squared 2-norm of this shard of the reduced raw gradient sums
    compute_s: seconds of forward and backward; protocol_s: what the protocol cost this rank in its last step
    digest: of the state at `version`, None if not asked for
    """

    generation: int
    version: Version
    slots: tuple[int, ...] = ()
    opened: int = 0
    heal: int = 0
    stop: bool = False
    save: bool = False
    nonfinite: bool = False
    loss_sum: float = 0.0
    tokens: int = 0
    grad_sq: float = 0.0
    compute_s: float = 0.0
    protocol_s: float = 0.0
    digest: int | None = None


class Invalid(Value, frozen=True):
    """The roll call does not count, and why."""

    reason: str


def record_bytes(slots: int) -> int:
    """Length of a record in bytes, for steps of `slots` slots."""
    return _form(slots).size


def pack(record: Record, slots: int) -> bytes:
    """The record as `record_bytes(slots)` bytes. Raises ValueError if it names a slot that does not exist."""
    flags = _STOP * record.stop | _SAVE * record.save | _NONFINITE * record.nonfinite
    row = _Row(
        magic=MAGIC,
        generation=record.generation,
        step=record.version.step,
        from_generation=record.version.generation,
        step_slots=slots,
        flags=flags | _DIGESTED * (record.digest is not None),
        opened=record.opened,
        heal=record.heal,
        tokens=record.tokens,
        loss_sum=record.loss_sum,
        grad_sq=record.grad_sq,
        compute_s=record.compute_s,
        protocol_s=record.protocol_s,
        digest=record.digest or 0,
        bitmap=_bits(record.slots, slots).to_bytes(-(-slots // 8), "little"),
    )
    return _form(slots).pack(*row)


def unpack(data: bytes, slots: int) -> Record:
    """The record in `data`. Raises ValueError if it is none: of another length, or not written at all."""
    if len(data) != record_bytes(slots):
        raise ValueError(f"a record of {slots} slots has {record_bytes(slots)} bytes, not {len(data)}")
    row = _Row._make(_form(slots).unpack(data))
    if row.magic != MAGIC:
        raise ValueError("no record was written here")
    summed = int.from_bytes(row.bitmap, "little")
    return Record(
        generation=row.generation,
        version=Version(row.step, row.from_generation),
        slots=tuple(slot for slot in range(summed.bit_length()) if summed >> slot & 1),
        opened=row.opened,
        heal=row.heal,
        stop=bool(row.flags & _STOP),
        save=bool(row.flags & _SAVE),
        nonfinite=bool(row.flags & _NONFINITE),
        loss_sum=row.loss_sum,
        tokens=row.tokens,
        grad_sq=row.grad_sq,
        compute_s=row.compute_s,
        protocol_s=row.protocol_s,
        digest=row.digest if row.flags & _DIGESTED else None,
    )


def merge(
    matrix: Sequence[bytes],
    *,
    members: int,
    generation: int,
    version: Version,
    slots: int,
    set_aside: Collection[int] = (),
    farewell: bool = False,
    trusted: Sequence[int] = (),
) -> Merged | Invalid:
    """The merged roll call of `matrix[shard_rank]`, each `members` records in roster order; or why it does not count.

    It counts if every record names `generation`, `version` and `slots` in the step, all shards of a member summed the
    same slots, and the members' slots are together each of 0…`slots`-1 once, less `set_aside` (none at all in a
    farewell).
    trusted: places whose digests the others are compared with, the most frequent one of them (empty: all places).
    """
    if any(len(data) != members * record_bytes(slots) for data in matrix):
        return Invalid(reason=f"a shard did not gather {members} records of {record_bytes(slots)} bytes")
    length, prefix = record_bytes(slots), _PREFIX.pack(MAGIC, generation, version.step, version.generation, slots)
    alike = all(data.startswith(prefix, at) for data in matrix for at in range(0, len(data), length))
    shards = [_Row._make(zip(*_form(slots).iter_unpack(data), strict=True)) for data in matrix]
    wrong = None if alike else _not_of(shards, generation, version, slots)
    if wrong is None:
        wanted = 0 if farewell else (1 << slots) - 1 & ~_bits(set_aside, slots)
        wrong = _not_partitioned([shard.bitmap for shard in shards], wanted)
    if wrong is not None:
        return Invalid(reason=wrong)
    set_aside = () if farewell else tuple(sorted(set_aside))
    return _merged(shards, generation, version, 0 if farewell else slots, set_aside, trusted or range(members))


def _merged(
    shards: Sequence[_Row],
    generation: int,
    version: Version,
    slots: int,
    set_aside: tuple[int, ...],
    trusted: Sequence[int],
) -> Merged:
    some = reduce(or_, chain.from_iterable(shard.flags for shard in shards))
    digested = all(flags & _DIGESTED for shard in shards for flags in shard.flags)
    tokens = sum(sum(shard.tokens) for shard in shards)
    grad_norm = _norm((shard.grad_sq[0] for shard in shards), tokens) if slots else 0.0
    newest = min(min(shard.opened) for shard in shards)
    agreed = newest > generation and all(max(shard.opened) == newest for shard in shards)
    heals = Counter(chain.from_iterable(filter(None, shard.heal) for shard in shards))
    return Merged(
        start=version,
        generation=generation,
        slots=slots,
        switch=newest if agreed else 0,
        stop=bool(some & _STOP),
        save=bool(some & _SAVE),
        skip=bool(slots) and (bool(some & _NONFINITE) or not math.isfinite(grad_norm)),
        heals=tuple(HealCount(heal=heal, records=heals[heal]) for heal in sorted(heals)),
        loss_sum=_total(chain.from_iterable(shard.loss_sum for shard in shards)),
        tokens=tokens,
        grad_norm=grad_norm,
        digested=digested,
        mismatched=_mismatched([shard.digest for shard in shards], trusted) if digested else (),
        compute_s=tuple(map(max, zip(*(shard.compute_s for shard in shards), strict=True))),
        protocol_s=max(max(shard.protocol_s) for shard in shards),
        set_aside=set_aside,
    )


def _not_of(shards: Sequence[_Row], generation: int, version: Version, slots: int) -> str | None:
    """Names the first record that is missing or of another step, or another size of it, if there is one."""
    wanted = {
        "magic": MAGIC,
        "generation": generation,
        "step": version.step,
        "from_generation": version.generation,
        "step_slots": slots,
    }
    for name, value in wanted.items():
        for shard, columns in enumerate(shards):
            for place, said in enumerate(getattr(columns, name)):
                if said != value and name == "magic":
                    return f"the record of place {place}, shard {shard} is missing"
                if said != value:
                    return f"the record of place {place}, shard {shard} has {name} {said}, not {value}"
    return None


def _not_partitioned(bitmaps: Sequence[tuple[bytes, ...]], wanted: int) -> str | None:
    """Says which slot is not summed exactly once, if there is one. bitmaps: by shard and place; wanted: bits."""
    for shard in range(1, len(bitmaps)):
        if bitmaps[shard] != bitmaps[0]:
            return f"shards 0 and {shard} of a member did not sum the same slots"
    summed = [int.from_bytes(bitmap, "little") for bitmap in bitmaps[0]]
    if reduce(or_, summed) == wanted and sum(map(int.bit_count, summed)) == wanted.bit_count():
        return None
    for slot in range(8 * len(bitmaps[0][0])):
        count = sum(own >> slot & 1 for own in summed)
        if count != wanted >> slot & 1:
            return f"slot {slot} was summed {count} times"
    raise AssertionError("bits and their sum contradict each other")


def _mismatched(digests: Sequence[tuple[int, ...]], trusted: Sequence[int]) -> tuple[int, ...]:
    """Places whose digests differ from the reference: the most frequent of the trusted, of the first one among equals.

    digests: by shard and place; a member's digest is that of all its shards
    """
    by_place = list(zip(*digests, strict=True))
    counts = Counter(by_place[place] for place in trusted)
    reference = max(counts, key=lambda digest: counts[digest])
    return tuple(place for place, digest in enumerate(by_place) if digest != reference)


def _norm(squares: Iterable[float], tokens: int) -> float:
    """2-norm of the mean gradient from the first member's squared norms in shard order; inf if there is no such."""
    total = 0.0
    for square in squares:
        total += square
    if not (tokens > 0 and math.isfinite(total) and total >= 0):
        return math.inf
    return math.sqrt(total) / tokens


def _total(values: Iterable[float]) -> float:
    """The sum, correctly rounded, so that no order of addition shows; inf where there is none (NaN equals nothing)."""
    try:
        total = math.fsum(values)
    except (OverflowError, ValueError):
        return math.inf
    return total if math.isfinite(total) else math.inf


def _bits(own: Collection[int], slots: int) -> int:
    """One bit per slot, slot 0 in the lowest. Raises ValueError if one of `own` does not exist."""
    if own and (min(own) < 0 or max(own) >= slots):
        raise ValueError(f"slots are 0 to {slots - 1}, not {min(own)} to {max(own)}")
    bits = 0
    for slot in own:
        bits |= 1 << slot
    return bits


@cache
def _form(slots: int) -> struct.Struct:
    if slots < 1:
        raise ValueError("a step has at least one slot")
    return struct.Struct(f"<IqqqqIqqqddddQ{-(-slots // 8)}s")
