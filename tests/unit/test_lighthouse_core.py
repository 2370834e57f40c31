"""The lighthouse's core, rule by rule: leases and hellos."""

from __future__ import annotations

import pytest
from lead import SETUP, Lead, member, standing

from lighthouse.core import wake_at
from lighthouse.core_values import (
    BaseRecord,
    ClaimRecord,
    Hold,
    Send,
    StoreIncarnation,
    StoreRecord,
    StreamEnded,
    Tell,
    Tick,
)
from lighthouse.values import (
    ROOT,
    Abandon,
    Base,
    Beat,
    Died,
    Fenced,
    Refused,
    Version,
    Welcome,
)

THREE = ("g1", "g2", "g3")


def died(lead: Lead, name: str) -> None:
    lead.say(name, Died(reason="signal 9", shard_rank=0, killed=True))


def asked(lead: Lead, name: str) -> int:
    """The newest number that `name` was told to abandon what is below."""
    return max(abandon.number for abandon in lead.told(name, Abandon))


def last_base(lead: Lead, name: str) -> Base:
    return lead.told(name, Base)[-1]


# ---- leases --------------------------------------------------------------------------------------------------------


def test_a_lease_ends_at_the_very_moment_that_was_named() -> None:
    lead = Lead(groups_wanted=2)
    lead.form("g1", "g2")
    lead.now = 101.5
    lead.say("g1", Beat(version=ROOT))
    due = wake_at(lead.state, lead.now)
    assert due == 102.0
    lead.now = due
    lead.event(Tick())
    assert "lost" in lead.kinds()
    assert lead.state.groups.get("g2") is None
    assert lead.state.groups.get("g1") is not None


def test_a_lighthouse_that_stood_still_loses_nobody_for_it() -> None:
    lead = Lead(groups_wanted=2)
    lead.form("g1", "g2")
    lead.now += 12.0
    lead.event(Tick(late_s=10.5))
    assert "lost" not in lead.kinds()


def test_after_a_restart_members_have_one_lease_to_come_back() -> None:
    roster = (member("g1", 1), member("g2", 2))
    claims, bases = (ClaimRecord(number=1000, roster=roster, planned=False),), ()
    bases = (BaseRecord(number=1000, version=ROOT, cursor=0),)
    record = StoreRecord(
        first_number=1000, last_number=1000, next_incarnation=3, claims=claims, bases=bases, setup=SETUP
    )
    lead = Lead(record)
    stood = Version(4, 1000)
    lead.hello("g1", standing(stood, abandoned=1001, failed=True), incarnation=1)
    assert lead.state.change is not None
    lead.say("g1", standing(stood, abandoned=asked(lead, "g1"), failed=True))
    assert lead.state.hold is Hold.REPORTS, "g2 may come back"
    lead.now += 1.0
    lead.hello("g2", standing(stood, abandoned=asked(lead, "g1")), incarnation=2)
    assert lead.members == ["g1", "g2"]


def test_prepared_generations_outlive_the_lighthouse() -> None:
    roster = (member("g1", 1), member("g2", 2))
    claims = tuple(ClaimRecord(number=n, roster=roster, planned=n > 1000) for n in (1000, 1001))
    bases = (BaseRecord(number=1000, version=ROOT, cursor=0),)
    record = StoreRecord(first_number=1000, last_number=1001, claims=claims, bases=bases, setup=SETUP)
    assert [gen.number for gen in Lead(record).state.gens] == [1000, 1001]


# ---- hellos --------------------------------------------------------------------------------------------------------


def test_a_reconnecting_member_is_the_same() -> None:
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE)
    lead.take()
    lead.hello("g1", standing(version, abandoned=lead.number), incarnation=lead.incarnations["g1"])
    (welcome,) = lead.told("g1", Welcome)
    assert (welcome.incarnation, welcome.join) == (1000, False)
    assert lead.state.change is None


