"""Mistakes about the size of steps, who is dealt which slots, and where the data ends, each in one line."""

from __future__ import annotations

from simulation.mutation import Mutation, of

_batch = of("lighthouse/batch.py")
_change = of("lighthouse/core_change.py")
_evidence = of("lighthouse/core_evidence.py")
_heal = of("lighthouse/core_heal.py")
_plan = of("lighthouse/core_plan.py")
_poison = of("lighthouse/core_poison.py")
_lighthouse = of("lighthouse/core_state.py")
_step = of("replica/agent_step.py")
_agent_plan = of("replica/agent_plan.py")
_session = of("replica/agent_session.py")
_roster = of("replica/roster.py")
_work = of("replica/work.py")

DATA: tuple[Mutation, ...] = (
    # ---- the policy
    _batch("an elastic batch does not grow", "self.slots * max(contributors, 1) if self.elastic", "self.slots if self"),
    _batch("the last step goes beyond the data", "min(whole, self.data_slots - cursor)", "whole"),
    _batch("a part of a batch is made of what is left", "(self.slots if self.drop_last else 1)", "1"),
    _batch("the last whole batch is dropped", "self.data_slots - cursor < (", "self.data_slots - cursor <= ("),
    _batch("one fewer than allowed", "if count <= most), default", "if count < most), default"),
    _batch("all counts are allowed", "for count in allowed if", "for count in () if"),
    _batch("one contributor too many stays", "if over > 0 and", "if over > 1 and"),
    _batch("the first are demoted", "    for member in reversed(roster):", "    for member in roster:"),
    _batch(
        "a place is free for somebody who may not take it",
        "free = contributors_of(len(roles) - roles.count(Role.NEWCOMER), wanted",
        "free = contributors_of(len(roles), wanted",
    ),
    # ---- the lighthouse
    _change(
        "the size of whoever comes first",
        "return max(standing.on, key=lambda g: (g.report.step_slots > 0, g.report.generation))",
        "return standing.on[0]",
    ),
    _change(
        "who does not know the size is asked",
        "key=lambda g: (g.report.step_slots > 0, g.report.generation)",
        "key=lambda g: g.report.generation",
    ),
    _change("a step shrinks with its groups", "return _lead(standing).report.step_slots or batch", "return batch"),
    _change("the size of the step is not told", "            step_slots=step_slots,\n", ""),
    _change(
        "roles at a base are not limited",
        "return limited(roster, state.config.contributors_wanted, state.config.allowed_groups)",
        "return tuple(roster)",
    ),
    _lighthouse("a demotion does not show", "old = set(gen.told) & set(gen.roster)", "old = set(gen.told)"),
    _change("a lost store begins anew", "g.report.generation > 0 or g.report.version.step > 0 for", "False for"),
    _change(
        "a change counts against the patience",
        "progress_s=state.progress_s + now - change.since_s",
        "progress_s=state.progress_s",
    ),
    _plan(
        "a plan has too many contributors",
        "    wanted = limited(wanted, config.contributors_wanted, config.allowed_groups)\n",
        "",
    ),
    _plan("nobody takes a leaver's place", "wanted = filled(wanted,", "wanted = limited(wanted,"),
    # ---- the agent
    _step(
        "the size of the step before is reported",
        "        answers=(),\n        step_slots=0,\n",
        "        answers=(),\n",
    ),
    _step("a roll call of the usual size", "slots=seat.work.step_slots,", "slots=state.batch.slots,"),
    _step(
        "promoted beyond what is allowed",
        "promote(seat.roster, merged, wanted, allowed)",
        "promote(seat.roster, merged, wanted)",
    ),
    _step(
        "the switch is told at the cursor before",
        "version=merged.end, cursor=state.stand.cursor)",
        "version=merged.end, cursor=stand.cursor)",
    ),
    _agent_plan(
        "the data is always at its beginning", "contributors(roster), stand.cursor)", "contributors(roster), 0)"
    ),
    _agent_plan(
        "every member brings slots",
        "state.batch.step_slots(contributors(roster), ",
        "state.batch.step_slots(len(roster), ",
    ),
    _agent_plan("the deal of a base is not heard", "has_newcomers(roster), base)", "has_newcomers(roster))"),
    _agent_plan(
        "the last step is not the last",
        "last=not farewell and state.batch.through(",
        "last=False and state.batch.through(",
    ),
    _agent_plan(
        "the data is through a step too soon",
        "state.batch.through(stand.cursor + step_slots)",
        "state.batch.through(stand.cursor + 2 * step_slots)",
    ),
    _work("the end of the data is not told", "stop=stop or book.work.last,", "stop=stop,"),
    _agent_plan(
        "the start of a switch has no cursor", "version=stand.version, cursor=stand.cursor)", "version=stand.version)"
    ),
    _session("the size is not reported", "step_slots=stand.step_slots if stand.usable else 0", "step_slots=0"),
    # ---- rosters and roll calls
    _roster("nobody is promoted", "    after = filled(after, contributors_wanted, allowed)\n", ""),
    # ---- poison
    _poison("one death sets a slot aside", "\nDEATHS = 2\n", "\nDEATHS = 1\n"),
    _poison(
        "nobody is asked before a slot is skipped",
        "agreed = found if state.config.skip_poison else",
        "agreed = found if True else",
    ),
    _poison(
        "only the next step's slots are set aside",
        "for death in state.deaths)\n    found",
        "for death in state.deaths if death.step == state.newest.step)\n    found",
    ),
    _evidence("a planned generation deals what was set aside", "aside = ahead(old, start.cursor)", "aside = ()"),
    _plan("a plan does not say what is set aside", ", set_aside=aside))", "))"),
    _poison("what is in a sum is set aside", "    found -= set(answered)\n", ""),
    _poison(
        "the next generation deals again what was set aside",
        "set(ahead(state.current, cursor)) if state.current is not None else",
        "",
    ),
    _poison(
        "another lighthouse counts anew",
        "return emit(with_(state, deaths=deaths), StoreDeaths(deaths=deaths))",
        "return with_(state, deaths=deaths)",
    ),
    _poison("deaths are kept for ever", "if death.step >= state.newest.step)", "if True)"),
    _poison("a person is asked about slots of the past", "if count >= DEATHS and slot >= 0}", "if count >= DEATHS}"),
    _poison("deaths in steps that are over count", "slot < 0 or step < state.newest.step or", "slot < 0 or"),
    _change("what was set aside is dealt", "kept, able, gen.set_aside)", "kept, able)"),
    _change(
        "members are not told what is set aside",
        "            set_aside=gen.set_aside,\n        )\n        bases",
        "        )\n        bases",
    ),
    _change("a set-aside slot is not stored", "cursor=cursor, set_aside=gen.set_aside),", "cursor=cursor),"),
    _heal("nobody heals while a person is waited for", "Hold.PAUSE, Hold.POISON)", "Hold.PAUSE)"),
)
