"""An engine's lock on shared GPUs: its work and a judge's timing never overlap.

Called by the engine children whose config names `shared_gpus`. Promise: inside `card_turns(...)()`
every named GPU is held as a reader (`forge.process.gpu_lease`). Work on the GPU must be done when
the context ends. Without names it costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from forge.process.gpu_lease import GpuLease

TIMEOUT_S = 300.0
"""Maximum wait for judges, which time kernels in windows of seconds, one after another."""


def card_turns(uuids: Sequence[str]) -> Callable[[], AbstractContextManager[None]]:
    """A factory of contexts, one for each step. Raises MachineError if a GPU's lock files cannot be
    opened; entering a context raises Stalled."""
    if not uuids:
        return nullcontext
    # In one order everywhere: two processes that share two cards must not wait for each other.
    leases = [GpuLease(uuid) for uuid in sorted(uuids)]

    @contextmanager
    def turn() -> Iterator[None]:
        with ExitStack() as stack:
            for lease in leases:
                stack.enter_context(lease.shared(timeout_s=TIMEOUT_S))
            yield

    return turn
