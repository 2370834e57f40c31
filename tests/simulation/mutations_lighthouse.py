"""Mistakes that a tired person could make in the lighthouse's core, each in one line."""

from __future__ import annotations

from simulation.mutation import Mutation, of

_core = of("lighthouse/core.py")
_apart = of("lighthouse/core_apart.py")
_change = of("lighthouse/core_change.py")
_evidence = of("lighthouse/core_evidence.py")
_heal = of("lighthouse/core_heal.py")
_hello = of("lighthouse/core_hello.py")
_plan = of("lighthouse/core_plan.py")
_record = of("lighthouse/core_record.py")
_history = of("lighthouse/history.py")
_deal = of("lighthouse/deal.py")
_cold = of("lighthouse/core_cold.py")

LIGHTHOUSE: tuple[Mutation, ...] = (
    _record(
        "a late word of a commit puts a group back",
        "_committed(state if late else change_group(",
        "_committed(change_group(",
    ),
    # ---- who is lost, who forms, who ends
    _change(
        "nobody is spared in the first lease",
        "grace = in_grace(state, now) or (change.again and not late)",
        "grace = change.again and not late",
    ),
    _core("leases end only after their end", "now >= group.heard_s + lease_s", "now > group.heard_s + lease_s"),
    _core(
        "the first formation wants one more",
        "return count >= config.min_groups and",
        "return count > config.min_groups and",
    ),
    _core(
        "an idle drain waits out a hold", "if held or not takes_part(state, group)]", "if not takes_part(state, group)]"
    ),
    _core(
        "the run ends though somebody lives",
        "return state.hold is Hold.COLD_START and all_dead(state)",
        "return state.hold is Hold.COLD_START",
    ),
    _core("a joiner's back-off wakes nobody", "[state.retry_s, state.plan", "[state.plan"),
    _core(
        "plans are pursued amid a change",
        "        if state.change is None:\n            state = core_plan",
        "        if True:\n            state = core_plan",
    ),
    _core(
        "one that leads no more ends the run",
        "    state = emit(with_(state, ended=reason, last_number=number), StoreNumber(number=number))\n",
        "    state = with_(state, ended=reason)\n",
    ),
    # ---- unplanned changes
    _change(
        "a number is used and not stored",
        "emit(state, StoreNumber(number=number)),\n        last",
        "state,\n        last",
    ),
    _change("a change leaves the plan alive", "        plan=None,\n        trouble", "        trouble"),
    _change(
        "the base is stored before its claim",
        """        StoreClaim(number=gen.number, roster=roster, planned=False),
        StoreBase(number=gen.number, version=gen.version, cursor=cursor, set_aside=gen.set_aside),
""",
        """        StoreBase(number=gen.number, version=gen.version, cursor=cursor, set_aside=gen.set_aside),
        StoreClaim(number=gen.number, roster=roster, planned=False),
""",
    ),
    _change(
        "the oldest is the base, since all can level", "newest = max(g.report.version", "newest = min(g.report.version"
    ),
    _cold(
        "a version beside the history is a base",
        "if not g.loading and state.history.contains(g.report.version)]",
        "if not g.loading]",
    ),
    _cold("half loaded weights are a base", "if not g.loading and state.history", "if state.history"),
    _change("who has not abandoned is a reporter", "if g.live and g.report.abandoned >= number]", "if g.live]"),
    _change("other initial weights are equal", "on = [g for g in on if g.digest == first.digest]", "on = list(on)"),
    _change(
        "no fence",
        "open_gens = [g for g in state.gens if not is_bounded(g, standing.version.step)]",
        "open_gens = [g for g in state.gens[:0] if not is_bounded(g, standing.version.step)]",
    ),
    _change(
        "only the present generation is fenced",
        "open_gens = [g for g in state.gens if not is_bounded(g, standing.version.step)]",
        "open_gens = [g for g in state.gens[:1] if not is_bounded(g, standing.version.step)]",
    ),
    _change("min_groups is off by one", "if count < wanted:", "if count < wanted - 1:"),
    _change(
        "spares behind do not count for min_groups",
        "len(standing.on) + len(standing.behind), state",
        "len(standing.on), state",
    ),
    _change(
        "steps that the living have are cut off",
        "step < state.newest.step - 1 and not",
        "step < state.newest.step - 9 and not",
    ),
    _change(
        "the dead are waited for as long as one member lives",
        "not all_dead(state) and may_have_more(state, step):",
        "not all_dead(state):",
    ),
    _evidence(
        "only members may have more steps", "return not (members | ahead) <= heard", "return not members <= heard"
    ),
    _evidence(
        "only who told of it may have more", "return not (members | ahead) <= heard", "return not ahead <= heard"
    ),
    _evidence(
        "who is apart is heard", "g.report.abandoned >= number and not g.apart}", "g.report.abandoned >= number}"
    ),
    _evidence("what was said before counts as heard", "if g.report.abandoned >= number and not g.apart}", "if True}"),
    _change(
        "who holds an entry is not asked",
        "return any(g.name in owed and holds_entry(",
        "return any(g.name in owed or holds_entry(",
    ),
    _change(
        "slots are kept by whoever came back",
        "key=lambda g: (-g.report.generation, natural_key(g.name)))",
        "key=lambda g: natural_key(g.name))",
    ),
    _change("newcomers are dealt slots", "if m.role is not Role.NEWCOMER] or", "] or"),
    _change(
        "newcomers contribute at once",
        "g.incarnation), Role.NEWCOMER)) for g",
        "g.incarnation), Role.CONTRIBUTOR)) for g",
    ),
    _change(
        "the cursor of whoever comes first",
        "cursor = _lead(standing).report.cursor",
        "cursor = standing.on[0].report.cursor",
    ),
    _change(
        "a silent member is awaited for ever",
        "elif not late and (group.report",
        "elif (group.report",
    ),
    _change("the wish to stop is forgotten", "    stop = _stopped(standing)\n", "    stop = False\n"),
    # ---- what is known of generations
    _evidence(
        "an older report counts", "    if report.abandoned < group.report.abandoned:\n        return state\n", ""
    ),
    _evidence(
        "a report of the generation itself leaves it",
        "if report.abandoned > gen.number:",
        "if report.abandoned >= gen.number:",
    ),
    _evidence("a failed generation is no trouble", "if failed or overtaken or outside:", "if overtaken or outside:"),
    _evidence(
        "who saw the old one fail is waited for", "if failed or overtaken or outside:", "if failed or overtaken:"
    ),
    _evidence(
        "a switch goes on from the cursor before it",
        "cursor=start.cursor, set_aside=aside, reported=True",
        "cursor=old.cursor, set_aside=aside, reported=True",
    ),
    _evidence("a donor keeps what nobody needs", "    state = release(state, group)\n    for gen", "    for gen"),
    _evidence(
        "the lost count as dead",
        "    if dead:\n        state = replace_gen",
        "    if True:\n        state = replace_gen",
    ),
    _evidence(
        "dead members may enter a switch",
        "cannot = [m.name for m in gen.roster if m.name in gen.gone or",
        "cannot = [m.name for m in gen.roster if",
    ),
    # ---- hellos
    _hello(
        "another host knows of a death", "dead = hello.took_over and hello.host == old.host", "dead = hello.took_over"
    ),
    _hello(
        "a new life takes a name that has moved", "if hello.previous and _is_elsewhere", "if False and _is_elsewhere"
    ),
    _hello("a welcome that was lost costs the name", "return known.host != hello.host", "return True"),
    _hello(
        "who leaves with a plan heard of it",
        "    if plan is not None and takes_part(state, group):",
        "    if plan is not None and any(g.number == plan.number and is_member(g, group) for g in state.gens):",
    ),
    _hello(
        "who tells of a base is welcomed before it is stored",
        "        state = learn_start(state, start)  # stored",
        "        pass  # stored",
    ),
    _hello("a reconnecting agent is fenced", "if claimed and claimed < newer:", "if claimed and claimed <= newer:"),
    _hello("the older incarnation is not fenced", "        state = send(state, known, Fenced(by=by))\n", ""),
    _hello("a member that comes back must heal", "join=bool(state.gens) and not member,", "join=bool(state.gens),"),
    _hello(
        "a base lost with its stream is not told again",
        "report.generation < current.number <= report.abandoned:",
        "current.number < report.generation <= report.abandoned:",
    ),
    _hello("a setup field that only the group has", "set(state.setup) | set(hello.setup)", "set(state.setup)"),
    _hello(
        "incarnations are not stored",
        "emit(with_(state, next_incarnation=incarnation + 1), StoreIncarnation(next=incarnation + 1))\n    elif",
        "with_(state, next_incarnation=incarnation + 1)\n    elif",
    ),
    # ---- plans
    _plan("ready before the last has opened", "plan.opened == plan.needed:", "plan.opened >= plan.needed - 1:"),
    _plan(
        "leavers are not told of the plan",
        "return (*gen.roster, *(m for m in current if gen.members.get(m.name) != m.incarnation))",
        "return gen.roster",
    ),
    _plan(
        "a drain goes below min_groups",
        "len(stays) + len(joins) < state.config.min_groups:",
        "len(stays) + len(joins) < state.config.min_groups - 1:",
    ),
    _plan(
        "a drain of the last spare group waits",
        "len(stays) + len(joins) < state.config.min_groups:",
        "len(stays) + len(joins) <= state.config.min_groups:",
    ),
    _plan(
        "who leaves and who joins do not swap",
        "len(stays) + len(joins) < state.config.min_groups:",
        "len(stays) < state.config.min_groups:",
    ),
    _plan("the last member leaves its heirs", "    if not stays and any(", "    if False and any("),
    _plan(
        "the last member waits for nobody",
        "return group.live and not group.draining and not is_member",
        "return group.live or not is_member",
    ),
    _plan("a broken plan is waited for", "vanished = state.plan.broken or any(", "vanished = any("),
    _plan("planned before roles have settled", "current is None or not current.committed or", "current is None or"),
    _plan("draining groups are planned in", "not (group.draining or group.mismatched)", "not group.mismatched"),
    _plan("a wrong digest stays", "not (group.draining or group.mismatched)", "not group.draining"),
    _plan("joins while they heal", "if g.caught and g.live and not g.draining", "if g.live and not g.draining"),
    _plan(
        "a planned number is not stored",
        "emit(state, StoreNumber(number=number), StoreClaim(",
        "emit(state, StoreClaim(",
    ),
    _plan(
        "members that are not back yet are planned with",
        "if any(member_group(state, m) is None for m in wanted):",
        "if False:",
    ),
    # ---- what groups say
    _record(
        "a fenced incarnation is heard",
        "if group is None or group.incarnation != said.incarnation:",
        "if group is None:",
    ),
    _record("an older stream is heard", "    if group.conn != said.conn:", "    if group.conn != said.conn and False:"),
    _record("one group opens for two", "plan.number != number or group.opened == number:", "plan.number != number:"),
    _record(
        "prepared generations are forgotten in a restart",
        "elif claim.number > last and claim.planned:",
        "elif claim.number > last and not claim.planned:",
    ),
    _record(
        "a late commit moves the newest back",
        "if done.version.step > state.newest.step:",
        "if done.version.step != state.newest.step:",
    ),
    _record(
        "the pause of the lighthouse is the groups' fault",
        "paused_s=state.paused_s + event.late_s) if",
        "paused_s=state.paused_s) if",
    ),
    _record("incarnations return with a lost store", "if stored.next_incarnation > 1 else event.wall_ms,", ","),
    _record("an old heal's failure ends the new one", "    if group.heal != failed.heal:", "    if False:"),
    _record(
        "an opening that failed is tried at once",
        "plan_failures=failures, plan_again_s=again_s)",
        "plan_failures=failures)",
    ),
    # ---- who does not reach whom
    _apart("the one that most reach is put out", "name = max(lacks,", "name = min(lacks,"),
    _apart("only who complains is blamed", "                    lacks[other].add(group.name)\n", ""),
    _apart("answers of older changes count", "group.tried == state.change.number:", "group.tried:"),
    _apart("answers are not waited for", "and change.stalled and group.tried < change.number", "and group.tried < 0"),
    _apart("everybody lacks whoever was put out", "            others.discard(name)\n", "            pass\n"),
    _change("who is apart is taken back at once", "[g for g in reporters if not g.apart]", "reporters"),
    _change(
        "who is apart is never needed", "if hold in core_cold.HOLDS and any(group.apart", "if any(False and group.apart"
    ),
    _change("marks count where a cable is cut", "if state is together else state", "if True else state"),
    _heal("who is apart loads what it has", "known is None and has_all and", "known is None and False and"),
    _heal("entries are kept where nothing is replayed", "has_all and not core_pause.pauses(state):", "has_all:"),
    _heal("who is elsewhere waits for entries", "ROOT < group.report.version == base", "ROOT < group.report.version"),
    _apart("a joiner that is put out stays caught up", "apart=True, caught=False)", "apart=True)"),
    _record("who is apart stays so", "loading=False, apart=False,", "loading=False,"),
    # ---- history and deals
    _history(
        "a version of the base's step",
        "link.above < version.step <= link.upto",
        "link.above <= version.step <= link.upto",
    ),
    _history("steps behind the branch count", "link.above < version.step <= link.upto", "link.above < version.step"),
    _history(
        "what was left is not cut", "above=kept[-1].above, upto=base.step)", "above=kept[-1].above, upto=kept[-1].upto)"
    ),
    _deal("one slot too many for one", "(index < longer)))", "(index <= longer)))"),
    _deal("two keep one slot", "        left -= keeps\n", ""),
    # ---- cold starts
    _cold(
        "a cold start where nothing holds",
        "state.change is None or state.hold not in HOLDS or",
        "state.change is None or",
    ),
    _cold("a deadline begins at the root again", " or not _is_trained(state)", ""),
    _cold("a cold start keeps to the history", "return others if state.cold else standing", "return standing"),
    _cold(
        "the root outranks weights of a lost history",
        "if standing and not (state.cold and all(g.report.version == ROOT for g in standing)):",
        "if standing:",
    ),
    _cold("weights that are being loaded count", "if not g.loading and g.report.version >= ROOT]", "if True]"),
    _history("a cold start cuts nothing off", "above=base.step - 1, upto=base.step)", "above=0, upto=base.step)"),
    _core("a cold start's deadline wakes nobody", "state.plan_again_s, core_cold.due_s(state)]", "state.plan_again_s]"),
    _change("a wish for a cold start stays for ever", """        cold="",\n""", ""),
    _change("a cold start needs no min_groups", "_reason_of_few(state, standing)\n    if", '(Hold.NONE, "")\n    if'),
    _change(
        "an empty store is a new run, whoever is there",
        "return any(g.report.generation > 0 or g.report.version.step > 0 for g in state.groups.values())",
        "return False",
    ),
    _record(
        "the base of a cold start is read like any other", "state.history.begun(base", "state.history.extended(base"
    ),
)
