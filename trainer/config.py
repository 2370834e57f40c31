"""What `bellrock`'s own training program can be told. Imports no torch: the command line and the agent read it too."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal


class FixTheConfiguration(Exception):
    """Something that was asked for cannot be done; the message says what to change. Trying again does not help."""


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """What fixes the model's parameters: channels, blocks, attention heads, and the most bytes that it looks back."""

    width: int
    depth: int
    heads: int
    context: int


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run of the byte model. All groups of a run must be given the same."""

    seed: int = 0
    """Fixes the initial weights, the order of the samples and the randomness in each slot."""
    steps: int = 60
    """Optimizer steps until the run is finished."""
    slots: int = 6
    """Microbatches in the global batch of a step, dealt to the groups; stays the same however many groups there are."""
    slots_per_group: int = 0
    """If above 0, in place of --slots: microbatches that each contributing group brings; the batch is elastic."""
    epochs: int = 0
    """If above 0: the run also ends when the text was gone through so often, if that is before --steps."""
    slot_size: int = 4
    """Samples in a slot, over all shards of the group that computes it."""
    context: int = 64
    """Bytes that a sample predicts."""
    data: str = "stdlib"
    """Text to train on: a file, a folder with all its files, or "stdlib": the sources of Python's standard library."""
    lr: float = 3e-3
    """Peak learning rate of AdamW."""
    warmup_steps: int = 10
    """Steps in which the learning rate grows from zero; it then falls along a cosine to a tenth of its peak."""
    weight_decay: float = 0.1
    """Decay of matrices, as AdamW has it; norms do not decay."""
    max_grad_norm: float = 1.0
    """The mean gradient is scaled down to this 2-norm if it is longer."""
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    """What gradients are added up in over the groups; bf16 halves the bytes, and rounds."""
    width: int = 160
    """Channels of the model."""
    depth: int = 4
    """Blocks of the model."""
    heads: int = 5
    """Attention heads in a block."""
    always_shard: bool = False
    """Use FSDP2 in a group of one shard too."""
    threads: int = 1
    """Torch threads in each rank."""
    sleep_s: float = 0.0
    """If above 0: sleep this long in place of most of a slot's compute (the model then predicts one byte a sample)."""
    stop_file: str = ""
    """A file: once it is there, the run finishes after the next step, with all groups together."""
    finals: str = ""
    """Folder in which each rank that finishes the run leaves a digest of its weights and optimizer, for tests."""

    def __post_init__(self) -> None:
        for field in ("steps", "slots", "slot_size", "context", "width", "depth", "heads", "threads"):
            if getattr(self, field) < 1:
                raise FixTheConfiguration(f"{flag(field)} is {getattr(self, field)}: give 1 or more.")
        for field in ("lr", "max_grad_norm"):
            if not getattr(self, field) > 0:
                raise FixTheConfiguration(f"{flag(field)} is {getattr(self, field)}: give a number above 0.")
        for field in ("warmup_steps", "weight_decay", "sleep_s", "slots_per_group", "epochs"):
            if not getattr(self, field) >= 0:
                raise FixTheConfiguration(f"{flag(field)} is {getattr(self, field)}: give 0 or more.")
        if self.width % (2 * self.heads):
            raise FixTheConfiguration(
                f"--width {self.width} does not split over --heads {self.heads} into heads of an even width "
                f"(rotary positions turn channels in pairs): make --width a multiple of {2 * self.heads}."
            )

    @property
    def shape(self) -> ModelShape:
        """The slice that the model is built from."""
        return ModelShape(width=self.width, depth=self.depth, heads=self.heads, context=self.context)

    def check_shards(self, shards: int) -> None:
        """Raises FixTheConfiguration if a group of `shards` ranks cannot share a slot's samples evenly."""
        if shards < 1:
            raise FixTheConfiguration(f"--shards is {shards}: give 1 or more.")
        if self.slot_size % shards:
            raise FixTheConfiguration(
                f"--slot-size {self.slot_size} is not divisible by --shards {shards}: each shard computes the same "
                f"share of a slot. Make --slot-size a multiple of {shards}."
            )


def flag(field: str) -> str:
    """The command-line flag that sets `field`."""
    return "--" + field.replace("_", "-")


def to_argv(config: Any) -> list[str]:
    """The flags that make a dataclass of plain fields equal to `config`, without those that stand at their default."""
    flags: list[str] = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if value == field.default:
            continue
        if isinstance(value, bool):
            flags.append(flag(field.name) if value else flag(f"no_{field.name}"))
        else:
            flags += [flag(field.name), str(value)]
    return flags
