"""Processes that begin with torch imported: forked, each as it is needed, from one that has imported it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from typing import Any

IMPORTS = ["torch", "torch._dynamo", "grpc", "replica.api", "replica.assembly", "e2e.rank_program", "e2e.gloo_member"]
"""Also what torch imports only when an optimizer is made: its compiler, which takes as long as all the rest."""


def context() -> ForkServerContext:
    """What makes such processes, and pipes to them."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(IMPORTS)
    return made


def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Starts such a process; it ends with this one."""
    process = context().Process(target=target, args=arguments, daemon=True)
    process.start()
    return process
