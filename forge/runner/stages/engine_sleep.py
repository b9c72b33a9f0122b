"""Engines that sleep while the trainer trains, where both do not fit one card at once.

    trainer asks, a batch is there ─▶ engines finish, sleep ─▶ the batch is handed out
    trainer acknowledges the step  ─▶ engines wake ─▶ its weights are published ─▶ turns continue

Started by the grpo stage where its placement says so. The desk holds a batch back until the engines
are asleep, and a publish waits until they are awake. Generation and training take turns then: only
judging overlaps. Turns wait at the gate from before the sleep until after the publish: a turn that
began with weights about to be replaced would delay their successor. After a trainer died the
engines wake: the next one publishes before it takes a batch.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from forge.runner.stages.trainer_state import Engines, TrainerState

if TYPE_CHECKING:
    from forge.runner.stages.trainer_desk import TrainerDesk
    from forge.runner.weights.sync import TurnGate
    from forge.serve.remote.remote import Remote
    from forge.serve.weights import Publishing


async def alternate_with_training(
    engines: Publishing[Any] | Remote, desk: TrainerDesk, gate: TurnGate
) -> None:
    """Runs until cancelled; leaves the engines awake and the gate open."""
    desk.engines_sleep = True
    try:
        while True:
            await desk.wait_until(lambda: desk.is_sleep_wanted)
            desk.set_engines(Engines.CHANGING)
            gate.hold()
            await engines.sleep()
            desk.set_engines(Engines.ASLEEP)
            await desk.wait_until(partial(_is_step_over, desk, desk.num_handed_out))
            desk.set_engines(Engines.CHANGING)
            await engines.wake()
            desk.set_engines(Engines.AWAKE)
            await desk.wait_until(lambda: desk.is_publishing or desk.state is TrainerState.WAITING)
            await desk.wait_until(lambda: not desk.is_publishing)
            gate.release()
    finally:
        gate.release()
        with anyio.CancelScope(shield=True):
            await engines.wake()
        desk.engines_sleep = False
        desk.set_engines(Engines.AWAKE)


def _is_step_over(desk: TrainerDesk, num_before: int) -> bool:
    """True once the next batch was handed out and is no longer trained, or a publish began."""
    is_trained = desk.num_handed_out > num_before and desk.state is not TrainerState.TRAINING
    return is_trained or desk.is_publishing
