"""Getting to a version that others have: one entry to a base, or a snapshot and then entries; and being a donor.

An entry is applied by the whole group or not at all: the verdict is given when all ranks hold it verified, and it is
ordered against abandonment like a commit. Until then the group stands where it stood. A load is different: it writes
over the weights, so while it runs, and if it fails, the group stands nowhere and says so.
"""

from __future__ import annotations

from lighthouse.values import Base, Heal, Release, Source, Stage, Start
from replica.agent_plan import entered, go, planned, resolved, switched
from replica.agent_state import (
    AgentState,
    Joining,
    JoinPhase,
    Level,
    Seat,
    Staging,
    Stand,
    abandoned,
    attached,
    failed,
    fresh_step,
    ledgered,
    live,
    noted,
    put,
    set_at,
    shown,
)
from replica.agent_step import applied, staged_by
from replica.agent_values import Effect, ToRanks
from replica.roster import place_of
from replica.values import (
    Apply,
    Drop,
    Fetch,
    FetchFailed,
    Held,
    Load,
    Loaded,
    LoadFailed,
    StageFor,
    UpToDate,
)

_STAGINGS = 32
"""Heals that a group is donor of at a time; an older one was forgotten by the lighthouse, and is dropped."""


# ---- record: a base ------------------------------------------------------------------------------------------------


def base(state: AgentState, message: Base, now: float) -> AgentState:
    """Takes a base to level to and enter. It ends all lower generations, and whatever heal was under way."""
    if message.number < state.floor or message.number <= state.seat.generation or state.ending is not None:
        return noted(state, "base_refused", generation=shown(state, message.number))
    if not state.stand.usable:
        reason = f"the base is {message.version}, and this group stands on an unfinished load"
        return failed(state, message.number, reason)
    try:
        roster = resolved(state, message.roster)
    except ValueError:
        roster = None
    state = put(abandoned(state, message.number), level=Level(base=message, roster=roster), joining=None, starts=())
    return put(state, fetching=None)


# ---- record: a joiner ----------------------------------------------------------------------------------------------


def heal(state: AgentState, message: Heal, now: float) -> AgentState:
    none = (None,) * state.config.shards
    joining = Joining(
        heal=message.heal, sources=message.sources, passing=message.passing, loaded=none, up_to_date=none, moved=none
    )
    if live(state) or state.level is not None or state.ending is not None:
        reason = f"this group is in generation {shown(state, state.seat.generation)} and has weights of its own"
        reason = f"this group is leaving: {state.ending.reason}" if state.ending is not None else reason
        return put(state, joining=put(joining, phase=JoinPhase.FAILED, reason=reason))
    # The report says that the group stands nowhere now: a `CaughtUp` of an older heal may be on its way.
    state = put(state, joining=joining, report_due=True)
    if not message.entries:
        return state
    if not state.stand.usable:
        return _heal_failed(state, "this group stands on an unfinished load, and no entry leads on from there")
    following = put(joining, phase=JoinPhase.FOLLOWING)
    return fresh_step(put(state, joining=following, seat=Seat(), stand=put(state.stand, answers=())), now)


def loaded(state: AgentState, shard_rank: int, message: Loaded, now: float) -> AgentState:
    joining = state.joining
    if joining is None or joining.phase is not JoinPhase.LOADING or message.heal != joining.heal:
        return state
    joining = put(joining, loaded=set_at(joining.loaded, shard_rank, message))
    state = put(state, joining=joining)
    if None in joining.loaded:
        return state
    stands = {(m.version, m.cursor, m.stop) for m in joining.loaded if m is not None}
    if len(stands) > 1:
        return _heal_failed(state, "the shards loaded different versions")
    state = put(
        state,
        stand=Stand(version=message.version, cursor=message.cursor, stop=message.stop, loaded=True),
        joining=put(joining, phase=JoinPhase.FOLLOWING, caught_up=_pauses(state)),
        report_due=True,  # should all others be lost, the run goes on from here
    )
    return ledgered(
        state,
        {
            "event": "load",
            "heal": message.heal,
            "step": message.version.step,
            "generation": message.version.generation,
            "cursor": message.cursor,
            "bytes": sum(m.bytes for m in joining.loaded if m is not None),
            "seconds": max(m.seconds for m in joining.loaded if m is not None),
        },
    )


