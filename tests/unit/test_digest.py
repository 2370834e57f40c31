"""Digests: whatever healing can get wrong changes them, and nothing else does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from replica.digest import digest, digests, tensor_digest
from replica.state import TrainingState

BIG = 200_003
"""Elements: several blocks of 65,536 words, and a tail."""


def reference(tensor: torch.Tensor) -> int:
    """The sum as the module's text tells it, with Python's integers."""
    import xxhash

    mask = (1 << 64) - 1

    def splitmix(value: int) -> int:
        value = (value + 0x9E3779B97F4A7C15) & mask
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    content = bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist())
    content += bytes(-len(content) % 8)
    total = 0
    for i in range(len(content) // 8):
        word = int.from_bytes(content[8 * i : 8 * i + 8], "little")
        block, place = divmod(i, 1 << 16)
        total += (word ^ (word >> 33)) * (splitmix(place) | 1) * (splitmix(~block & mask) | 1)
    label = f"{tensor.dtype} {tuple(tensor.shape)}"
    return (total + splitmix(xxhash.xxh3_64_intdigest(label.encode()))) & mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8, torch.bool])
@pytest.mark.parametrize("size", [0, 1, 7, 8, 70_001])
def test_the_sum_is_the_one_described(dtype: torch.dtype, size: int) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(size)).to(dtype)
    assert tensor_digest(tensor, summed=True) == reference(tensor)
    assert tensor_digest(tensor) != tensor_digest(torch.cat([tensor, tensor.new_zeros(1)]))


def flipped(tensor: torch.Tensor, bit: int, at: int) -> torch.Tensor:
    words = tensor.clone().view(torch.int32)
    words[at] ^= 1 << bit if bit < 31 else -(1 << 31)
    return words.view(torch.float32)


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "swapped halves": lambda t: torch.cat([t[BIG // 2 :], t[: BIG // 2]]),
    "a permutation": lambda t: t[torch.randperm(BIG, generator=torch.Generator().manual_seed(1))],
    "two neighbours swapped": lambda t: torch.cat([t[:10], t[11:12], t[10:11], t[12:]]),
    "two blocks swapped": lambda t: torch.cat([t[131072:196608], t[65536 * 2 - 65536 : 131072], t[:65536], t[196608:]]),
    "a stripe moved by one": lambda t: torch.cat([t[:1000], t[1001:60000], t[1000:1001], t[60000:]]),
    "a stripe moved by a page": lambda t: torch.cat([t[:4096], t[5120:66560], t[4096:5120], t[66560:]]),
    "the lowest bit of the first": lambda t: flipped(t, 0, 0),
    "the sign of the last": lambda t: flipped(t, 31, BIG - 1),
    "the sign in the middle": lambda t: flipped(t, 31, 131072),
    "another shape": lambda t: t.reshape(1, -1),
    "another dtype": lambda t: t.view(torch.int32),
}


@pytest.mark.parametrize("summed", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_changes_it(change: str, summed: bool) -> None:
    tensor = torch.randn(BIG, generator=torch.Generator().manual_seed(0))
    other = CHANGES[change](tensor)
    assert other.numel() == tensor.numel()
    assert tensor_digest(other, summed=summed) != tensor_digest(tensor, summed=summed)


@pytest.mark.parametrize("summed", [False, True])
def test_words_that_differ_in_their_signs_alone_cannot_change_places(summed: bool) -> None:
    """Multiplying by odd numbers is blind to this; hence the mixing."""
    signs = torch.randint(0, 2, (5000,), generator=torch.Generator().manual_seed(0)).double() * 2 - 1
    assert tensor_digest(signs, summed=summed) != tensor_digest(signs.flip(0), summed=summed)
    assert tensor_digest(torch.tensor([1.0, -1.0]).double(), summed=summed) != tensor_digest(
        torch.tensor([-1.0, 1.0]).double(), summed=summed
    )


@pytest.mark.parametrize("summed", [False, True])
def test_zeros_and_constants_of_different_length_differ(summed: bool) -> None:
    seen = {tensor_digest(torch.full((n,), value), summed=summed) for n in (2, 4, 8) for value in (0.0, 0.5, -0.0)}
    assert len(seen) == 9


@pytest.mark.parametrize("summed", [False, True])
def test_layout_alignment_and_threads_do_not_matter(summed: bool) -> None:
    tensor = torch.randn(333, 601, generator=torch.Generator().manual_seed(0))
    expected = tensor_digest(tensor, summed=summed)
    shifted = torch.empty(tensor.numel() + 1)[1:].view(333, 601).copy_(tensor)
    assert tensor_digest(shifted, summed=summed) == expected
    assert tensor_digest(tensor.t().contiguous().t(), summed=summed) == expected
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert tensor_digest(tensor, summed=summed) == expected
    finally:
        torch.set_num_threads(threads)


def trained() -> tuple[nn.Linear, torch.optim.AdamW, TrainingState]:
    torch.manual_seed(0)
    model = nn.Linear(5, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 5)).square().sum().backward()
    optimizer.step()
    return model, optimizer, TrainingState(model, optimizer)


def test_weights_moments_steps_and_settings_all_count() -> None:
    changes: list[Callable[[nn.Linear, torch.optim.AdamW], object]] = [
        lambda m, o: m.weight.data[0, 0].add_(1e-7),
        lambda m, o: o.state[m.weight]["exp_avg"].view(-1)[3].mul_(-1),
        lambda m, o: o.state[m.bias]["exp_avg_sq"].mul_(1.001),
        lambda m, o: o.state[m.bias]["step"].add_(1),
        lambda m, o: o.param_groups[0].update(lr=0.1000001),
        lambda m, o: o.param_groups[0].update(betas=(0.9, 0.9990001)),
    ]
    expected = digest(trained()[2])
    assert digest(trained()[2]) == expected
    seen = {expected}
    for change in changes:
        model, optimizer, state = trained()
        change(model, optimizer)
        seen.add(digest(state))
    assert len(seen) == len(changes) + 1


def test_tensors_that_change_names_change_it_and_the_list_says_which_differ() -> None:
    model, _, state = trained()
    before = digests(state)
    with torch.no_grad():
        moved = model.weight[0].clone()
        model.weight[0].copy_(model.weight[1])
        model.weight[1].copy_(moved)
    after = digests(state)
    assert [name for name in before if before[name] != after[name]] == ["model/weight"]
