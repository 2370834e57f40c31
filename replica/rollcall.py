"""The roll call: one fixed record per member and shard, and what all records together decide.

Each shard rank gathers the records of all members on its own communicator. The agent, holding the gathers of all its
shards, merges the matrix of (shard, place) into one value. Merging is the same function of the same matrix in every
group, down to the last bit: whoever commits decides the same. So sums that people or programs act on are formed in a
way that depends neither on the machine nor on the order of addition.

A record is little-endian, of a length that depends only on the number of slots of a step: the fields of `_HEAD`, then
one bit per slot, slot 0 in the lowest bit of the first byte.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lighthouse.values import Value, Version
from replica.values import HealCount, Merged

MAGIC = 0x31435242
"""First word of a record, "BRC1": a wiped buffer does not have it."""
MOST_HEALS = 4
"""Heals that one record names."""

_STOP, _SAVE, _NONFINITE, _DIGESTED = 1, 2, 4, 8

_HEAD = [
    ("magic", "<u4"),
    ("generation", "<i8"),
    ("step", "<i8"),
    ("from_generation", "<i8"),
    ("step_slots", "<i8"),
    ("flags", "<u4"),
    ("opened", "<i8"),
    ("heals", "<i8", (MOST_HEALS,)),
    ("tokens", "<i8"),
    ("loss_sum", "<f8"),
    ("grad_sq", "<f8"),
    ("compute_s", "<f8"),
    ("protocol_s", "<f8"),
    ("digest", "<u8"),
]
_PREFIX = struct.Struct("<Iqqqq")
"""The first five fields, which all records of a roll call have in common."""


class Record(Value, frozen=True):
    """What one rank of one member says in a roll call.

    generation, version: the communicator's, and the one that the step starts from
    slots: those in this rank's sum; opened: newest planned generation that it opened and was told to be ready, or 0
    heals: those that it was asked to stage for and has room for and has not, the oldest four; numbers above 0
    stop, save, nonfinite: wishes, and whether its sums or reduced gradients are not finite
    loss_sum, tokens: over its share of `slots`; grad_sq: squared 2-norm of this shard of the reduced raw gradient sums
    compute_s: seconds of forward and backward; protocol_s: what the protocol cost this rank in its last step
    digest: of the state at `version`, None if not asked for
    """

    generation: int
    version: Version
    slots: tuple[int, ...] = ()
    opened: int = 0
    heals: tuple[int, ...] = ()
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
    return _dtype(slots).itemsize


def pack(record: Record, slots: int) -> bytes:
    """The record as `record_bytes(slots)` bytes. Raises ValueError if it names a slot that does not exist."""
    row = np.zeros(1, _dtype(slots))
    flags = _STOP * record.stop | _SAVE * record.save | _NONFINITE * record.nonfinite
    row["magic"] = MAGIC
    row["flags"] = flags | _DIGESTED * (record.digest is not None)
    row["generation"] = record.generation
    row["step"], row["from_generation"] = record.version.step, record.version.generation
    row["digest"] = record.digest or 0
    row["step_slots"] = slots
    row["heals"][0, : len(record.heals)] = record.heals
    for name in ("opened", "tokens", "loss_sum", "grad_sq", "compute_s", "protocol_s"):
        row[name] = getattr(record, name)
    row["bitmap"] = _bitmap(record.slots, slots)
    return row.tobytes()


def unpack(data: bytes, slots: int) -> Record:
    """The record in `data`. Raises ValueError if it is none: of another length, or not written at all."""
    if len(data) != record_bytes(slots):
        raise ValueError(f"a record of {slots} slots has {record_bytes(slots)} bytes, not {len(data)}")
    row = np.frombuffer(data, _dtype(slots))[0]
    if row["magic"] != MAGIC:
        raise ValueError("no record was written here")
    flags = int(row["flags"])
    return Record(
        generation=int(row["generation"]),
        version=Version(int(row["step"]), int(row["from_generation"])),
        slots=tuple(np.flatnonzero(np.unpackbits(row["bitmap"], bitorder="little")).tolist()),
        opened=int(row["opened"]),
        heals=tuple(row["heals"][row["heals"] != 0].tolist()),
        stop=bool(flags & _STOP),
        save=bool(flags & _SAVE),
        nonfinite=bool(flags & _NONFINITE),
        loss_sum=float(row["loss_sum"]),
        tokens=int(row["tokens"]),
        grad_sq=float(row["grad_sq"]),
        compute_s=float(row["compute_s"]),
        protocol_s=float(row["protocol_s"]),
        digest=int(row["digest"]) if flags & _DIGESTED else None,
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
    shards = [np.frombuffer(data, _dtype(slots)) for data in matrix]
    rows = np.stack(shards) if len(shards) > 1 else shards[0][np.newaxis]
    length, prefix = record_bytes(slots), _PREFIX.pack(MAGIC, generation, version.step, version.generation, slots)
    alike = all(data.startswith(prefix, at) for data in matrix for at in range(0, len(data), length))
    wrong = None if alike else _not_of(rows, generation, version, slots)
    if wrong is None:
        wrong = _not_partitioned(
            rows["bitmap"], _bitmap((), slots) if farewell else _all_but(frozenset(set_aside), slots)
        )
    if wrong is not None:
        return Invalid(reason=wrong)
    return _merged(rows, generation, version, 0 if farewell else slots, trusted or range(members))


def _merged(rows: Any, generation: int, version: Version, slots: int, trusted: Sequence[int]) -> Merged:
    flags = int(np.bitwise_or.reduce(rows["flags"], axis=None))
    tokens = int(rows["tokens"].sum())
    grad_norm = _norm(rows["grad_sq"][:, 0].tolist(), tokens) if slots else 0.0
    opened = rows["opened"]
    newest = int(opened[0, 0])
    heals = Counter(rows["heals"][rows["heals"] != 0].tolist())
    digested = bool((rows["flags"] & _DIGESTED).all())
    return Merged(
        start=version,
        generation=generation,
        slots=slots,
        switch=newest if newest > generation and bool((opened == newest).all()) else 0,
        stop=bool(flags & _STOP),
        save=bool(flags & _SAVE),
        skip=bool(slots) and (bool(flags & _NONFINITE) or not math.isfinite(grad_norm)),
        heals=tuple(HealCount(heal=heal, records=heals[heal]) for heal in sorted(heals)),
        loss_sum=_total(rows["loss_sum"].ravel().tolist()),
        tokens=tokens,
        grad_norm=grad_norm,
        digested=digested,
        mismatched=_mismatched(rows["digest"], trusted) if digested else (),
        compute_s=tuple(rows["compute_s"].max(axis=0).tolist()),
        protocol_s=float(rows["protocol_s"].max()),
    )


def _not_of(rows: Any, generation: int, version: Version, slots: int) -> str | None:
    """Names the first record that is missing or of another step, or another size of it, if there is one."""
    wanted = {
        "magic": MAGIC,
        "generation": generation,
        "step": version.step,
        "from_generation": version.generation,
        "step_slots": slots,
    }
    for name, value in wanted.items():
        wrong = rows[name] != value
        if wrong.any():
            shard, place = (int(i) for i in np.argwhere(wrong)[0])
            if name == "magic":
                return f"the record of place {place}, shard {shard} is missing"
            return f"the record of place {place}, shard {shard} has {name} {int(rows[name][shard, place])}, not {value}"
    return None


def _not_partitioned(bitmaps: Any, wanted: npt.NDArray[np.uint8]) -> str | None:
    """Says which slot is not summed exactly once, if there is one. `bitmaps` is uint8 of [shard, place, byte]."""
    first = np.ascontiguousarray(bitmaps[0])
    for shard in range(1, len(bitmaps)):
        if not np.array_equal(bitmaps[shard], first):
            return f"shards 0 and {shard} of a member did not sum the same slots"
    union = np.bitwise_or.reduce(first, axis=0)
    words = first.view(np.uint64) if first.shape[1] % 8 == 0 else first
    summed = int(np.bitwise_count(words).sum())
    if np.array_equal(union, wanted) and summed == int(np.bitwise_count(union).sum()):
        return None
    counts = np.unpackbits(first, axis=1, bitorder="little").sum(axis=0)
    wrong = np.flatnonzero(counts != np.unpackbits(wanted, bitorder="little"))
    return f"slot {int(wrong[0])} was summed {int(counts[wrong[0]])} times"


def _mismatched(digests: Any, trusted: Sequence[int]) -> tuple[int, ...]:
    """Places whose digests differ from the reference: the most frequent of the trusted, of the first one among equals.

    `digests` is uint64 of [shard, place]; a member's digest is that of all its shards.
    """
    by_place = [tuple(column) for column in digests.T.tolist()]
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


def _total(values: Sequence[float]) -> float:
    """The sum, correctly rounded, so that no order of addition shows; inf where there is none (NaN equals nothing)."""
    try:
        total = math.fsum(values)
    except (OverflowError, ValueError):
        return math.inf
    return total if math.isfinite(total) else math.inf


def _bitmap(own: Collection[int], slots: int) -> npt.NDArray[np.uint8]:
    bits = np.zeros(-(-slots // 8) * 8, np.uint8)
    if own:
        index = np.fromiter(own, np.int64, len(own))
        if index.min() < 0 or index.max() >= slots:
            raise ValueError(f"slots are 0 to {slots - 1}, not {int(index.min())} to {int(index.max())}")
        bits[index] = 1
    return np.packbits(bits, bitorder="little")


@cache
def _all_but(set_aside: frozenset[int], slots: int) -> npt.NDArray[np.uint8]:
    return _bitmap(set(range(slots)) - set_aside, slots)


@cache
def _dtype(slots: int) -> np.dtype[Any]:
    if slots < 1:
        raise ValueError("a step has at least one slot")
    return np.dtype([*_HEAD, ("bitmap", "u1", (-(-slots // 8),))])
