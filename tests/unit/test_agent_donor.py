"""When a donor lets go of what it holds for others, whether or not anybody tells it to."""

from __future__ import annotations

from agent_script import Script, closes, members

from lighthouse.values import Abandon, Stage, Welcome
from replica.agent_values import SessionOpened
from replica.values import Drop


def serving(*, joiner: str = "c") -> Script:
    """A member of generation 5 that has staged heal 30 for `joiner`."""
    script = Script().begins()
    script.based(5)
    script.told(Stage(heal=30, joiner=joiner, donors=2))  # both members name it here
    assert script.commits(heal=30).stage == (30,)
    return script


def returns(script: Script, heals: tuple[int, ...], first_heal: int) -> None:
    """The session breaks, and the lighthouse welcomes the group to another one."""
    closes(script)
    while script.state.session.phase.name != "OPENING":
        script.waits()
    script.does(SessionOpened(session=script.state.session.number))
    script.told(
        Welcome(
            incarnation=1,
            lease_s=3.0,
            contributors_wanted=0,
            first_number=1,
            join=False,
            heals=heals,
            first_heal=first_heal,
        )
    )


def dropped(script: Script) -> list[int]:
    return [drop.heal for drop in script.downs(Drop)]


def test_what_the_lighthouse_knows_of_is_kept() -> None:
    script = serving()
    returns(script, heals=(30,), first_heal=10)
    assert dropped(script) == [] and [s.heal for s in script.state.stagings] == [30]


def test_a_release_that_was_lost_with_its_stream_is_made_up_for() -> None:
    script = serving()
    returns(script, heals=(), first_heal=10)
    assert dropped(script) == [30] and script.state.stagings == ()


def test_what_an_earlier_lighthouse_began_ends_after_a_while() -> None:
    script = serving()
    returns(script, heals=(), first_heal=1000)
    began = script.now
    assert dropped(script) == []
    returns(script, heals=(), first_heal=2000)
    while not dropped(script):
        script.waits()
        assert script.now < began + 100.0
    assert script.now == began + 60.0, "counted from the first Welcome without it"
    assert script.state.stagings == ()


def test_a_joiner_that_took_part_needs_nothing_any_more() -> None:
    script = serving()
    script.told(Abandon(number=6))
    script.based(6, roster=members("a", "b", "c"), version=script.version)
    assert dropped(script) == []
    script.commits()
    assert dropped(script) == [30] and script.state.stagings == ()


def test_others_that_took_part_do_not_end_its_heal() -> None:
    script = serving()
    script.told(Abandon(number=6))
    script.based(6, roster=members("a", "b"), version=script.version)
    script.commits()
    assert dropped(script) == []


def test_a_heal_that_begins_in_the_generation_of_an_older_incarnation_is_not_over() -> None:
    """b is in the roster, has left it, and heals anew: the donor has not heard yet that b is out."""
    script = serving(joiner="b")
    script.commits()
    assert dropped(script) == []
