"""Lives of the ranks, the session, and the ways out."""

from typing import Any

import msgspec
import pytest
from agent_script import Script, attach, closes, members, source

from lighthouse.deadlines import Knobs
from lighthouse.values import (
    ROOT,
    Abandon,
    Died,
    Fenced,
    Goodbye,
    Heal,
    Hello,
    Leave,
    Report,
    RosterChange,
    Stage,
    Version,
)
from replica.agent_core import decide, new_agent, record
from replica.agent_values import (
    AgentConfig,
    AgentHold,
    CloseSession,
    EndRanks,
    Event,
    Exit,
    LighthouseSaid,
    OpenSession,
    RankExited,
    RankSaid,
    Say,
    SessionClosed,
    SessionOpened,
    StartRanks,
    TookOver,
    ToRanks,
)
from replica.values import Attach, Loaded, Mark, MarkKind, Quit, Raised, RankFailed, RankOpened

BOOM = "Traceback (most recent call last):\n  File x, line 3\nRuntimeError: boom at 127.0.0.1:5123\n"


def in_step(**config: object) -> Script:
    script = Script(**config).begins()
    script.based()
    return script


def dies(script: Script, shard_rank: int = 0, code: int = 1, traceback: str = BOOM) -> None:
    """One rank dies, and the other one is ended with it."""
    script.exits(shard_rank, code, traceback)
    script.exits(1 - shard_rank, -9)


def restarted(script: Script, incarnation: int) -> None:
    """A new life, welcomed, and in a step of a new generation."""
    if script.state.life.number < incarnation:
        script.waits_for(StartRanks)
    script.attaches()
    script.meets(incarnation=incarnation)
    roster = tuple(msgspec.structs.replace(m, incarnation=incarnation) for m in members("a", "b"))
    script.based(20 * incarnation, roster=roster)


# ---- start ---------------------------------------------------------------------------------------------------------


def test_nothing_is_started_before_the_name_is_locked() -> None:
    script = Script()
    assert script.does() == [] and script.hold is AgentHold.LOCK
    assert script.does(TookOver()) == [StartRanks(life=1)]
    assert script.does(TookOver()) == []


def test_the_session_is_opened_once_all_ranks_have_attached() -> None:
    script = Script()
    script.does(TookOver())
    script.rank(0, attach(0))
    assert not any(isinstance(effect, OpenSession) for effect in script.effects) and script.hold is AgentHold.RANKS
    script.rank(1, attach(1))
    hello = script.meets()
    assert (hello.incarnation, hello.previous, hello.took_over) == (0, 0, True)
    assert hello.rendezvous == hello.weights == ("a:0", "a:1")
    assert hello.report == Report(abandoned=0, version=ROOT, cursor=0)
    assert script.hold is AgentHold.BASE


def test_a_rank_that_has_not_attached_is_not_listened_to() -> None:
    script = Script()
    script.does(TookOver())
    script.rank(0, Mark(kind=MarkKind.SLOT_BEGUN, step=0, slot=0))
    script.rank(7, attach(7))
    assert script.ledger == []


def test_the_digest_in_hello_depends_on_the_order_of_shards() -> None:
    digests = []
    for pair in ((1, 2), (2, 1)):
        script = Script()
        script.does(TookOver())
        for shard_rank, digest in enumerate(pair):
            script.rank(shard_rank, msgspec.structs.replace(attach(shard_rank), digest=digest))
        digests.append(script.meets().digest)
    assert digests[0] != digests[1]


def test_ranks_that_are_set_up_differently_end_the_agent() -> None:
    script = Script()
    script.does(TookOver())
    script.rank(0, attach(0, model="small"))
    script.rank(1, attach(1, model="large"))
    script.exits(0, -9)
    script.exits(1, -9)
    assert script.exit.code == 2
    assert "model is small in shard 0 and large in shard 1" in script.exit.reason


@pytest.mark.parametrize("setup", [{"slots": "0"}, {"slots": "many"}, {"steps": ""}])
def test_a_setup_without_slots_and_steps_ends_the_agent(setup: dict[str, str]) -> None:
    script = Script()
    script.attaches(**setup)
    script.exits(0, -9)
    script.exits(1, -9)
    assert script.exit.code == 2 and "set up wrongly" in script.exit.reason


