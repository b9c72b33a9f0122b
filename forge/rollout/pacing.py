"""Pacing: how far generation may run ahead of training. Bounds staleness by admission, so no
finished group is thrown away.

    producer ── wait_for(step - 1 - max_staleness) ──▶ plays the batch of `step`
    publish of step n ── advance(n) ──▶ wakes the producer
"""

from __future__ import annotations

import anyio

from forge.errors import Stalled


class PublishedSteps:
    """The last training step whose weights every replica serves. One producer waits on it, one
    publisher advances it."""

    def __init__(self, step: int = 0) -> None:
        self.step = step
        self._changed = anyio.Event()

    def advance(self, step: int) -> None:
        """Record a publish. Never moves back: a restarted trainer publishes older steps as new
        versions."""
        self.step = max(self.step, step)
        self._changed.set()
        self._changed = anyio.Event()

    async def wait_for(self, step: int, *, timeout_s: float) -> None:
        """Return once `step` has been published. Raises Stalled when no publish comes for
        `timeout_s`."""
        while self.step < step:
            changed = self._changed
            with anyio.move_on_after(timeout_s) as scope:
                await changed.wait()
            if scope.cancelled_caught:
                raise Stalled(
                    f"trainer: no weights published for {timeout_s:.0f} s; "
                    f"the next batch waits for step {step}, the last published is {self.step}"
                )
