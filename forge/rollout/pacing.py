"""Pacing: which step's weights are served. Generation may run `max_staleness` steps ahead of it
(`admission.py`), so no finished group is thrown away.

    publish of step n ── advance(n) ──▶ wakes the producer, which admits what now fits
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
        """Record a publish. A restarted trainer publishes its checkpoint, an older step, again:
        then what is sampled is that old, and the step moves back."""
        self.step = step
        self._changed.set()
        self._changed = anyio.Event()

    async def changed(self) -> None:
        """Return at the next publish."""
        await self._changed.wait()

    async def wait_for(self, step: int, *, timeout_s: float) -> None:
        """Return once `step` has been published. Raises Stalled when no publish comes for
        `timeout_s`."""
        while self.step < step:
            with anyio.move_on_after(timeout_s) as scope:
                await self.changed()
            if scope.cancelled_caught:
                raise Stalled(
                    f"trainer: no weights published for {timeout_s:.0f} s; "
                    f"the next batch waits for step {step}, the last published is {self.step}"
                )
