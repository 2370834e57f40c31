"""All deadlines of a run, worked out from three that a user may set.

`Knobs` are those three; `derive` gives the rest, each a fixed multiple of one of them, as `ROWS` tells: with what it is
for, and what happens when it runs out. Whoever waits for something is handed its deadline from here; `explain` is the
table for people. The lighthouse's knobs are the run's: a group takes them when it is welcomed, and a group that was
told others leaves, saying so.

Not here, since nothing is given up when they run out: pauses between two looks at something (gloo's sockets, locks,
files), and how long people want to wait for groups that are not there (`join_wait_s`, `hold_patience_s`,
`cold_start_after_s` of the lighthouse), which only have defaults.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from lighthouse.values import Value


class Knobs(Value, frozen=True):
    """What a user may set, in seconds."""

    lease_s: float = 2.0
    """Silence after which a group is lost: longer than any pause of a machine's processes or of its network."""
    stall_patience_s: float = 60.0
    """How long members that live may make no progress: longer than a step, and than what one group does alone between
    two (an evaluation, a save)."""
    connect_s: float = 60.0
    """How long others are waited for that should be there: the lighthouse, at the start, and members, in opening a
    communicator."""

    def __post_init__(self) -> None:
        for name in KNOBS:
            value = getattr(self, name)
            if not 0 < value < 1e6:
                raise ValueError(f"{name} is {value:g}: give a number of seconds above 0 and below a million")
        if self.stall_patience_s < self.lease_s / 2:
            raise ValueError(
                f"stall_patience_s {self.stall_patience_s:g} is below half of lease_s {self.lease_s:g}: all would "
                "count as stalled before a dead host is lost; raise stall_patience_s or lower lease_s"
            )
        if self.connect_s < self.lease_s / 2:
            raise ValueError(
                f"connect_s {self.connect_s:g} is below half of lease_s {self.lease_s:g}: openings would be given "
                "up before it is known that a member is lost; raise connect_s or lower lease_s"
            )


KNOBS = ("lease_s", "stall_patience_s", "connect_s")


class Row(Value, frozen=True):
    """A deadline: `name` is `knob` × `numerator` / `denominator`; purpose, and what happens when it has run out."""

    name: str
    knob: str
    numerator: float
    denominator: float
    purpose: str
    then: str

    @property
    def formula(self) -> str:
        """How it follows from the knob, for people."""
        up = f" × {self.numerator:g}" if self.numerator != 1 else ""
        down = f" / {self.denominator:g}" if self.denominator != 1 else ""
        return self.knob + up + down

    def of(self, knobs: Knobs) -> float:
        """Its value in seconds."""
        value: float = getattr(knobs, self.knob) * self.numerator / self.denominator
        return value


def _row(name: str, knob: str, up: float, down: float, purpose: str, then: str) -> Row:
    return Row(name=name, knob=knob, numerator=up, denominator=down, purpose=purpose, then=then)


_LEASE, _STALL, _CONNECT = KNOBS

