"""What may happen next in many states at once, and what states it leads to.

A state is a row of numbers: of the lighthouse with its store, of the operations, of the faults and restarts that may
still happen, and of each site. What a move makes of a part is looked up in tables that the parts' own functions fill.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulation.small_checks import broken_by_base, broken_by_commit, broken_in
from simulation.small_delays import Candidates, Delays
from simulation.small_moves import FAULT, LAST, ORDINARY, Moves, SiteView
from simulation.small_soon import ALWAYS, CALM, HARMLESS, NEVER
from simulation.small_tables import Ints, Keys, Table, mixed, packed, unpacked
from simulation.small_world import how_soon, over, restarted

Rows = NDArray[np.int32]

LEADER, OPERATIONS, LEFT, LATE, SITES = 0, 1, 2, 3, 4
"""Columns of a row; from SITES on there is one for each site."""

_LEADER, _HOST, _OPERATIONS, _SITE, _SMALL = 24, 15, 18, 24, 14
"""Bits that the numbers of parts may take in a key."""

_RESTART = 16
"""In LEFT, a restart counts so much, a fault one."""


class Step(NamedTuple):
    """Moves that were made: from which state, which, where they lead to, and what is wrong there (0: nothing)."""

    state: Ints
    move: Ints
    rows: Rows
    wrong: Ints


class Product:
    """All parts of a world together."""

    def __init__(self, moves: Moves, reduce: bool = True) -> None:
        self.moves = moves
        self.reduce = reduce
        self.world = world = moves.world
        self.groups = groups = world.spec.groups
        self._delays = Delays(world.spec.delays, moves.moves)
        self._site = Table(len(SiteView._fields), lambda key: [moves.site(key)])
        self._local = Table(7, lambda key: [(*m[:3], *m.turn) for m in moves.local(key)])
        self._heard = Table(7, moves.heard)
        self._soon = Table(7, lambda key: [how_soon(world, *unpacked(key, _LEADER, _SITE))])
        self._event = Table(4, self._of_event)
        self._order = Table(1, self._of_order)
        self._shared = Table(5, lambda key: moves.shared(*self._scene_parts(key)))
        self._settled = Table(1, lambda key: [(world.settled(*self._scene_parts(key)),)])
        self._quiet = Table(groups, lambda key: [tuple(moves.is_settled(*self._scene_parts(key)))])
        self._launch = Table(2, lambda key: [world.launched(*unpacked(key, _OPERATIONS, _SITE))])
        self._waits = Table(3 + 2 * groups, self._of_leader)
        self._stale = Table(1, lambda key: [(moves.stale(*unpacked(key, _LEADER, _SITE)) or [-1])[:1]])
        self._due = Table(4, self._of_deadlines)
        self._turn = Table(groups + 4, self._of_turn)
        self._amid = Table(1, lambda key: [(moves.amid(*unpacked(key, _SITE, 6)),)])
        self._restart = Table(1, lambda key: [(restarted(world, *unpacked(key, _LEADER, 4)),)])
        self._over = Table(1, lambda key: [(over(world, key),)])
        self._checked = Table(1, self._of_hosts)
        self._based = Table(1, self._of_base)
        self._committed = Table(1, self._of_commit)

    # ---- what the tables hold --------------------------------------------------------------------------------------

    def _scene_parts(self, key: int) -> tuple[int, list[int]]:
        operations, *hosts = unpacked(key, _OPERATIONS, *[_HOST] * self.groups)
        return operations, self._hosts(hosts)

    def _hosts(self, places: list[int]) -> list[int]:
        return [names.values[place] for names, place in zip(self.moves.hosts, places, strict=True)]

    def _of_event(self, key: int) -> list[tuple[int, ...]]:
        site, event = unpacked(key, _SITE, _SITE)
        return [self.world.host_event(site, self.moves.host_events.values[event])]

    def _of_order(self, key: int) -> list[tuple[int, ...]]:
        return [(self.world.ordered(*unpacked(key, _SITE, _SITE)),)]

    def _of_leader(self, key: int) -> list[tuple[int, ...]]:
        waits = self.world.waits(key)
        names = [f"g{i + 1}" for i in range(self.groups)]
        conns, members = {name: conn for name, _, conn in waits.groups}, dict(waits.members)
        at = [conns.get(name) or -1 for name in names] + [members.get(name, -2) for name in names]
        return [(self.moves.waits.of(waits), waits.finished, self.world.leaders.values[key][1], *at)]

    def _of_deadlines(self, key: int) -> list[tuple[int, ...]]:
        waits, *reaches = unpacked(key, 64 - _SMALL * self.groups, *[_SMALL] * self.groups)
        return list(self.moves.due(waits, reaches))

    def _of_turn(self, key: int) -> list[tuple[int, ...]]:
        leader, event, crash = unpacked(key, _LEADER, _SITE, 6)
        after, orders, base, wrong, count = self.world.lighthouse_event(leader, event, crash - 1)
        return [(after, base, wrong, count, *orders)]

    def _wrong(self, wrong: list[str]) -> list[tuple[int, ...]]:
        return [(self.world.wrongs.of(tuple(wrong)),)]

    def _of_hosts(self, key: int) -> list[tuple[int, ...]]:
        store, *hosts = unpacked(key, 64 - _HOST * self.groups, *[_HOST] * self.groups)
        return self._wrong(broken_in([self.world.view(h) for h in self._hosts(hosts)], self.world.stores.values[store]))

    def _of_base(self, key: int) -> list[tuple[int, ...]]:
        base, *hosts = unpacked(key, 64 - _HOST * self.groups, *[_HOST] * self.groups)
        return self._wrong(
            broken_by_base(self.world.things.values[base], [self.world.view(h) for h in self._hosts(hosts)])
        )

    def _of_commit(self, key: int) -> list[tuple[int, ...]]:
        store, commits = unpacked(key, _SITE, _SITE)
        names = self.world.commits.values[commits]
        return self._wrong([w for name in names for w in broken_by_commit(self.world.stores.values[store], name)])

    # ---- states ----------------------------------------------------------------------------------------------------

    def first(self) -> Rows:
        """The first state; in a world that is formed, one in which the first bases are on their way."""
        spec = self.world.spec
        leader, sites = self.world.first()
        rows = np.array([[leader, 0, spec.faults + _RESTART * spec.restarts, 0, *sites]], np.int32)
        while spec.formed and not self.world.waits(int(rows[0, LEADER])).number:
            step, _ = self.expand(rows)
            moves = [self.moves.moves.values[move] for move in step.move]
            usual = [(move[1], move[0] == "down", i) for i, move in enumerate(moves) if move[0] in ("up", "down")]
            if step.wrong.any() or not usual:  # the story is told from here
                break
            rows = step.rows[[min(usual)[2]]]
        return rows

    def keys(self, rows: Rows) -> Keys:
        """64 bits of each state."""
        keys = np.zeros(len(rows), np.uint64)
        for column in range(rows.shape[1]):
            keys = mixed(keys * np.uint64(31) + rows[:, column].astype(np.uint64))
        return keys

    def _view(self, rows: Rows) -> list[SiteView]:
        """Columns of what the rules ask of sites, for each site."""
        at = [self._site.row(packed((rows[:, SITES + i], 32))) for i in range(self.groups)]
        return [SiteView(*(column[row] for column in self._site.columns)) for row in at]

    # ---- which moves there are -------------------------------------------------------------------------------------

    def may_go_first(self, rows: Rows) -> list[set[frozenset[int]]]:
        """For each state, all sets of moves that may go first there."""
        sites, waits = self._view(rows), self._waits.row(packed((rows[:, LEADER], 32)))
        found: list[set[frozenset[int]]] = [set() for _ in rows]
        heard = [self._found(rows, self._heard, packed((rows[:, SITES + i], 32)), i) for i in range(self.groups)]
        for moves in self._may_go_first(rows, sites, waits, heard):
            for state in np.flatnonzero(moves >= 0).tolist():
                found[state].add(frozenset((int(moves[state]),)))
        number = self._waits.columns[0][waits].tolist()
        for site in sites:
            for state, past in enumerate(site.past.tolist()):  # of these only the first of a site was among them
                found[state] |= {frozenset((move,)) for move in self.moves.stale(number[state], past)}
        shared = self._found(rows, self._shared, self._scene(rows, sites), -1)
        for i, may in enumerate(self._may_hear(rows, sites, waits)):
            local = self._found(rows, self._local, packed((rows[:, SITES + i], 32)), i)
            here = (local, shared.where(self._shared.columns[3][shared.row] == i))
            for state in np.flatnonzero(may).tolist():
                own = [f.move[(f.state == state) & (f.kind == ORDINARY)].tolist() for f in here]
                found[state].add(frozenset(sum(own, [])))
        for ups in heard:
            good = self._may_be_heard(rows, sites, waits, ups)
            for state, move in zip(ups.state[good].tolist(), ups.move[good].tolist(), strict=True):
                found[state].add(frozenset((move,)))
        return found

    def hosts(self, rows: Rows) -> list[Ints]:
        """The number of each group's host, among those of that group."""
        return [site.host for site in self._view(rows)]

    def stores(self, leaders: Ints) -> Ints:
        """The numbers of the stores of these lighthouses."""
        return self._waits.columns[2][self._waits.row(packed((leaders, 32)))]  # type: ignore[no-any-return]

    def expand(self, rows: Rows) -> tuple[Step, NDArray[np.bool_]]:
        """Every move of these states, and in which of them nothing happens any more but faults."""
        sites, waits = self._view(rows), self._waits.row(packed((rows[:, LEADER], 32)))
        scene = self._scene(rows, sites)
        local = [self._found(rows, self._local, packed((rows[:, SITES + i], 32)), i) for i in range(self.groups)]
        heard = [self._found(rows, self._heard, packed((rows[:, SITES + i], 32)), i) for i in range(self.groups)]
        shared = self._found(rows, self._shared, scene, -1)
        reaches = [(site.reach, _SMALL) for site in sites]
        bits = 64 - _SMALL * self.groups
        due = self._found(rows, self._due, packed((self._waits.columns[0][waits], bits), *reaches), -1)
        kinds = [*local, *heard, shared, due]
        kept, ended, may = self._kept(rows, sites, waits, kinds, heard)
        kinds = [found.where(k) for found, k in zip(kinds, kept, strict=True)]
        kinds = self._delays.chosen(kinds) if self.world.spec.delays >= 0 else kinds
        n = self.groups
        steps = [self._at_site(rows, f, self._local, f.row, 3) for f in kinds[:n]]
        steps += [self._told(rows, f, 0) for f in kinds[n : 2 * n]]
        steps += self._with_others(rows, kinds[2 * n])
        steps.append(self._told(rows, kinds[2 * n + 1], 0))
        if may.any():
            steps += self._restarts(rows, may, heard, due)
        step = Step(*(np.concatenate(parts) for parts in zip(*steps, strict=True)))
        self._plain(step.rows)
        return step, ended

    def _plain(self, rows: Rows) -> None:
        """Leaves out what nobody asks for once the run is finished."""
        done = np.flatnonzero(self._waits.columns[1][self._waits.row(packed((rows[:, LEADER], 32)))])
        for i in range(SITES, rows.shape[1]):
            rows[done, i] = self._over.columns[0][self._over.row(packed((rows[done, i], 32)))]

    def _found(self, rows: Rows, table: Table, keys: Keys, index: int) -> Candidates:
        state, row = table.rows(keys)
        move, order, kind = (column[row] for column in table.columns[:3])
        return Candidates(state, move, order, kind, row, rows[state, LATE].astype(np.int64), index)

    def _kept(
        self, rows: Rows, sites: list[SiteView], waits: Ints, kinds: list[Candidates], heard: list[Candidates]
    ) -> tuple[list[Any], NDArray[np.bool_], NDArray[np.bool_]]:
        """Which candidates are tried: all, or where one may go first only that; where there is none;
        and where the lighthouse may crash."""
        only, alone = np.full(len(rows), -1), np.full(len(rows), -1)
        for move in self._may_go_first(rows, sites, waits, heard) if self.reduce else ():
            only = np.where(only < 0, move, only)
        for i, may in enumerate(self._may_hear(rows, sites, waits) if self.reduce else ()):
            alone = np.where((alone < 0) & (only < 0) & may, i, alone)
        free = (only < 0) & (alone < 0)
        ordinary = np.zeros(len(rows), np.int64)
        for found in kinds:
            ordinary += np.bincount(found.state[found.kind == ORDINARY], minlength=len(rows))
        kept, left = [], np.zeros(len(rows), np.int64)
        for place, found in enumerate(kinds):
            state = found.state
            site = self._shared.columns[3][found.row] if place == 2 * self.groups else place
            good = free[state] | (found.move == only[state]) | (site == alone[state])
            good &= (found.kind == ORDINARY) | ((found.kind == LAST) & (ordinary[state] == 0))
            left += np.bincount(state[good], minlength=len(rows))
            faults = (found.kind == FAULT) & (rows[state, LEFT] % _RESTART > 0)
            kept.append(good | (faults & free[state]))
        return kept, left == 0, (rows[:, LEFT] >= _RESTART) & free

    def _may_go_first(self, rows: Rows, sites: list[SiteView], waits: Ints, heard: list[Candidates]) -> list[Ints]:
        """Moves before which nothing else need be tried, -1 where there is none; see the page of `small`."""
        number = self._waits.columns[0][waits]
        found = []
        for site in sites:
            some, stale = np.flatnonzero(site.past), np.full(len(rows), -1)
            keys = packed((number[some], _LEADER), (site.past[some], _SITE))
            stale[some] = self._stale.columns[0][self._stale.row(keys)]
            found.append(stale)
        left = rows[:, LEFT] == 0
        for i, site in enumerate(sites):
            others = [other.content == 1 for other in sites[:i] + sites[i + 1 :]]
            found.append(np.where(left & np.logical_and.reduce(others), site.heals, -1))
        for ups in heard:
            good, one = self._may_be_heard(rows, sites, waits, ups), np.full(len(rows), -1)
            one[ups.state[good]] = ups.move[good]
            found.append(one)
        return found

    def _scene(self, rows: Rows, sites: list[SiteView]) -> Keys:
        return packed((rows[:, OPERATIONS], _OPERATIONS), *((site.host, _HOST) for site in sites))

    def _may_hear(self, rows: Rows, sites: list[SiteView], waits: Ints) -> list[NDArray[np.bool_]]:
        """Where all moves of a site may go first, alone."""
        quiet = self._quiet.row(self._scene(rows, sites))
        left, over = rows[:, LEFT] == 0, self._waits.columns[1][waits] == 1
        found = []
        for i, site in enumerate(sites):
            known = self._quiet.columns[i][quiet]
            done = over & (known > 0)
            for other in sites[:i] + sites[i + 1 :]:
                done &= other.content == 1
            found.append(left & (site.closed == 1) & (done | (known == 2) & (site.hidden == 1)))
        return found

    def _may_be_heard(self, rows: Rows, sites: list[SiteView], waits: Ints, heard: Candidates) -> NDArray[np.bool_]:
        """Which of these the lighthouse may hear before all else: see `small_soon`."""
        event, message, alone = (self._heard.columns[i][heard.row] for i in (4, 5, 6))
        left, spec = rows[heard.state, LEFT], self.world.spec
        none = (left % _RESTART == 0) | (set(spec.kinds) <= {"crash"} and not spec.returns)
        asked = np.flatnonzero((message == 1) & (event >= 0))
        how, good = np.where(message == 1, ALWAYS, NEVER), alone == 1
        state, now = heard.state[asked], waits[heard.state[asked]]
        at = self._soon.row(packed((rows[state, LEADER], _LEADER), (event[asked], _SITE)))
        how[asked], *masks = (column[at] for column in self._soon.columns)
        for i, site in enumerate(SiteView(*(column[state] for column in view)) for view in sites):
            hellos, ends, known, there, still, kin = (mask >> i & 1 == 1 for mask in masks)
            deaf = (self._waits.columns[3 + i][now] != site.conn) & (i != heard.index)
            bad = deaf & (known | hellos & (site.greets == 1) | ends & (site.ends == 1))
            bad |= there & ((site.out == 1) | (left[asked] != 0)) | still & (site.still == 0)
            bad |= kin & (site.greets == 1) & (self._waits.columns[3 + self.groups + i][now] != site.incarnation)
            good[asked] &= ~bad
        good &= (how == CALM) & none | (how == HARMLESS) & (left == 0)
        return good | (how == ALWAYS)  # type: ignore[no-any-return]

    # ---- what they lead to -----------------------------------------------------------------------------------------

    def _at_site(self, rows: Rows, found: Candidates, table: Table, row: Ints, first: int) -> Step:
        """Moves of one site, whose turns are at `row` of `table`, from its column `first` on."""
        site, launched, commits, wrong = (column[row] for column in table.columns[first : first + 4])
        after = rows[found.state]
        after[:, LATE] = found.late
        after[:, SITES + found.index] = site
        after[:, LEFT] -= found.kind == FAULT
        some = np.flatnonzero(launched)
        at = self._launch.row(packed((after[some, OPERATIONS], _OPERATIONS), (launched[some], _SITE)))
        after[some, OPERATIONS] = self._launch.columns[0][at]
        wrong[some] = np.where(wrong[some] > 0, wrong[some], self._launch.columns[1][at])
        store = self._waits.columns[2][self._waits.row(packed((after[:, LEADER], 32)))]
        some = np.flatnonzero(commits)
        at = self._committed.row(packed((store[some], _SITE), (commits[some], _SITE)))
        wrong[some] = np.where(wrong[some] > 0, wrong[some], self._committed.columns[0][at])
        hosts = [(site.host, _HOST) for site in self._view(after)]
        at = self._settled.row(packed((after[:, OPERATIONS], _OPERATIONS), *hosts))
        after[:, OPERATIONS] = self._settled.columns[0][at]
        at = self._checked.row(packed((store, 64 - _HOST * self.groups), *hosts))
        wrong = np.where(wrong > 0, wrong, self._checked.columns[0][at])
        return Step(found.state, found.move, after, wrong)

    def _with_others(self, rows: Rows, found: Candidates) -> list[Step]:
        steps = []
        index, event = (column[found.row] for column in self._shared.columns[3:])
        for i in range(self.groups):
            here = found.where(index == i)._replace(index=i)
            keys = packed((rows[here.state, SITES + i], _SITE), (event[index == i], _SITE))
            steps.append(self._at_site(rows, here, self._event, self._event.row(keys), 0))
        return steps

    def _told(self, rows: Rows, found: Candidates, crash: Any) -> Step:
        """Moves that the lighthouse hears of; it crashes after `crash` - 1 of its effects, never if 0."""
        after = rows[found.state]
        after[:, LATE] = found.late
        if found.index >= 0:
            after[:, SITES + found.index] = self._heard.columns[3][found.row]
            event = self._heard.columns[4][found.row]
        else:
            event = self._due.columns[3][found.row]
            after[:, LEFT] -= found.kind == FAULT
        wrong = np.zeros(len(after), np.int64)
        some = np.flatnonzero(event >= 0)
        crash = np.broadcast_to(crash, len(after))[some]
        at = self._turn.row(packed((after[some, LEADER], _LEADER), (event[some], _SITE), (crash, 6)))
        leader, base, bad, _, *orders = (column[at] for column in self._turn.columns)
        based = np.flatnonzero(base >= 0)
        hosts = [(site.host, _HOST) for site in self._view(after[some[based]])]
        bad[based] += self._based_wrong(bad[based], packed((base[based], 64 - _HOST * self.groups), *hosts))
        after[some, LEADER], wrong[some] = leader, bad
        for i, order in enumerate(orders):
            told = np.flatnonzero(order)
            keys = packed((after[some[told], SITES + i], _SITE), (order[told], _SITE))
            after[some[told], SITES + i] = self._order.columns[0][self._order.row(keys)]
        return Step(found.state, found.move, after, wrong)

    def _based_wrong(self, bad: Ints, keys: Keys) -> Ints:
        return np.where(bad == 0, self._based.columns[0][self._based.row(keys)], 0)

    def _restarts(self, rows: Rows, may: NDArray[np.bool_], heard: list[Candidates], due: Candidates) -> list[Step]:
        """The lighthouse crashes, between two events or amid the effects of one."""
        steps = []
        state = np.flatnonzero(may)
        move = np.full(len(state), self.moves.moves.of(("restart",)))
        steps.append(self._forsaken(Step(state, move, rows[state], np.zeros(len(state), np.int64))))
        for found in (*heard, due):
            here = found.index >= 0
            event = self._heard.columns[4] if here else self._due.columns[3]
            meant = self._heard.columns[5][found.row] == 1 if here else found.kind == ORDINARY
            found = found.where(may[found.state] & meant & (event[found.row] >= 0))
            keys = (rows[found.state, LEADER], _LEADER), (event[found.row], _SITE), (np.zeros(len(found.state), int), 6)
            count = np.maximum(self._turn.columns[3][self._turn.row(packed(*keys))] - 1, 0)
            each = np.repeat(np.arange(len(count)), count)
            crash = np.arange(len(each)) - np.repeat(np.cumsum(count) - count, count) + 2
            found = found.where(each)
            at = self._amid.row(packed((found.move, _SITE), (crash, 6)))
            found = found._replace(move=self._amid.columns[0][at])
            steps.append(self._forsaken(self._told(rows, found, crash)))
        return steps

    def _forsaken(self, step: Step) -> Step:
        after = step.rows
        after[:, LEFT] -= _RESTART
        used = self.world.spec.restarts - after[:, LEFT] // _RESTART
        at = self._restart.row(packed((after[:, LEADER], _LEADER), (used, 4)))
        after[:, LEADER] = self._restart.columns[0][at]
        for i, site in enumerate(self._view(after)):
            after[:, SITES + i] = site.forsaken
        return step
