"""A byte-level language model in the manner of Llama: RMSNorm, rotary positions, SwiGLU, no biases.

Every module registers its parameters in the order in which forward uses them. Gradients then become ready in the
reverse of that order, so that buckets laid out by it fill one after the other, each as early as it can.

The loss is a *sum* over tokens, never a mean: sums of slots, shards and groups add up to the global batch's, whoever
computed them, and the step divides once by the merged token count.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from trainer.config import ModelShape

VOCABULARY = 256
"""A token is a byte."""

ROTARY_BASE = 10_000.0
INITIAL_STD = 0.02


class Rotary(nn.Module):
    """Turns pairs of channels by an angle that grows with the position (Su et al. 2021, rotate-half layout)."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, context: int) -> None:
        super().__init__()
        rates = ROTARY_BASE ** -(torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
        angles = torch.outer(torch.arange(context, dtype=torch.float32), rates).repeat(1, 2)
        # A function of the shape alone: no state to save or to heal.
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [batch, heads, length, head_width] -> the same shape."""
        length = x.shape[-2]
        first, second = x.chunk(2, dim=-1)
        return x * self.cos[:length] + torch.cat((-second, first), dim=-1) * self.sin[:length]


class Attention(nn.Module):
    """Causal self-attention over [batch, length, width]."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.joint = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.rotary = Rotary(shape.width // shape.heads, shape.context)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        joint = self.joint(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = joint.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(self.rotary(query), self.rotary(key), value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class SwiGLU(nn.Module):
    """The gated feed-forward part (Shazeer 2020), 8/3 of the width inside, rounded up to a multiple of 32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = -(-width * 8 // 3 // 32) * 32
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """Attention, then feed-forward, each on the normed input and added to it."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width)
        self.attention = Attention(shape)
        self.feed_norm = nn.RMSNorm(shape.width)
        self.feed = SwiGLU(shape.width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        out: Tensor = x + self.feed(self.feed_norm(x))
        return out


class ByteModel(nn.Module):
    """Predicts each byte from those before it."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = nn.RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)

    def forward(self, windows: Tensor) -> tuple[Tensor, int]:
        """windows: int64 [batch, length + 1] of bytes -> (loss in nats, summed over the predicted bytes; how many)."""
        x = self.embedding(windows[:, :-1])
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        wanted = windows[:, 1:]
        return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="sum"), wanted.numel()


def build_model(shape: ModelShape, seed: int) -> ByteModel:
    """The model with the initial weights that `seed` fixes, the same in every process."""
    model = ByteModel(shape)
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                continue  # norms start at one
            into_residual = name.endswith(("attention.out.weight", "feed.down.weight"))
            std = INITIAL_STD / (2 * shape.depth) ** 0.5 if into_residual else INITIAL_STD
            parameter.normal_(std=std, generator=chance)
    return model


def shard(model: ByteModel, mesh: DeviceMesh) -> None:
    """Shards `model` in place along `mesh`: each block gathers its own parameters just before it runs.

    What a shard then holds of a gradient is the *sum* over shards, not FSDP2's mean; `replica` sees to that.
    """
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def parameter_count(model: nn.Module) -> int:
    """Number of weights of the whole model, over all shards."""
    return sum(parameter.numel() for parameter in model.parameters())
