"""A rank's side of healing: fetching entries in the background, loading a snapshot, staging one for others.

Fetching runs on a thread of its own and only ever holds what it got; nothing changes the training state but the
training thread, between steps.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lighthouse.values import ROOT, EntryName, Source, Version
from replica.beside import let_go
from replica.descriptors import socket_lock
from replica.digest import StepDigest
from replica.entry import Entry, EntryLog
from replica.errors import ReplicaError
from replica.patience import InForce
from replica.snapshot import Room, Snapshot
from replica.state import TrainingState
from replica.transfer_client import Cancel, FellBehind, TransferFailed, fetch_entry, load_snapshot
from replica.transfer_limits import TransferLimits
from replica.transfer_server import WeightServer
from replica.values import (
    Fetch,
    FetchFailed,
    Held,
    Load,
    Loaded,
    LoadFailed,
    Moved,
    Quit,
    RankDown,
    RankUp,
    StageFor,
    UpToDate,
)

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

_ASK_AGAIN_S = 1.0
_TELL_EVERY_S = 0.5


class _Teller:
    """Tells the agent how a load gets on, now and then. Any thread."""

    def __init__(
        self, command: Load, shard_rank: int, say: Callable[[RankUp], None], each: Callable[[], None] | None
    ) -> None:
        self._each = each
        self._heal = command.heal
        sources = (*command.sources, *command.passing)
        self._names = {source.weights[shard_rank]: source.name for source in sources}
        self._say = say
        self._lock = threading.Lock()
        self._began_s = self._last_s = 0.0
        self._last_bytes = -1
        self._sources: set[str] = set()

    def moved(self, count: int, total: int, source: str) -> None:
        """So many bytes of `total` are verified, the last of them from `source`."""
        if count and self._each is not None:
            self._each()
        now = time.monotonic()
        with self._lock:
            self._sources.add(self._names[source])
            first = self._last_bytes < 0
            self._began_s = now if first else self._began_s
            past_s = now - self._last_s
            if not first and (past_s < _TELL_EVERY_S or count <= self._last_bytes):
                return
            rate = 0.0 if first else (count - self._last_bytes) / past_s
            sources, self._sources = tuple(sorted(self._sources)), set()
            self._last_s, self._last_bytes = now, count
            seconds = now - self._began_s
            self._say(Moved(heal=self._heal, bytes=count, total=total, seconds=seconds, rate=rate, sources=sources))


Stripes = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Expected:
    """A snapshot to come: its stripes, none for all, and the memory for it. Those of the same stripes share it."""

    stripes: Stripes
    room: Room


class Healing:
    """What this rank serves and what it asks of others.

    modules: the FSDP modules of the model; they are resharded before the state is touched
    like: tensors of the bucket layout (on the meta device will do)
    log_bytes: most bytes of entries held for one joiner
    """

    def __init__(
        self,
        *,
        state: TrainingState,
        modules: Sequence[FSDPModule],
        log: EntryLog,
        server: WeightServer,
        token: bytes,
        shard_rank: int,
        like: Sequence[torch.Tensor],
        log_bytes: int,
        in_force: InForce,
        say: Callable[[RankUp], None],
    ) -> None:
        self._state = state
        self._modules = modules
        self._log = log
        self._server = server
        self._token = token
        self._shard_rank = shard_rank
        self._like = like
        self._log_bytes = log_bytes
        self._in_force = in_force
        self._say = say
        self._changed = threading.Condition()
        self._turn = 0
        self._held: dict[EntryName, Entry] = {}
        self._reached: Version = ROOT
        self._heal = 0
        self._wanted = 0
        self._loading = Cancel()
        self._shy: set[str] = set()
        self._expected: dict[int, _Expected] = {}
        self._staged: list[Snapshot] = []
        self._spare: list[torch.Tensor] = []
        self._passes = False
        self._unseen = True
        self.digest = StepDigest(state)

    def settle(self, becomes: Version | None = None) -> None:
        """Makes the state writable: parameters sharded, copies for others before what is done next, no digest of it.

        becomes: the version that it is about to be at, whoever made it: a held entry that leads there is of no use
        """
        if becomes is not None:
            with self._changed:
                self._reached = becomes
                self._held = {name: entry for name, entry in self._held.items() if name.end != becomes}
                self._changed.notify_all()
        if self._passes:
            self._server.pass_no_more()
            self._passes = False
        self._make_readable()
        self.digest.settle()

    def _make_readable(self) -> None:
        for module in self._modules:
            module.reshard()
        while self._staged:
            self._staged.pop().fence()

    def fetch(self, command: Fetch) -> None:
        """Begins to fetch, in place of any fetch before. `Held`, `UpToDate` or `FetchFailed` tell how it goes.

        An entry that was told to be applied first is waited for: at most one lies here beside the one being applied.
        """
        turn = self._next_turn()
        threading.Thread(target=self._fetch, args=(command, turn), name="bellrock-fetch", daemon=True).start()

    def take(self, name: EntryName) -> Entry:
        """The held entry `name`, to be applied; all others are forgotten."""
        with self._changed:
            entry = self._held.pop(name, None)
            self._held.clear()
            self._changed.notify_all()
        if entry is None:
            raise ReplicaError(f"told to apply the entry from {name.start} to {name.end}, which is not held here")
        return entry

    def load(self, command: Load, each: Callable[[], None] | None = None) -> Loaded | LoadFailed:
        """Loads the snapshot into the training state; the answer for the agent. The state is unusable if it failed.

        each: called whenever a chunk is verified, on a thread of the transfer
        """
        self._next_turn()
        self._expected.clear()
        with self._changed:
            self._held.clear()
            self._heal = command.heal
            self._shy = set()
            cancel = self._loading = Cancel()
            if self._wanted > command.heal:
                return LoadFailed(heal=command.heal, reason="another heal took its place")
        self.settle()
        self._spare = []  # this rank may need it
        self._unseen = True
        self._passes = True
        teller = _Teller(command, self._shard_rank, self._say, each)
        try:
            deadlines = self._in_force.now
            loaded = load_snapshot(
                self._addresses(command.sources),
                command.heal,
                self._state,
                self._token,
                progress=teller.moved,
                wait_s=deadlines.staging_s,
                limits=TransferLimits.of(deadlines),
                lock=socket_lock(),
                cancel=cancel,
                passing=self._addresses(command.passing),
                pass_on=self._server.pass_on,
            )
        except (TransferFailed, ValueError) as failure:
            return LoadFailed(heal=command.heal, reason=str(failure))
        self._log.stand_on(loaded.version)
        return Loaded(
            heal=command.heal,
            version=loaded.version,
            cursor=loaded.cursor,
            stop=loaded.stop,
            bytes=loaded.bytes,
            seconds=loaded.seconds,
        )

    def at_once(self, command: RankDown) -> bool:
        """What cannot wait for the training thread, on the thread that reads commands; True: it need not hear of it."""
        if isinstance(command, Fetch):
            self.fetch(command)
        elif isinstance(command, Load):
            self.supersede(command.heal)
        elif isinstance(command, Quit):
            self.supersede(1 << 62)
        return isinstance(command, Fetch)

    def supersede(self, heal: int) -> None:
        """A load of an older heal is over, though its sources may not know yet. Any thread."""
        with self._changed:
            self._wanted = max(self._wanted, heal)
            cancel = self._loading if self._heal < heal else None
        if cancel is not None:
            cancel.cancel()

    def expect(self, command: StageFor) -> None:
        """Makes room for what is to be staged, in the background; between steps only, like `stage`."""
        of, place = command.donors, command.place
        stripes = ((place, of), ((place + 1) % of, of)) if of > 2 else ()
        self._make_readable()
        self._expected[command.heal] = _Expected(stripes, self._room(stripes, make=not command.now))

    def _room(self, stripes: Stripes, make: bool = True) -> Room:
        """Memory for a snapshot: that which is being made for another heal, or that of the last snapshot, or new.

        make: it is made in the background if there is none; else there is none.
        """
        for other in self._expected.values():
            if other.stripes == stripes and (make or other.room.ready):
                return other.room
        spare, self._spare = self._spare, []
        return Room(self._state, stripes, spare=spare, make=make)

    def ready(self, heals: Sequence[int]) -> tuple[int, ...]:
        """Those of the heals that there is room to stage for by now."""
        rooms = ((heal, self._expected.get(heal)) for heal in heals)
        return tuple(heal for heal, expected in rooms if expected is None or expected.room.ready)

    def stage(self, heals: Sequence[int], version: Version, cursor: int, stop: bool) -> None:
        """Stages the state, which is at `version`, for each of the heals, and keeps entries for it from there on.

        There is one snapshot for all that have the same stripes. Call it after each step: the state is gone through
        after the first one, which completes it, and the first after a load, so that nobody waits for that when there is
        something to stage.
        """
        if self._unseen:
            self._state.flatten()
            self._unseen = False
        if not heals:
            return
        self._make_readable()
        snapshots: dict[Stripes, Snapshot] = {}
        for heal in heals:
            expected = self._expected.pop(heal, None)
            stripes, room = (expected.stripes, expected.room) if expected is not None else ((), None)
            self._log.owe(heal, version, self._log_bytes)
            if room is not None and room.short:
                self._server.refuse(heal, "this host has too little memory for a snapshot")
                continue
            if stripes not in snapshots:
                snapshots[stripes] = Snapshot.stage(self._state, version, cursor, stop, stripes, room=room)
            self._server.stage(heal, snapshots[stripes])
        self._staged.extend(snapshots.values())
        # What waits for another step needs other memory.
        waiting = {heal: each for heal, each in self._expected.items() if each.stripes in snapshots}
        self._expected = {heal: each for heal, each in self._expected.items() if heal not in waiting}
        for heal, each in waiting.items():
            self._expected[heal] = _Expected(each.stripes, self._room(each.stripes))

    def keep(self, heal: int, version: Version) -> None:
        """Keeps the log of entries for `heal`, the one that led to `version` among them if it is still here."""
        self._log.owe(heal, Version(version.step - 1, 0), self._log_bytes)

    def drop(self, heal: int) -> None:
        """Drops the snapshot and the log of `heal`. The memory is kept for the next one: to get it anew takes long."""
        self._expected.pop(heal, None)
        snapshot = self._server.drop(heal)
        if snapshot is not None:
            let_go(self._spare)
            self._spare = snapshot.memory
        self._log.release(heal)

    def close(self) -> None:
        """Ends fetching and serving."""
        self._next_turn()
        self._server.close()
        self._log.close()

    def _addresses(self, sources: Sequence[Source]) -> list[str]:
        return [source.weights[self._shard_rank] for source in sources]

    def _next_turn(self) -> int:
        with self._changed:
            self._turn += 1
            self._changed.notify_all()
            return self._turn

    def _fetch(self, command: Fetch, turn: int) -> None:
        with self._changed:
            # The entry that leads to where this one starts may wait for the training thread still.
            self._changed.wait_for(
                lambda: self._turn != turn or all(name.end != command.version for name in self._held)
            )
        # The first question does not wait: that there is nothing newer must be told even if a step ends every moment.
        wait_s, told = 0.0, False
        while self._turn == turn:
            try:
                entry = fetch_entry(
                    self._addresses(command.sources),
                    command.version,
                    self._token,
                    wait_s,
                    self._like,
                    heal=command.heal,
                    shy=self._shy,
                    limits=TransferLimits.of(self._in_force.now),
                    lock=socket_lock(),
                )
            except (TransferFailed, ValueError) as failure:
                behind = isinstance(failure, FellBehind)
                self._say_in_turn(turn, FetchFailed(version=command.version, reason=str(failure), behind=behind))
                return
            if entry is not None:
                with self._changed:
                    if self._turn == turn and entry.name.end != self._reached:
                        self._held[entry.name] = entry
                self._say_in_turn(turn, Held(name=entry.name, merged=entry.merged))
                return
            if not told:
                self._say_in_turn(turn, UpToDate(version=command.version))
                told = True
            wait_s = _ASK_AGAIN_S

    def _say_in_turn(self, turn: int, message: RankUp) -> None:
        if self._turn == turn:
            self._say(message)
