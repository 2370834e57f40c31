"""What there is to transfer: tensors packed one after another into one run of bytes, cut into chunks."""

from __future__ import annotations

from lighthouse.values import Value


class TensorSpec(Value, frozen=True):
    """One tensor of a manifest: its *local* shape, and where its bytes start in the packed run.

    dtype: torch's name without "torch."; sharded: a DTensor's local shard; on_host: lives in host memory though the
    model lives on a device
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    sharded: bool = False
    on_host: bool = True
