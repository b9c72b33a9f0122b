"""The sft stage: render pairs to token ids once, train on them, publish the weights. The pairs are
those of `[data]`, or the run's own answers of earlier stages.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import anyio.to_thread

from forge.config.schema import DataTable, SftStage
from forge.data.chat import ChatTemplate, TrainingRow
from forge.errors import ConfigError
from forge.records import Pair
from forge.runner.prepare.own_answers import AnswerFilter, describe_reasons, own_rows
from forge.runner.prepare.prepare import data_dir, load_pairs, write_kept
from forge.runner.stages.checkpoints import BatchShelf, StageCheckpoints
from forge.runner.stages.desk import TrainerDesk
from forge.runner.stages.run_context import RunContext
from forge.runner.stages.trainer import own_trainer
from forge.serve.weights import Weights
from forge.store.reader import open_run

ROLES = ("trainer",)
"""Engines and judges have no work in the stage: that they are idle says nothing."""


async def run_sft_stage(
    run: RunContext, stage: SftStage, index: int, *, start: Weights, back_to: int | None = None
) -> None:
    rows = data_dir(run.paths) / f"rows-{index}.jsonl"
    if not rows.exists() and not await _make_rows(run, stage, index, rows):
        return
    stage = await anyio.to_thread.run_sync(with_steps, stage, rows)
    shelf = BatchShelf(run.paths.batches, stage=index)  # stays empty: the trainer has its rows
    checkpoints = StageCheckpoints(run, stage, index)
    if back_to is not None:
        await checkpoints.go_back(back_to, shelf)
    point = await checkpoints.choose()
    run.progress.enter(
        stage.label(index), stage=index, total=stage.steps, unit="steps", busy=run.busy(),
        roles=ROLES,
    )  # fmt: skip
    desk = TrainerDesk(
        run, shelf, checkpoints, stage=index, last_step=stage.steps, is_kept=lambda step: True
    )
    with run.training(desk):
        await own_trainer(run, stage, desk, point=point, start=start, rows_path=rows)


async def _make_rows(run: RunContext, stage: SftStage, index: int, path: Path) -> bool:
    """Write the rows of a stage and record their numbers. False if the run has no answer of its own
    to train on: the stage is left out."""
    data = run.experiment.data if stage.source == "data" else None
    left_out = ""
    if data is None:
        await run.writer.flush()
        pairs, left_out = await anyio.to_thread.run_sync(_own_pairs, run, stage, index)
    else:
        pairs = load_pairs(run.paths)
    label = stage.label(index)
    counts = list[SourceRows]()
    if pairs:
        counts = await anyio.to_thread.run_sync(
            lambda: write_rows(pairs, run.prompter.chat, stage=stage, path=path, data=data)
        )
    if not any(count.num_rows for count in counts):
        long = f"{len(pairs)} rows longer than max_length = {stage.max_length} tokens"
        why = long if pairs else left_out or "none so far"
        message = f"{label}: no correct answer to train on ({why}); left out"
        await run.record("sft_rows", message, says=True, stage=index)
        return False
    message = f"{label}: {_describe(counts, max_length=stage.max_length)}"
    problems = sorted(set[str]().union(*(count.problems for count in counts)))
    if data is None:
        message += f", of {len(problems)} problems" + (left_out and f"; left out {left_out}")
    if data is None or len(counts) > 1 or counts[0].num_dropped:
        run.console.say(message)
    own = problems if data is None else []
    sources = [{**asdict(count), "problems": len(count.problems)} for count in counts]
    await run.record("sft_rows", message, sources=sources, stage=index, problems=own)
    return True


def _own_pairs(run: RunContext, stage: SftStage, index: int) -> tuple[list[Pair], str]:
    """The run's own answers of earlier stages as rows, and the numbers of those left out."""
    wanted = AnswerFilter(
        best_per_problem=stage.best_per_problem, min_speedup=stage.min_speedup,
        purpose="search" if stage.source == "search" else None, before_stage=index,
    )  # fmt: skip
    left_out: Counter[str] = Counter()
    with open_run(run.paths) as reader:
        found = list(own_rows(reader, wanted, left_out))
    pairs = [
        Pair(problem_id=row.answer["problem_id"], messages=row.messages, num_turns=row.num_turns)
        for row in found
    ]
    return pairs, describe_reasons(left_out)


