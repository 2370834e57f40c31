"""Where the time goes from the start of the ranks to their first step with slots: noted by the agent, told once a life.

The parts follow each other without gaps. *start*: until the rank's program begins to run; *import*: until it has
`Replica`'s name; *build*: until all ranks have attached, with model, optimizer and digest; *transfer*: until the
snapshot is loaded (asking, staging at the donor and the rehearsal are in it); *replay*: until nothing newer was found;
*switch*: until the first step that they computed slots of is committed. What was not needed takes no time.
"""

from __future__ import annotations

from lighthouse.values import Contributed
from replica.agent_state import AgentState, JoinPhase, Moments, attached, ledgered, noted, put, welcomed
from replica.agent_values import Effect, ToLighthouse


def note(state: AgentState, now: float, effects: list[Effect]) -> AgentState:
    """Notes moments as they come; tells the lighthouse of a life's way once it contributes."""
    moments, joining = state.life.moments, state.joining
    if moments.told:
        return state
    new = moments
    if not new.attached and attached(state):
        new = put(new, attached=now)
    if joining is not None and joining.phase is not JoinPhase.FOLLOWING:
        new = put(new, loaded=0.0, caught_up=0.0)
    elif joining is not None:
        new = put(new, loaded=new.loaded or now, caught_up=(new.caught_up or now) if joining.caught_up else 0.0)
    if not new.contributed and state.life.contributes:
        new = put(new, contributed=now)
    if new != moments:
        state = put(state, life=put(state.life, moments=new))
    return _tell(state, new, effects) if new.contributed and welcomed(state) else state


def _tell(state: AgentState, moments: Moments, effects: list[Effect]) -> AgentState:
    life = state.life
    attaches = [attach for attach in life.attached if attach is not None]
    times = [life.began_at, max(a.begun_s for a in attaches), max(a.imported_s for a in attaches), moments.attached]
    times += [moments.loaded, moments.caught_up, moments.contributed]
    for i in range(1, len(times)):  # a moment that was not, or is not known, is the one before
        times[i] = min(max(times[i], times[i - 1]), moments.contributed)
    parts = [after - before for before, after in zip(times[:-1], times[1:], strict=True)]
    message = Contributed(
        warm=all(attach.warm for attach in attaches),
        start_s=parts[0],
        import_s=parts[1],
        build_s=parts[2],
        transfer_s=parts[3],
        replay_s=parts[4],
        switch_s=parts[5],
    )
    effects.append(ToLighthouse(message=message))
    shown = {name: round(getattr(message, name), 3) for name in message.__struct_fields__ if name != "warm"}
    total_s = round(sum(parts), 3)
    state = ledgered(state, {"event": "split", "warm": int(message.warm), "total_s": total_s, **shown})
    state = noted(state, "contributes", after_s=total_s, warm=message.warm, **shown)
    return put(state, life=put(state.life, moments=put(moments, told=True)))
