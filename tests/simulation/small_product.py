"""What may happen next in many states at once, and what states it leads to.

A state is a row of numbers: of the lighthouse with its store, of the operations, of the faults and restarts that may
still happen, and of each site. What a move makes of a part is looked up in tables that the parts' own functions fill.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulation.small_checks import broken_by_base, broken_by_commit, broken_in
from simulation.small_moves import _DEADLINE, FAULT, LATE, ORDINARY, Moves
from simulation.small_tables import Ints, Keys, Table, mixed, packed, unpacked

Rows = NDArray[np.int32]

LEADER, OPERATIONS, LEFT, SITES = 0, 1, 2, 3
"""Columns of a row; from SITES on there is one for each site."""

_LEADER, _HOST, _OPERATIONS, _SITE, _SMALL = 24, 15, 18, 24, 14
"""Bits that the numbers of parts may take in a key."""

_RESTART = 16
"""In LEFT, a restart counts so much, a fault one."""


class Candidates(NamedTuple):
    """Moves of many states. state: of which one; row: of the move in its table; index: of the site that it is at."""

    state: Ints
    move: Ints
    order: Ints
    kind: Ints
    row: Ints
    index: int

    def where(self, kept: Any) -> Candidates:
        """Some of them."""
        return Candidates(*(c[kept] for c in self[:5]), self.index)


class Step(NamedTuple):
    """Moves that were made: from which state, which, where they lead to, and what is wrong there (0: nothing)."""

    state: Ints
    move: Ints
    rows: Rows
    wrong: Ints


class Product:
    """All parts of a world together."""

    def __init__(self, moves: Moves) -> None:
        self.moves = moves
        self.world = world = moves.world
        self.groups = groups = world.spec.groups
        self._site = Table(9, lambda key: [moves.site(key)])
        self._local = Table(7, lambda key: [(*m[:3], *m.turn) for m in moves.local(key)])
        self._heard = Table(5, moves.heard)
        self._event = Table(4, self._of_event)
        self._order = Table(1, self._of_order)
        self._scene = Table(5, lambda key: [moves.scene(*self._scene_parts(key))])
        self._shared = Table(5, lambda key: moves.shared(*self._scene_parts(key)))
        self._settled = Table(1, lambda key: [(world.settled(*self._scene_parts(key)),)])
        self._launch = Table(2, lambda key: [world.launched(*unpacked(key, _OPERATIONS, _SITE))])
        self._waits = Table(6, self._of_leader)
        self._stale = Table(1, lambda key: [(moves.stale(*unpacked(key, _LEADER, _SITE)),)])
        self._due = Table(4, self._of_deadlines)
        self._turn = Table(groups + 4, self._of_turn)
        self._restart = Table(1, lambda key: [(world.restarted(*unpacked(key, _LEADER, 4)),)])
        self._checked = Table(1, self._of_hosts)
        self._based = Table(1, self._of_base)
        self._committed = Table(1, self._of_commit)

    # ---- what the tables hold --------------------------------------------------------------------------------------

    def _scene_parts(self, key: int) -> tuple[int, list[int]]:
        operations, *hosts = unpacked(key, _OPERATIONS, *[_HOST] * self.groups)
        return operations, hosts

    def _of_event(self, key: int) -> list[tuple[int, ...]]:
        site, event = unpacked(key, _SITE, _SITE)
        return [self.world.host_event(site, self.moves.host_events.values[event])]

    def _of_order(self, key: int) -> list[tuple[int, ...]]:
        return [(self.world.ordered(*unpacked(key, _SITE, _SITE)),)]

    def _of_leader(self, key: int) -> list[tuple[int, ...]]:
        waits = self.world.waits(key)
        calm = 2 if waits.finished else int(waits.settled and not waits.ended)
        number = self.moves.waits.of(waits)
        return [(number, waits.number, calm, waits.changing or waits.troubled, self.world.leaders.values[key][1], 0)]

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
        return self._wrong(broken_in([self.world.view(h) for h in hosts], self.world.stores.values[store]))

    def _of_base(self, key: int) -> list[tuple[int, ...]]:
        base, *hosts = unpacked(key, 64 - _HOST * self.groups, *[_HOST] * self.groups)
        return self._wrong(broken_by_base(self.world.things.values[base], [self.world.view(h) for h in hosts]))

    def _of_commit(self, key: int) -> list[tuple[int, ...]]:
        store, commits = unpacked(key, _SITE, _SITE)
        names = self.world.commits.values[commits]
        return self._wrong([w for name in names for w in broken_by_commit(self.world.stores.values[store], name)])

    # ---- states ----------------------------------------------------------------------------------------------------

    def first(self) -> Rows:
        """The first state; in a world that is formed, the one in which the first bases are on their way."""
        spec = self.world.spec
        leader, sites = self.world.first()
        rows = np.array([[leader, 0, spec.faults + _RESTART * spec.restarts, *sites]], np.int32)
        while spec.formed and not self.world.waits(int(rows[0, LEADER])).number:
            step, _ = self.expand(rows)
            assert not step.wrong.any()
            moves = [self.moves.moves.values[move] for move in step.move]
            usual = [(move[1], move[0] == "down", i) for i, move in enumerate(moves) if move[0] in ("up", "down")]
            rows = step.rows[[min(usual)[2]]]
        return rows

    def keys(self, rows: Rows) -> Keys:
        """64 bits of each state."""
        keys = np.zeros(len(rows), np.uint64)
        for column in range(rows.shape[1]):
            keys = mixed(keys * np.uint64(31) + rows[:, column].astype(np.uint64))
        return keys

    def sites(self, rows: Rows, what: int) -> list[Ints]:
        """One column of the sites' views (see `SiteView`), for each site."""
        return [self._site.columns[what][self._site.row(packed((rows[:, SITES + i], 32)))] for i in range(self.groups)]

    # ---- which moves there are -------------------------------------------------------------------------------------

    def expand(self, rows: Rows) -> tuple[Step, NDArray[np.bool_]]:
        """Every move of these states, and in which of them nothing happens any more but faults."""
        sites = [self._site.row(packed((rows[:, SITES + i], 32))) for i in range(self.groups)]
        waits = self._waits.row(packed((rows[:, LEADER], 32)))
        hosts = [self._site.columns[0][s] for s in sites]
        scene = packed((rows[:, OPERATIONS], _OPERATIONS), *((h, _HOST) for h in hosts))
        local = [self._found(self._local, packed((rows[:, SITES + i], 32)), i) for i in range(self.groups)]
        heard = [self._found(self._heard, packed((rows[:, SITES + i], 32)), i) for i in range(self.groups)]
        shared = self._found(self._shared, scene, -1)
        reaches = [(self._site.columns[1][s], _SMALL) for s in sites]
        bits = 64 - _SMALL * self.groups
        due = self._found(self._due, packed((self._waits.columns[0][waits], bits), *reaches), -1)
        kinds = [*local, *(h._replace(kind=np.zeros_like(h.kind)) for h in heard), shared, due]
        kept, ended = self._kept(rows, sites, waits, self._scene.row(scene), kinds)
        kinds = [found.where(k) for found, k in zip(kinds, kept, strict=True)]
        n = self.groups
        steps = [self._at_site(rows, f, self._local, f.row, 3) for f in kinds[:n]]
        steps += [self._told(rows, f, 0) for f in kinds[n : 2 * n]]
        steps += self._with_others(rows, kinds[2 * n])
        steps.append(self._told(rows, kinds[2 * n + 1], 0))
        if rows[:, LEFT].max(initial=0) >= _RESTART:
            steps += self._restarts(rows, heard, due)
        return Step(*(np.concatenate(parts) for parts in zip(*steps, strict=True))), ended

    def _found(self, table: Table, keys: Keys, index: int) -> Candidates:
        state, row = table.rows(keys)
        move, order, kind = (column[row] for column in table.columns[:3])
        return Candidates(state, move, order, kind, row, index)

    def _kept(
        self, rows: Rows, sites: list[Ints], waits: Ints, scene: Ints, kinds: list[Candidates]
    ) -> tuple[list[Any], NDArray[np.bool_]]:
        """Which candidates are tried: all, or where one may go first only that; and where there is none."""
        harmless = rows[:, LEFT] == 0
        only, calm = self._first_ones(rows, sites, waits, scene)
        first = np.full(len(rows), _DEADLINE)
        ordinary = np.zeros(len(rows), np.int64)
        for found in kinds:
            usual = found.kind == ORDINARY
            np.minimum.at(first, found.state[usual], found.order[usual])
            ordinary += np.bincount(found.state[usual], minlength=len(rows))
        kept, left = [], np.zeros(len(rows), np.int64)
        for found in kinds:
            one, state = only[found.state], found.state
            good = np.where(one >= 0, found.move == one, ~calm[state] | (found.order == first[state]))
            good &= (found.kind == ORDINARY) | ((found.kind == LATE) & (ordinary[state] == 0) & ~calm[state])
            left += np.bincount(state[good], minlength=len(rows))
            faults = (found.kind == FAULT) & ~harmless[state] & (rows[state, LEFT] % _RESTART > 0)
            kept.append(good | faults)
        return kept, left == 0

    def _first_ones(
        self, rows: Rows, sites: list[Ints], waits: Ints, scene: Ints
    ) -> tuple[Ints, NDArray[np.bool_]]:
        """The move that may go first in each state, -1 for none; and where any order stands for all."""
        harmless = rows[:, LEFT] == 0
        reduced, transfers, lost, at_work, busy = (column[scene] for column in self._scene.columns)
        number, leads, calm, changing = (column[waits] for column in self._waits.columns[:4])
        parts = [[column[s] for column in self._site.columns] for s in sites]
        only = reduced.copy()
        for index, part in enumerate(parts):
            idle = harmless & (transfers == 0) & (busy >> index & 1 == 0)
            only = np.where((only < 0) & idle, part[6], only)
        for part in parts:
            open_ = np.flatnonzero((only < 0) & (part[2] != 0))
            keys = packed((number[open_], _LEADER), (part[2][open_], _SITE))
            only[open_] = self._stale.columns[0][self._stale.row(keys)]
        whole = ~np.any([part[3] for part in parts], axis=0)
        quiet = harmless & whole & (changing == 0) & (lost == 0) & np.all([part[4] for part in parts], axis=0)
        for part in parts:
            only = np.where((only < 0) & quiet, part[5], only)
        streams = np.sum([part[7] for part in parts], axis=0)
        peace = (calm == 2) | ((calm == 1) & (streams == self.groups) & (at_work == leads) & whole)
        spec = self.world.spec
        return only, peace & harmless & (only < 0) & bool(spec.faults or spec.restarts)

    # ---- what they lead to -----------------------------------------------------------------------------------------

    def _at_site(self, rows: Rows, found: Candidates, table: Table, row: Ints, first: int) -> Step:
        """Moves of one site, whose turns are at `row` of `table`, from its column `first` on."""
        site, launched, commits, wrong = (column[row] for column in table.columns[first : first + 4])
        before = rows[found.state]
        after = before.copy()
        after[:, SITES + found.index] = site
        after[:, LEFT] -= found.kind == FAULT
        some = np.flatnonzero(launched)
        at = self._launch.row(packed((after[some, OPERATIONS], _OPERATIONS), (launched[some], _SITE)))
        after[some, OPERATIONS] = self._launch.columns[0][at]
        wrong[some] = np.where(wrong[some] > 0, wrong[some], self._launch.columns[1][at])
        store = self._waits.columns[4][self._waits.row(packed((after[:, LEADER], 32)))]
        some = np.flatnonzero(commits)
        at = self._committed.row(packed((store[some], _SITE), (commits[some], _SITE)))
        wrong[some] = np.where(wrong[some] > 0, wrong[some], self._committed.columns[0][at])
        hosts = [(column, _HOST) for column in self.sites(after, 0)]
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
        hosts = [(column, _HOST) for column in self.sites(after[some[based]], 0)]
        bad[based] += self._based_wrong(bad[based], packed((base[based], 64 - _HOST * self.groups), *hosts))
        after[some, LEADER], wrong[some] = leader, bad
        for i, order in enumerate(orders):
            told = np.flatnonzero(order)
            keys = packed((after[some[told], SITES + i], _SITE), (order[told], _SITE))
            after[some[told], SITES + i] = self._order.columns[0][self._order.row(keys)]
        return Step(found.state, found.move, after, wrong)

    def _based_wrong(self, bad: Ints, keys: Keys) -> Ints:
        return np.where(bad == 0, self._based.columns[0][self._based.row(keys)], 0)

    def _restarts(self, rows: Rows, heard: list[Candidates], due: Candidates) -> list[Step]:
        """The lighthouse crashes, between two events or amid the effects of one."""
        may = rows[:, LEFT] >= _RESTART
        steps = []
        state = np.flatnonzero(may)
        move = np.full(len(state), self.moves.moves.of(("restart",)))
        steps.append(self._forsaken(Step(state, move, rows[state], np.zeros(len(state), np.int64))))
        for found in (*heard, due):
            event = self._heard.columns[4] if found.index >= 0 else self._due.columns[3]
            whole = (found.kind == ORDINARY) if found.index < 0 else found.kind == 1
            found = found.where(may[found.state] & whole & (event[found.row] >= 0))
            keys = (rows[found.state, LEADER], _LEADER), (event[found.row], _SITE), (np.zeros(len(found.state), int), 6)
            count = np.maximum(self._turn.columns[3][self._turn.row(packed(*keys))] - 1, 0)
            each = np.repeat(np.arange(len(count)), count)
            crash = np.arange(len(each)) - np.repeat(np.cumsum(count) - count, count) + 2
            found = found.where(each)._replace(kind=np.zeros(len(each), np.int64))
            names = self.moves.moves.values
            amid = {
                (m, c): self.moves.moves.of(("amid", c - 1, *names[m]))
                for m, c in set(zip(found.move.tolist(), crash.tolist(), strict=True))
            }
            move = np.array([amid[pair] for pair in zip(found.move.tolist(), crash.tolist(), strict=True)], np.int64)
            steps.append(self._forsaken(self._told(rows, found._replace(move=move), crash)))
        return steps

    def _forsaken(self, step: Step) -> Step:
        after = step.rows
        after[:, LEFT] -= _RESTART
        used = self.world.spec.restarts - after[:, LEFT] // _RESTART
        at = self._restart.row(packed((after[:, LEADER], _LEADER), (used, 4)))
        after[:, LEADER] = self._restart.columns[0][at]
        for i, column in enumerate(self.sites(after, 8)):
            after[:, SITES + i] = column
        return step