def load_failed(state: AgentState, shard_rank: int, message: LoadFailed, now: float) -> AgentState:
    joining = state.joining
    if joining is None or joining.phase is not JoinPhase.LOADING or message.heal != joining.heal:
        return state
    return _heal_failed(state, f"rank {shard_rank}: {message.reason}")


def up_to_date(state: AgentState, shard_rank: int, message: UpToDate, now: float) -> AgentState:
    """Caught up is a group all of whose ranks found nothing newer than the version that they stand on."""
    joining = state.joining
    if joining is None or joining.phase is not JoinPhase.FOLLOWING or message.version != state.stand.version:
        return state
    seen = set_at(joining.up_to_date, shard_rank, message.version)
    all_seen = all(version == state.stand.version for version in seen)
    return put(state, joining=put(joining, up_to_date=seen, caught_up=joining.caught_up or all_seen))


# ---- record: entries -----------------------------------------------------------------------------------------------


def held(state: AgentState, shard_rank: int, message: Held, now: float) -> AgentState:
    if live(state) or not state.stand.usable or message.name.start != state.stand.version:
        return state
    return put(state, held=set_at(state.held, shard_rank, message))


def fetch_failed(state: AgentState, shard_rank: int, message: FetchFailed, now: float) -> AgentState:
    if state.fetching is None or message.version != state.stand.version or state.held[shard_rank] is not None:
        return state
    reason = f"rank {shard_rank} got no entry from {message.version}: {message.reason}"
    return _stuck(state, reason, message.behind)


def _stuck(state: AgentState, reason: str, behind: bool = False) -> AgentState:
    """The entry that is wanted cannot be had: the base is given up, or the heal."""
    if state.level is not None:
        return failed(state, state.level.base.number, reason)
    return _heal_failed(state, reason, behind)


def _heal_failed(state: AgentState, reason: str, behind: bool = False) -> AgentState:
    joining = state.joining
    if joining is None:
        return state
    state = noted(state, "heal_failed", heal=joining.heal, reason=reason)
    failed = put(joining, phase=JoinPhase.FAILED, reason=reason, behind=behind, caught_up=False, told_in=0)
    return put(state, joining=failed)


# ---- record: a donor -----------------------------------------------------------------------------------------------


def stage(state: AgentState, message: Stage, now: float) -> AgentState:
    others = tuple(staging for staging in state.stagings if staging.heal != message.heal)
    dropped = tuple(staging.heal for staging in others[: -_STAGINGS + 1])
    new = Staging(
        heal=message.heal,
        donors=message.donors,
        place=message.place,
        now=message.now,
        version=message.version,
        entries=message.entries,
    )
    return put(state, stagings=(*others[-_STAGINGS + 1 :], new), drops=(*state.drops, *dropped))


def release(state: AgentState, message: Release, now: float) -> AgentState:
    kept = tuple(staging for staging in state.stagings if staging.heal != message.heal)
    return put(state, stagings=kept, drops=(*state.drops, message.heal))


# ---- rules ---------------------------------------------------------------------------------------------------------


