"""Engines that sleep while the trainer steps, where both do not fit one card at once.

    trainer asks, a batch is there ─▶ engines end what runs, sleep ─▶ the batch is handed out
    trainer acknowledges the step  ─▶ engines wake ─▶ its weights are published ─▶ turns go on

Started by the grpo stage where its placement says so. The desk holds a batch back until the engines
sleep, and a publish waits until they are awake. Generation and training take turns then: nothing
overlaps but judging. Turns wait at the gate from before the nap until after the publish: one that
began with weights that are about to go would hold their successor up. A trainer that died is no
reason to sleep on: the next one publishes before it takes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import anyio

if TYPE_CHECKING:
    from forge.runner.stages.trainer_desk import TrainerDesk
    from forge.runner.weights.gate import TurnGate


class Sleeper(Protocol):
    """Engines."""

    async def sleep(self) -> None:
        """Returns once what ran has ended and the memory is given away."""
        ...

    async def wake(self) -> None: ...


async def take_naps(engines: Sleeper, desk: TrainerDesk, gate: TurnGate) -> None:
    """Runs until cancelled; leaves the engines awake and turns going on."""
    desk.waits_for_naps = True
    try:
        while True:
            await desk.until(lambda: desk.is_batch_wanted)
            desk.engines_are("between")
            gate.hold()
            await engines.sleep()
            desk.engines_are("asleep")
            await desk.until(lambda: desk.is_training or desk.is_publishing)
            await desk.until(lambda: not desk.is_training or desk.is_publishing)
            desk.engines_are("between")
            await engines.wake()
            desk.engines_are("awake")
            await desk.until(lambda: desk.is_publishing or desk.is_taking)
            await desk.until(lambda: not desk.is_publishing)
            gate.release()
    finally:
        gate.release()
        with anyio.CancelScope(shield=True):
            await engines.wake()
        desk.waits_for_naps = False
        desk.engines_are("awake")
