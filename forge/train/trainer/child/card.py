"""The GPU of a trainer: its lock if it is shared, its peak memory, the report when it is full.

The lock is held during each micro-batch, and from the last one until the optimizer has stepped; in
between, a judge can time kernels. A GPU that is not shared is not locked.

A trainer that runs out of memory reports its numbers over control.sock and ends. The supervisor
starts it once more from its last checkpoint, with micro-batches of half the size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING

import torch

from forge.process.gpu_locks import GpuLease

if TYPE_CHECKING:
    from forge.train.trainer.child.control import SupervisorClient

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
