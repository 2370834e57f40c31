"""All deadlines from three knobs: what follows, what is refused, and that the table tells of all of them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lighthouse.core_values import RunConfig
from lighthouse.deadlines import DEFAULTS, KNOBS, ROWS, Deadlines, Knobs, derive, explain
from lighthouse.values import Welcome
from replica.agent_state import deadlines
from replica.agent_values import SessionOpened, ToRanks
from replica.environment import NotARankError, RankEnvironment, read_environment, write_environment
from replica.patience import InForce
from replica.transfer_limits import TransferLimits
from replica.values import Patience
from tests.agent_script import Script

SECONDS = st.floats(min_value=0.05, max_value=10_000.0)


@given(SECONDS, SECONDS, SECONDS)
def test_a_set_is_in_order_or_refused_with_what_to_change(lease_s: float, stall_s: float, connect_s: float) -> None:
    try:
        told = derive(Knobs(lease_s=lease_s, stall_patience_s=stall_s, connect_s=connect_s))
    except ValueError as refused:
        assert "raise " in str(refused) and any(knob in str(refused) for knob in KNOBS)
        return
    assert told.beat_s < told.report_s < told.last_weights_s
    assert told.stall_s < told.warmup_s < told.collective_s
    assert told.open_s <= told.reach_s <= told.warmup_s
    assert told.move_s < told.heal_s <= told.staging_s
    TransferLimits.of(told)


@given(SECONDS, SECONDS, SECONDS)
def test_the_advice_of_a_refusal_is_good(lease_s: float, stall_s: float, connect_s: float) -> None:
    knobs = Knobs(lease_s=lease_s, stall_patience_s=max(stall_s, lease_s), connect_s=max(connect_s, lease_s))
    for _ in range(len(KNOBS)):
        try:
            derive(knobs)
            return
        except ValueError as refused:
            words = str(refused).rpartition(": raise ")[2].split()
            knobs = msgspec.structs.replace(knobs, **{words[0]: float(words[2].rstrip(",")) * 1.001})
    derive(knobs)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"lease_s": 0.0}, "lease_s is 0: give"),
        ({"lease_s": float("nan")}, "lease_s is nan: give"),
        ({"lease_s": 200.0}, "raise stall_patience_s or lower lease_s"),
        ({"lease_s": 200.0, "stall_patience_s": 200.0}, "raise connect_s or lower lease_s"),
        ({"connect_s": 600.0}, r"reach_s \(600 s = connect_s\) .* raise stall_patience_s to 120, or lower connect_s"),
    ],
)
def test_contradictions_say_what_to_change(knobs: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        derive(Knobs(**knobs))
    with pytest.raises(ValueError, match=message):
        RunConfig(run_id="r", **knobs)  # type: ignore[arg-type]


def test_no_deadline_can_be_put_out_of_order_by_hand() -> None:
    with pytest.raises(ValueError, match=r"hurry_s .* is longer than move_s .* both follow from stall_patience_s"):
        Deadlines(**{**msgspec.structs.asdict(DEFAULTS), "hurry_s": 1000.0})


def test_the_table_has_all_of_them() -> None:
    fields = [f.name for f in msgspec.structs.fields(Deadlines) if f.name != "knobs"]
    assert [row.name for row in ROWS] == fields
    told = list(explain(Knobs(lease_s=4.0)))
    assert [name for name, *_ in told] == [*KNOBS, *fields]
    assert told[0][:3] == ("lease_s", "4 s", "set by you")
    assert ("drain_s", "60 s", "connect_s") in [row[:3] for row in told]
    assert ("yield_s", "6 s", "lease_s × 1.5") in [row[:3] for row in told]
    assert all(all(row) for row in told)


# ---- the lighthouse's are the run's ---------------------------------------------------------------------------------


def welcome(**knobs: float) -> Welcome:
    return Welcome(
        **{"incarnation": 1, "lease_s": 2.0, "contributors_wanted": 0, "first_number": 1, "join": False, **knobs}  # type: ignore[arg-type]
    )


def greeted(**config: object) -> Script:
    script = Script(**config)
    script.attaches()
    script.does(SessionOpened(session=script.state.session.number))
    return script


def test_a_group_takes_the_lighthouses_and_tells_its_ranks_once() -> None:
    script = greeted()
    effects = script.told(welcome(lease_s=4.0, stall_patience_s=20.0))
    told = Patience(lease_s=4.0, stall_patience_s=20.0, connect_s=60.0)
    assert ToRanks(message=told) in effects
    assert deadlines(script.state) == derive(Knobs(lease_s=4.0, stall_patience_s=20.0))
    assert ToRanks(message=told) not in script.waits()


def test_ranks_that_were_started_with_the_same_are_told_nothing() -> None:
    script = greeted(knobs=Knobs(lease_s=4.0), insists=("lease_s",))
    assert not [e for e in script.told(welcome(lease_s=4.0)) if isinstance(e, ToRanks)]


def test_a_group_that_insists_on_others_leaves_saying_so() -> None:
    script = greeted(knobs=Knobs(lease_s=4.0), insists=("lease_s",))
    script.told(welcome(lease_s=2.0))
    assert script.state.ending is not None and script.state.ending.code == 2
    assert "--lease-s is 4 here and 2 in the run" in script.state.ending.reason


def test_ranks_learn_them_from_their_environment_and_their_agent() -> None:
    knobs = Knobs(lease_s=0.5, stall_patience_s=7.25, connect_s=11.0)
    rank = RankEnvironment(agent="unix:/x", token_file="/t", run_id="r", group="g", shard_rank=0, shards=1, knobs=knobs)
    environ = write_environment(rank)
    assert read_environment(environ).knobs == knobs
    with pytest.raises(NotARankError, match="BELLROCK_DEADLINES is '1 2'"):
        read_environment({**environ, "BELLROCK_DEADLINES": "1 2"})
    heard: list[Deadlines] = []
    force = InForce(knobs, heard.append)
    assert force.now == derive(knobs)
    assert force.heed(Patience(lease_s=4.0, stall_patience_s=20.0, connect_s=60.0))
    assert heard == [force.now] == [derive(Knobs(lease_s=4.0, stall_patience_s=20.0))]
