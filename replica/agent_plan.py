"""Planned generations: opened beside the present one, and entered by the very step whose roll call names them.

Every member of the present generation is told of the plan, leavers too: all records have to name it. A newer plan
replaces an older one, but one that was opened here stays known: others may have been told since that it is ready, and
a step in flight may still switch to it.
"""

from __future__ import annotations

from lighthouse.values import Base, Failure, Prepare, Ready, RosterChange, Start
from replica.agent_state import (
    AgentState,
    Plan,
    abandoned,
    attached,
    failed,
    fresh_step,
    ledgered,
    noted,
    put,
    shown,
)
from replica.agent_values import Effect, ToRank, ToRanks
from replica.roster import Roster, changed, contributors, has_newcomers, place_of, share
from replica.values import Go, Open, RankOpened, ReadyFor, Work

_KEPT = 4
"""Older plans that others may still name: one more would take as many switches in flight at once."""


# ---- record --------------------------------------------------------------------------------------------------------


def prepare(state: AgentState, message: Prepare, now: float) -> AgentState:
    newest = max([state.seat.generation, state.floor - 1, *(plan.number for plan in state.plans)])
    if message.number <= newest or state.ending is not None:
        return noted(state, "prepare_refused", generation=shown(state, message.number))
    try:
        roster = resolved(state, message.roster)
        if len(message.rendezvous) != state.config.shards:
            raise ValueError(f"{len(message.rendezvous)} rendezvous were told for {state.config.shards} shards")
    except ValueError as error:
        failure = Failure(number=message.number, reason=str(error))
        return put(noted(state, "prepare_failed", reason=failure.reason), failures=(*state.failures, failure))
    plan = Plan(
        number=message.number,
        change=message.roster,
        roster=roster,
        place=place_of(roster, state.config.name, state.incarnation),
        rendezvous=message.rendezvous,
        set_aside=message.set_aside,
    )
    kept = tuple(old for old in state.plans if len(old.opened) == state.config.shards)[-_KEPT:]
    return put(state, plans=(*kept, plan))


def ready(state: AgentState, message: Ready, now: float) -> AgentState:
    return _with(state, message.number, ready=True)


def opened(state: AgentState, shard_rank: int, message: RankOpened, now: float) -> AgentState:
    plan = planned(state, message.number)
    return state if plan is None else _with(state, plan.number, opened=plan.opened | {shard_rank})


def not_opened(state: AgentState, number: int, reason: str) -> AgentState:
    """A rank could not open plan `number`, or the communicator broke before it was used."""
    plan = planned(state, number)
    if plan is None or plan.failed:
        return state
    state = put(state, failures=(*state.failures, Failure(number=number, reason=reason)))
    return _with(noted(state, "opening_failed", generation=shown(state, number), reason=reason), number, failed=True)


def planned(state: AgentState, number: int) -> Plan | None:
    """The plan of that number, if it is known."""
    return next((plan for plan in state.plans if plan.number == number), None)


def resolved(state: AgentState, change: RosterChange) -> Roster:
    """The roster that `change` makes. Raises ValueError if it starts from one that is not known here."""
    plan = planned(state, change.previous)
    if change.previous == 0:
        return changed((), change)
    if change.previous == state.seat.generation:
        return changed(state.seat.roster, change)
    if plan is not None:
        return changed(plan.roster, change)
    raise ValueError(
        f"a roster was told from generation {change.previous}, and this group knows {state.seat.generation}"
    )


def _with(state: AgentState, number: int, **fields: object) -> AgentState:
    plans = tuple(put(plan, **fields) if plan.number == number else plan for plan in state.plans)
    return put(state, plans=plans)


# ---- rules ---------------------------------------------------------------------------------------------------------


