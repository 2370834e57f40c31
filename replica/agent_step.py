"""The verdict on a step: what all shards of the group gathered, merged, and committed or given up.

Only here does the group's version change by a commit, and only while its generation is not abandoned. The same roll
calls give the same merged roll call in every group, so all that commit go on alike: same roles, same deal, same switch.
"""

from __future__ import annotations

from lighthouse.values import Committed, EntryName, Start
from replica.agent_life import VOTED
from replica.agent_plan import not_opened, switched, work_at
from replica.agent_state import (
    AgentState,
    Seat,
    Stand,
    ending,
    failed,
    fresh_step,
    ledgered,
    live,
    noted,
    put,
    set_at,
    welcomed,
)
from replica.agent_values import Effect, ToLighthouse, ToRanks
from replica.rollcall import Invalid, merge
from replica.roster import Roster, grown, has_newcomers, promote, trusted_places
from replica.values import Commit, Merged, RankFailed, RollCall

# ---- record --------------------------------------------------------------------------------------------------------


def vote(state: AgentState, shard_rank: int, message: RollCall, now: float) -> AgentState:
    """Notes what a shard gathered, if it is for the step in work of a generation that is not abandoned."""
    seat = state.seat
    if not live(state) or message.generation != seat.generation or message.step != state.stand.version.step:
        return noted(state, "vote_refused", shard_rank=shard_rank, step=message.step)
    if seat.votes[shard_rank] is not None:
        return state
    marks = set_at(state.life.marks, shard_rank, VOTED)
    return put(
        state,
        seat=put(seat, votes=set_at(seat.votes, shard_rank, message.records)),
        life=put(state.life, marks=marks),
    )


def rank_failed(state: AgentState, shard_rank: int, message: RankFailed, now: float) -> AgentState:
    """A collective failed: the group votes for this generation no more, whatever its other shards saw."""
    if message.number != state.seat.generation:
        return not_opened(state, message.number, f"rank {shard_rank}: {message.reason}")
    if not live(state):
        return state
    return failed(state, message.number, f"rank {shard_rank}: {message.reason}")


# ---- rules ---------------------------------------------------------------------------------------------------------