def test_a_new_incarnation_is_stored_and_fences_the_old() -> None:
    lead = Lead(groups_wanted=3)
    lead.form(*THREE)
    old = lead.conns["g1"]
    lead.take()
    effects = lead.hello("g1")
    assert StoreIncarnation(next=1004) in effects
    assert [e.conn for e in effects if isinstance(getattr(e, "message", None), Fenced)] == [old]
    lead.hello("g1", incarnation=1000)
    assert lead.told("g1", Fenced)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("host", "fenced"), [("old.example", True), ("new.example", False)])
def test_a_new_life_gets_no_number_where_its_name_has_moved_to_another_host(
    host: str, fenced: bool, stream: bool
) -> None:
    """On the host that it moved to, the welcome may have been lost with the stream."""
    lead = Lead(groups_wanted=3)
    lead.form(*THREE, host="old.example")
    lead.say("g1", Died(reason="signal 9", shard_rank=0))
    lead.hello("g1", host="new.example")
    before, conn = lead.incarnations["g1"], lead.conns["g1"]
    if not stream:
        lead.event(StreamEnded(conn=conn, reason=""))
    lead.hello("g1", host=host, previous=1000)
    told = [e.conn for e in lead.effects if isinstance(e, Send) and isinstance(e.message, Fenced)]
    assert told == ([lead.conns["g1"]] if fenced else [conn] * stream)
    assert lead.incarnations["g1"] == before + (not fenced)


def test_a_fenced_incarnation_and_an_older_stream_change_nothing() -> None:
    lead = Lead(groups_wanted=3)
    version = lead.form(*THREE)
    old = lead.conns["g2"]
    lead.hello("g1")
    before = lead.state
    lead.say("g1", Died(reason="late", shard_rank=0), incarnation=1000)
    assert lead.state.groups.get("g1") == before.groups.get("g1")
    lead.hello("g2", standing(version, abandoned=lead.state.last_number), incarnation=lead.incarnations["g2"])
    before = lead.state
    lead.say("g2", standing(version, abandoned=lead.state.last_number + 5), conn=old)
    assert lead.state.groups.get("g2") == before.groups.get("g2")


def test_no_incarnation_returns_with_a_store_that_was_lost() -> None:
    """Else two agents of one name could be one incarnation: each hello would take the stream of the other, for ever."""
    lead = Lead(groups_wanted=3)
    lead.hello("g1", incarnation=7)
    lead.hello("g1", host="elsewhere")
    assert lead.incarnations["g1"] == 1000 and lead.told("g1", Fenced) == [Fenced(by=1000)]
    hellos = [e for e in lead.effects if isinstance(e, Tell) and e.kind == "hello"]
    assert [told.fields["incarnation"] for told in hellos] == ["7", "1"], "people count from the first one"


def test_an_incarnation_of_a_lost_store_is_older_than_what_the_empty_one_gives() -> None:
    lead = Lead(groups_wanted=3)
    lead.hello("g1", host="elsewhere")
    lead.hello("g1", incarnation=1)
    assert lead.told("g1", Fenced) == [Fenced(by=1000)]
    known = lead.state.groups.get("g1")
    assert known is not None and known.host == "elsewhere"


def test_a_successor_on_another_host_knows_of_no_death() -> None:
    for host, dead in (("g1.example", True), ("elsewhere", False)):
        lead = Lead()
        lead.form("g1")
        lead.hello("g1", host=host)
        (gen,) = lead.state.gens
        assert ("g1" in gen.gone) is dead
        assert ("g1" in gen.gone) is dead


@pytest.mark.parametrize("field", ["slots", "model"])
def test_another_setup_is_refused(field: str) -> None:
    lead = Lead()
    lead.form("g1")
    lead.hello("g2", setup={**SETUP, field: "7"})
    (refused,) = lead.told("g2", Refused)
    assert field in refused.reason


def test_a_base_that_was_lost_with_its_stream_starts_a_change() -> None:
    lead = Lead(groups_wanted=2)
    version = lead.form("g1", "g2")
    died(lead, "g2")
    lead.say("g1", standing(version, abandoned=asked(lead, "g1")))
    number = lead.number
    lead.hello("g1", standing(version, abandoned=number), incarnation=lead.incarnations["g1"])
    assert lead.state.change is not None
    assert lead.state.change.number > number
