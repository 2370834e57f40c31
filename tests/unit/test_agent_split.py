"""Where the time goes from the start of ranks to their first step with slots: parts that add up, told once a life."""

import msgspec
from agent_script import HEALED_AT, Script, attach, closes

from lighthouse.values import Contributed
from replica.agent_values import TookOver
from replica.values import Attach, UpToDate


def at(script: Script, now: float) -> Script:
    script.now = now
    return script


def attaching(shard_rank: int, begun_s: float, imported_s: float, warm: bool) -> Attach:
    plain = attach(shard_rank)
    return msgspec.structs.replace(plain, begun_s=begun_s, imported_s=imported_s, warm=warm)


def seconds(told: Contributed) -> tuple[float, ...]:
    parts = (told.start_s, told.import_s, told.build_s, told.transfer_s, told.replay_s, told.switch_s)
    return tuple(round(part, 6) for part in parts)


def test_a_healed_group_tells_its_way() -> None:
    script = Script()
    script.does(TookOver())  # at 100.0
    at(script, 106.5).rank(0, attaching(0, 100.25, 103.0, True))
    at(script, 107.0).rank(1, attaching(1, 100.5, 102.0, True))
    script.meets(join=True)
    at(script, 109.0).follows()
    at(script, 109.5).ranks(UpToDate(version=HEALED_AT))
    at(script, 110.0).based(9, version=HEALED_AT, cursor=40)
    at(script, 111.0).commits()
    (told,) = script.ups(Contributed)
    assert told.warm and seconds(told) == (0.5, 2.5, 4.0, 2.0, 0.5, 1.5)
    line = next(line for line in script.ledger if line["event"] == "split")
    assert (line["total_s"], line["transfer_s"]) == (11.0, 2.0)
    script.commits()
    assert len(script.ups(Contributed)) == 1


def test_what_was_not_needed_or_is_not_known_takes_no_time() -> None:
    script = Script()
    script.does(TookOver())
    at(script, 103.0).rank(0, attaching(0, 101.0, 0.0, True))
    at(script, 104.0).rank(1, attach(1))
    script.meets()
    at(script, 105.0).based(5)
    at(script, 106.0).commits()
    (told,) = script.ups(Contributed)
    assert not told.warm and seconds(told) == (1.0, 0.0, 3.0, 0.0, 0.0, 2.0)


def test_a_step_without_slots_is_no_contribution_and_a_lost_session_loses_nothing() -> None:
    script = Script().begins()
    script.based(5, slots=())
    script.rank(0, script.call([(), (0, 1, 2, 3)]))
    script.rank(1, script.call([(), (0, 1, 2, 3)]))
    assert script.version.step == 1 and not script.ups(Contributed)
    closes(script)
    script.commits()
    assert not script.ups(Contributed)
    script.waits()
    script.meets()
    assert len(script.ups(Contributed)) == 1
