"""A trainer's part in the peace on a shared GPU: its work and a judge's timing never overlap.

Held from the start of a micro-batch to its end, and from the last one over the optimizer's step;
in between a judge that times kernels gets its turn. On a card of its own a trainer holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from forge.process.gpu_lease import GpuLease

# For whoever times kernels to be done: windows of seconds, one after another.
TIMEOUT_S = 300.0


class SharedCard:
    """This rank's hold on its card. Raises Stalled where a judge keeps it for too long."""

    def __init__(self, uuid: str | None) -> None:
        self._lease = None if uuid is None else GpuLease(uuid)
        self._hold: AbstractContextManager[None] | None = None

    def take(self) -> None:
        """Hold the card, beside other readers. Held already: nothing happens."""
        if self._lease is not None and self._hold is None:
            hold = self._lease.shared(timeout_s=TIMEOUT_S)
            hold.__enter__()
            self._hold = hold

    def give(self) -> None:
        """Let go of it, once the GPU has done what was asked of it."""
        if self._hold is not None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            hold, self._hold = self._hold, None
            hold.__exit__(None, None, None)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Hold it while inside."""
        self.take()
        yield
        self.give()
