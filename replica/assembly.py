"""Puts the parts of a rank together, and checks that they fit each other."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

import replica
from lighthouse.auth import read_token
from lighthouse.batch import BatchPolicy
from lighthouse.deadlines import derive
from replica.apply import Apply, DefaultApply, raw_sums
from replica.attach import AgentLink
from replica.beside import Gate
from replica.buckets import ScratchPool
from replica.communicator import Opening, Rendezvous
from replica.communicators import Communicators
from replica.data_plan import DataPlan
from replica.descriptors import socket_lock
from replica.digest import digest
from replica.entry import EntryLog
from replica.environment import RankEnvironment
from replica.errors import LeaveError, MisuseError
from replica.gradients import Gradients, describe, fsdp_modules, sum_over_shards
from replica.healing import Healing
from replica.patience import InForce
from replica.reduction import Hooks
from replica.shelf import Shelf
from replica.state import HasStateDict, TrainingState
from replica.step_parts import Observer, Parts
from replica.steps import StepLoop
from replica.transfer_limits import TransferLimits
from replica.transfer_server import WeightServer
from replica.values import Abandoned, Attach, Go, Open, Patience, Raised, RankDown

_LOG_STEPS = 8
_LOG_BYTES = 64 << 20
"""A joiner's log holds so many steps' gradients, but at least so many bytes, where nothing else is said."""

REDUCE_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""What gradients may be added up in, over the groups."""

_COUNTS = (
    "slots",
    "slots_per_group",
    "slot_size",
    "steps",
    "epochs",
    "samples",
    "dataset_length",
    "bucket_bytes",
    "heal_log_bytes",
)


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """The plain numbers of a `Replica`; its docstring says what each means."""

    slots: int | None
    slots_per_group: int | None
    slot_size: int
    seed: int
    steps: int | None
    epochs: int | None
    samples: int | None
    drop_last: bool
    max_grad_norm: float | None
    dataset_length: int | None
    data: str
    bucket_bytes: int
    reduce_dtype: str | None
    overlap: bool
    backend: str
    heal: str
    heal_log_bytes: int | None

    def __post_init__(self) -> None:
        if self.heal not in ("log", "pause"):
            raise MisuseError(f'heal is {self.heal!r}; it must be "log" or "pause"')
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise MisuseError(f"{name} is {value}; it must be 1 or more")
        if self.reduce_dtype is not None and self.reduce_dtype not in REDUCE_DTYPES:
            raise MisuseError(
                f"reduce_dtype is {self.reduce_dtype!r}; it must be {' or '.join(REDUCE_DTYPES)}, or None"
            )
        if (self.slots is None) == (self.slots_per_group is None):
            raise MisuseError(
                "give either slots (the global batch stays the same, however many groups there are) or slots_per_group "
                "(each group brings as many)"
            )
        if self.steps is self.epochs is self.samples is None:
            raise MisuseError("nothing says when the run ends: give steps, epochs or samples")
        if self.epochs is not None and self.samples is not None:
            raise MisuseError("epochs and samples both say when the data is through: give one of them")
        if self.epochs is not None and self.dataset_length is None:
            raise MisuseError("epochs are passes over the data set: give dataset_length too, or samples in their place")
        end, batch = self.end, self.batch
        if end is not None and (batch.data_slots < 1 or batch.through(0)):
            raise MisuseError(
                f"the run has {end} samples, and a batch {batch.slots} slots of {self.slot_size}: no step can be made "
                "of that; give more samples or epochs, smaller batches, or drop_last=False"
            )

    @property
    def end(self) -> int | None:
        """Samples after which the data is through; None if it is not bounded."""
        return self.samples if self.epochs is None else self.epochs * (self.dataset_length or 0)

    @property
    def batch(self) -> BatchPolicy:
        """The global batch."""
        return BatchPolicy(
            slots=self.slots or self.slots_per_group or 1,
            elastic=self.slots is None,
            data_slots=(self.end or 0) // self.slot_size,
            drop_last=self.drop_last,
        )


