"""The session with the lighthouse: opened, lost, opened again; and a finished run told to a lighthouse that is away."""

from agent_script import Script, closes

from lighthouse.deadlines import Knobs
from lighthouse.values import (
    Abandon,
    Beat,
    Finished,
    Leave,
    Refused,
    Version,
    Welcome,
)
from replica.agent_state import SessionPhase, deadlines
from replica.agent_values import (
    AgentHold,
    Exit,
    LighthouseSaid,
    OpenSession,
    RankExited,
    SessionClosed,
    SessionOpened,
    TookOver,
)
from replica.values import Quit, RankFailed

BOOM = "Traceback (most recent call last):\n  File x, line 3\nRuntimeError: boom at 127.0.0.1:5123\n"


def in_step(**config: object) -> Script:
    script = Script(**config).begins()
    script.based()
    return script


# ---- session -------------------------------------------------------------------------------------------------------


def test_without_a_first_welcome_the_agent_gives_up() -> None:
    script = Script(knobs=Knobs(connect_s=20.0))
    script.attaches()
    for _ in range(1000):
        if script.downs(Quit):
            break
        if script.state.session.phase.name == "OPENING":
            closes(script, "connection refused")
        script.waits()
    assert 20.0 <= script.now - 100.0 < 23.0
    script.exits(0, 0)
    script.exits(1, 0)
    assert script.exit.code == 1 and "connection refused" in script.exit.reason and "20 s" in script.exit.reason


def test_a_lighthouse_that_accepts_and_says_nothing_is_given_up_too() -> None:
    script = Script(knobs=Knobs(connect_s=20.0))
    script.attaches()
    script.does(SessionOpened(session=1))
    script.waits()
    assert script.downs(Quit)


def test_after_the_first_welcome_it_waits_for_ever() -> None:
    script = in_step(knobs=Knobs(connect_s=20.0))
    closes(script)
    opened, tries = 0, 1000.0 / deadlines(script.state).redial_s
    while script.now < 1000.0:
        for effect in script.waits():
            if isinstance(effect, OpenSession):
                opened += 1
                closes(script, "refused")
    assert not script.downs(Quit) and 0.9 * tries < opened < 1.01 * tries
    script.commits()
    assert script.version == Version(1, 5)


def test_the_lease_is_renewed_with_the_version() -> None:
    script = in_step()
    script.commits()
    start = script.now
    while len(script.ups(Beat)) < 4:
        script.waits()
    assert script.now - start <= 4.0 and script.last_up(Beat).version == Version(1, 5)


def test_what_comes_over_an_old_session_is_dropped() -> None:
    script = in_step()
    closes(script)
    script.does(LighthouseSaid(session=1, message=Abandon(number=9)))
    script.waits()
    script.meets()
    script.does(LighthouseSaid(session=1, message=Abandon(number=9)))
    closes_old = script.does(SessionOpened(session=1))
    assert script.state.floor == 5 and closes_old == []
    script.commits()


def test_the_late_end_of_an_old_session_does_not_end_the_new_one() -> None:
    script = in_step()
    old = script.state.session.number
    closes(script)
    script.waits()
    script.meets()
    script.does(SessionClosed(session=old, reason="the network says so once more"))
    assert script.state.session.phase is SessionPhase.WELCOMED


def test_nothing_is_told_before_the_welcome() -> None:
    script = in_step()
    closes(script)
    script.waits()
    script.does(SessionOpened(session=2))
    before = len(script.up)
    script.rank(0, RankFailed(number=5, reason="x"))
    assert len(script.up) == before
    script.told(Welcome(incarnation=1, lease_s=3.0, contributors_wanted=0, first_number=1, join=False))
    assert script.report.failed


def test_refused_ends_the_agent_with_the_reason() -> None:
    script = Script()
    script.attaches()
    script.does(SessionOpened(session=1))
    script.told(Refused(reason="seed is 1, the run's is 2"))
    script.exits(0, -9)
    script.exits(1, -9)
    assert script.exit.code == 2 and "seed is 1" in script.exit.reason


def test_a_finished_group_waits_a_while_to_tell_a_lighthouse_that_is_away() -> None:
    script = in_step()
    script.commits(stop=True)
    closes(script)
    script.commits()
    script.exits(0, 0)
    script.exits(1, 0)
    assert not any(isinstance(effect, Exit) for effect in script.effects)
    script.waits()
    script.meets()
    script.told(Leave(reason="the run is finished", success=True))
    assert script.ups(Finished) and script.exit.code == 0


def test_a_lighthouse_that_crashed_before_it_heard_of_the_end_is_told_again() -> None:
    """What was sent is not heard: else the next lighthouse holds for ever, and nobody is left to tell it."""
    script = in_step()
    script.commits(stop=True)
    script.commits()
    assert len(script.ups(Finished)) == 1
    script.exits(0, 0)
    script.exits(1, 0)
    closes(script)
    assert not any(isinstance(effect, Exit) for effect in script.effects)
    script.waits()
    script.meets()
    assert len(script.ups(Finished)) == 2
    script.told(Leave(reason="the run is finished", success=True))
    assert script.exit.code == 0


def test_a_finished_group_does_not_wait_for_ever() -> None:
    script = in_step()
    closes(script)
    script.commits(stop=True)
    script.commits()
    script.exits(0, 0)
    script.exits(1, 0)
    while not any(isinstance(effect, Exit) for effect in script.effects):
        for effect in script.waits():
            if isinstance(effect, OpenSession):
                closes(script)
    assert script.exit.code == 0


def test_after_the_end_nothing_is_done() -> None:
    script = in_step()
    script.told(Leave(reason="x", success=True))
    script.exits(0, 0)
    script.exits(1, 0)
    assert script.does(TookOver(), RankExited(life=1, shard_rank=0, code=0)) == []
    assert script.hold is AgentHold.OVER
