"""Unplanned changes: abandon, gather reports, claim, base. DESIGN §4.

A change spends the next number, has everybody abandon what is below it, waits for the members' reports (one lease at
most), and forms the next generation from those who stand on the newest version of the history, or one entry behind it.
While that cannot be, the run *holds*, and says what it waits for; every report, hello and death is looked at anew.
"""

from __future__ import annotations

import msgspec

from lighthouse import core_apart, core_cold, core_keep, core_pause, core_poison
from lighthouse.batch import limited
from lighthouse.core_evidence import may_have_more
from lighthouse.core_record import finish
from lighthouse.core_stall import evict, is_stalled, progressed
from lighthouse.core_state import (
    Change,
    Gen,
    Group,
    Roster,
    RunState,
    all_dead,
    batch_of,
    change_group,
    emit,
    holds_entry,
    in_grace,
    is_bounded,
    is_member,
    is_over,
    member_group,
    new_gen,
    roster_change,
    send_all,
    settled,
    tell,
    with_,
)
from lighthouse.core_values import Hold, StoreBase, StoreClaim, StoreNumber, StoreSetup
from lighthouse.deal import even_deal, lost_deal
from lighthouse.names import natural_key
from lighthouse.values import ROOT, Abandon, Base, Holding, Member, Role, RosterChange, Source, Value, Version


class Standing(Value, frozen=True):
    """Who can form the next generation: its base, who stands on it, and who is one entry behind a holder of it."""

    version: Version
    on: tuple[Group, ...]
    behind: tuple[Group, ...]


def begin(state: RunState, reason: str, now: float) -> RunState:
    """Spends a number and has everything below it abandoned. What was planned is cancelled."""
    number = state.last_number + 1
    lease_s = state.config.lease_s
    since = state.change.since_s if state.change else now
    state = with_(
        emit(state, StoreNumber(number=number)),
        last_number=number,
        change=Change(
            number=number, reason=reason, since_s=since, until_s=now + lease_s, stalled=is_stalled(state, now)
        ),
        plan=None,
        trouble="",
    )
    state = tell(state, "abandon", reason)
    abandon = Abandon(number=number, reason=reason)
    return send_all(state, ((group, abandon) for group in state.groups.values()))