def load(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Has the ranks load; from here to the last `Loaded` the group has no weights to speak of."""
    joining = state.joining
    if joining is None or joining.phase is not JoinPhase.ASKED or not attached(state) or state.ending is not None:
        return state
    effects.append(ToRanks(message=Load(heal=joining.heal, sources=joining.sources, passing=joining.passing)))
    state = put(
        state, stand=Stand(usable=False), seat=Seat(), joining=put(joining, phase=JoinPhase.LOADING), stagings=()
    )
    return fresh_step(state, now)


def fetch(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Has the ranks fetch the entry that follows what they stand on, as long as one is wanted."""
    sources = _sources(state)
    heal = state.joining.heal if state.joining is not None else 0
    wanted = Fetch(version=state.stand.version, sources=sources, heal=heal) if sources else None
    if wanted == state.fetching:
        return state
    if wanted is not None:
        effects.append(ToRanks(message=wanted))
    return put(state, fetching=wanted)


def _sources(state: AgentState) -> tuple[Source, ...]:
    """Who is to be asked for the next entry; nobody if none is wanted."""
    if not state.stand.usable or not attached(state) or state.ending is not None:
        return ()
    if state.level is not None:
        behind = state.stand.version.step + 1 == state.level.base.version.step
        return state.level.base.sources if behind else ()
    joining = state.joining
    following = joining is not None and joining.phase is JoinPhase.FOLLOWING and not _pauses(state)
    return joining.sources if joining is not None and following else ()


def _pauses(state: AgentState) -> bool:
    """Whether entries cannot be replayed: the group waits for a base then, on the version that it has loaded."""
    first = state.life.attached[0] if state.life.attached else None
    return first is not None and first.setup.get("heal") == "pause"


def apply(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Gives the verdict to apply, once all ranks hold the same entry and it is still wanted."""
    if not _sources(state) or None in state.held:
        return state
    first = state.held[0]
    assert first is not None
    name, merged = first.name, first.merged
    wanted = state.level.base.version if state.level is not None else name.end
    if any(other != first for other in state.held) or (merged.start, merged.end) != (name.start, name.end):
        return _stuck(put(state, held=(None,) * state.config.shards), "the ranks hold different entries")
    if name.end != wanted:
        return _stuck(put(state, held=(None,) * state.config.shards), f"the entry leads to {name.end}, not to {wanted}")
    state, staged = staged_by(state, merged)
    effects.append(ToRanks(message=Apply(name=name, cursor=state.stand.cursor + merged.slots, stage=staged)))
    # A joiner may have to lead on alone: what it told of itself must not be what it was before.
    state = put(fresh_step(applied(state, merged), now), report_due=state.report_due or state.level is None)
    if merged.switch >= state.floor and state.level is None:
        return _follow_switch(state, merged.switch, now, effects)
    return state


def _follow_switch(state: AgentState, number: int, now: float, effects: list[Effect]) -> AgentState:
    """A joiner enters the generation that it was prepared for by applying the entry that switched to it."""
    plan = planned(state, number)
    if plan is None or plan.place < 0:
        return state
    state = put(switched(state, number, now), joining=None)
    if state.seat.work is not None:
        go(state, plan.rendezvous, effects)
    return state


def enter(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Enters the base that was told, if the group stands on it; gives it up if no entry leads there."""
    if state.level is None or not attached(state) or state.ending is not None:
        return state
    message, known = state.level.base, state.level.roster
    if not state.stand.usable or state.stand.version != message.version:
        if _sources(state):
            return state
        here = state.stand.version if state.stand.usable else "an unfinished load"
        return failed(state, message.number, f"the base is {message.version}, and this group stands on {here}")
    try:
        # Roles by now: an entry just applied may have promoted somebody.
        roster = resolved(state, message.roster)
    except ValueError as error:
        if known is None:
            return failed(state, message.number, str(error))
        roster = known
    place = place_of(roster, state.config.name, state.incarnation)
    if place < 0 or len(message.rendezvous) != state.config.shards:
        return failed(state, message.number, "the base has no place for this group, or not a rendezvous for each shard")
    stand = put(state.stand, cursor=message.cursor, stop=state.stand.stop or message.stop)
    start = Start(number=message.number, version=message.version, cursor=message.cursor)
    state = put(state, stand=stand, level=None)
    state = entered(state, message.number, roster, place, start, now, message)
    go(state, message.rendezvous, effects)
    return state


def stage_for(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Passes on what donors have to stage and to drop. `now` holds for a group in no step; else it names the heal. A
    message that comes late finds a group elsewhere, which would stage what the others do not: it stages nothing."""
    if not attached(state) or not (state.drops or any(not staging.told for staging in state.stagings)):
        return state
    for dropped in state.drops:
        effects.append(ToRanks(message=Drop(heal=dropped)))
    told = []
    for staging in state.stagings:
        if not staging.told:
            at_once = staging.entries or (staging.now and not live(state))
            there = state.stand.usable and staging.version == state.stand.version
            if at_once and not (staging.entries or there):
                state = noted(state, "stage_refused", heal=staging.heal, version=str(staging.version))
                continue
            asked = StageFor(
                heal=staging.heal,
                now=at_once,
                place=staging.place,
                donors=staging.donors,
                entries=staging.entries,
            )
            effects.append(ToRanks(message=asked))
            staging = put(staging, told=True, staged=at_once)
        told.append(staging)
    return put(state, stagings=tuple(told), drops=())
