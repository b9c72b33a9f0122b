"""A trainer's lock on a shared GPU: its work and a judge's timing never overlap.

The lock is held during each micro-batch, and from the last one until the optimizer has stepped; in
between, a judge can time kernels. A GPU that is not shared is not locked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from forge.process.gpu_lease import GpuLease

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
        """Release the GPU when its queued work is done."""
        if self._hold is not None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            hold, self._hold = self._hold, None
            hold.__exit__(None, None, None)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the GPU inside the context."""
        self.take()
        yield
        self.give()