def advance(state: RunState, now: float) -> RunState:
    """Forms the next generation if it can be formed now; otherwise the state says what it waits for."""
    change = state.change
    if change is None:
        return state
    paused = state.hold is Hold.PAUSE and now >= core_pause.until_s(state, now)
    looked = (now >= change.until_s, in_grace(state, now), paused, tuple(gen.number for gen in state.gens))
    if change.looked == looked and (change.heard < change.awaited if change.awaited else not state.dirty):
        return state
    waits = _awaited(state, change, now)
    change = msgspec.structs.replace(change, looked=looked, awaited=(len(waits) + 1) // 2, heard=0)
    state = with_(state, change=change)
    if waits:
        return held(state, Hold.REPORTS, "reports of " + ", ".join(waits[:8]), now)
    if change.stalled and not change.probed:
        return advance(core_apart.probe(state, now), now)
    if change.stalled:
        change = msgspec.structs.replace(change, stalled=False)
        together = state
        state = core_apart.put_out(state)
        state = evict(state, change.number) if state is together else state
        state = progressed(with_(state, change=change), now)
    standing = stand(state, change.number)
    hold, text = _reason_to_hold(state, standing)
    if hold in core_cold.HOLDS and any(group.apart for group in state.groups.values()):
        return advance(core_apart.taken_back(state), now)
    is_cold = bool(state.cold) and standing is not None and hold in core_cold.HOLDS
    if is_cold and standing is not None:
        why, (hold, text) = text, _reason_of_few(state, standing)
    if standing is not None and hold is Hold.TOO_FEW and is_over(state, standing.version, _stopped(standing)):
        return finish(state, standing.version)  # nothing is left to commit, so nobody is needed for it
    if standing is None or hold is not Hold.NONE:
        return held(state, hold, text, now)
    late = core_pause.awaited(state, {g.name for g in (*standing.on, *standing.behind)}, now)
    if late and now < core_pause.until_s(state, now):
        return held(state, Hold.PAUSE, f"{core_pause.named(late)} to load", now)
    state = core_pause.give_up(state, late, now)
    if is_cold:
        words = {"base": standing.version, "by": state.cold}
        state = tell(state, "cold_start", f"nobody waits any more for {why}", "", **words)
    return _form(state, change, standing, now)


def _stopped(standing: Standing) -> bool:
    return any(g.report.stop for g in standing.on)


def _awaited(state: RunState, change: Change, now: float) -> list[str]:
    """Names of members that may still report. Nobody is awaited longer than one lease, or judged in the first one."""
    late = now >= change.until_s
    grace = in_grace(state, now) or (change.again and not late)
    waits = []
    for name, incarnation, gone in _members(state):
        group = state.groups.get(name)
        if gone or group is not None and group.incarnation != incarnation:
            continue
        if group is None or not group.live:
            if grace:
                waits.append(name)
        elif not late and (group.report.abandoned < change.number or core_apart.awaits(state, group)):
            waits.append(name)
    if not state.gens:
        waits += [g.name for g in state.groups.values() if g.live and g.report.abandoned < change.number and not late]
    return sorted(set(waits), key=natural_key)


def _members(state: RunState) -> list[tuple[str, int, bool]]:
    """(name, incarnation, known dead) of every member of a generation that may be at work."""
    return [(m.name, m.incarnation, m.name in gen.gone) for gen in state.gens for m in gen.roster]


def stand(state: RunState, number: int) -> Standing | None:
    """Who has abandoned everything below `number` and stands in the history, or one entry behind its newest version."""
    reporters = [g for g in state.groups.values() if g.live and g.report.abandoned >= number]
    reporters = core_cold.able(state, [g for g in reporters if not g.apart])
    if not reporters:
        return None
    newest = max(g.report.version for g in reporters)
    # A leaver is taken back in only if a step that it committed would be lost without it.
    if any(g.report.version == newest and not g.leaving for g in reporters):
        reporters = [g for g in reporters if not g.leaving]
    on = sorted((g for g in reporters if g.report.version == newest), key=lambda g: natural_key(g.name))
    if newest == ROOT:
        known = [g for g in on if not g.heal] or on  # else they would heal from who heals from them, in a circle
        first = next((g for g in known if is_member(state.current, g)), known[0])
        on = [g for g in on if g.digest == first.digest]
    behind = [g for g in reporters if g.report.version != newest and _can_level(state, g, newest, on)]
    return Standing(version=newest, on=tuple(on), behind=tuple(behind))


def _is_outside(state: RunState, standing: Standing) -> bool:
    """Whether these groups do not stand in the history: only a cold start goes on from there."""
    if standing.version == ROOT:
        return _is_beyond_root(state, standing)
    return not state.history.contains(standing.version)


def _is_beyond_root(state: RunState, standing: Standing) -> bool:
    """Whether the run has, or may have, made steps that none of these groups with initial weights knows of."""
    if state.history.base != ROOT or state.newest.step > 1:
        return True
    if not state.gens:  # a store that was lost, if somebody has been in a generation
        return any(g.report.generation > 0 or g.report.version.step > 0 for g in state.groups.values())
    if any(is_member(state.current, g) for g in standing.on):
        return False  # a member that abandoned its generation at the root bounds what the others made of it: one step
    # Without one, a member that lives may be ahead by any number; and of the dead, only what was heard is known.
    return not all_dead(state) or any(gen.recalled for gen in state.gens)


def _can_level(state: RunState, group: Group, newest: Version, on: list[Group]) -> bool:
    """Whether an entry leads `group` to `newest`. Holders keep it until all members have it, and for their joiners.

    Nobody else can rely on it: ranks drop it as soon as a bucket of the next step is complete. Who has tried in vain
    heals: it may be cut off from its peers for as long as it likes, and they do not wait for it.
    """
    if group.unlevelled == group.report.version or core_pause.pauses(state):
        return False
    member = any(is_member(gen, group) for gen in state.gens)
    owed = {g.name for g in on if member or (group.caught and g.name in group.donors)}
    return any(g.name in owed and holds_entry(g.report, group.report.version, newest) for g in on)


def _reason_to_hold(state: RunState, standing: Standing | None) -> tuple[Hold, str]:
    if standing is None or _is_outside(state, standing):
        return Hold.COLD_START, "a group with live weights: nobody stands in the history any more"
    open_gens = [g for g in state.gens if not is_bounded(g, standing.version.step)]
    if open_gens:
        return Hold.FENCE, _who_could_say(open_gens[0], standing.version.step)
    # Steps that only the dead had are lost; waiting for somebody who may have them is for the living.
    step = standing.version.step
    if step < state.newest.step - 1 and not all_dead(state) and may_have_more(state, step):
        text = f"a group that has step {state.newest.step}: the others stand at {step}"
        return Hold.COLD_START, text
    return _reason_of_few(state, standing)


def _reason_of_few(state: RunState, standing: Standing) -> tuple[Hold, str]:
    count, wanted = len(standing.on) + len(standing.behind), state.config.min_groups
    if count < wanted:
        return Hold.TOO_FEW, f"more groups: {count} of min_groups {wanted} stand at step {standing.version.step}"
    poison = _aside(state, standing)
    if poison.waiting:
        slots = core_poison.named(state, standing.version, _lead(standing).report.cursor, poison.waiting)
        return Hold.POISON, f"a person: {slots}; `bellrock skip-slot` has the step committed without it"
    return Hold.NONE, ""


def _aside(state: RunState, standing: Standing) -> core_poison.Aside:
    """What is not to be dealt of the step in work and of those after it."""
    known = state.deaths or (state.current is not None and state.current.set_aside)
    if not known or is_over(state, standing.version, _stopped(standing)):
        return core_poison.Aside(skipped=(), waiting=())
    answered = {slot for slots in _kept(standing).values() for slot in slots}
    return core_poison.aside(state, _lead(standing).report.cursor, answered)


def _who_could_say(gen: Gen, step: int) -> str:
    names = ", ".join(m.name for m in gen.roster if m.name not in gen.gone)
    if gen.left:
        return f"one of {names}: they may have gone beyond step {gen.left_at}, and the others stand at {step}"
    return f"one of {names}: none of them has abandoned generation {gen.number}"


def held(state: RunState, hold: Hold, text: str, now: float) -> RunState:
    """`state` in which the run holds, for `hold`; people and groups are told once what it waits for."""
    if state.hold is hold and state.hold_text == text:
        return state
    since = state.hold_since_s if state.hold is hold else now
    state = with_(state, hold=hold, hold_text=text, hold_since_s=since, dirty=True)
    if hold is Hold.REPORTS:
        return state
    if hold is not Hold.FORMING or _few(len(state.groups)):
        holding = Holding(reason=f"waits for {text}")
        state = send_all(state, ((group, holding) for group in state.groups.values()))
    return tell(state, "hold", f"waits for {text}")


def _few(groups: int) -> bool:
    """Whether everybody is told that there are so many groups now: of thousands, not all hear of each."""
    return groups <= 16 or groups & (groups - 1) == 0


# ---- claim and base ------------------------------------------------------------------------------------------------


def _form(state: RunState, change: Change, standing: Standing, now: float) -> RunState:
    roster = _roster(state, standing)
    gen = new_gen(change.number, roster)
    if state.current is None or gen.members != state.current.members or state.hold not in (Hold.NONE, Hold.REPORTS):
        state = progressed(state, now)
    else:  # the same members again are no progress; but nothing was at work during the change
        state = with_(state, progress_s=state.progress_s + now - change.since_s)
    cursor = _lead(standing).report.cursor
    gen = msgspec.structs.replace(gen, version=standing.version, cursor=cursor)
    gen = msgspec.structs.replace(gen, set_aside=_aside(state, standing).skipped)
    state = _tell_aside(state, gen)
    first = not state.gens
    if first:
        state = emit(state, StoreSetup(setup=state.setup))
    state = emit(
        state,
        StoreClaim(number=gen.number, roster=roster, planned=False),
        StoreBase(number=gen.number, version=gen.version, cursor=cursor, set_aside=gen.set_aside),
    )
    before = {g.number: g for g in state.gens}
    state = with_(
        state,
        gens=(gen,),
        history=state.history.begun(gen.number, gen.version),
        change=None,
        trouble="",
        hold=Hold.NONE,
        hold_text="",
        cold="",
        dirty=True,
        newest=standing.version,
    )
    state = core_poison.moved_on(state)
    state = tell(settled(state), "formed", change.reason, "", members=" ".join(m.name for m in roster))
    for group in standing.behind:
        state = tell(state, "level", "by one entry", group.name)
    if not core_pause.pauses(state):
        state = core_keep.keep(state, tuple(before.values()), gen, standing.on)
    return _send_bases(state, gen, before, standing)


def _tell_aside(state: RunState, gen: Gen) -> RunState:
    """Tells people once which slots the step is to be made without."""
    current = state.current
    told = core_poison.ahead(current, gen.cursor) if current is not None else ()
    if set(gen.set_aside) <= set(told):
        return state
    text = core_poison.named(state, gen.version, gen.cursor, gen.set_aside)
    return tell(state, "set_aside", text, "", slots=" ".join(map(str, gen.set_aside)), step=gen.version.step + 1)


def _lead(standing: Standing) -> Group:
    """Who knows best of the step in work: of those that know its size, the one that was in the newest generation."""
    return max(standing.on, key=lambda g: (g.report.step_slots > 0, g.report.generation))


def _roster(state: RunState, standing: Standing) -> Roster:
    """The members by name. Roles are those of the base version, less contributors that are too many; who comes from
    outside is a newcomer."""
    groups = sorted((*standing.on, *standing.behind), key=lambda g: natural_key(g.name))
    if standing.version == ROOT:
        return _limited(state, [_member(g, Role.CONTRIBUTOR) for g in groups])
    roles: dict[tuple[str, int], Role] = {}
    for gen in state.gens:
        roles.update({(m.name, m.incarnation): m.role for m in gen.roster if gen is state.gens[0]})
    for group in standing.on:
        for member in group.report.promoted:
            roles[member.name, member.incarnation] = member.role
    return _limited(state, [_member(g, roles.get((g.name, g.incarnation), Role.NEWCOMER)) for g in groups])


def _limited(state: RunState, roster: list[Member]) -> Roster:
    return limited(roster, state.config.contributors_wanted, state.config.allowed_groups)


def _member(group: Group, role: Role) -> Member:
    return Member(name=group.name, incarnation=group.incarnation, role=role, host=group.host)


def _kept(standing: Standing) -> dict[str, tuple[int, ...]]:
    """Slots that members keep. Who comes back with slots that another answers for by now keeps none of its own."""
    kept: dict[str, tuple[int, ...]] = {}
    taken: set[int] = set()
    for group in sorted(standing.on, key=lambda g: (-g.report.generation, natural_key(g.name))):
        answers = group.report.answers
        if taken.isdisjoint(answers):
            kept[group.name] = answers
            taken.update(answers)
    return kept


def _deal(gen: Gen, slots: int, kept: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Everybody keeps its slots; the rest goes to all whose digest was seen equal. A step not begun is dealt evenly."""
    contributors = [m.name for m in gen.roster if m.role is Role.CONTRIBUTOR]
    if contributors and not any(kept.values()):
        if not gen.set_aside:
            return dict(zip(contributors, even_deal(slots, len(contributors)), strict=True))
        return lost_deal(slots, kept, contributors, gen.set_aside)
    able = [m.name for m in gen.roster if m.role is not Role.NEWCOMER] or [m.name for m in gen.roster]
    return lost_deal(slots, kept, able, gen.set_aside)


def _step_slots(state: RunState, gen: Gen, standing: Standing) -> int:
    """Slots of the step that goes on: fixed when it was dealt first, whoever was lost since."""
    contributors = sum(m.role is Role.CONTRIBUTOR for m in gen.roster)
    return _lead(standing).report.step_slots or batch_of(state).step_slots(contributors, gen.cursor)


def _send_bases(state: RunState, gen: Gen, before: dict[int, Gen], standing: Standing) -> RunState:
    stop = _stopped(standing)
    step_slots = _step_slots(state, gen, standing)
    over = is_over(state, gen.version, stop)
    deal = _deal(gen, 0 if over else step_slots, {} if over else _kept(standing))
    first = member_group(state, gen.roster[0])
    rendezvous = first.rendezvous if first else ()
    changes: dict[int, RosterChange] = {number: roster_change(origin, gen.roster) for number, origin in before.items()}
    whole = roster_change(None, gen.roster)
    behind = {g.name for g in standing.behind}
    bases: list[tuple[Group, Base]] = []
    for member in gen.roster:
        group = member_group(state, member)
        if group is None:
            continue
        sources: tuple[Source, ...] = ()
        if group.name in behind:
            holders = [g for g in standing.on if holds_entry(g.report, group.report.version, gen.version)]
            sources = tuple(Source(name=g.name, weights=g.weights) for g in holders)
        base = Base(
            number=gen.number,
            roster=changes.get(group.report.generation, whole),
            version=gen.version,
            cursor=gen.cursor,
            slots=deal.get(group.name, ()),
            rendezvous=rendezvous,
            sources=sources,
            stop=stop,
            step_slots=step_slots,
            set_aside=gen.set_aside,
        )
        bases.append((group, base))
        if group.caught or group.leaving:
            state = change_group(state, group, caught=False, leaving=False)
    return send_all(state, bases)