def open_plans(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Has the newest plan opened, and named once all its members have opened it."""
    if not state.plans or not attached(state) or state.ending is not None:
        return state
    plan = state.plans[-1]
    if not plan.asked:
        size = len(plan.roster) if plan.place >= 0 else 0
        for shard_rank, rendezvous in enumerate(plan.rendezvous):
            message = Open(number=plan.number, place=plan.place, size=size, rendezvous=rendezvous if size else "")
            effects.append(ToRank(shard_rank=shard_rank, message=message))
        # Who leaves has nothing to open, and may name the plan as soon as its members have opened it.
        everyone = frozenset(range(state.config.shards))
        return _with(state, plan.number, asked=True, opened=plan.opened if size else everyone)
    if plan.ready and len(plan.opened) == state.config.shards and not plan.ready_told and not plan.failed:
        effects.append(ToRanks(message=ReadyFor(number=plan.number)))
        return _with(state, plan.number, ready_told=True)
    return state


def switched(state: AgentState, number: int, now: float) -> AgentState:
    """With generation `number` entered from the version that the group stands on, as the merged roll call says.

    A group that is not in its roster has left for good and waits to be let go. The seat's `work` is the step to begin.
    """
    stand = state.stand
    start = Start(number=number, version=stand.version, cursor=stand.cursor)
    state = put(state, starts=(*state.starts, start)[-16:])
    plan = planned(state, number)
    try:
        if plan is None:
            raise ValueError("a roll call switched to a generation that this group was not told of")
        roster = resolved(state, plan.change)
    except ValueError as error:
        state = _out(state, number, (), start, now)
        return failed(state, number, str(error))
    place = place_of(roster, state.config.name, state.incarnation)
    if place < 0:
        state = _out(state, number, roster, start, now)
        state = noted(state, "out_of_roster", generation=shown(state, number))
        return put(abandoned(state, number + 1), report_due=True)
    return entered(state, number, roster, place, start, now, set_aside=plan.set_aside)


def entered(
    state: AgentState,
    number: int,
    roster: Roster,
    place: int,
    start: Start,
    now: float,
    base: Base | None = None,
    set_aside: tuple[int, ...] = (),
) -> AgentState:
    """With the group seated in generation `number`: even deal of the next step, or the deal that its base tells."""
    state = _seated(state, number, roster, place, start, now)
    aside = set_aside if base is None else tuple(base.cursor + slot for slot in base.set_aside)
    state = put(state, seat=put(state.seat, set_aside=aside))
    work = work_at(state, number, roster, place, has_newcomers(roster), base)
    stand = put(state.stand, answers=work.slots, step_slots=work.step_slots)
    state = fresh_step(put(state, stand=stand), now, work=work)
    state = ledgered(
        state,
        {
            "event": "enter",
            "generation": number,
            "step": start.version.step,
            "from_generation": start.version.generation,
            "slots": list(work.slots),
        },
    )
    return noted(
        state, "entered", generation=shown(state, number), members=len(roster), place=place, slots=len(work.slots)
    )


def _out(state: AgentState, number: int, roster: Roster, start: Start, now: float) -> AgentState:
    step_slots = work_at(state, number, roster, -1, False).step_slots if roster else 0
    state = fresh_step(_seated(state, number, roster, -1, start, now), now)
    return put(state, stand=put(state.stand, answers=(), step_slots=step_slots))


def _seated(state: AgentState, number: int, roster: Roster, place: int, start: Start, now: float) -> AgentState:
    seat = put(
        state.seat,
        generation=number,
        roster=roster,
        place=place,
        start=start,
        work=None,
        failed="",
        fresh=True,
        promoted=(),
    )
    later = tuple(plan for plan in state.plans if plan.number > number and plan.change.previous in (0, number))
    return put(state, seat=seat, plans=later)


def go(state: AgentState, rendezvous: tuple[str, ...], effects: list[Effect]) -> None:
    """Tells the ranks to begin the seat's step, where no commit tells them."""
    work = state.seat.work
    assert work is not None
    for shard_rank, address in enumerate(rendezvous):
        effects.append(ToRank(shard_rank=shard_rank, message=Go(work=work, rendezvous=address)))


def work_at(
    state: AgentState, generation: int, roster: Roster, place: int, digest: bool, base: Base | None = None
) -> Work:
    """The next step of the member at `place`: an even deal of as many slots as the roster's contributors consume, or
    the deal that `base` tells, less what the generation sets aside; or the farewell. Place -1: wait for a verdict."""
    stand = state.stand
    farewell = stand.stop or stand.version.step >= state.steps
    member = place >= 0
    slots: tuple[int, ...] = ()
    if farewell:
        step_slots = state.batch.slots
    elif base is not None:
        step_slots, slots = base.step_slots, base.slots
    else:
        step_slots = state.batch.step_slots(contributors(roster), stand.cursor)
        slots = share(roster, place, step_slots) if member else ()
    aside = () if farewell else tuple(s - stand.cursor for s in state.seat.set_aside)
    aside = tuple(slot for slot in aside if 0 <= slot < step_slots)
    return Work(
        generation=generation,
        place=place,
        size=len(roster) if member else 0,
        version=stand.version,
        cursor=stand.cursor,
        slots=tuple(slot for slot in slots if slot not in aside),
        step_slots=step_slots,
        digest=digest and not farewell,
        farewell=farewell,
        last=not farewell and state.batch.through(stand.cursor + step_slots),
        set_aside=aside,
    )
