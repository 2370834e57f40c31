"""The promises of DESIGN §1, each checked at every event of a simulated world.

The checkers know the world from outside: what ranks computed, reduced and applied, what was stored, what agents
entered. They share no code with the cores but the values.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lighthouse.core import decide as lighthouse_decide
from lighthouse.core_values import EndRun, StoreBase, StoreFinished, Tell
from lighthouse.values import ROOT, Version
from replica.agent_core import decide as agent_decide
from replica.agent_values import ToRanks
from replica.rollcall import Record
from replica.values import Commit, Work
from simulation.network import LIGHTHOUSE
from simulation.store import Store

if TYPE_CHECKING:
    from simulation.beacon import Beacon
    from simulation.group import Group
    from simulation.rank import Entry, Rank, Snapshot
    from simulation.world import World


class Broken(AssertionError):
    """A promise was broken; the message says which, where and when."""


class Notes:
    """What happened in a world, for whoever reads the tail of a failing one, and what is wrong with it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.wrong: list[str] = []
        self.notes: deque[str] = deque(maxlen=4000)
        self.deaths: dict[int, set[tuple[str, int, int]]] = {}

    def broken(self, what: str) -> None:
        """Notes a broken promise."""
        self.note("BROKEN " + what)
        self.wrong.append(f"at {self._world.engine.now:.4f} s: {what}")

    def note(self, text: str) -> None:
        """Notes something that happened now."""
        self.notes.append(f"{self._world.engine.now:9.4f} {text}")

    def died(self, rank: Rank) -> None:
        """Notes which slot of the run was in hand at a death, once for each life of a group."""
        if rank.book.in_hand >= 0:
            life = (rank.group.label, rank.group.born, rank.life)
            self.deaths.setdefault(rank.book.cursor + rank.book.in_hand, set()).add(life)

    def raise_broken(self) -> None:
        """Raises Broken if anything is wrong."""
        if self.wrong:
            raise Broken("; ".join(self.wrong[:3]))