def commit(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Gives the verdict once all shards have voted."""
    seat = state.seat
    if not live(state) or seat.work is None:
        return state
    votes = [records for records in seat.votes if records is not None]
    if len(votes) < state.config.shards:
        return state
    merged = merge(
        votes,
        members=len(seat.roster),
        generation=seat.generation,
        version=state.stand.version,
        slots=seat.work.step_slots,
        set_aside=seat.work.set_aside,
        farewell=seat.work.farewell,
        trusted=trusted_places(seat.roster),
    )
    if isinstance(merged, Invalid):
        return failed(state, seat.generation, f"the roll call does not count: {merged.reason}")
    if seat.work.farewell:
        return _farewell(state, merged, now, effects)
    return _committed(state, merged, now, effects)


def _farewell(state: AgentState, merged: Merged, now: float, effects: list[Effect]) -> AgentState:
    """The run is over: a farewell makes no version."""
    assert state.seat.work is not None
    reason = "the run is finished"
    verdict = Commit(merged=merged, next=state.seat.work, leave=True, success=True, reason=reason)
    effects.append(ToRanks(message=verdict))
    state = put(fresh_step(state, now, work=None), finished=state.stand.version)
    return ending(state, now, 0, reason, success=True, told=True)


def _committed(state: AgentState, merged: Merged, now: float, effects: list[Effect]) -> AgentState:
    seat, stand, leave = state.seat, state.stand, state.leave_after
    state, staged = staged_by(state, merged)
    state = put(
        ledgered(state, _line(merged, stand.answers, stand.cursor)),
        stand=_moved(stand, merged),
        life=put(state.life, commits=state.life.commits + 1, contributes=state.life.contributes or bool(stand.answers)),
    )
    state = promoted(state, merged)
    new = grown(seat.roster, state.seat.roster)
    start = seat.start
    if merged.switch:
        state = switched(state, merged.switch, now)
        start = Start(number=merged.switch, version=merged.end, cursor=state.stand.cursor)
    else:
        work = work_at(state, seat.generation, state.seat.roster, seat.place, has_newcomers(state.seat.roster))
        state = fresh_step(state, now, work=work, fresh=False)
        state = put(state, stand=put(state.stand, answers=work.slots, step_slots=work.step_slots))
    work = state.seat.work or work_at(state, state.seat.generation, (), -1, False)
    effects.append(
        ToRanks(
            message=Commit(
                merged=merged,
                next=work,
                stage=staged,
                leave=leave is not None,
                success=leave is None or leave.success,
                reason="" if leave is None else leave.reason,
            )
        )
    )
    if welcomed(state) and (seat.place == 0 or seat.fresh):
        effects.append(ToLighthouse(message=_told(merged, seat, new, start, now)))
    if leave is not None:
        code = 0 if leave.success else 1
        return ending(put(state, leave_after=None), now, code, leave.reason, success=leave.success, told=True)
    return state


def staged_by(state: AgentState, merged: Merged) -> tuple[AgentState, tuple[int, ...]]:
    """The heals that all their donors stage for after this step, and the state in which that is done.

    Whoever did not commit it but applies its entry stages too: the others do, and count on it.
    """
    staged = tuple(
        staging.heal
        for staging in state.stagings
        if staging.told and not staging.staged and _all_named(state, merged, staging.heal, staging.donors)
    )
    if not staged:
        return state, ()
    kept = tuple(put(s, staged=True) if s.heal in staged else s for s in state.stagings)
    return put(state, stagings=kept), tuple(sorted(staged))


def _all_named(state: AgentState, merged: Merged, heal: int, donors: int) -> bool:
    wanted = donors * state.config.shards
    return any(count.heal == heal and count.records == wanted for count in merged.heals)


def _told(merged: Merged, seat: Seat, new: Roster, start: Start, now: float) -> Committed:
    """What the lighthouse hears of a commit made from `seat`; new: members whose role grew by it."""
    return Committed(
        version=merged.end,
        start=start,
        loss=merged.loss_sum / merged.tokens if merged.tokens else 0.0,
        tokens=merged.tokens,
        grad_norm=merged.grad_norm,
        step_s=now - seat.since,
        protocol_s=merged.protocol_s,
        skipped=merged.skip,
        promoted=new,
        mismatched=tuple(seat.roster[place].name for place in merged.mismatched),
    )


# ---- what a merged roll call does to a group, committed here or applied ----------------------------------------------


def applied(state: AgentState, merged: Merged) -> AgentState:
    """With the entry of `merged` applied: the version and the cursor move, and no slot of the old step counts."""
    state = put(ledgered(state, _line(merged, None, state.stand.cursor)), stand=_moved(state.stand, merged))
    return promoted(state, merged) if merged.generation == state.seat.generation else state


def promoted(state: AgentState, merged: Merged) -> AgentState:
    """With the roles that the merged roll call gives in the seat's roster."""
    seat = state.seat
    wanted, allowed = (0, ()) if state.terms is None else (state.terms.contributors_wanted, state.terms.allowed_groups)
    roster = promote(seat.roster, merged, wanted, allowed)
    if roster is seat.roster:
        return state
    new = grown(seat.roster, roster)
    names = {member.name for member in new}
    kept = tuple(member for member in seat.promoted if member.name not in names)
    state = noted(state, "promoted", **{member.name: member.role.value for member in new})
    return put(state, seat=put(seat, roster=roster, promoted=(*kept, *new)))


def _moved(stand: Stand, merged: Merged) -> Stand:
    return put(
        stand,
        version=merged.end,
        cursor=stand.cursor + merged.slots,
        stop=stand.stop or merged.stop,
        entries=(EntryName(start=merged.start, end=merged.end),),
        answers=(),
        step_slots=0,
    )


def _line(merged: Merged, slots: tuple[int, ...] | None, cursor: int) -> dict[str, str | int | float | list[int]]:
    """The ledger's line: a commit with the slots summed here, or an entry applied."""
    line: dict[str, str | int | float | list[int]] = {
        "event": "apply" if slots is None else "commit",
        "step": merged.end.step,
        "generation": merged.generation,
        "from_step": merged.start.step,
        "from_generation": merged.start.generation,
        "cursor": cursor,
        "step_slots": merged.slots,
        "loss": merged.loss_sum,
        "tokens": merged.tokens,
        "skipped": int(merged.skip),
        "protocol_s": merged.protocol_s,
    }
    if merged.set_aside:
        line["set_aside"] = list(merged.set_aside)
    return line if slots is None else {**line, "slots": list(slots)}
