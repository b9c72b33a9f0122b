"""The sft stage: render the pairs to token ids once, train on them, publish the weights."""

from __future__ import annotations

import json
import math
import time
from typing import TYPE_CHECKING

import anyio.to_thread

from forge.errors import ConfigError
from forge.records import Event, Pair
from forge.runner.prepare.prepare import data_dir, load_pairs, write_kept
from forge.runner.stages.batch_shelf import BatchShelf
from forge.runner.stages.checkpoints import StageCheckpoints
from forge.runner.stages.desk import TrainerDesk
from forge.runner.stages.trainer import own_trainer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from forge.config.schema import SftStage
    from forge.data.chat import ChatTemplate, TrainingRow
    from forge.runner.stages.run_context import RunContext
    from forge.serve.weights import Weights


ROLES = ("trainer",)
"""Engines and judges have no work in the stage: that they are idle says nothing."""


async def run_sft_stage(
    run: RunContext, stage: SftStage, index: int, *, start: Weights, back_to: int | None = None
) -> None:
    """Run a `[[stage]]` of kind sft; from step `back_to` if given. Raises as `own_trainer`."""
    rows = data_dir(run.paths) / f"rows-{index}.jsonl"
    if not rows.exists():
        pairs = load_pairs(run.paths)
        kept, dropped = await anyio.to_thread.run_sync(
            lambda: write_rows(pairs, run.prompter.chat, stage=stage, path=rows)
        )
        message = f"{kept} rows, {dropped} dropped as longer than {stage.max_length} tokens"
        if dropped:
            run.console.say(f"sft-{index}: {message}")
        await run.writer.put(Event(at=time.time(), kind="sft_rows", message=message))
    stage = await anyio.to_thread.run_sync(with_steps, stage, rows)
    shelf = BatchShelf(run.paths.batches, stage=index)  # stays empty: the trainer has its rows
    checkpoints = StageCheckpoints(
        stage, index, paths=run.paths, writer=run.writer, say=run.console.say
    )
    if back_to is not None:
        await checkpoints.go_back(back_to, shelf)
    point = await checkpoints.choose()
    run.progress.enter(
        f"sft-{index}", stage=index, total=stage.steps, unit="steps", busy=run.busy(), roles=ROLES
    )
    desk = TrainerDesk(
        run, shelf, checkpoints, stage=index, last_step=stage.steps, is_kept=lambda step: True
    )
    with run.training(desk):
        await own_trainer(run, stage, desk, point=point, start=start, rows_path=rows)


def with_steps(stage: SftStage, rows_path: Path) -> SftStage:
    """The stage with its epochs converted to steps, at least one."""
    if stage.epochs is None:
        return stage
    with rows_path.open("rb") as file:
        num_rows = sum(1 for _ in file)
    steps = max(1, math.ceil(num_rows * stage.epochs / stage.batch_size))
    if stage.warmup_steps > steps:
        raise ConfigError(
            f"stage sft: warmup_steps = {stage.warmup_steps} is more than the {steps} steps of "
            f"{stage.epochs:g} epochs over {num_rows} rows"
        )
    return stage.model_copy(update={"steps": steps})


def write_rows(
    pairs: Sequence[Pair], chat: ChatTemplate, *, stage: SftStage, path: Path
) -> tuple[int, int]:
    """Render pairs to rows of token ids with the trained answers marked; returns the number of rows
    written and of rows too long.

    Prompts are rendered as in the rollout loop, so that both see the same tokens. Raises
    ConfigError if an answer does not continue its prompt, or no row fits `max_length`.
    """
    lines, dropped = list[str](), 0
    for row in _rows(pairs, chat, loss_turns=stage.loss_turns):
        if len(row.input_ids) > stage.max_length:
            dropped += 1
            continue
        fields = {"input_ids": row.input_ids, "completion_mask": row.completion_mask}
        lines.append(json.dumps(fields))
    if not lines:
        raise ConfigError(
            f"stage sft: all {dropped} rows are longer than max_length = {stage.max_length} tokens"
        )
    write_kept(path, "\n".join(lines) + "\n")
    return len(lines), dropped


def _rows(pairs: Sequence[Pair], chat: ChatTemplate, *, loss_turns: str) -> Iterator[TrainingRow]:
    for pair in pairs:
        try:
            if loss_turns == "all":
                yield from chat.training_rows(pair.messages)
            else:
                yield chat.training_row(pair.messages)
        except ConfigError as error:
            raise ConfigError(f"stage sft: row {pair.problem_id}: {error}") from None