def test_ranks_that_do_not_attach_in_time_are_ended_and_counted() -> None:
    script = Script(knobs=Knobs(connect_s=5.0))
    script.does(TookOver())
    script.rank(0, attach(0))
    assert script.waits_for(EndRanks).life == 1
    assert script.now >= 150.0
    script.exits(0, -9)
    script.exits(1, -9)
    assert script.waits_for(StartRanks).life == 2


# ---- death ---------------------------------------------------------------------------------------------------------


def test_one_dead_rank_takes_the_group_with_it() -> None:
    script = in_step()
    script.rank(1, Mark(kind=MarkKind.SLOT_BEGUN, step=0, slot=1))
    script.exits(1, -9)
    assert script.last(EndRanks).life == 1
    assert script.last_up(Died) == Died(reason="rank 1: signal 9", shard_rank=1, slot=1, killed=True)
    assert script.last(CloseSession).session == 1
    script.exits(0, -9)
    assert script.hold is AgentHold.RESTART
    assert script.waits_for(StartRanks).life == 2
    script.attaches()
    hello = script.meets(incarnation=2)
    assert (hello.incarnation, hello.previous, hello.took_over, hello.report.version) == (0, 1, True, ROOT)
    assert (hello.report.generation, hello.report.abandoned, hello.report.answers) == (0, 6, ())


def test_a_life_that_was_never_welcomed_passes_the_number_of_the_one_before_on() -> None:
    script = in_step()
    for life in (2, 3):
        dies(script, 1)
        assert script.waits_for(StartRanks).life == life
        script.attaches()
    assert script.meets(incarnation=2).previous == 1
    script.does(SessionClosed(session=script.state.session.number, reason="gone"))
    script.waits_for(OpenSession)
    hello = script.meets(incarnation=2)
    assert (hello.incarnation, hello.previous) == (2, 0)


def test_the_slot_in_hand_is_told_in_the_runs_order() -> None:
    """HOLES L2: the same slot has to be known again in whoever takes it over."""
    script = in_step()
    script.commits()
    script.rank(0, Mark(kind=MarkKind.SLOT_BEGUN, step=1, slot=0))
    script.rank(0, Mark(kind=MarkKind.SLOT_DONE, step=1, slot=0))
    script.rank(0, Mark(kind=MarkKind.SLOT_BEGUN, step=1, slot=1))
    script.rank(0, Raised(traceback=BOOM))
    died = script.last_up(Died)
    assert (died.slot, died.killed, died.reason) == (5, False, "rank 0: RuntimeError: boom at 127.0.0.1:5123")


@pytest.mark.parametrize("way", ["SIGKILL", "exit", "SIGTERM", "SIGINT", "Ctrl-C", "eviction"])
def test_a_slot_counts_only_against_ranks_that_died_by_themselves(way: str) -> None:
    """HOLES L2. The kernel's memory keeper sends SIGKILL, as a person may: it counts."""
    script = in_step()
    script.rank(1, Mark(kind=MarkKind.SLOT_BEGUN, step=0, slot=1))
    script.rank(0, Mark(kind=MarkKind.SLOT_BEGUN, step=0, slot=1))
    match way:
        case "Ctrl-C":
            script.rank(0, Raised(traceback="Traceback\nKeyboardInterrupt"))
        case "eviction":
            script.told(Leave(reason="the others wait for it", success=False, restart=True))
        case _:
            script.exits(0, {"SIGKILL": -9, "exit": 1, "SIGTERM": -15, "SIGINT": -2}[way])
    assert script.last_up(Died).slot == (1 if way in ("SIGKILL", "exit") else -1)


def test_a_rank_that_raises_is_the_cause_though_another_exits_first() -> None:
    script = in_step()
    script.rank(1, Raised(traceback=BOOM))
    script.exits(0, 1, "Traceback\nConnectionError: closed by peer")
    assert len(script.ups(Died)) == 1 and "boom" in script.last_up(Died).reason


def test_a_rank_that_leaves_untold_is_a_failure() -> None:
    script = in_step()
    script.exits(0, 0)
    assert "nobody told it to" in script.last_up(Died).reason and not script.last_up(Died).killed


def test_votes_of_the_other_shard_after_a_death_do_not_count() -> None:
    script = in_step()
    script.calls(0)
    vote = RankSaid(life=1, shard_rank=1, message=script.call())
    script.does(RankExited(life=1, shard_rank=0, code=-9), vote)
    assert script.version == ROOT and not any(line["event"] == "commit" for line in script.ledger)


