"""Pacing: the training step whose weights are served. Generation may run `max_staleness` steps
ahead of it (`admission.py`), so no finished group is thrown away.

    publish of step n ── advance(n) ──▶ wakes the producer, which admits more groups
"""

from __future__ import annotations

import anyio

from forge.errors import Stalled


class PublishedSteps:
    """The training step whose weights every replica serves. One producer waits on it, one
    publisher advances it."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self._changed = anyio.Event()

    def advance(self, step: int) -> None:
        """Record a publish. A restarted trainer publishes its checkpoint, an older step: then new
        samples are that old, and the step moves back."""
        self.step = step
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self) -> None:
        """Wait for the next publish."""
        await self._changed.wait()

    async def wait_for(self, step: int, *, timeout_s: float) -> None:
        """Wait until `step` is published. Raises Stalled after `timeout_s` without a publish."""
        while self.step < step:
            with anyio.move_on_after(timeout_s) as scope:
                await self.changed()
            if scope.cancelled_caught:
                raise Stalled(
                    f"trainer: no weights published for {timeout_s:.0f} s; "
                    f"the next batch waits for step {step}, the last published is {self.step}"
                )