ROWS = (
    # Two beats may be lost, or one be late by a third of the lease, before anybody is.
    _row("beat_s", _LEASE, 1, 3, "pause between two beats of an agent", "it beats"),
    # With what a connection takes, everybody is back before a restarted lighthouse judges anybody.
    _row("redial_s", _LEASE, 1, 4, "longest pause before a session is tried again", "it is"),
    _row("report_s", _LEASE, 1, 1, "reports in a change", "who has not reported is not in the next generation"),
    _row("last_weights_s", _LEASE, 2, 1, "the run after all members have died", "it ends: restore is needed"),
    _row("late_s", _LEASE, 1, 8, "lateness of a wake-up of the lighthouse", "it reads all there is before it judges"),
    _row("settle_s", _LEASE, 1, 1, "that reading, at most", "it judges, and extends all leases by its lateness"),
    _row("dying_s", _LEASE, 1, 100, "the exit of a rank that has begun to, before a report", "it is reported alive"),
    _row("deserter_s", _LEASE, 1, 1, "the exit of a rank whose Attach has ended", "it is killed"),
    _row("orphan_s", _LEASE, 5, 1, "a rank's next look at its agent, which is gone", "it ends itself"),
    # Long enough for a first packet to be sent a second time.
    _row("probe_s", _LEASE, 1, 1, "a connection to a peer that is probed", "it is named as not reached"),
    _row("answers_s", _LEASE, 2.5, 1, "members' answers when pairs are probed", "it is judged without theirs"),
    _row("standby_s", _LEASE, 1, 2, "a standby's answer when ranks are started", "it is ended; its rank starts cold"),
    _row("stacks_s", _LEASE, 1, 4, "the stacks of a stalled group's ranks", "they are killed without"),
    _row("flush_s", _LEASE, 1, 1, "what is still to be sent or written at an end", "it is dropped"),
    _row("yield_s", _LEASE, 1.5, 1, "an older agent of the name, to end its ranks", "it is killed with them"),
    _row("reap_s", _LEASE, 5, 1, "the kernel, to end killed processes", "the agent gives up, saying so"),
    _row("stall_s", _STALL, 1, 1, "progress of a generation, or 10 × the last step", "who others wait for is evicted"),
    # First steps compile, and fill caches of allocators, files and kernels.
    _row("warmup_s", _STALL, 5, 1, "the first step that a lighthouse sees", "who others wait for is evicted"),
    _row("heal_s", _STALL, 1, 2, "any byte of a heal", "the joiner heals from others"),
    _row("move_s", _STALL, 1, 6, "a piece (1 MiB) of a transfer", "the connection ends; other sources are asked"),
    _row("hurry_s", _STALL, 1, 30, "a chunk, while another source is idle", "that one is asked too"),
    _row("idle_s", _STALL, 1, 1, "the next question of a joiner", "its connection ends"),
    _row("staging_s", _STALL, 1, 1, "the snapshot, at its donor", "the load has failed: another donor"),
    _row("waiting_s", _STALL, 10, 1, "an entry or snapshot, at the server", "the asker is told that there is none"),
    _row("abort_s", _STALL, 1, 6, "NCCL's abort", "the rank ends itself"),
    # Stalls are the lighthouse's business; this one only sees to it that nothing waits for ever.
    _row("collective_s", _STALL, 15, 1, "a collective, by its library's own watch", "the generation has failed here"),
    _row("welcome_s", _CONNECT, 1, 1, "the first welcome of a lighthouse", "the group ends, saying so"),
    _row("reach_s", _CONNECT, 1, 1, "the communicator of a change, at a rank", "the generation has failed here"),
    _row("open_s", _CONNECT, 1, 3, "the communicator of a plan", "the plan is cancelled; who did not open heals anew"),
    _row("mesh_s", _CONNECT, 1, 6, "gloo, to connect members that are all there", "the communicator did not open"),
    _row("session_s", _CONNECT, 1, 12, "one try to reach the lighthouse", "tried again"),
    _row("hello_s", _CONNECT, 1, 6, "the first message on a new connection", "it is closed"),
    _row("dial_s", _CONNECT, 1, 12, "a connection to a donor, and its proof of the token", "that source is not used"),
    _row("farewell_s", _CONNECT, 1, 12, "a closing session's last messages", "they are dropped"),
    _row("attach_s", _CONNECT, 10, 1, "ranks, from their start until all are attached", "that life has failed"),
    _row("drain_s", _CONNECT, 1, 1, "leave to go, for a group that drains", "it leaves after its next commit"),
    # As ranks start, so they end: they write what they have to, and take apart an interpreter with torch in it.
    _row("quit_s", _CONNECT, 1, 2, "ranks that were told to leave", "they are killed"),
    _row("join_wait_s", _CONNECT, 1, 6, "groups_wanted, at the first formation", "it goes on with min_groups"),
    _row("hold_patience_s", _CONNECT, 10, 1, "a hold", "the run ends, saying what it waited for"),
)


