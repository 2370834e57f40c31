"""Carries values into protobuf messages of the same name and fields, and back, by reflection.

The plan of a pair (value type, message type) is worked out once. A value type without a message of its name, or with
other fields, is a defect that `check` names; `tests/unit/test_wire.py` calls it for every message.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Proto

Convert = Callable[[Any], Any]


def to_proto(value: msgspec.Struct, message: type[Proto]) -> Any:
    """The protobuf message that carries `value`."""
    return message(**{name: put(getattr(value, name)) for name, put, _ in _plan(type(value), message)})


def from_proto(message: Proto, value: type[Any]) -> Any:
    """The value that `message` carries. Raises ValueError where a field does not fit (an unknown enum word)."""
    return value(**{name: get(getattr(message, name)) for name, _, get in _plan(value, type(message))})


def check(value: type[Any], message: type[Proto]) -> None:
    """Raises TypeError if the two do not have the same fields, all the way down."""
    _plan(value, message)


def _plan(value: Any, message: Any) -> tuple[tuple[str, Convert, Convert], ...]:
    return _worked_out(value, message)


@cache
def _worked_out(value: Any, message: Any) -> tuple[tuple[str, Convert, Convert], ...]:
    hints = get_type_hints(value)
    ours = [f.name for f in msgspec.structs.fields(value)]
    theirs = {f.name: f for f in message.DESCRIPTOR.fields}
    if set(ours) != set(theirs):
        raise TypeError(f"{value.__name__}: fields {sorted(set(ours) ^ set(theirs))} are on one side only")
    return tuple((name, *_convert(hints[name], theirs[name])) for name in ours)


def _convert(hint: Any, field: Any) -> tuple[Convert, Convert]:
    if get_origin(hint) is tuple:
        put, get = _convert(get_args(hint)[0], field)
        if put is _same:
            return _same, tuple
        return (lambda items: [put(i) for i in items]), (lambda items: tuple(get(i) for i in items))
    if get_origin(hint) is dict:
        return _same, dict
    if isinstance(hint, type) and issubclass(hint, Enum):
        return (lambda word: word.value), hint
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        inner = field.message_type._concrete_class
        _plan(hint, inner)
        return (lambda item: to_proto(item, inner)), (lambda item: from_proto(item, hint))
    return _same, _same


def _same(item: Any) -> Any:
    return item


class Envelope:
    """A oneof of messages, as a union of values: `wrap` and `unwrap` between them."""

    def __init__(self, message: type[Proto], union: Any) -> None:
        self._message = message
        values = {v.__name__: v for v in get_args(union)}
        self._by_field: dict[str, type[Any]] = {}
        self._by_value: dict[type[Any], tuple[str, type[Proto]]] = {}
        fields: Any = message.DESCRIPTOR.oneofs_by_name["body"].fields
        for field in fields:
            inner = field.message_type._concrete_class
            value = values.pop(field.message_type.name)
            check(value, inner)
            self._by_field[field.name] = value
            self._by_value[value] = (field.name, inner)
        if values:
            raise TypeError(f"{message.DESCRIPTOR.name} has no field for {sorted(values)}")

    def wrap(self, value: msgspec.Struct) -> Any:
        """The envelope message holding `value`."""
        name, inner = self._by_value[type(value)]
        return self._message(**{name: to_proto(value, inner)})

    def encode(self, value: msgspec.Struct) -> bytes:
        """The envelope holding `value`, as bytes."""
        data: bytes = self.wrap(value).SerializeToString()
        return data

    def decode(self, data: bytes) -> Any:
        """The value in the envelope that `data` holds. Raises ValueError if it holds none, or none known here."""
        try:
            message = self._message.FromString(data)
        except DecodeError as error:
            raise ValueError(f"not a {self._message.DESCRIPTOR.name}: {error}") from error
        return self.unwrap(message)

    def unwrap(self, message: Any) -> Any:
        """The value in the envelope. Raises ValueError if it is empty or of a kind not known here."""
        name = message.WhichOneof("body")
        if name is None:
            raise ValueError(f"an empty {self._message.DESCRIPTOR.name}; the peer may be of a newer version")
        return from_proto(getattr(message, name), self._by_field[name])
