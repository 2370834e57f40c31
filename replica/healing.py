"""A rank's side of healing: fetching entries in the background, loading a snapshot, staging one for others.

Fetching runs on a thread of its own and only ever holds what it got; nothing changes the training state but the
training thread, between steps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch.distributed.fsdp import FSDPModule

from lighthouse.values import EntryName, Version
from replica.beside import Beside
from replica.descriptors import socket_lock
from replica.digest import digest_of
from replica.entry import Entry, EntryLog
from replica.errors import ReplicaError
from replica.patience import InForce
from replica.snapshot import Snapshot
from replica.state import TrainingState
from replica.transfer_client import TransferFailed, fetch_entry, load_snapshot
from replica.transfer_limits import TransferLimits
from replica.transfer_server import WeightServer
from replica.values import Fetch, FetchFailed, Held, Load, Loaded, LoadFailed, RankUp, UpToDate

_ASK_AGAIN_S = 1.0


class Healing:
    """What this rank serves and what it asks of others.

    modules: the FSDP modules of the model; they are resharded before the state is touched
    like: tensors of the bucket layout, without presence counts (on the meta device will do)
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
        self._staged: list[Snapshot] = []
        self._digesting: Beside[int] | None = None

    def settle(self) -> None:
        """Makes the state readable and writable: parameters sharded, copies for others and a digest complete."""
        for module in self._modules:
            module.reshard()
        while self._staged:
            self._staged.pop().wait()
        if self._digesting is not None:
            self._digesting.result()
            self._digesting = None

    def begin_digest(self) -> None:
        """Begins to compute the digest of the state beside the step that starts from it, if that was not done yet."""
        if self._digesting is None:
            self.settle()
            tensors, scalars = self._state.flatten()
            self._digesting = Beside(lambda: digest_of(tensors, scalars), "digest")

    def digest(self) -> int:
        """The digest that `begin_digest` began to compute."""
        assert self._digesting is not None
        return self._digesting.result()

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

    def load(self, command: Load) -> Loaded | LoadFailed:
        """Loads the snapshot into the training state; the answer for the agent. The state is unusable if it failed."""
        self._next_turn()
        with self._changed:
            self._held.clear()
        self.settle()
        try:
            deadlines = self._in_force.now
            loaded = load_snapshot(
                self._addresses(command),
                command.heal,
                self._state,
                self._token,
                wait_s=deadlines.staging_s,
                limits=TransferLimits.of(deadlines),
                lock=socket_lock(),
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

    def stage(self, heal: int, version: Version, cursor: int, stop: bool) -> None:
        """Stages a snapshot of the state, which is at `version`, and keeps the log of entries from there on."""
        self.settle()
        snapshot = Snapshot.stage(self._state, version, cursor, stop)
        self._log.owe(heal, version, self._log_bytes)
        self._server.stage(heal, snapshot)
        self._staged.append(snapshot)

    def keep(self, heal: int, version: Version) -> None:
        """Keeps the log of entries for `heal`, the one that led to `version` among them if it is still here."""
        self._log.owe(heal, Version(version.step - 1, 0), self._log_bytes)

    def drop(self, heal: int) -> None:
        """Drops the snapshot and the log of `heal`."""
        self._server.drop(heal)
        self._log.release(heal)

    def close(self) -> None:
        """Ends fetching and serving."""
        self._next_turn()
        self._server.close()
        self._log.close()

    def _addresses(self, command: Fetch | Load) -> list[str]:
        return [source.weights[self._shard_rank] for source in command.sources]

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
                    self._addresses(command),
                    command.version,
                    self._token,
                    wait_s,
                    self._like,
                    heal=command.heal,
                    limits=TransferLimits.of(self._in_force.now),
                    lock=socket_lock(),
                )
            except (TransferFailed, ValueError) as failure:
                self._say_in_turn(turn, FetchFailed(version=command.version, reason=str(failure)))
                return
            if entry is not None:
                with self._changed:
                    if self._turn == turn:
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