class Deadlines(Value, frozen=True):
    """The deadlines of a run in seconds: see `derive`. `ROWS` says what each is for."""

    knobs: Knobs
    beat_s: float
    redial_s: float
    report_s: float
    last_weights_s: float
    late_s: float
    settle_s: float
    dying_s: float
    deserter_s: float
    orphan_s: float
    probe_s: float
    answers_s: float
    standby_s: float
    stacks_s: float
    flush_s: float
    yield_s: float
    reap_s: float
    stall_s: float
    warmup_s: float
    heal_s: float
    move_s: float
    hurry_s: float
    idle_s: float
    staging_s: float
    waiting_s: float
    abort_s: float
    collective_s: float
    welcome_s: float
    reach_s: float
    open_s: float
    mesh_s: float
    session_s: float
    hello_s: float
    dial_s: float
    farewell_s: float
    attach_s: float
    drain_s: float
    quit_s: float
    join_wait_s: float
    hold_patience_s: float

    def __post_init__(self) -> None:
        for row in ROWS:
            if getattr(self, row.name) <= 0:
                raise ValueError(f"{row.name} must be above 0; it is {row.formula}")
        for first, then, why in _ORDER:
            a, b = getattr(self, first), getattr(self, then)
            if a > b:
                raise ValueError(
                    f"{first} ({a:g} s = {_formula(first)}) is longer than {then} ({b:g} s = {_formula(then)}), but "
                    f"{why}: {_advice(first, then, a / b, self.knobs)}"
                )


_ORDER = (
    ("beat_s", "report_s", "a lease must outlast a beat"),
    ("redial_s", "report_s", "members must be back within the first lease of a restarted lighthouse"),
    ("dying_s", "report_s", "a report must not wait for the dying longer than it is waited for"),
    ("report_s", "last_weights_s", "a run is not given up before its members could report"),
    ("session_s", "welcome_s", "one try to reach the lighthouse must fit into the patience for it"),
    ("stall_s", "warmup_s", "first steps take longer than others"),
    ("mesh_s", "open_s", "members that are there must be able to connect before an opening is given up"),
    ("open_s", "reach_s", "a plan that does not open must not outlive what a change would wait"),
    ("reach_s", "warmup_s", "before the first step members wait for each other to open, and must not stall by that"),
    ("reap_s", "attach_s", "a new life must be able to wait for the end of the one before"),
    ("hurry_s", "move_s", "an idle source must be asked before a slow one is given up"),
    ("move_s", "heal_s", "a joiner must get to its next source before it is given another donor"),
    ("heal_s", "staging_s", "a donor's snapshot is waited for at least as long as any byte of it"),
    ("move_s", "idle_s", "a joiner that waits for one source must not be dropped by the others"),
    ("probe_s", "answers_s", "who tries its peers must be able to say how that went"),
    ("quit_s", "drain_s", "a drain must leave its ranks time to go"),
    ("late_s", "report_s", "a lighthouse that is late by a lease must have noticed"),
    ("warmup_s", "collective_s", "a stall must be seen before a library's watch ends the collective"),
)
"""(shorter, longer, why): what has to fit into what."""


@cache
def derive(knobs: Knobs) -> Deadlines:
    """All deadlines of a run with these knobs. Raises ValueError, saying what to change, if they contradict."""
    return Deadlines(knobs=knobs, **{row.name: row.of(knobs) for row in ROWS})


def explain(knobs: Knobs) -> Iterator[tuple[str, str, str, str, str]]:
    """The table for people: (name, value, derived from, what for, what happens when it runs out)."""
    fields = (f"{value:g} s" for value in (knobs.lease_s, knobs.stall_patience_s, knobs.connect_s))
    for name, value, (purpose, then) in zip(KNOBS, fields, _KNOB_WORDS, strict=True):
        yield name, value, "set by you", purpose, then
    for row in ROWS:
        yield row.name, f"{row.of(knobs):.3g} s", row.formula, row.purpose, row.then


_KNOB_WORDS = (
    ("a sign of life from a group", "the group is lost"),
    ("progress of members that live", "who others wait for is evicted and starts anew"),
    ("others that should be there", "given up, saying so"),
)

_FACTORS = {row.name: row for row in ROWS}


def _formula(name: str) -> str:
    return _FACTORS[name].formula


def _advice(first: str, then: str, ratio: float, knobs: Knobs) -> str:
    """What to change: the knob of the longer one up, or that of the shorter one down."""
    lower, upper = _FACTORS[first].knob, _FACTORS[then].knob
    if lower == upper:
        return f"both follow from {lower}"
    up, down = getattr(knobs, upper) * ratio, getattr(knobs, lower) / ratio
    return f"raise {upper} to {up:.4g}, or lower {lower} to {down:.4g}"


DEFAULTS = derive(Knobs())
"""What holds if nothing is said."""