def phase(name: str) -> Script:
    script = Script()
    if name == "starting":
        script.does(TookOver())
        return script
    script.attaches()
    if name == "connecting":
        return script
    if name == "greeted":
        script.does(SessionOpened(session=1))
        return script
    script.meets(join=name in ("loading", "following"))
    if name in ("loading", "following"):
        script.told(Heal(heal=3, sources=(source("b"),)))
        if name == "following":
            script.ranks(Loaded(heal=3, version=Version(9, 5), cursor=36, stop=False, bytes=0, seconds=0.0))
        return script
    if name == "idle":
        return script
    script.based()
    if name == "levelling":
        script.based(7, version=Version(1, 5), cursor=4, sources=(source("b"),))
    elif name == "prepared":
        script.prepared(7, RosterChange(previous=5, left=("b",)))
        script.rank(0, RankOpened(number=7))
    elif name == "failed":
        script.rank(0, RankFailed(number=5, reason="x"))
    elif name == "abandoned":
        script.told(Abandon(number=6))
    elif name == "staging":
        script.told(Stage(heal=3, joiner="c", donors=1, place=0))
    elif name == "away":
        closes(script)
    elif name == "voted":
        script.calls(0)
    return script


PHASES = (
    *["starting", "connecting", "greeted", "idle", "loading", "following", "levelling"],
    *["prepared", "failed", "abandoned", "staging", "away", "voted"],
)


@pytest.mark.parametrize("name", PHASES)
@pytest.mark.parametrize("shard_rank", [0, 1])
def test_a_death_in_any_phase_leads_to_a_clean_new_life(name: str, shard_rank: int) -> None:
    script = phase(name)
    told = max([script.state.seat.generation, *(plan.number for plan in script.state.plans)])
    dies(script, shard_rank)
    assert script.waits_for(StartRanks).life == 2
    state = script.state
    assert (state.plans, state.level, state.joining, state.stagings, state.failures) == ((), None, None, (), ())
    assert state.floor > told or told == 0
    script.attaches()
    hello = script.meets(incarnation=2)
    assert hello.report.version == ROOT and hello.incarnation == 0 and not hello.report.failed
    script.told(*(() if name == "starting" else (Abandon(number=20),)))
    fresh = tuple(msgspec.structs.replace(m, incarnation=2) if m.name == "a" else m for m in members("a", "b"))
    script.based(21, roster=fresh)
    script.commits()
    assert script.version == Version(1, 21)


@pytest.mark.parametrize("name", PHASES)
def test_a_fence_in_any_phase_ends_the_agent_without_goodbye(name: str) -> None:
    script = phase(name)
    if name in ("starting", "connecting", "away"):
        return
    script.told(Fenced(by=4))
    assert script.last(EndRanks).life == 1
    script.exits(0, -9)
    script.exits(1, -9)
    assert script.exit.code == 3 and "incarnation 4" in script.exit.reason
    assert not script.ups(Goodbye) and not script.ups(Died)


@pytest.mark.parametrize("message", [Fenced(by=4), Leave(reason="enough", success=True)])
def test_what_comes_with_the_end_of_a_life_is_not_for_the_next_one(message: Any) -> None:
    """All its ranks are gone already: an agent that left with that life would wait for their ends for ever."""
    script = phase("idle")
    told = LighthouseSaid(session=script.state.session.number, message=message)
    script.does(*(RankExited(life=1, shard_rank=shard_rank, code=-9, traceback="") for shard_rank in (0, 1)), told)
    assert [died.shard_rank for died in script.ups(Died)] == [0] and script.state.ending is None
    assert script.waits_for(StartRanks).life == 2
    script.attaches()
    assert script.meets(incarnation=5).incarnation == 0


@pytest.mark.parametrize("name", PHASES)
def test_a_leave_in_any_phase_is_obeyed(name: str) -> None:
    script = phase(name)
    if name in ("starting", "connecting", "away"):
        return
    script.told(Leave(reason="enough", success=True))
    assert script.downs(Quit) == [Quit(success=True, reason="enough")]
    script.exits(0, 0)
    script.exits(1, 0)
    assert script.exit.code == 0


