"""Poison: a slot that kills whoever computes it would kill one group after the other. DESIGN §4.

Deaths that a group's ranks died by themselves tell the slot in hand. Of the step in work they are counted by slot, and
kept in the store, so that another lighthouse goes on counting. A slot in hand at two of them is *set aside*: no
generation forms that would deal it again, until a person has it skipped; or, by policy, the next generation makes the
step without it. That is said in the generation's base, and to those that are planned beside it. The slot may lie in a
later step than the next, if steps are lost: whoever makes them again would die of it again. A slot that a member on the
base answers for is not set aside: it may be in that member's sum, from which nothing can be taken out again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from lighthouse.core_state import Gen, Group, RunState, emit, tell, with_
from lighthouse.core_values import Hold, SlotDeath, StoreDeaths
from lighthouse.values import Value, Version

DEATHS = 2
"""With a slot in hand at so many deaths, it is the slot."""


class Aside(Value, frozen=True):
    """Slots from a base's cursor on, not to be dealt: `skipped` are done without, `waiting` need a person first."""

    skipped: tuple[int, ...]
    waiting: tuple[int, ...]


def died(state: RunState, group: Group, slot: int) -> RunState:
    """Notes that `group` died by itself with `slot` of the run in hand; below zero: with none."""
    step = group.version.step
    if slot < 0 or step < state.newest.step or len(_of(state, slot)) >= DEATHS:
        return state
    deaths = (*state.deaths, SlotDeath(step=step, slot=slot, group=group.name))
    return emit(with_(state, deaths=deaths), StoreDeaths(deaths=deaths))


def moved_on(state: RunState) -> RunState:
    """`state` without what is known of slots of steps that were committed since."""
    if not state.deaths and not state.skipped:
        return state
    deaths = tuple(death for death in state.deaths if death.step >= state.newest.step)
    known = {death.slot for death in deaths}
    return with_(state, deaths=deaths, skipped=tuple(slot for slot in state.skipped if slot in known))


def ahead(gen: Gen, cursor: int) -> tuple[int, ...]:
    """What `gen` sets aside from slot `cursor` of the run on, counted from there."""
    return tuple(gen.cursor + slot - cursor for slot in gen.set_aside if gen.cursor + slot >= cursor)


def aside(state: RunState, cursor: int, answered: Collection[int]) -> Aside:
    """What is not to be dealt by a generation that begins at slot `cursor` of the run.

    answered: slots of its first step that members on the base answer for
    """
    before = set(ahead(state.current, cursor)) if state.current is not None else set[int]()
    counts = Counter(death.slot - cursor for death in state.deaths)
    found = {slot for slot, count in counts.items() if count >= DEATHS and slot >= 0} | before
    found -= set(answered)
    agreed = found if state.config.skip_poison else before | {slot - cursor for slot in state.skipped}
    return Aside(skipped=tuple(sorted(found & agreed)), waiting=tuple(sorted(found - agreed)))


def named(state: RunState, version: Version, cursor: int, slots: Collection[int]) -> str:
    """These slots from `cursor` on, for people: which they are, and who died of them."""
    words = []
    for slot in slots:
        deaths = _of(state, cursor + slot)
        who = " and ".join(death.group for death in deaths) or "two groups"
        step = max([version.step, *(death.step for death in deaths)]) + 1
        which = f"slot {slot} of step {step}" if step == version.step + 1 else f"slot {cursor + slot}, in step {step},"
        words.append(f"{which} of run {state.config.run_id!r}, in hand when {who} died")
    return "; ".join(words)


def asked(state: RunState, by: str) -> RunState:
    """`state` once a person wants the slots skipped that the run holds for; nothing changes without such a hold."""
    if state.change is None or state.hold is not Hold.POISON or state.finished is not None or state.ended:
        return state
    twice = {death.slot for death in state.deaths if len(_of(state, death.slot)) >= DEATHS}
    state = tell(state, "skip_slot", state.hold_text, "", by=by)
    return with_(state, skipped=tuple(sorted(twice.union(state.skipped))))


def _of(state: RunState, slot: int) -> list[SlotDeath]:
    return [death for death in state.deaths if death.slot == slot]