class Watch(Notes):
    """Everything that is known of one world, and a checker for each promise."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.commit_notes: deque[str] = deque(maxlen=60)
        self.weights_of: dict[Version, int] = {}
        self.cursor_of: dict[Version, int] = {ROOT: 0}
        self.rosters: dict[int, tuple[Any, ...]] = {}
        self.starts: dict[int, Version] = {}
        self.bases: dict[int, Version] = {}
        self.staged_at: dict[int, Version] = {}
        self.commits: dict[Version, float] = {}
        self.times: list[tuple[float, str, Version]] = []
        self.computed_count: Counter[tuple[str, int, int]] = Counter()
        self.recomputed: list[str] = []
        self.stored_all: list[Any] = []
        self.finished: Version | None = None
        self.stop_asked = False
        self.ended: EndRun | None = None
        self.told_kinds: Counter[str] = Counter()
        self.exits: list[tuple[str, int, str]] = []
        self.cold: list[int] = []
        self._store: Store | None = None
        self._entered: dict[tuple[str, int], int] = {}
        self._floors: dict[tuple[str, int], int] = {}
        self._fenced: dict[tuple[str, int], int] = {}
        self._verdicts: set[tuple[str, Version]] = set()
        self._decided = 0

    # ---- ranks -----------------------------------------------------------------------------------------------------

    def computed(self, rank: Rank, slot: int) -> None:
        """Promise 2: what was computed is not thrown away: no rank computes a slot of one version twice."""
        key = (rank.address, rank.weights, rank.book.cursor + slot)
        self.computed_count[key] += 1
        if self.computed_count[key] > 1:
            self.recomputed.append(
                f"{rank.group.label} slot {slot} of {rank.book.version} at {self._world.engine.now:.3f}"
            )

    def _set_aside(self, end: Version, slots: Sequence[int]) -> None:
        """Promise 2 has one exception: a slot that was in hand at two deaths, if the policy or a person has it so."""
        if slots and not (self._world.spec.skip_poison or self.told_kinds["skip_slot"]):
            self.broken(f"{end} sets slots aside, and nobody was asked")
        for slot in slots:
            if len(self.deaths.get(slot, ())) < 2:
                self.broken(f"{end} sets slot {slot} of the run aside after the deaths {self.deaths.get(slot)}")

    def gathered(self, rank: Rank, work: Work, records: Sequence[Record]) -> None:
        """Promise 1: all members of a step start it from one version; promise 2: together they sum each slot once."""
        where = f"generation {work.generation}, step {work.version.step}"
        stands = {(r.generation, r.version) for r in records}
        if stands != {(work.generation, work.version)}:
            self.broken(f"members of {where} stand on {sorted(map(str, stands))}")
        slots = sorted(s for r in records for s in r.slots)
        wanted = [] if work.farewell else [s for s in range(work.step_slots) if s not in work.set_aside]
        if not work.farewell:
            self._sized(work)
            self._dealt(work, [r.slots for r in records])
        if slots != wanted:
            self.broken(f"the members of {where} summed slots {slots}: {[r.slots for r in records]}")

    def _sized(self, work: Work) -> None:
        """The global batch: fixed, or so many slots for each of its contributors; smaller only where the data ends."""
        spec, size = self._world.spec, work.step_slots
        each, left = spec.slots_per_group or spec.slots, spec.data_slots - work.cursor
        if spec.data_slots and left < (each if spec.drop_last else 1):
            self.broken(f"a step begins at slot {work.cursor}, where the data is through")
        if spec.data_slots and size > left:
            self.broken(f"the step from slot {work.cursor} has {size} slots, and the data {left} more")
        if not (spec.data_slots and size == left) and (size % each if spec.slots_per_group else size != each):
            self.broken(f"a step of {size} slots, {each} {'for each contributor' * bool(spec.slots_per_group)}")

    def _shares(self, work: Work, deal: Sequence[Sequence[int]]) -> Iterator[list[int]]:
        """How many slots each was dealt, were none set aside: of all even deals that `deal` may be what is left of."""
        spec, said = self._world.spec, [list(slots) for slots in deal if slots]
        each = 0 if work.cursor + work.step_slots == spec.data_slots else spec.slots_per_group
        for count in range(1, len(deal) + 1) if work.set_aside else ():
            least, longer = divmod(work.step_slots, count)
            ends = [i * least + min(i, longer) for i in range(count + 1)]
            left = [[slot for slot in range(*share) if slot not in work.set_aside] for share in pairwise(ends)]
            if list(filter(None, left)) == said and each * count in (0, work.step_slots):
                yield [end - start for start, end in pairwise(ends)]
        yield [len(slots) for slots in deal]

    def _dealt(self, work: Work, deal: Sequence[Sequence[int]]) -> None:
        """Where nobody was lost since the deal, it is even, over as many members as may contribute.

        Fewer than all allowed counts contribute only while members are there whose digests were not seen yet.
        """
        if work.version.generation == work.generation:  # what was dealt before the generation began counts too, else
            wrong = [self._uneven(work, counts, len(deal)) for counts in self._shares(work, deal)]
            if all(wrong):
                self.broken(wrong[0])

    def _uneven(self, work: Work, counts: Sequence[int], members: int) -> str:
        """What is wrong with a deal of so many slots to each, empty if nothing is."""
        spec, size, dealt = self._world.spec, work.step_slots, [count for count in counts if count]
        if not dealt:
            return "nobody is dealt a slot"
        if max(dealt) - min(dealt) > 1:
            return f"a step of {size} slots is dealt as {list(counts)}"
        at_end = spec.data_slots and work.cursor + size == spec.data_slots
        if spec.slots_per_group and not at_end and set(dealt) != {spec.slots_per_group}:
            return f"a step is dealt as {list(counts)}, not {spec.slots_per_group} for each contributor"
        if size < members:
            return ""  # a contributor may have been dealt nothing
        if spec.contributors_wanted and len(dealt) > spec.contributors_wanted:
            return f"{len(dealt)} members contribute, {spec.contributors_wanted} are wanted"
        if spec.allowed_groups and len(dealt) not in spec.allowed_groups and len(dealt) > min(spec.allowed_groups):
            return f"{len(dealt)} members contribute, {spec.allowed_groups} are allowed"
        return ""

    def applied(self, rank: Rank, entry: Entry, before: int, cursor: int, committed: bool) -> None:
        """Promises 1 and 2 at the moment when weights change."""
        merged, who = entry.merged, f"{rank.group.label}.{rank.shard_rank}"
        start, end = merged.start, merged.end
        if rank.shard_rank == 0 and committed:
            self.commit_notes.append(f"{self._world.engine.now:9.4f} {who} commits {end} from {start}")
        self._same(end, rank.weights, who)
        if self.cursor_of.setdefault(start, cursor) != cursor:
            self.broken(f"{who} starts {end} at slot {cursor}, others at {self.cursor_of[start]}")
        self.cursor_of.setdefault(end, cursor + merged.slots)
        self._set_aside(end, [cursor + i for i in merged.set_aside])
        wanted = tuple((before, cursor + i) for i in range(merged.slots) if i not in merged.set_aside)
        if entry.sum != wanted:
            self.broken(f"{end} at {who} sums {entry.sum}, not each slot once: {wanted}")
        if start != ROOT and self.weights_of.get(start) != before:
            self.broken(f"{who} applies {end} to weights that are not those of {start}")
        base = self.starts.get(merged.generation)
        if start.generation != merged.generation and base != start:
            self.broken(f"{end} starts from {start}, but generation {merged.generation} from {base}")
        if committed:
            self._committed(rank, end)

    def _committed(self, rank: Rank, end: Version) -> None:
        who = rank.group.label
        work_size = len(self.rosters.get(end.generation, ()))
        if work_size < self._world.spec.min_groups:
            self.broken(f"{who} commits {end} in a generation of {work_size}, below min_groups")
        if (who, end) not in self._verdicts:  # of an agent that is gone, perhaps: ranks heard it before they knew
            self.broken(f"{who} commits {end}, which its agent did not decide")
        # A cold start leaves others to their own history, until they hear of it; nobody goes on from that then.
        cold = min((number for number in self.cold if number > end.generation), default=1 << 62)
        for number, version in self.bases.items():
            if end.generation < number < cold and end.step > version.step + 1:
                self.broken(f"{who} commits {end} though generation {number} started from {version}: two histories")
        self.commits.setdefault(end, self._world.engine.now)
        if rank.shard_rank == 0:
            self.times.append((self._world.engine.now, who, end))

    def staged(self, rank: Rank, heal: int, snapshot: Snapshot) -> None:
        """All donors of a heal stage one version, on all shards, and it has the weights of that version."""
        self._same(snapshot.version, snapshot.weights, f"{rank.group.label}.{rank.shard_rank}")
        if self.staged_at.setdefault(heal, snapshot.version) != snapshot.version:
            self.broken(f"{rank.group.label} stages {snapshot.version} for a heal, others {self.staged_at[heal]}")

    def loaded(self, rank: Rank, snapshot: Snapshot) -> None:
        """Promise 1: a healed group has the weights of its version."""
        self._same(snapshot.version, snapshot.weights, f"{rank.group.label}.{rank.shard_rank}")

    def _same(self, version: Version, weights: int, who: str) -> None:
        if version != ROOT and self.weights_of.setdefault(version, weights) != weights:
            self.broken(f"{who} has other weights at {version} than others had")

    # ---- agents ----------------------------------------------------------------------------------------------------

    def agent_exited(self, group: Group, code: int, reason: str) -> None:
        self.note(f"{group.label} agent ends: {code} {reason}")
        self.exits.append((group.label, code, reason))

    def fenced(self, group: Group, by: int) -> None:
        """From now on this agent decides nothing as an incarnation before `by`.

        What it has decided may still be on its way to the ranks. A life that ended just before may be followed by
        another, which is a newer incarnation than `by`.
        """
        self._fenced[group.label, group.born] = max(by, self._fenced.get((group.label, group.born), 0))
        self.note(f"{group.label} is fenced")

    def agent_decided(self, group: Group, events: Sequence[Any], effects: Sequence[Any], now: float) -> None:
        """Generations only grow, floors too, one generation has one membership, and the fenced commit nothing."""
        state = group.agent
        assert state is not None
        key = (group.label, group.born)
        for effect in effects:
            if isinstance(effect, ToRanks) and isinstance(effect.message, Commit):
                end = effect.message.merged.end
                self._verdicts.add((group.label, end))
                if state.incarnation < self._fenced.get(key, 0):
                    self.broken(f"{group.label} commits {end} though it was fenced")
        if state.floor < self._floors.get(key, 0):
            self.broken(f"{group.label} takes back what it abandoned")
        self._floors[key] = state.floor
        seat = state.seat
        if seat.generation and seat.work is not None and seat.generation != self._entered.get(key, 0):
            if seat.generation < self._entered.get(key, 0):
                self.broken(f"{group.label} goes back to generation {seat.generation}")
            self._entered[key] = seat.generation
            members = tuple((m.name, m.incarnation, m.role.value) for m in seat.roster)
            self.note(f"{group.label} enters {seat.generation} at {seat.start.version}: {members}")
            if self.rosters.setdefault(seat.generation, members) != members:
                self.broken(f"generation {seat.generation} has members {members} and {self.rosters[seat.generation]}")
            if self.starts.setdefault(seat.generation, seat.start.version) != seat.start.version:
                self.broken(
                    f"generation {seat.generation} starts from {seat.start.version} and {self.starts[seat.generation]}"
                )
        self._decided += 1
        if self._decided % 37 == 0 and agent_decide(state, now)[1]:
            self.broken(f"{group.label}: deciding twice changes something")

    # ---- the lighthouse --------------------------------------------------------------------------------------------

    def lighthouse_decided(self, beacon: Beacon, effects: Sequence[Any], now: float) -> None:
        """Deciding twice changes nothing."""
        self._decided += 1
        if self._decided % 37 == 0 and lighthouse_decide(beacon.state, now)[1]:
            self.broken("the lighthouse: deciding twice changes something")

    def stored(self, store: Store, effect: Any) -> None:
        """A generation has one base, and agents that entered it started from there."""
        if isinstance(effect, StoreFinished):
            self.finished = effect.version
            self._finished_at(effect.version)
        if isinstance(effect, StoreBase):
            number, version = effect.number, effect.version
            if store is not self._store:  # a store that was lost: what others are at work on is not in this one
                self._store = store
                self.cold += [number] if self.bases else []
            self.note(f"base of {number} is {version}{' (reported)' if effect.reported else ''}")
            if self.bases.setdefault(number, version) != version:
                self.broken(f"generation {number} has bases {version} and {self.bases[number]}")
            if self.cursor_of.get(version, effect.cursor) != effect.cursor:
                self.broken(f"the base of {number} is at slot {effect.cursor}, {version} at {self.cursor_of[version]}")
            if self.starts.get(number, version) != version:
                self.broken(f"the base of {number} is {version}, but it was entered from {self.starts[number]}")

    def _finished_at(self, version: Version) -> None:
        """A run that nobody asked to stop ends with its data: all of it was consumed, and no more."""
        spec = self._world.spec
        left = spec.data_slots - self.cursor_of[version]
        wanted = (spec.slots_per_group or spec.slots) if spec.drop_last else 1
        if spec.data_slots and not self.stop_asked and left >= wanted:
            self.broken(f"the run is finished at {version}, with {left} slots of its data left")

    def told(self, event: Tell) -> None:
        self.told_kinds[event.kind] += 1
        if event.kind == "cold_start":
            self.cold.append(event.number)
        if event.kind != "step":
            self.note(f"lighthouse: {event.kind} {event.group} {event.text} {event.fields}")

    def run_ended(self, beacon: Beacon, effect: EndRun) -> None:
        """A run may give up only when no live weights are left: none that could have said so in time."""
        self.ended = effect
        self.note(f"run ended: {effect.reason}")
        if effect.success or "held for" in effect.reason:
            return
        newest = max(self.bases.values(), default=ROOT)
        since_s = self._world.engine.now - self._world.spec.lease_s * 2
        for group in self._world.groups.values():
            if group.paused_until > since_s or self._world.network.were_apart(group.label, LIGHTHOUSE, since_s):
                continue
            # A copy is whole only where all shards have it: some ranks may have loaded, and others not, or not yet.
            whole = group.training and all(rank.book.usable for rank in group.ranks)
            version = min(rank.book.version for rank in group.ranks) if whole else ROOT
            if version > newest and not is_cut_off(self, version):
                self.broken(f"the run ended ({effect.reason}) though {group.label} stands on {version}")


def is_cut_off(watch: Watch, version: Version) -> bool:
    """Whether the history went on from below it: nobody can begin there."""
    return any(number > version.generation and base.step < version.step for number, base in watch.bases.items())
