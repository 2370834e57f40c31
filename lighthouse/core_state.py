"""The state of a run in the lighthouse's core, and the small questions that its rules ask of it.

One immutable value. `record` (core_record) notes what happened, `decide` (core) lets the rules act on it: core_change
for unplanned changes, core_plan for joins and drains, core_heal for donors. Rules add effects to `outbox`, in order.

Leases are counted on a clock that stands still while this process did not run: `lease_clock = now - paused_s`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lighthouse.batch import BatchPolicy, batch_policy
from lighthouse.core_values import Effect, Hold, RunConfig, Send, SlotDeath, Tell
from lighthouse.history import History
from lighthouse.table import Table
from lighthouse.values import ROOT, Down, EntryName, Member, Progress, Report, RosterChange, Value, Version

Roster = tuple[Member, ...]


class Group(Value, frozen=True):
    """A group that said hello, and whose lease runs.

    conn: its stream, 0 while it has none; heard_s: on the lease clock; caught: it may be a member
    mismatched: its digest differed: it has to leave and heal again
    leaving: it drained and is in no generation any more; heal: the heal it is in, 0 none; retry_s: not healed before
    donors: of that heal: their incarnations (0: not known) by name, in the order of their stripes
    donors_digest: of what they had at the root when it was told; None: an earlier lighthouse told it
    held: it was told of that heal in a hold; first: the lowest number of a generation that it can enter from it
    behind: how often in a row it fell behind the donors' logs
    tried, unreached: the last change for which it has tried its peers, and those that it did not reach
    apart: other members and it do not reach each other, so it is in no generation until it has caught up as a joiner
    unlevelled: it could not get the entry that follows this version, though a holder was named: it heals instead
    loading: it was told to load over its weights and has not confirmed it: what it reported before does not hold
    way: how long its start took, for people; progress: what it told last of the heal that it is in
    """

    name: str
    incarnation: int
    conn: int
    host: str
    heard_s: float
    rendezvous: tuple[str, ...]
    weights: tuple[str, ...]
    digest: int
    report: Report
    version: Version
    draining: bool = False
    leaving: bool = False
    told_leave: bool = False
    caught: bool = False
    loading: bool = False
    mismatched: bool = False
    opened: int = 0
    heal: int = 0
    donors: dict[str, int] = {}
    donors_digest: int | None = None
    held: bool = False
    first: int = 0
    heal_failures: int = 0
    behind: int = 0
    retry_s: float = 0.0
    unlevelled: Version | None = None
    progress: Progress | None = None
    tried: int = 0
    unreached: tuple[str, ...] = ()
    apart: bool = False
    way: str = ""

    @property
    def moving(self) -> bool:
        """Its donors have staged and bytes have come, or it has loaded even."""
        loaded = self.report.heal == self.heal != 0 <= self.report.version.step
        return loaded or self.caught or self.progress is not None

    @property
    def loads(self) -> bool:
        """It was told to load, and has not said yet that it has weights again."""
        return self.live and self.heal != 0 and (self.loading or self.report.version.step < 0)

    @property
    def live(self) -> bool:
        """It has a stream. (One whose lease ran out is not in the table.)"""
        return self.conn != 0


class Gen(Value, frozen=True):
    """A generation that may be at work: the last one with a base, or one prepared since.

    left: somebody of it has abandoned it for good, standing at step `left_at`: no member goes above the next one in it
    gone: names of members known to be dead, not merely lost; or to have abandoned it and to have no weights since
    members: incarnations by name; told: the roster with the roles that its members were told first
    committed: a step of it was reported, so its roles are settled
    recalled: read from the store: how far it got before is not known
    planned: it is entered by a roll call, not by a base that the lighthouse sends
    grown: the promotions taken into the roster last: every member tells of the same ones
    set_aside: slots from `cursor` on which steps are committed without
    """

    number: int
    roster: Roster
    members: dict[str, int]
    told: Roster
    version: Version = ROOT
    cursor: int = 0
    left: bool = False
    left_at: int = 1 << 62
    gone: frozenset[str] = frozenset()
    committed: bool = False
    recalled: bool = False
    planned: bool = False
    grown: Roster = ()
    set_aside: tuple[int, ...] = ()


class Change(Value, frozen=True):
    """An unplanned change: everything below `number` is being abandoned. until_s: silent members are lost then.

    again: a member that had been lost is back, so others may be as well: they were given one more lease, once
    looked: what the last look at who is awaited depended on, besides events; awaited: how many were; heard: events that
    may have changed it since. Each is about one group, so while they are fewer, somebody is still awaited: a change of
    N members looks at all of them a few times only, not at every report.
    stalled: the generation at work made no progress, so those that others wait for are to be evicted
    probed: its members were asked whether they reach each other
    """

    number: int
    reason: str
    since_s: float
    until_s: float
    again: bool = False
    looked: tuple[bool, bool, bool, tuple[int, ...]] | None = None
    awaited: int = 0
    heard: int = 0
    stalled: bool = False
    probed: bool = False


class Plan(Value, frozen=True):
    """A planned generation whose communicators are being opened. Its roster is its Gen's.

    opened, needed: how many groups have opened it, of how many that have to (leavers say so too)
    broken: a member may have missed a message of it, or could not open it
    ready: everybody was told to be, and may enter it in any roll call from now on
    """

    number: int
    until_s: float
    needed: int = 0
    opened: int = 0
    ready: bool = False
    broken: bool = False


class Keeping(Value, frozen=True):
    """`donor` keeps, under the number `heal`, the entries that lead that incarnation of `name` back into the run."""

    name: str
    incarnation: int
    heal: int
    donor: Member


class RunState(Value, frozen=True):
    """Everything that the lighthouse knows of one run.

    check_s: when the first lease can run out; dirty: something happened that plans and heals depend on, so they are
    looked at again; retry_s: when a joiner that failed may heal again, 0 for none
    odd: names of groups that plans and heals are about: all but members with nothing on their minds
    kept: for whom entries are kept, the latest last
    progress_s: when the generation at work was last seen to go on, on the lease clock; -1 before the first
    moved_s: when a joiner was last seen to get bytes
    cold: who wants a cold start that was not made yet, empty for nobody
    deaths: with a slot of the step in work in hand; skipped: slots (in the run's order) that a person said to skip
    """

    config: RunConfig
    started_s: float = 0.0
    paused_s: float = 0.0
    check_s: float = 0.0
    first_number: int = 0
    last_number: int = 0
    next_incarnation: int = 1
    next_heal: int = 1
    setup: dict[str, str] = {}
    groups: Table[Group] = Table()
    odd: Table[bool] = Table()
    conns: Table[str] = Table()
    history: History = History()
    gens: tuple[Gen, ...] = ()
    change: Change | None = None
    plan: Plan | None = None
    trouble: str = ""
    hold: Hold = Hold.NONE
    hold_since_s: float = 0.0
    hold_text: str = ""
    hopeless_since_s: float = -1.0
    cold: str = ""
    deaths: tuple[SlotDeath, ...] = ()
    skipped: tuple[int, ...] = ()
    first_hello_s: float = -1.0
    newest: Version = ROOT
    loss: float = 0.0
    step_s: float = 0.0
    protocol_s: float = 0.0
    kept: tuple[Keeping, ...] = ()
    progress_s: float = -1.0
    moved_s: float = 0.0
    finished: Version | None = None
    ended: str = ""
    dirty: bool = True
    retry_s: float = 0.0
    plan_failures: int = 0
    plan_again_s: float = 0.0
    outbox: tuple[Effect, ...] = ()

    @property
    def current(self) -> Gen | None:
        """The generation with the newest base, None before the first."""
        return self.gens[0] if self.gens else None


def with_(state: RunState, **fields: object) -> RunState:
    """`state` with some fields replaced."""
    return msgspec.structs.replace(state, **fields)


def emit(state: RunState, *effects: Effect) -> RunState:
    """`state` with effects added to its outbox."""
    return with_(state, outbox=state.outbox + effects)


def tell(state: RunState, kind: str, text: str = "", group: str = "", **fields: object) -> RunState:
    """`state` with an event for people added to its outbox, about the generation in force."""
    number = state.change.number if state.change else state.gens[0].number if state.gens else 0
    words = {k: str(v) for k, v in fields.items()}
    return emit(state, Tell(kind=kind, number=number, version=state.newest, group=group, text=text, fields=words))


def shown(state: RunState, incarnation: int) -> int:
    """An incarnation's number for people, as generations have it: counted from the run's first number."""
    first = state.first_number
    return incarnation - first + 1 if incarnation >= first else incarnation


def send(state: RunState, group: Group, message: Down) -> RunState:
    """`state` with a message to `group` in its outbox, if it has a stream."""
    return emit(state, Send(conn=group.conn, message=message)) if group.conn else state


def send_all(state: RunState, messages: Iterable[tuple[Group, Down]]) -> RunState:
    """As `send`, of many messages: their cost is that of their number."""
    sends = [Send(conn=group.conn, message=message) for group, message in messages if group.conn]
    return emit(state, *sends)


def put_group(state: RunState, group: Group) -> RunState:
    """`state` with `group` in its table."""
    groups = state.groups.set(group.name, group)
    was, now = state.odd.get(group.name) is not None, _is_odd(state, group)
    if was is now:
        return with_(state, groups=groups)
    odd = state.odd.set(group.name, True) if now else state.odd.without(group.name)
    return with_(state, groups=groups, odd=odd)


def drop_group(state: RunState, name: str) -> RunState:
    """`state` without the group of that name."""
    return with_(state, groups=state.groups.without(name), odd=state.odd.without(name))


def settled(state: RunState) -> RunState:
    """`state` with `odd` as it is once another generation is the present one."""
    odd: Table[bool] = Table()
    for group in state.groups.values():
        if _is_odd(state, group):
            odd = odd.set(group.name, True)
    return with_(state, odd=odd)


def _is_odd(state: RunState, group: Group) -> bool:
    busy = group.draining or group.leaving or group.mismatched or group.caught or group.loading or group.heal != 0
    return busy or bool(group.report.stagings) or (bool(state.gens) and not is_member(state.current, group))


def change_group(state: RunState, group: Group, **fields: object) -> RunState:
    """`state` with some fields of `group` replaced."""
    return put_group(state, msgspec.structs.replace(group, **fields))


def lease_clock(state: RunState, now: float) -> float:
    """Seconds on the clock that leases are counted on."""
    return now - state.paused_s


def in_grace(state: RunState, now: float) -> bool:
    """Whether less than one lease has passed since the start: nobody is judged yet."""
    return now < grace_until_s(state)


def grace_until_s(state: RunState) -> float:
    """When the first lease after the start is over."""
    return state.started_s + state.config.lease_s + state.paused_s


def member_group(state: RunState, member: Member) -> Group | None:
    """The group that `member` means, if it is known in that very incarnation."""
    group = state.groups.get(member.name)
    return group if group is not None and group.incarnation == member.incarnation else None


def new_gen(number: int, roster: Roster, planned: bool = False) -> Gen:
    """A generation that `roster` is to form."""
    members = {m.name: m.incarnation for m in roster}
    return Gen(number=number, roster=roster, members=members, told=roster, planned=planned)


def is_member(gen: Gen | None, group: Group) -> bool:
    """Whether `group`, in its present incarnation, is in the roster of `gen`."""
    return gen is not None and gen.members.get(group.name) == group.incarnation


def takes_part(state: RunState, group: Group) -> bool:
    """Whether `group` is in the generation at work or in the pending plan. A cancelled plan does not count."""
    plan = state.plan
    return is_member(state.current, group) or any(
        plan is not None and gen.number == plan.number and is_member(gen, group) for gen in state.gens
    )


def all_dead(state: RunState) -> bool:
    """Whether nobody of any generation that may be at work can go on in it, or has what it made: `Gen.gone`."""
    return bool(state.gens) and all(dead(gen) for gen in state.gens)


def dead(gen: Gen) -> bool:
    """Whether every member of `gen` is dead, or as good as dead to it: `Gen.gone`."""
    return gen.gone.issuperset(gen.members)


def is_bounded(gen: Gen, step: int) -> bool:
    """Whether no member of `gen` can make a version in it, any more, that is above the one that follows `step`."""
    return dead(gen) or (gen.left and gen.left_at <= step)


def left_by(gen: Gen, name: str, version: Version) -> Gen:
    """`gen` once `name` has abandoned it standing on `version`. Below zero it stands nowhere, since it loads: how far
    it had come bounds nothing then, but it will neither go on in `gen` nor has it what was made there."""
    if version.step < 0:
        return msgspec.structs.replace(gen, gone=gen.gone | {name})
    return msgspec.structs.replace(gen, left=True, left_at=min(gen.left_at, version.step))


def replace_gen(state: RunState, gen: Gen) -> RunState:
    """`state` with the generation of that number replaced."""
    return with_(state, gens=tuple(gen if g.number == gen.number else g for g in state.gens))


def with_roles(gen: Gen, grown: Roster) -> Gen:
    """`gen` in whose roster the members named in `grown` have the role given there."""
    if not grown:
        return gen
    roles = {(m.name, m.incarnation): m for m in grown}
    roster = tuple(roles.get((m.name, m.incarnation), m) for m in gen.roster)
    return msgspec.structs.replace(gen, roster=roster, grown=grown)


def roster_change(gen: Gen | None, roster: Roster) -> RosterChange:
    """`roster` told as a difference from the roster that the members of `gen` were told, or whole.

    A member whose role has grown since is told again: not everybody has seen that roll call yet. So is one whose grown
    role is taken back.
    """
    if gen is None:
        return RosterChange(previous=0, joined=roster)
    old = set(gen.told) & set(gen.roster)
    names = {m.name for m in roster}
    return RosterChange(
        previous=gen.number,
        left=tuple(m.name for m in gen.told if m.name not in names),
        joined=tuple(m for m in roster if m not in old),
    )


def batch_of(state: RunState) -> BatchPolicy:
    """The global batch of the run."""
    return batch_policy(state.setup)


def is_over(state: RunState, version: Version, stop: bool) -> bool:
    """Whether the step after `version` is the farewell."""
    return stop or version.step >= int(state.setup.get("steps", str(1 << 62)))


def holds_entry(report: Report, start: Version, end: Version) -> bool:
    """Whether the reporter can serve the entry from `start` to `end`."""
    return EntryName(start=start, end=end) in report.entries
