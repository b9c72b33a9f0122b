"""Communication between the ranks of one trainer, other than gradients: decisions of rank 0, sums.

Rank 0 alone speaks to control.sock and writes files; its decisions are broadcast here. This uses
gloo, on the CPU: a rank that waits for minutes until rank 0 has a batch neither spins on its GPU
nor runs into NCCL's deadline. With one rank every function is the identity.

The GPU of a rank: its lock if it is shared, its peak memory, the report when it is full. The lock
is held during each micro-batch, and from the last one until the optimizer has stepped; in between,
a judge can time kernels. A trainer that runs out of memory reports its numbers over control.sock
and ends. The supervisor starts it once more from its last checkpoint, with micro-batches of half
the size.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
import torch.distributed as dist

from forge.process.gpu_locks import GpuLease
from forge.process.lease import end_process

if TYPE_CHECKING:
    from forge.train.trainer.child.control import SupervisorClient


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


def end_rank() -> NoReturn:
    """End this rank, once its work is on disk; one of several immediately, since threads of gloo
    that still run while the interpreter shuts down sometimes abort the process."""
    if not (dist.is_available() and dist.is_initialized()):
        end_process()
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


logger = logging.getLogger(__name__)

TIMEOUT_S = 300.0
"""Maximum wait for judges, which time kernels in windows of seconds, one after another."""


class SharedCard:
    """This rank's hold on its GPU. Raises Stalled if judges keep it for too long."""

    def __init__(self, uuid: str | None) -> None:
        self._lease = None if uuid is None else GpuLease(uuid)
        self._hold: AbstractContextManager[None] | None = None

    def take(self) -> None:
        """Hold the GPU, together with other readers. No effect if it is held already."""
        if self._lease is not None and self._hold is None:
            hold = self._lease.shared(timeout_s=TIMEOUT_S)
            hold.__enter__()
            self._hold = hold

    def give(self) -> None:
        if self._hold is not None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            hold, self._hold = self._hold, None
            hold.__exit__(None, None, None)

    @contextmanager
    def taken(self) -> Iterator[None]:
        self.take()
        yield
        self.give()


def take_peak_bytes() -> int:
    """Peak bytes of tensors since the last call; 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak


def is_out_of_memory(error: RuntimeError) -> bool:
    """True if a GPU was full. Only torch's allocator has an exception class for it; CUDA itself,
    its libraries and NCCL do not, and these fail if an engine on the same GPU holds the rest."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    return "out of memory" in text or "ALLOC_FAILED" in text


@contextmanager
def reported_when_full(
    control: SupervisorClient, *, rank: int, micro_batch_tokens: int
) -> Iterator[None]:
    """Report a GPU that runs out of memory inside the context, and raise its error again.

    `micro_batch_tokens` is the budget in use, a restart's scale included."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        peak = free = 0
        with suppress(RuntimeError):  # too full even for a CUDA context
            if torch.cuda.is_available():
                peak, free = torch.cuda.max_memory_reserved(), torch.cuda.mem_get_info()[0]
        logger.error("out of memory: peak %d bytes, free %d bytes: %s", peak, free, error)
        control.failed(
            kind="oom", micro_batch_tokens=micro_batch_tokens, peak_bytes=peak, free_bytes=free,
            rank=rank,
        )  # fmt: skip
        raise
