"""Plain data in and out of JSON without loss: the part of a training state that is not tensors.

`state_dict()`s hold tuples, integer keys, counters and now and then a tensor deep inside. JSON has none of these, so
each becomes an object with one key that starts with "!". Tensors are put aside under a name. What has no exact JSON
form is refused, with its place in the tree: nothing of ours is ever pickled.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

PutAside = Callable[[str, torch.Tensor], str]
Fetch = Callable[[str], torch.Tensor]


class NotRepresentable(TypeError):
    """Something in the training state is neither tensor nor plain data; the text says where, what, and what to do."""


def encode(value: Any, where: str, put_aside: PutAside) -> Any:
    """`value` as a JSON-able tree. `put_aside(where, tensor)` stores a tensor and returns its name.

    Raises NotRepresentable naming the place, for example "scheduler/anneal_func".
    """
    if isinstance(value, torch.Tensor):  # first, since there may be tens of thousands
        return {"!tensor": put_aside(where, value)}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | str) and not _is_enum(value):
        return int(value) if isinstance(value, int) else str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"!float": repr(float(value))}
    if type(value) in (list, torch.Size):
        return [encode(item, f"{where}/{i}", put_aside) for i, item in enumerate(value)]
    if type(value) is tuple:
        return {"!tuple": [encode(item, f"{where}/{i}", put_aside) for i, item in enumerate(value)]}
    if type(value) in _DICTS:
        return _encode_dict(value, where, put_aside)
    if isinstance(value, complex):
        return {"!complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, bytes):
        return {"!bytes": base64.b64encode(value).decode()}
    if isinstance(value, torch.dtype):
        return {"!dtype": str(value).removeprefix("torch.")}
    raise NotRepresentable(
        f"{where} is a {type(value).__module__}.{type(value).__qualname__}, which cannot be healed without pickle; "
        "keep it out of the state, or make it numbers, strings, lists, tuples, dicts or tensors"
    )


def decode(tree: Any, fetch: Fetch) -> Any:
    """The value that `encode` made `tree` of; `fetch(name)` gives the tensors. Raises ValueError on an unknown tag."""
    if isinstance(tree, list):
        return [decode(item, fetch) for item in tree]
    if not isinstance(tree, dict):
        return tree
    tag = next(iter(tree), "")
    if len(tree) != 1 or not tag.startswith("!"):
        return {key: decode(item, fetch) for key, item in tree.items()}
    if tag not in _TAGS:
        raise ValueError(f"a training state holds the unknown tag {tag!r}; its sender may be of a newer version")
    return _TAGS[tag](tree[tag], fetch)


def tensor_names(tree: Any) -> list[str]:
    """Names of the tensors that `tree` refers to, in order."""
    if isinstance(tree, list):
        return [name for item in tree for name in tensor_names(item)]
    if not isinstance(tree, dict):
        return []
    if len(tree) == 1 and "!tensor" in tree:
        return [tree["!tensor"]]
    return [name for item in tree.values() for name in tensor_names(item)]


def dumps(tree: Any) -> bytes:
    """The JSON text of a tree, with its keys in their order."""
    return json.dumps(tree, separators=(",", ":"), allow_nan=False).encode()


def canonical(tree: Any) -> bytes:
    """The one JSON text of a tree: equal content gives equal bytes, whatever order keys were put in."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def loads(text: bytes) -> Any:
    """The tree of a JSON text. Raises ValueError if it is none."""
    return json.loads(text)


def _encode_dict(value: dict[Any, Any], where: str, put_aside: PutAside) -> Any:
    items = {key: encode(item, f"{where}/{key}", put_aside) for key, item in value.items()}
    if type(value) is dict and all(isinstance(key, str) and not key.startswith("!") for key in items):
        return items
    pairs = [[encode(key, f"{where}/{key} (key)", put_aside), item] for key, item in items.items()]
    return {_DICTS[type(value)]: pairs}


def _is_enum(value: Any) -> bool:
    return hasattr(type(value), "__members__")


def _pairs(pairs: Any, fetch: Fetch) -> dict[Any, Any]:
    return {decode(key, fetch): decode(item, fetch) for key, item in pairs}


@lru_cache(64)
def dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"this torch has no dtype {name!r}")  # noqa: TRY004 - the name is wrong, not its type
    return dtype


_DICTS: dict[type, str] = {dict: "!dict", Counter: "!counter", OrderedDict: "!ordered"}
_TAGS: dict[str, Callable[[Any, Fetch], Any]] = {
    "!tensor": lambda body, fetch: fetch(body),
    "!tuple": lambda body, fetch: tuple(decode(item, fetch) for item in body),
    "!float": lambda body, fetch: float(body),
    "!complex": lambda body, fetch: complex(float.fromhex(body[0]), float.fromhex(body[1])),
    "!bytes": lambda body, fetch: base64.b64decode(body),
    "!dtype": lambda body, fetch: dtype_named(body),
    "!dict": _pairs,
    "!counter": lambda body, fetch: Counter(_pairs(body, fetch)),
    "!ordered": lambda body, fetch: OrderedDict(_pairs(body, fetch)),
}
