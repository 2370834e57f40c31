"""Weight digests: one 64-bit value that tells whether two shards hold the same training state.

In host memory a tensor's digest is xxh3 of its bytes, which is as fast as memory. On a device that would be slow, and a
sum is taken; all groups of a run have the same kind of device, so both sides of a comparison are made alike.

For the sum a tensor's bytes are read as 64-bit words w_i (the last one filled up with zeros), and its digest is the
sum of mix(w_i) x odd multiplier(i) mod 2^64. Multiplying by an odd number loses nothing, so any single changed word
changes the sum; the multiplier depends on the position, so moved, swapped or permuted pieces do too. `mix` folds the
high half of a word into the low one first (it can be undone, so it loses nothing either): without it two words that
differ only in their top bit, a sign, could change places unseen, since odd multipliers differ by even numbers. Sums of
integers do not depend on the order of adding, so neither threads nor kernels matter.

The multiplier of word j of block k is TABLE[j] x FACTOR[k], both from splitmix64, so that no large temporary is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
import xxhash

from replica.beside import Beside
from replica.manifest import byte_view, flat_bytes
from replica.plain import canonical
from replica.state import TrainingState

_MASK = (1 << 64) - 1
_BLOCK = 1 << 16
"""Words of a block."""
_ROWS = 64
"""Blocks that a device works on at once."""


def digest(state: TrainingState) -> int:
    """One unsigned 64-bit value over all tensors and scalars of this shard. Reads, never writes. Between steps only."""
    return combined(digests(state))


def digest_of(tensors: Mapping[str, torch.Tensor], scalars: dict[str, Any]) -> int:
    """`digest` of what `TrainingState.flatten` gave, on any thread."""
    return combined(_parts(tensors, scalars))


class StepDigest:
    """The digest of a state, computed beside the step that starts from it. For the training thread."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._value: Callable[[], int] | None = None

    def begin(self) -> None:
        """Begins to compute it, between steps, if that was not done yet."""
        if self._value is not None:
            return
        tensors, scalars = self._state.flatten()
        if any(tensor.device.type == "cuda" for tensor in tensors.values()):  # a thread has a stream of its own
            value = digest_of(tensors, scalars)
            self._value = lambda: value
        else:
            self._value = Beside(lambda: digest_of(tensors, scalars), "digest").result

    def value(self) -> int:
        """The digest that `begin` began to compute."""
        assert self._value is not None
        return self._value()

    def settle(self) -> None:
        """Waits for it and forgets it: the state may be written."""
        if self._value is not None:
            self._value()
            self._value = None


def digests(state: TrainingState) -> dict[str, int]:
    """By tensor name (and "scalars"): what `digest` is made of, to name what differs."""
    return _parts(*state.flatten())


def _parts(tensors: Mapping[str, torch.Tensor], scalars: dict[str, Any]) -> dict[str, int]:
    parts = {name: tensor_digest(tensor) for name, tensor in tensors.items()}
    parts["scalars"] = xxhash.xxh3_64_intdigest(canonical(scalars))
    return parts


def combined(parts: dict[str, int]) -> int:
    """The digest of a state whose parts have these digests, whatever their order."""
    return _wrapped(_splitmix(part ^ xxhash.xxh3_64_intdigest(name.encode())) for name, part in parts.items())


def tensor_digest(tensor: torch.Tensor, *, summed: bool = False) -> int:
    """Unsigned 64-bit digest of the tensor's elements in logical order, its dtype and its shape.

    summed: by the sum, as on a device, though it may lie in host memory

    A tensor that is not contiguous is copied as a whole for a moment; local shards are contiguous as a rule.
    """
    with torch.no_grad():
        plain = tensor.detach().resolve_conj().resolve_neg()
        plain = plain if plain.is_contiguous() else plain.contiguous()
        total = _hash(plain) if plain.device.type == "cpu" and not summed else _sum(plain)
    label = f"{tensor.dtype} {tuple(tensor.shape)}"
    return _wrapped((total, _splitmix(xxhash.xxh3_64_intdigest(label.encode()))))


def _hash(tensor: torch.Tensor) -> int:
    hasher = xxhash.xxh3_64()
    hasher.update(byte_view(tensor))  # lets other threads run meanwhile
    return int(hasher.intdigest())


def _sum(tensor: torch.Tensor) -> int:
    content = flat_bytes(tensor)
    step = _BLOCK * 8 * _ROWS
    scratch = torch.empty(min(step, -(-content.numel() // 8) * 8) // 8, dtype=torch.int64, device=tensor.device)
    dots: list[torch.Tensor] = []
    for start in range(0, content.numel(), step):
        words = _words(content[start : start + step])
        dots.extend(_dots(words, scratch[: words.numel()]))
    if not dots:
        return 0
    return _wrapped(dot * _factor(k) for k, dot in enumerate(torch.stack(dots).cpu().tolist()))


def _words(content: torch.Tensor) -> torch.Tensor:
    """The bytes as int64 words: the same memory where it is aligned, else a copy filled up with zeros."""
    if content.numel() % 8 == 0 and content.storage_offset() % 8 == 0:
        return content.view(torch.int64)
    padded = content.new_zeros(-(-content.numel() // 8) * 8)
    padded[: content.numel()].copy_(content)
    return padded.view(torch.int64)


def _dots(words: torch.Tensor, scratch: torch.Tensor) -> list[torch.Tensor]:
    """By block: the sum of mix(word) x table, mod 2^64, as a 0-dim tensor."""
    table = _table(words.device)
    torch.bitwise_right_shift(words, 33, out=scratch)
    scratch.bitwise_and_(0x7FFFFFFF).bitwise_xor_(words)
    return [(block * table[: block.numel()]).sum() for block in torch.split(scratch, _BLOCK)]


@cache
def _table(device: torch.device) -> torch.Tensor:
    odd = _splitmix(np.arange(_BLOCK, dtype=np.uint64)) | np.uint64(1)
    return torch.from_numpy(odd.view(np.int64)).to(device)


@cache
def _factor(block: int) -> int:
    return int(_splitmix(~block & _MASK) | 1)


def _splitmix(value: Any) -> Any:
    """Steele, Lea and Flood's splitmix64 finaliser: unsigned 64-bit in and out, one to one. Ints or uint64 arrays."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _wrapped(values: Iterable[int]) -> int:
    total = 0
    for value in values:
        total = (total + value) & _MASK
    return total