@dataclass(kw_only=True)
class Assembly:
    """The parts of a rank that have to be started and closed."""

    environment: RankEnvironment
    setup: dict[str, str]
    plan: DataPlan | None
    loop: StepLoop
    parts: Parts
    server: WeightServer
    rendezvous: Rendezvous
    closed: bool = field(default=False)

    def start(self) -> None:
        """Attaches to the agent, and sees to it that it learns of an uncaught exception."""
        before = sys.excepthook

        def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if not isinstance(error, LeaveError):
                self.parts.link.say(Raised(traceback="".join(traceback.format_exception(kind, error, trace))))
            self.parts.link.close()
            before(kind, error, trace)

        sys.excepthook = tell
        atexit.register(self.close)
        self.parts.healing.settle()
        self.parts.link.attach(
            Attach(
                shard_rank=self.environment.shard_rank,
                pid=os.getpid(),
                setup=self.setup,
                rendezvous=self.rendezvous.address,
                weights=self.server.address,
                digest=digest(self.parts.state),
                begun_s=self.environment.begun_s,
                imported_s=vars(replica).get("imported_s", 0.0),
                warm=self.environment.warm,
            )
        )

    def close(self) -> None:
        """Gives back everything. Idempotent."""
        if self.closed:
            return
        self.closed = True
        self.parts.hooks.remove()
        self.parts.link.close()
        self.parts.healing.close()
        self.parts.communicators.close()
        self.rendezvous.close()


def exit_on_misuse() -> None:
    """Has an uncaught MisuseError end this process with exit code 2: its agent then does not start it again."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        before(kind, error, trace)
        if isinstance(error, MisuseError):
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(2)

    sys.excepthook = hook


def assemble(
    options: ReplicaOptions,
    environment: RankEnvironment,
    *,
    model: nn.Module,
    optimizer: Optimizer | None,
    scheduler: Any,
    apply: Apply | None,
    extras: Mapping[str, HasStateDict],
    process_group: dist.ProcessGroup | None,
    wishes: Callable[[], tuple[bool, bool]],
    observer: Observer | None,
) -> Assembly:
    """All parts of this rank, not yet attached. Raises MisuseError."""
    optimizer = _check_optimizer(model, optimizer)
    plan = _plan(options, environment.shards)
    group = _group(environment, process_group)
    sum_over_shards(model)
    gradients = Gradients(
        model,
        shards=environment.shards,
        shard_rank=environment.shard_rank,
        group=group,
        bucket_bytes=options.bucket_bytes,
        reduce_dtype=REDUCE_DTYPES.get(options.reduce_dtype or ""),
    )
    state = TrainingState(model, optimizer, scheduler, extras)
    log = EntryLog(reuse_sets=0)  # ScratchPool knows better when memory is free
    token, gate = read_token(Path(environment.token_file)), Gate()
    limits = TransferLimits.of(derive(environment.knobs))
    server = WeightServer(environment.bind, token.encode(), log, limits=limits, lock=socket_lock(), gate=gate)
    link, healing, communicators = _connect(options, environment, token, model, gradients, state, log, server)
    default = DefaultApply(optimizer, scheduler, options.max_grad_norm)
    parts = Parts(
        model=model,
        gradients=gradients,
        hooks=Hooks(gradients, overlap=options.overlap),
        pool=ScratchPool(gradients.layout),
        state=state,
        apply=apply or default,
        factor=raw_sums if apply else default.factor,
        log=log,
        healing=healing,
        communicators=communicators,
        link=link,
        gate=gate,
        steps=options.steps or 1 << 62,
        seed=options.seed,
        shard_rank=environment.shard_rank,
        observer=observer or (lambda phase, step: None),
    )
    return Assembly(
        environment=environment,
        setup=_setup(options, environment, model, optimizer, scheduler, apply),
        plan=plan,
        loop=StepLoop(parts, wishes),
        parts=parts,
        server=server,
        rendezvous=Rendezvous(environment.bind, token, hello_s=derive(environment.knobs).hello_s),
    )


def _connect(
    options: ReplicaOptions,
    environment: RankEnvironment,
    token: str,
    model: nn.Module,
    gradients: Gradients,
    state: TrainingState,
    log: EntryLog,
    server: WeightServer,
) -> tuple[AgentLink, Healing, Communicators]:
    """The agent's stream, and what its reader thread hands commands to at once."""
    in_force = InForce(environment.knobs, lambda now: server.heed(TransferLimits.of(now)))

    def begin(number: int, place: int, size: int, rendezvous: str) -> Opening:
        return Opening(
            options.backend,
            number,
            place,
            size,
            rendezvous,
            f"{environment.run_id}/{number}/{environment.shard_rank}",
            in_force.now.reach_s,
            bind=environment.bind,
            token=token,
            deadlines=in_force.now,
        )

    def at_once(command: RankDown) -> bool:
        if isinstance(command, Go):
            work = command.work
            communicators.open(work.generation, work.place, work.size, command.rendezvous, planned=False)
        elif isinstance(command, Open):
            communicators.open(command.number, command.place, command.size, command.rendezvous, planned=True)
        elif isinstance(command, Abandoned):
            communicators.abandon_below(command.number, f"generations below {command.number} are over")
        elif isinstance(command, Patience):
            return in_force.heed(command)
        return healing.at_once(command)

    def lost(reason: str) -> None:
        communicators.abandon_below(1 << 62, f"the agent is gone: {reason}")
        healing.supersede(1 << 62)

    shelf = Shelf(environment.marks_file)
    link = AgentLink(environment.agent, token, at_once, lost, shelf, orphan_s=in_force.now.orphan_s)
    communicators = Communicators(begin, link.say)
    healing = Healing(
        state=state,
        modules=fsdp_modules(model),
        log=log,
        server=server,
        token=token.encode(),
        shard_rank=environment.shard_rank,
        like=[torch.empty(b.numel, dtype=b.dtype, device="meta") for b in gradients.layout.buckets],
        log_bytes=options.heal_log_bytes or max(_LOG_STEPS * gradients.layout.bytes, _LOG_BYTES),
        in_force=in_force,
        say=link.say,
    )
    return link, healing, communicators


