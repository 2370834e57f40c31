"""Mistakes that a tired person could make in the lighthouse's core where groups heal, each in one line."""

from __future__ import annotations

from simulation.mutation import Mutation, of

_core = of("lighthouse/core.py")
_change = of("lighthouse/core_change.py")
_evidence = of("lighthouse/core_evidence.py")
_heal = of("lighthouse/core_heal.py")
_keep = of("lighthouse/core_keep.py")
_hello = of("lighthouse/core_hello.py")
_pause = of("lighthouse/core_pause.py")
_record = of("lighthouse/core_record.py")
_state = of("lighthouse/core_state.py")

HEALS: tuple[Mutation, ...] = (
    # ---- donors
    _evidence(
        "who has loaded what the switch led to is waited for",
        "return report.failed or not 0 <= report.version.step < gen.version.step",
        "return report.failed or report.version.step < 0",
    ),
    _evidence(
        "who loads anew is waited for at the switch",
        "return report.failed or not 0 <= report.version.step < gen.version.step",
        "return report.failed or report.version.step >= gen.version.step",
    ),
    _evidence("a caught-up joiner can enter", " or _missed(gen, group.report))", ")"),
    _evidence("a joiner's report says nothing of the switch", " and _missed(gen, report)", " and report.failed"),
    _heal("newcomers are donors", "for m in roster if m.role is not Role.NEWCOMER)", "for m in roster)"),
    _heal(
        "dead donors are waited for",
        "elif gone and not takes_part(state, group)",
        "elif gone and takes_part(state, group)",
    ),
    _heal("any donors are enough", "and not _suffice(group, gone):", "and False:"),
    _heal("donors that are left are not enough", "and not _suffice(group, gone):", "and True:"),
    _heal("who was started again is still the donor", "or (incarnation and incarnation not in there[name])", ""),
    _heal(
        "each stripe is thought to be at one donor",
        "names[i] not in gone or names[i - 1] not in gone for",
        "names[i] not in gone for",
    ),
    _heal(
        "the first donors get every joiner",
        "key=lambda d: (busy[d.name], d.name not in",
        "key=lambda d: (0, d.name not in",
    ),
    _heal("contributors give first", "d.name not in spares", "d.name in spares"),
    _heal("all donors hold the same stripes", "place=place, now=now,", "place=0, now=now,"),
    _state(
        "who loads is waited for to say how far it had come",
        "return msgspec.structs.replace(gen, gone=gen.gone | {name})",
        "return gen",
    ),
    _heal("a hold waits for a roll call", "not _is_staged(state, group, state.change):", "False:"),
    _evidence("who has entered since is still in its heal", "    if _has_left_heal(group, report):", "    if False:"),
    _evidence("what it said before it heard of a heal ends it", " and report.abandoned > group.first", ""),
    _heal("so does what a leaver said", "else state.last_number + 1", "else state.last_number"),
    _heal("who enters from a hold is still in its heal", "first = state.last_number if held else", "first ="),
    _heal(
        "what it said before it heard of its way back ends that",
        "donors=named, **fresh)\n        return",
        "donors=named, **{**fresh, 'first': 0})\n        return",
    ),
    _heal(
        "what is written over keeps its digest",
        '"digest": -heal, "donors_digest"',
        '"donors_digest"',
    ),
    _heal("a lost release is not said again", "state = _drop_forgotten(state)", "pass"),
    _heal(
        "a joiner is not asked what became of its weights",
        '{"loading": True, "digest"',
        '{"loading": False, "digest"',
    ),
    _hello(
        "a joiner begins anew with each stream", "    if group.report.heal == group.heal:\n        return state\n", ""
    ),
    _hello("a donor that heard of no heal is waited for", "    return _resume_donor(state, group)", "    return state"),
    _hello("a donor that heard of no heal by now", "all(heal in donor.report.stagings", "all(heal"),
    _hello("who is a member and has not entered is in no heal", " and report.generation >= current.number", ""),
    _hello("who has loaded waits for donors", "if taken.moving or all(", "if all("),
    _state("who has loaded does not move", "return loaded or self.caught or", "return self.caught or"),
    _record("falling behind is held off at once", "behind < STARTS_OVER and not", "behind < 0 and not"),
    _record("falling behind is never held off", "behind < STARTS_OVER and not", "behind < 10**9 and not"),
    # ---- the way back by entries
    _keep("the dead are kept for, too", " and m.name not in old.gone]", "]"),
    _keep("a version outside the history is led on from", "or not state.history.contains(version) or", "or"),
    _keep("every incarnation is owed the same", "(k.name, k.incarnation) == (name, incarnation)", "k.name == name"),
    _keep(
        "a keeper that is no donor any more", "donor is not None and donor.name in donors and", "donor is not None and"
    ),
    _keep(
        "who is a member again is kept for", "        if keeping.name in gen.members:", "        if not gen.members:"
    ),
    _keep("entries are kept for ever", "max(0, len(state.kept) + 1 - MOST)", "0"),
    _hello(
        "a broken stream costs the way back",
        "return change_group(state, group, heal=0, donors={}, progress=None)",
        "return release(state, group)",
    ),
    _evidence(
        "a failed way back is tried for ever",
        "    if any(keeping.heal == group.heal",
        "    if not any(keeping.heal != 0",
    ),
    # ---- pausing
    _pause("a joiner is waited for for ever", "max(since_s, state.moved_s) +", "now +"),
    _pause("bytes that move do not count", "max(since_s, state.moved_s)", "since_s"),
    _pause("who was held off is waited for", " and group.retry_s <= now", ""),
    _pause("who was given up is waited for again at once", "retry_s=now + wait_s, caught", "retry_s=now, caught"),
    _pause("who stands there is waited for", "if g.name not in standing and", "if"),
    _change("entries are applied where nothing is replayed", " or core_pause.pauses(state):", ":"),
    _heal("who is about to leave gives nothing", "for g in staying or able}", "for g in staying}"),
    _heal("the last who has the weights leaves", "return last if any(heirs) else", "return"),
    _heal("who has the weights stays for nobody", "return last if any(heirs) else frozenset()", "return last"),
    _heal("what was loaded before others went on will do", "(loaded and group.report.version !=", "(False and 0 !="),
    _heal("what was loaded in a pause is loaded again", "(loaded and group.report.version !=", "(loaded and 0 !="),
    _heal("donors are named while nobody pauses", "standing is not None or not core_pause.pauses(state)", "True"),
    # ---- caught up, and the root
    _record(
        "a heal that is over is caught up in", "if not group.heal or group.report.heal != group.heal:", "if False:"
    ),
    _record(
        "who has caught up with nobody we know has all it needs",
        "if version == ROOT and group.donors_digest is None:",
        "if False:",
    ),
    _record(
        "whoever has loaded is equal to nobody", "group.digest if group.donors_digest is None else", "group.digest or"
    ),
    _change("who heals is healed from", "[g for g in on if not g.heal] or on  #", "on  #"),
    _core(
        "nobody is waited for after the last death", "return state.hopeless_since_s +", "return state.hold_since_s +"
    ),
)