def test_identical_failures_in_a_row_end_the_agent() -> None:
    """Numbers in the message do not make it another failure: ports and addresses change from life to life."""
    script = Script(restart_limit=3)
    for life in range(1, 4):
        script.attaches()
        script.meets(incarnation=life)
        dies(script, traceback=BOOM.replace("5123", str(5123 + life)))
        if life < 3:
            pause = script.state.life.resume_at - script.now
            assert pause == 2.0 ** (life - 1)
            script.waits_for(StartRanks)
    assert script.exit.code == 1
    assert "ended 3 lives in a row" in script.exit.reason and "boom" in script.exit.reason


def test_another_failure_starts_the_count_afresh() -> None:
    script = Script(restart_limit=2)
    for life in range(1, 6):
        script.attaches()
        script.meets(incarnation=life)
        dies(script, traceback=BOOM if life % 2 else "ValueError: other")
        script.waits_for(StartRanks)
    assert script.state.life.alike == 1


def test_progress_forgives_a_kill_at_once_and_an_error_only_after_a_while() -> None:
    script = in_step(restart_limit=2, restart_forgive_steps=3)
    for life in (1, 2):
        script.commits()
        dies(script, code=-9, traceback="")
        assert script.state.life.alike == 1
        assert script.last(StartRanks).life == life + 1, "without a pause"
        restarted(script, life + 1)
    told = [effect.fields for effect in script.effects if isinstance(effect, Say) and effect.event == "group_lost"]
    assert len(told) == 2 and told[0] != told[1], "a line that is as the last one was is not said again"
    script.commits()
    dies(script)
    restarted(script, 4)
    script.commits()
    dies(script)
    assert script.exit.code == 1


def test_a_restart_that_was_asked_for_is_no_failure() -> None:
    script = in_step()
    script.told(Leave(reason="it hangs", success=False, restart=True))
    assert script.last(EndRanks).life == 1 and script.last_up(Died).killed
    script.exits(0, -9)
    script.exits(1, -9)
    assert script.last(StartRanks).life == 2 and script.state.life.alike == 0


def test_what_the_old_ranks_still_say_is_not_heard() -> None:
    script = in_step()
    vote = script.call()
    dies(script)
    script.waits_for(StartRanks)
    script.attaches()
    script.does(RankSaid(life=1, shard_rank=0, message=vote), RankExited(life=1, shard_rank=0, code=1))
    assert script.hold is AgentHold.LIGHTHOUSE and script.state.life.number == 2


def test_ranks_that_do_not_leave_are_ended() -> None:
    script = in_step()
    script.told(Leave(reason="evicted", success=False))
    assert script.waits_for(EndRanks).life == 1
    script.exits(0, -9)
    script.exits(1, 0)
    assert script.exit == Exit(code=1, reason="evicted")


# ---- the value -----------------------------------------------------------------------------------------------------


def test_config_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="shards is 0"):
        AgentConfig(run_id="r", name="a", host="h", shards=0)
    with pytest.raises(ValueError, match="reconnect_s"):
        AgentConfig(run_id="r", name="a", host="h", shards=1, reconnect_s=-1.0)
    with pytest.raises(ValueError, match="name"):
        AgentConfig(run_id="r", name="", host="h", shards=1)


def test_events_and_state_survive_a_journal() -> None:
    script = in_step()
    events: tuple[Event, ...] = (
        TookOver(),
        LighthouseSaid(session=1, message=Abandon(number=3)),
        RankSaid(life=1, shard_rank=0, message=script.call()),
        RankSaid(life=1, shard_rank=0, message=attach(0)),
    )
    data = msgspec.json.encode(events)
    assert msgspec.json.decode(data, type=tuple[Event, ...]) == events
    assert isinstance(attach(0), Attach)
    assert isinstance(script.last_up(Hello), Hello)


def test_a_single_shard_needs_no_other() -> None:
    state = new_agent(AgentConfig(run_id="r", name="a", host="h", shards=1))
    state, effects = decide(record(state, TookOver(), 0.0), 0.0)
    assert StartRanks(life=1) in effects
    state, effects = decide(record(state, RankSaid(life=1, shard_rank=0, message=attach(0)), 1.0), 1.0)
    assert OpenSession(session=1) in effects and not any(isinstance(effect, ToRanks) for effect in effects)
