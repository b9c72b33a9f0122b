"""What the ranks of one trainer say to each other beside gradients: decisions of rank 0, sums.

Rank 0 alone speaks to control.sock and writes files; what it decides is passed on here. This goes
over gloo, on the CPU: a rank that waits for minutes until rank 0 has a batch neither spins on its
GPU nor runs into NCCL's deadline. With one rank all of it is the identity.
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

# Between gradients of one step: minutes mean that a rank hangs.
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
# Rank 0 may wait for a batch as long as the supervisor lets it; when it ends, so does everybody.
DECISION_TIMEOUT = timedelta(days=7)


def join_process_group() -> None:
    """Meet the other ranks, where `__main__.run_ranks` or torchrun started several."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, timeout=COLLECTIVE_TIMEOUT)


def end_rank() -> None:
    """Ends a rank of several, whose work is done and on disk, at once: threads of gloo that still
    run when the interpreter takes itself apart abort the process now and then."""
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
            self._group = dist.new_group(backend="gloo", timeout=DECISION_TIMEOUT)

    @property
    def is_main(self) -> bool:
        """Whether this rank speaks and writes for all."""
        return self.rank == 0

    def from_main(self, ask: Callable[[], T]) -> T:
        """What `ask` returns on rank 0, on every rank. Collective."""
        if self.size == 1:
            return ask()
        found: list[Any] = [ask() if self.is_main else None]
        dist.broadcast_object_list(found, src=0, group=self._group)
        return found[0]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Sums over the ranks, element by element. Collective."""
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: Sequence[float]) -> list[float]:
        """Maxima over the ranks, element by element. Collective."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def wait(self) -> None:
        """Until every rank is here. Collective."""
        if self.size > 1:
            dist.barrier(group=self._group)

    def _reduce(self, values: Sequence[float], how: Any) -> list[float]:
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, op=how, group=self._group)
        return tensor.tolist()


class LocalNumbers:
    """The accelerator as TRL's loss is to see it: metrics, which nobody reads here, are zeros.

    TRL gathers each and looks at it on the host, where it would wait for the GPU in every
    micro-batch; and ranks hold micro-batches of other shapes.
    """

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros(tensor.shape)

    gather_for_metrics = gather

    def reduce(self, tensor: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
        return torch.zeros(tensor.shape)
