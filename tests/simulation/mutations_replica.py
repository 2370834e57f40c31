"""Mistakes that a tired person could make on the agent's and the ranks' side, each in one line."""

from __future__ import annotations

from simulation.mutation import Mutation, of

_state = of("replica/agent_state.py")
_step = of("replica/agent_step.py")
_plan = of("replica/agent_plan.py")
_heal = of("replica/agent_heal.py")
_life = of("replica/agent_life.py")
_progress = of("replica/agent_progress.py")
_session = of("replica/agent_session.py")
_core = of("replica/agent_core.py")
_roster = of("replica/roster.py")
_rollcall = of("replica/rollcall.py")
_batch = of("lighthouse/batch.py")
_work = of("replica/work.py")

REPLICA: tuple[Mutation, ...] = (
    # ---- the agent's verdicts
    _state(
        "an abandoned generation commits",
        "seat.work is not None and seat.generation >= state.floor and",
        "seat.work is not None and",
    ),
    _state("plans outlive what abandons them", "if plan.number >= number),\n", "),\n"),
    _state("a base outlives what abandons it", "level=state.level if keeps_level else None,", "level=state.level,"),
    _state(
        "the generation that failed is still voted for",
        "abandoned(state, number + 1), failures",
        "abandoned(state, number), failures",
    ),
    _plan("the farewell is one step late", "stand.version.step >= state.steps\n", "stand.version.step > state.steps\n"),
    _step(
        "votes of another step count",
        "message.generation != seat.generation or message.step != state.stand.version.step:",
        "message.generation != seat.generation:",
    ),
    _step("votes of another generation count", "message.generation != seat.generation or message.step", "message.step"),
    _step("one shard's vote is enough", "if len(votes) < state.config.shards:", "if not votes:"),
    _step("a vote is taken twice", "    if seat.votes[shard_rank] is not None:\n        return state\n", ""),
    _step("one donor's name is enough", "count.records == wanted for", "count.records >= 1 for"),
    _step("the wish to stop is not heard", "stop=stand.stop or merged.stop,", "stop=stand.stop,"),
    _step("only the first member tells of a new generation", "(seat.place == 0 or seat.fresh):", "seat.place == 0:"),
    _step("the leaver of this step stays for one more", "leave=leave is not None,", "leave=False,"),
    _step("the cursor stands still", "cursor=stand.cursor + merged.slots,", "cursor=stand.cursor,"),
    _step(
        "the old step's slots are answered for",
        "        state = put(state, stand=put(state.stand, answers=work.slots, step_slots=work.step_slots))\n",
        "",
    ),
    _life(
        "a life before the last is forgotten",
        "previous=state.incarnation or state.previous,",
        "previous=state.incarnation,",
    ),
    _life("the life before is forgotten", "previous=state.incarnation or state.previous,", "previous=state.previous,"),
    # ---- plans
    _plan("named before it is ready", "if plan.ready and len(plan.opened)", "if len(plan.opened)"),
    _plan(
        "one rank has opened for all",
        "len(plan.opened) == state.config.shards and not plan.ready_told",
        "plan.opened and not plan.ready_told",
    ),
    _plan(
        "a plan that may be named is forgotten",
        "return put(state, plans=(*kept, plan))",
        "return put(state, plans=(plan,))",
    ),
    _plan(
        "a plan that others may name is forgotten",
        "if len(old.opened) == state.config.shards)",
        "if old.ready_told)",
    ),
    _plan(
        "a leaver does not abandon",
        "return put(abandoned(state, number + 1), report_due=True)",
        "return put(state, report_due=True)",
    ),
    _plan("an older plan replaces a newer", "if message.number <= newest or", "if"),
    _plan(
        "bases passed through are not told",
        "state = put(state, starts=(*state.starts, start)[-16:])",
        "state = put(state, starts=state.starts)",
    ),
    # ---- healing and leveling
    _heal(
        "an entry is applied that one rank lacks",
        "if not _sources(state) or None in state.held:",
        "if not _sources(state) or state.held[0] is None:",
    ),
    _heal("an abandoned base is entered", "if message.number < state.floor or message.number", "if message.number"),
    _heal(
        "a heal outlives the base that ends it",
        "level=Level(base=message, roster=roster), joining=None, starts=()",
        "level=Level(base=message, roster=roster), starts=()",
    ),
    _heal(
        "a member lets itself be overwritten",
        "if live(state) or state.level is not None or",
        "if state.level is not None or",
    ),
    _heal("the load's version is that of one rank", "    if len(stands) > 1:", "    if len(stands) > 2:"),
    _heal("an entry of another version is held", " or message.name.start != state.stand.version:", ":"),
    _heal(
        "an old heal's load counts",
        """ or message.heal != joining.heal:
        return state
    joining""",
        """:
        return state
    joining""",
    ),
    _heal("one rank's word for caught up", "all_seen = all(", "all_seen = any("),
    # ---- lives and sessions
    _life("a dead group's generation may be voted for", "number + 1 for number in told", "number for number in told"),
    _life("a death is not told", "        effects.append(ToLighthouse(message=died))\n", ""),
    _life("failures in a row are forgotten", "return life.alike + 1 if cause.key", "return life.alike if cause.key"),
    _life(
        "the last rank's end is not noticed",
        "if len(life.gone) == state.config.shards and (",
        "if len(life.gone) > state.config.shards and (",
    ),
    _session(
        "a group told to join stays where it was",
        "return put(abandoned(state, floor), report_due",
        "return put(state, report_due",
    ),
    _session(
        "asked again, it does not answer",
        "return put(state, failures=failures, report_due=True)",
        "return put(state, failures=failures)",
    ),
    _session(
        "a session that was replaced is believed",
        "if event.session != session.number or session.phase is SessionPhase.CLOSED:",
        "if session.phase is SessionPhase.CLOSED:",
    ),
    _session(
        "ranks are not told of what is abandoned",
        "    effects.append(ToRanks(message=Abandoned(number=state.floor)))\n",
        "",
    ),
    _core(
        "a rank of an earlier life is heard",
        "if event.life != life.number or life.phase is not LifePhase.UP or",
        "if life.phase is not LifePhase.UP or",
    ),
    _core(
        "an earlier session is heard",
        "current = event.session == state.session.number and state",
        "current = state",
    ),
    _core("the lighthouse speaks to a life that is over", "number and state.life.cause is None", "number"),
    # ---- rosters, roll calls, books
    _roster(
        "a differing digest is promoted",
        "if member.role is Role.NEWCOMER and place not in mismatched\n",
        "if member.role is Role.NEWCOMER\n",
    ),
    _batch(
        "newcomers contribute unseen",
        "if free > 0 and member.role is Role.SPARE:",
        "if free > 0 and member.role is not Role.CONTRIBUTOR:",
    ),
    _roster(
        "another incarnation has the place", "return place if member.incarnation == incarnation else -1", "return place"
    ),
    _rollcall("one member's switch is everybody's", "min(min(shard.opened)", "max(max(shard.opened)"),
    _rollcall("an older generation is switched to", "newest > generation and all", "newest > 0 and all"),
    _rollcall(
        "only the first shard's slots are looked at",
        "for shard in range(1, len(bitmaps)):",
        "for shard in range(1, 1):",
    ),
    _rollcall("a slot may be missing", "    if reduce(or_, summed) == wanted and sum", "    if sum"),
    _rollcall("a slot may be summed twice", " and sum(map(int.bit_count, summed)) == wanted.bit_count()", ""),
    _rollcall("a buffer that nobody wrote", '        "magic": MAGIC,\n        "gen', '        "gen'),
    _rollcall("the version need not be equal", '        "from_generation": version.generation,\n', ""),
    _work("sums of another batch are kept", "keeps = work.cursor == book.cursor and", "keeps ="),
    _work("sums that others answer for are kept", "and set(book.summed) <= set(work.slots)", "and bool(work.slots)"),
    _heal(
        "an unfinished load is followed on from",
        "    if not state.stand.usable:\n        return _heal_failed",
        "    if False:\n        return _heal_failed",
    ),
    _work("sums survive a commit", "version=end, cursor=cursor, summed=())", "version=end, cursor=cursor)"),
    _work("named though not opened", "self.opened != self.ready or self.ready", "self.ready"),
    _work(
        "a base on another version is gone on from",
        "if not book.usable or message.work.version != book.version:",
        "if not book.usable:",
    ),
    _work("the log is owed to nobody", "owed=tuple(sorted({*book.owed, *heals})),", "owed=book.owed,"),
    _work(
        "a heal is named without room for it",
        "for heal in book.heals if heal in ready)[:",
        "for heal in book.heals)[:",
    ),
    _heal("a late Stage is obeyed anywhere", "if at_once and not (staging.entries or there):", "if False:"),
    _heal("a donor that levels does not stage", "+ merged.slots, stage=staged)", "+ merged.slots)"),
    _progress("progress is told at every chunk", "if seen is None or now < due_s(state):", "if seen is None:"),
    _session("nobody hears of a heal from its joiner", "heal=joining.heal if joining is not None else 0,", "heal=0,"),
    # ---- poison
    _step("the roll call counts what is set aside", "        set_aside=seat.work.set_aside,\n", ""),
    _plan("a generation's work has all slots", "        set_aside=aside,\n    )\n", "    )\n"),
    _plan("a slot set aside is dealt with its step", "for slot in slots if slot not in aside),", "for slot in slots),"),
    _plan("what is set aside ends with the first step", "set_aside=plan.set_aside)", "set_aside=())"),
    _rollcall("entries do not tell what is set aside", "        set_aside=set_aside,\n    )\n", "    )\n"),
    _life("a slot is blamed for what a person ended", "-1 if killed and event.code in _BY_A_PERSON else ", ""),
    _life("a slot is blamed for Ctrl-C", '-1 if key.startswith("KeyboardInterrupt") else ', ""),
)
