"""A rank's log, snapshots and transfers: what it serves to others, and how it gets from them what it lacks.

As in `replica/healing.py`: entries and snapshots come from whichever source has them and can be reached, and everything
that runs in the background is given up as soon as the agent asks for something newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lighthouse.values import ROOT, EntryName, Source, Version
from replica.values import Fetch, FetchFailed, Held, Load, Loaded, LoadFailed, Merged, Moved, StageFor, UpToDate
from simulation.weights import Sum

if TYPE_CHECKING:
    from simulation.rank import Rank


class Entry(NamedTuple):
    """A step's reduced gradients with its merged roll call."""

    name: EntryName
    merged: Merged
    sum: Sum


class Snapshot(NamedTuple):
    """State of one shard, or some of its `of` stripes, staged for a joiner."""

    version: Version
    cursor: int
    stop: bool
    weights: int
    stripes: frozenset[int] = frozenset({0})
    of: int = 1


class Healing:
    """The part of `rank` that moves states and entries.

    log: entries by the version they start from; owed: since which version a heal's joiner is owed them
    expected, staged: snapshots to come, and those that are there, by heal; held: entries fetched and not applied
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._world = rank.world
        self.log: dict[Version, Entry] = {}
        self.owed: dict[int, Version] = {}
        self.staged: dict[int, Snapshot] = {}
        self.held: dict[EntryName, Entry] = {}
        self.expected: dict[int, StageFor] = {}
        self._turn = 0
        self._needed = ROOT
        self._loading: Load | None = None
        self._wanted = 0

    # ---- for others ------------------------------------------------------------------------------------------------

    def stage(self, heal: int) -> None:
        """A snapshot of the present state, and the log from here on."""
        rank, asked = self._rank, self.expected.pop(heal)
        stripes = frozenset({asked.place, (asked.place + 1) % asked.donors})
        book = rank.book
        snapshot = Snapshot(book.version, book.cursor, rank.stop, rank.weights, stripes, asked.donors)
        self.staged[heal] = snapshot
        self.owed[heal] = book.version
        self._world.watch.staged(rank, heal, snapshot)

    def keep(self, heal: int) -> None:
        """The log from the entry that led to the present version on."""
        self.owed[heal] = Version(self._rank.book.version.step - 1, 0)

    def drop(self, heal: int) -> None:
        """That heal is over. What members may still need of the last step is not its business."""
        self.expected.pop(heal, None)
        self.staged.pop(heal, None)
        self.owed.pop(heal, None)
        self._trim()

    def forget(self) -> None:
        """The state is about to be written over: nothing of it can be served any more."""
        self.staged.clear()
        self.owed.clear()
        self.log.clear()

    def fetched(self, heal: int, version: Version) -> None:
        """The joiner of `heal` has what leads to `version`."""
        if heal in self.owed:
            self.owed[heal] = max(self.owed[heal], version)
            self._trim()

    def release_log(self) -> None:
        """Every member has what leads to the present version: it is dropped, unless a joiner is owed it."""
        self._needed = self._rank.book.version
        for heal, since in list(self.owed.items()):
            if self._needed.step - since.step > self._world.spec.log_steps:
                del self.owed[heal]  # the joiner is too far behind
        self._trim()

    def _trim(self) -> None:
        since = min([self._needed, *self.owed.values()])
        for version in [v for v in self.log if v < since]:
            del self.log[version]

    # ---- from others -----------------------------------------------------------------------------------------------

    def give_up(self) -> None:
        """Whatever is under way is not wanted any more."""
        self._turn += 1

    def fetch(self, message: Fetch) -> None:
        """Gets the entry from there, whenever a source has it."""
        self._turn += 1
        self._fetch(message, self._turn, False)

    def _sources(self, sources: tuple[Source, ...]) -> list[Rank]:
        found = [self._world.addresses.get(s.weights[self._rank.shard_rank]) for s in sources]
        here = self._rank.group.label
        return [r for r in found if r is not None and not self._world.network.apart(here, r.group.label)]

    def _reaches(self, source: Rank) -> bool:
        return source.alive and not self._world.network.apart(self._rank.group.label, source.group.label)

    def _transfer_s(self) -> float:
        """How long an entry takes to arrive here."""
        return self._world.spec.slot_s * self._world.engine.chance("transfers").uniform(0.05, 0.4)

    def _fetch(self, message: Fetch, turn: int, told: bool) -> None:
        if turn != self._turn:
            return
        rank = self._rank
        waits = any(name.end == message.version for name in self.held)
        if waits and rank.book.version != message.version:  # the one before has not been taken yet
            rank.later(0.01, self._fetch, message, turn, told)
            return
        sources = [r for r in self._sources(message.sources) if not r.stopped]
        for source in sources:
            source.healing.fetched(message.heal, message.version)
        for source in sources:
            entry = source.healing.log.get(message.version)
            if entry is not None:
                rank.later(self._transfer_s(), self._fetched, turn, source, entry)
                return
        if any(r.book.usable and r.book.version == message.version for r in sources):
            if not told:
                rank.say(UpToDate(version=message.version))
            rank.later(0.05, self._fetch, message, turn, True)
            return
        delay_s = 0.01 if sources else self._world.engine.chance("transfers").uniform(0.01, 1.0)
        behind = any(r.book.usable and r.book.version.step > message.version.step for r in sources)
        reason = "no source has it" if sources else "no source answers"
        failed = FetchFailed(version=message.version, reason=reason, behind=behind)
        rank.later(delay_s, self._fetch_failed, turn, failed)

    def _fetch_failed(self, turn: int, failed: FetchFailed) -> None:
        if turn == self._turn:
            self._rank.say(failed)

    def _fetched(self, turn: int, source: Rank, entry: Entry) -> None:
        if turn != self._turn:
            return
        if not self._reaches(source):
            self._rank.say(FetchFailed(version=entry.name.start, reason="the source went away"))
            return
        self.held[entry.name] = entry
        self._rank.say(Held(name=entry.name, merged=entry.merged))

    def load(self, message: Load, rehearsal_s: float) -> None:
        """Loads a snapshot, after a rehearsal: the rank is told `Loaded` or `LoadFailed`."""
        self._turn += 1
        self.held.clear()
        self.expected.clear()
        self._loading = message
        if message.heal < self._wanted:
            self.supersede(self._wanted)
            return
        until_s = self._world.engine.now + self._world.run_config().deadlines.heal_s
        self._rank.later(rehearsal_s, self._load_from, message, until_s)

    def supersede(self, heal: int) -> None:
        """A load of an older heal is over, though its sources may not know yet."""
        self._wanted = max(self._wanted, heal)
        if self._loading is not None and self._loading.heal < heal:
            self._load_over(LoadFailed(heal=self._loading.heal, reason="another heal took its place"))

    def _load_over(self, answer: Loaded | LoadFailed) -> None:
        self._loading = None
        self._rank.load_over(answer)

    def _load_from(self, message: Load, deadline_s: float) -> None:
        rank, now = self._rank, self._world.engine.now
        if self._loading is not message:
            return
        if rank.group.never_loads:
            if now < deadline_s:
                rank.later(0.1, self._load_from, message, deadline_s)
            else:
                self._load_over(LoadFailed(heal=message.heal, reason="no bytes moved in time"))
            return
        snapshot = self._offered(message)
        if snapshot is not None:
            whole_s = self._transfer_s() * 5
            rank.later(whole_s / 2, self._half_loaded, message)
            rank.later(whole_s, self._load_done, message, snapshot)
        elif now < deadline_s and self._sources(message.sources):
            rank.later(0.05, self._load_from, message, deadline_s)
        else:
            self._load_over(LoadFailed(heal=message.heal, reason="no donors staged in time, or too few answer"))

    def _offered(self, message: Load) -> Snapshot | None:
        """What the first source offers, if all that offer the same have every stripe of it together."""
        sources = [r for r in self._sources(message.sources) if not r.stopped and self._reaches(r)]
        offers = [s for r in sources if (s := r.healing.staged.get(message.heal)) is not None]
        alike = [s for s in offers if s.version == offers[0].version]
        held = {stripe for s in alike for stripe in s.stripes}
        return alike[0] if alike and held == set(range(alike[0].of)) else None

    def _half_loaded(self, message: Load) -> None:
        if self._loading is not message:
            return
        names = tuple(source.name for source in message.sources)
        self._rank.say(Moved(heal=message.heal, bytes=1, total=2, seconds=0.1, rate=10.0, sources=names))

    def _load_done(self, message: Load, snapshot: Snapshot) -> None:
        if self._loading is not message:
            return
        if self._offered(message) is None:
            self._load_over(LoadFailed(heal=message.heal, reason="too many donors went away"))
            return
        answer = Loaded(
            heal=message.heal,
            version=snapshot.version,
            cursor=snapshot.cursor,
            stop=snapshot.stop,
            bytes=1,
            seconds=1.0,
        )
        self._rank.take_snapshot(snapshot, answer)
        self._load_over(answer)