def with_steps(stage: SftStage, rows_path: Path) -> SftStage:
    """The stage with its epochs converted to steps, at least one."""
    if stage.epochs is None:
        return stage
    with rows_path.open("rb") as file:
        num_rows = sum(1 for _ in file)
    steps = max(1, math.ceil(num_rows * stage.epochs / stage.batch_size))
    if stage.source != "data":  # their number was not known before
        stage = stage.model_copy(update={"warmup_steps": min(stage.warmup_steps, steps)})
    if stage.warmup_steps > steps:
        raise ConfigError(
            f"stage sft: warmup_steps = {stage.warmup_steps} is more than the {steps} steps of "
            f"{stage.epochs:g} epochs over {num_rows} rows"
        )
    return stage.model_copy(update={"steps": steps})


@dataclass(slots=True, kw_only=True)
class SourceRows:
    origin: str
    num_rows: int = 0
    num_dropped: int = 0
    share: float = 1.0
    problems: set[str] = field(default_factory=set[str])


def write_rows(
    pairs: Sequence[Pair], chat: ChatTemplate, *, stage: SftStage, path: Path,
    data: DataTable | None,
) -> list[SourceRows]:  # fmt: skip
    """Render pairs to rows of token ids with the trained answers marked; returns the rows of each
    source of `[data]`, or of the run's own answers for None. Rows of weighted sources are written
    with `source` and `weight`.

    Prompts are rendered as in the rollout loop, so that both see the same tokens. If none of the
    run's own answers fits `max_length`, no file is written. Raises ConfigError if an answer does
    not continue its prompt, or no row of a source of `[data]` fits.
    """
    names, given = [str(stage.source)], dict[int, float]()
    if data is not None:
        names = [data.origin_of(index) for index in range(len(data.parts()))]
        given = data.weights
    counts = [SourceRows(origin=name) for name in names]
    rows: list[tuple[int, str]] = []
    for pair, row in _rows(pairs, chat, loss_turns=stage.loss_turns):
        source, count = pair.source, counts[pair.source]
        if len(row.input_ids) > stage.max_length:
            count.num_dropped += 1
            continue
        count.num_rows += 1
        count.problems.add(pair.problem_id)
        fields = {"input_ids": row.input_ids, "completion_mask": row.completion_mask}
        rows.append((source, json.dumps(fields)))
    if data is None and not rows:
        return counts
    for index, count in enumerate(counts):
        if not count.num_rows:
            where = "stage sft" if len(names) == 1 else f"data.sources.{index}"
            raise ConfigError(
                f"{where}: all {count.num_dropped} rows are longer than max_length = "
                f"{stage.max_length} tokens"
            )
    weights = [given.get(index, each.num_rows) for index, each in enumerate(counts)]
    for count, weight in zip(counts, weights, strict=True):
        count.share = weight / sum(weights)
    ends = [f', "source": {i}, "weight": {weight}}}' for i, weight in enumerate(weights)]
    lines = [line[:-1] + (ends[source] if given else "}") for source, line in rows]
    write_kept(path, "\n".join(lines) + "\n")
    return counts


def require_roles(pairs: Sequence[Pair], chat: ChatTemplate) -> None:
    """Render a row of each order of roles, with and without thinking. Raises ConfigError for one
    that the template refuses."""
    close = f"</{chat.tag}>"
    orders = {
        tuple((message.role, close in message.content) for message in pair.messages): pair
        for pair in reversed(pairs)
    }
    for _ in _rows(list(orders.values()), chat, loss_turns="last"):
        pass


def _rows(
    pairs: Sequence[Pair], chat: ChatTemplate, *, loss_turns: str
) -> Iterator[tuple[Pair, TrainingRow]]:
    for pair in pairs:
        try:
            if loss_turns == "all":
                yield from ((pair, row) for row in chat.training_rows(pair.messages))
            else:
                yield pair, chat.training_row(pair.messages)
        except ConfigError as error:
            raise ConfigError(f"stage sft: row {pair.problem_id}: {error}") from None


def _describe(counts: Sequence[SourceRows], *, max_length: int) -> str:
    total, dropped = sum(c.num_rows for c in counts), sum(c.num_dropped for c in counts)
    message = f"{total} rows, {dropped} dropped as longer than {max_length} tokens"
    shares = [
        f"{count.share:.1%} from {count.num_rows} rows of {count.origin}, each "
        f"{count.share * total / count.num_rows:.3g} times an epoch"
        for count in counts
    ]
    return "; ".join([message, *shares]) if len(counts) > 1 else message