def _check_optimizer(model: nn.Module, optimizer: Optimizer | None) -> Optimizer:
    if optimizer is None:
        raise MisuseError("no optimizer: give Replica(optimizer=...) the one whose state belongs to the model")
    ours = {id(p) for p in model.parameters()}
    if any(id(p) not in ours for group in optimizer.param_groups for p in group["params"]):
        raise MisuseError(
            "the optimizer holds parameters that the model does not: make the optimizer after fully_shard(model)"
        )
    return optimizer


def _plan(options: ReplicaOptions, shards: int) -> DataPlan | None:
    if options.slot_size % shards:
        raise MisuseError(
            f"slot_size {options.slot_size} is not divisible by the {shards} shards of a group: choose a multiple"
        )
    if options.dataset_length is None:
        return None
    return DataPlan(seed=options.seed, length=options.dataset_length, slot_size=options.slot_size, shards=shards)


def _group(environment: RankEnvironment, given: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    if environment.shards == 1:
        return None
    if given is None and dist.is_initialized():
        given = dist.group.WORLD
    if given is not None and given.size() != environment.shards:
        raise MisuseError(
            f"the process group has {given.size()} processes, the group {environment.shards} shards: "
            "torch.distributed is for the shards of this group only"
        )
    return given


def _when_given(options: ReplicaOptions) -> dict[str, str]:
    """What `lighthouse.batch.batch_policy` reads, and when the run ends."""
    batch = options.batch
    found = {"slots_per_group" if batch.elastic else "slots": str(batch.slots)}
    if batch.data_slots:
        found |= {"data_slots": str(batch.data_slots), "drop_last": str(batch.drop_last)}
    return found if options.steps is None else {**found, "steps": str(options.steps)}


def _setup(
    options: ReplicaOptions,
    environment: RankEnvironment,
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: Any,
    apply: Apply | None,
) -> dict[str, str]:
    device = next(model.parameters()).device
    return {
        "model": describe(model),
        **_when_given(options),
        "slot_size": str(options.slot_size),
        "seed": str(options.seed),
        "shards": str(environment.shards),
        "optimizer": type(optimizer).__name__,
        "scheduler": "none" if scheduler is None else type(scheduler).__name__,
        "apply": "default" if apply is None else getattr(apply, "__qualname__", type(apply).__qualname__),
        "max_grad_norm": str(options.max_grad_norm),
        "heal": options.heal,
        "bucket_bytes": str(options.bucket_bytes),
        "reduce_dtype": options.reduce_dtype or "as parameters",
        "data": f"{options.dataset_length or ''} {options.data}".strip(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
