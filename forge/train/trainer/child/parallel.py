"""Communication between the ranks of one trainer, other than gradients: decisions of rank 0, sums.

Rank 0 alone speaks to control.sock and writes files; its decisions are broadcast here. This uses
gloo, on the CPU: a rank that waits for minutes until rank 0 has a batch neither spins on its GPU
nor runs into NCCL's deadline. With one rank every function is the identity.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Between gradients of one step: a rank that takes minutes hangs."""
DECISION_TIMEOUT = timedelta(days=7)
"""Rank 0 may wait for a batch as long as the supervisor allows; when it ends, all ranks end."""


def join_process_group() -> None:
    """Join the other ranks, if `__main__.run_ranks` or torchrun started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)


def end_rank() -> None:
    """End one of several ranks immediately, once its work is on disk. Threads of gloo that still
    run while the interpreter shuts down sometimes abort the process."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class World:
    """The ranks of this trainer. Make it after `join_process_group`, on every rank."""

    def __init__(self) -> None:
        is_joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if is_joined else 0
        self.size = dist.get_world_size() if is_joined else 1
        self._group: Any = None
        if self.size > 1:
            self._group = self.new_group()

    def new_group(self) -> Any:
        """A group of all ranks for one more thread of each. Collective."""
        return dist.new_group(backend="gloo", timeout=DECISION_TIMEOUT)

    @property
    def spans_machines(self) -> bool:
        return int(os.environ.get("LOCAL_WORLD_SIZE", self.size)) < self.size

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def from_main(self, ask: Callable[[], T]) -> T:
        """Broadcast what `ask` returns on rank 0. Collective."""
        if self.size == 1:
            return ask()
        found: list[Any] = [ask() if self.is_main else None]
        dist.broadcast_object_list(found, src=0, group=self._group)
        return found[0]

    def to_main(self, value: T) -> Sequence[T]:
        """The values of all ranks, on rank 0; nothing elsewhere. Collective."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size if self.is_main else []
        dist.gather_object(value, found if self.is_main else None, dst=0, group=self._group)
        return found

    def sum(self, values: Sequence[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.MAX)

    def wait(self) -> None:
        if self.size > 1:
            dist.barrier(group=self._group)

    def _reduce(self, values: Sequence[float], how: Any) -> list[float]:
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=how, group=self._group)
        return tensor.tolist()
