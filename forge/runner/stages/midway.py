"""Evaluates a part of the held-out problems between the steps of a grpo stage.

The part is fixed; an evaluation comes every `eval.every` steps and on request.

    publish of such a step ──▶ hold the trainer ──▶ play ──▶ release

Groups for training are played meanwhile, as far as staleness allows. A restarted trainer publishes
its checkpoint again: it is not started before the release, and no step is evaluated twice.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from forge.errors import ConfigError
from forge.records import Split
from forge.runner.stages.evaluate import EvalSettings, evaluate, spread
from forge.store.reader import open_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forge.config.schema import GrpoStage
    from forge.runner.stages.desk import TrainerDesk
    from forge.runner.stages.run_context import RunContext

EXCUSE_EVERY_S = 1.0
"""Far below every deadline that a held trainer could miss."""


def evaluated_steps(run: RunContext, stage: int) -> set[int]:
    """Steps of a stage with a stored evaluation. Reads the store: call it in a thread."""
    with open_run(run.paths) as reader:
        found = reader.query(
            "SELECT step FROM v_evaluations WHERE stage = ? || step", (f"grpo-{stage}@",)
        )
    return {step for (step,) in found.rows}


class Midway:
    """Evaluations between the steps of one stage.

    The weights must not change during an evaluation, so the trainer is held at its next `take`;
    otherwise a publish would have to wait, and all turns with it.
    """

    def __init__(
        self,
        run: RunContext,
        stage: GrpoStage,
        desk: TrainerDesk,
        *,
        evaluated: Iterable[int] = (),
    ) -> None:
        """`evaluated`: Steps that earlier attempts evaluated."""
        self._run, self._stage, self._desk = run, stage, desk
        table = run.experiment.eval
        self._send, self._receive = anyio.create_memory_object_stream[int](1)
        self._problems = spread(run.problems_of(Split.HELDOUT), table.num_problems)
        self._settings = EvalSettings(
            samples=1,
            greedy=False,
            max_turns=table.max_turns,
            temperature=table.temperature,
        )
        self._asked = set(evaluated)
        self._done = anyio.Event()

    def ask(self) -> str:
        """Request an evaluation after the current step; returns a message for the user. Raises
        ConfigError during the last step."""
        desk, last = self._desk, self._stage.steps
        label = f"grpo-{desk.stage}"
        if max(desk.trained_step, self._desk.published.step) + 1 >= last:
            raise ConfigError(
                f"{label}: its last step runs, {last} of {last}; what comes out is evaluated by a "
                'stage of kind "eval" after it'
            )
        desk.is_evaluation_wanted = True
        return f"{label}: evaluates after the step that runs"

    def after(self, step: int) -> None:
        """Called at each publish. An evaluation is skipped if another one already waits."""
        every = self._run.experiment.eval.every
        is_wanted = step == self._desk.evaluated_step
        is_due = is_wanted or bool(every and step % every == 0)
        if is_due and step < self._stage.steps and step not in self._asked:
            with suppress(anyio.WouldBlock):
                self._send.send_nowait(step)
                self._asked.add(step)
                self._desk.hold()
                if is_wanted:
                    self._desk.is_evaluation_wanted, self._desk.evaluated_step = False, 0

    async def run(self) -> None:
        """Play the evaluations as they become due, until `finish`. A stop drops the current one."""
        async with self._send, self._receive:
            async for step in self._receive:
                async with self._run.stop.dropping() as beside:
                    beside.start_soon(self._excuse_trainer)
                    result = await evaluate(
                        self._run,
                        self._problems,
                        self._settings,
                        label=f"grpo-{self._desk.stage}@{step}",
                        stage=self._desk.stage,
                        step=step,
                        show=False,
                    )
                    found = result.detail
                    is_trained = found["num_trained_problems"] or found["num_shared_problems"]
                    name = "trained_on" if is_trained else "held_out"
                    numbers = self._run.progress.numbers
                    numbers[name] = result.pass_at_1
                    for source, part in found["by_source"].items():
                        numbers[f"{name} {source}"] = part["pass_at_1"]
                if not self._receive.statistics().current_buffer_used:
                    self._desk.release()
        self._done.set()

    async def _excuse_trainer(self) -> None:
        """Keep waits for the next publish from timing out while the trainer is held."""
        while True:
            self._desk.published.advance(self._desk.published.step)
            await anyio.sleep(EXCUSE_EVERY_S)

    async def finish(self) -> None:
        """Accept no more evaluations and wait for the current one, whose requests have their own
        deadlines."""
        self._send.close()
        await self._done.wait()
