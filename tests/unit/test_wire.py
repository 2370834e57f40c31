"""Every message survives the wire and the journal, whatever its values."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lighthouse import wire
from lighthouse.codec import Envelope, check, from_proto, to_proto
from lighthouse.core_values import Effect, Event, Happened, RunStatus
from lighthouse.streams import Carrier
from lighthouse.values import Base, Down, Hello, Member, Prepare, Report, Role, RosterChange, Up, Version
from replica import wire as replica_wire
from replica.values import RankDown, RankUp

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)
UINT64 = st.integers(min_value=0, max_value=2**64 - 1)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
FLOATS = st.floats(allow_nan=False)

UNIONS: list[tuple[str, Envelope, Any]] = [
    ("up", wire.UP, Up),
    ("down", wire.DOWN, Down),
    ("rank up", replica_wire.RANK_UP, RankUp),
    ("rank down", replica_wire.RANK_DOWN, RankDown),
]
MESSAGES = [
    pytest.param(envelope, value, id=f"{label}: {value.__name__}")
    for label, envelope, union in UNIONS
    for value in get_args(union)
]


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a message or field type."""
    if hint is int:
        return INT64
    if hint is str:
        return TEXT
    if hint is float:
        return FLOATS
    return st.from_type(hint)


def build(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = {f.name: f.type for f in msgspec.structs.fields(kind)}
    fields = {name: of_field(name, hint) for name, hint in hints.items()}
    return st.builds(kind, **fields)


def of_field(name: str, hint: Any) -> st.SearchStrategy[Any]:
    origin, arguments = getattr(hint, "__origin__", None), getattr(hint, "__args__", ())
    if origin is tuple:
        return st.lists(of_field(name, arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXT, TEXT, max_size=3)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return build(hint)
    if name == "digest" and hint is int:
        return UINT64
    return values_of(hint)


@pytest.mark.parametrize(("envelope", "kind"), MESSAGES)
@settings(max_examples=20)
@given(data=st.data())
def test_every_message_crosses_the_wire_unchanged(envelope: Envelope, kind: type[Any], data: st.DataObject) -> None:
    value = data.draw(build(kind))
    carried = envelope.wrap(value).SerializeToString()
    assert envelope.unwrap(type(envelope.wrap(value)).FromString(carried)) == value


@settings(max_examples=30)
@given(data=st.data())
def test_a_roster_told_to_many_is_carried_as_any_other(data: st.DataObject) -> None:
    carrier = Carrier()
    rosters = data.draw(st.lists(build(RosterChange), min_size=1, max_size=2))
    for kind in (Base, Prepare, Base):
        for roster in (*rosters, rosters[0]):
            message = msgspec.structs.replace(data.draw(build(kind)), roster=roster)
            assert wire.DOWN.decode(carrier.carry(message)) == message


@pytest.mark.parametrize(("kind", "message"), [(RunStatus, wire.StatusReply), (Happened, wire.Event)])
@settings(max_examples=20)
@given(data=st.data())
def test_status_and_events_cross_the_wire_unchanged(kind: type[Any], message: Any, data: st.DataObject) -> None:
    value = data.draw(build(kind))
    assert from_proto(message.FromString(to_proto(value, message).SerializeToString()), kind) == value


@pytest.mark.parametrize(
    ("union", "kind"),
    [pytest.param(u, k, id=k.__name__) for u in (Up, Down, RankUp, RankDown) for k in get_args(u)],
)
@settings(max_examples=10)
@given(data=st.data())
def test_every_message_survives_the_journal(union: Any, kind: type[Any], data: st.DataObject) -> None:
    value = data.draw(build(kind))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=union) == value


def test_events_and_effects_are_unions_that_journals_can_tell_apart() -> None:
    for union in (Event, Effect):
        msgspec.msgpack.Decoder(union)


def test_a_message_type_with_other_fields_is_named() -> None:
    with pytest.raises(TypeError, match="Member: fields"):
        check(Member, wire.VersionMessage)


def test_an_empty_envelope_and_an_unknown_word_are_errors() -> None:
    with pytest.raises(ValueError, match="an empty GroupMessage"):
        wire.UP.unwrap(wire.GroupMessage())
    envelope = wire.DOWN.wrap(_base())
    envelope.base.roster.joined[0].role = "admiral"
    with pytest.raises(ValueError, match="admiral"):
        wire.DOWN.unwrap(envelope)


def _base() -> Any:
    member = Member(name="g1", incarnation=1, role=Role.SPARE)
    roster = RosterChange(previous=0, joined=(member,))
    return Base(
        number=5, roster=roster, version=Version(1, 2), cursor=8, slots=(1, 2), step_slots=6, rendezvous=("h:1",)
    )


def test_a_number_too_large_for_the_wire_is_refused() -> None:
    with pytest.raises(ValueError, match=r"(?i)range|large"):
        wire.UP.wrap(msgspec.structs.replace(_hello(), incarnation=2**63))


def _hello() -> Hello:
    return Hello(
        run_id="r",
        name="g1",
        incarnation=0,
        host="h",
        took_over=False,
        setup={},
        rendezvous=(),
        weights=(),
        digest=2**64 - 1,
        report=Report(abandoned=0, version=Version(0, 0), cursor=0),
    )
