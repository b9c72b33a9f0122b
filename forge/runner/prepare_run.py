"""Prepare a run: training pairs, refused problems, model, first weights. Fills those fields of the
run context that exist only from here on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast

import anyio.to_thread

from forge.config.schema import GrpoStage, SftStage, split_of
from forge.data.chat import ChatTemplate
from forge.data.problems import in_split
from forge.data.prompts.prompt_set import PromptSet
from forge.data.server_chat import CHARACTERS_PER_TOKEN, PlainChat
from forge.records import Pair, Split
from forge.rollout.batches import count_from
from forge.rollout.prompter import TemplatePrompter
from forge.runner.plan.placement import needs_pairs, turns_trained
from forge.runner.prepare import prepare
from forge.runner.prepare.prompt_facts import prompts_for, recorded_prompts, to_event
from forge.runner.stages.run_context import RunContext
from forge.runner.stages.sft import require_roles
from forge.runner.weights.resume import find_starting_weights
from forge.runner.weights.sync import TurnGate, WeightSync
from forge.serve.weights import Weights
from forge.store.reader import open_run
from forge.store.resume import LastState
from forge.tools.docs import reference


async def prepare_run(run: RunContext, *, state: LastState | None) -> None:
    """Make or find what the first stage needs, and set it on `run`. `state` is None for a new run.
    Raises Stopped if a stop was requested meanwhile; finished products are kept."""
    await _settle_prompts(run)
    if "docs" in run.experiment.rollout.tools:
        await anyio.to_thread.run_sync(reference)  # its errors come before anything is made
    model = run.experiment.model
    if model.path is not None:
        run.prompter = _prompter(run, Path(model.path))
        await anyio.to_thread.run_sync(_require_room, run)
    async with run.stop.dropping():
        for name in await anyio.to_thread.run_sync(prepare.delete_damaged, run.paths):
            line = f"{name}: its content has changed; it is made again"
            await run.record("file_damaged", line, says=True)
        pairs: list[Pair] = []
        if needs_pairs(run.experiment):
            run.progress.prepare("pairs")
            judge = None if run.pool is None else partial(run.pool.judge, timing=False)
            lines: list[str] = []
            pairs = await prepare.prepare_pairs(
                run.experiment, run.problems, prompts=run.prompts, paths=run.paths, judge=judge,
                progress=run.progress, say=lines.append,
            )  # fmt: skip
            for line in lines:
                await run.record("rows_read", line, says=True)
        run.refused = frozenset(await _refused(run))
        run.progress.prepare("model")
        model_dir = run.paths.weights / "absent"
        if not run.experiment.model.is_absent:
            model_dir = await prepare.prepare_model(
                run.experiment, pairs, run.problems,
                prompts=run.prompts, paths=run.paths, log_dir=run.log_dir, observer=run.observer,
            )  # fmt: skip
    if run.stop.is_set:
        raise run.stop.stopped()
    run.weights = await _weights(run, model_dir, state)
    run.progress.policy_version = run.weights.version
    if model.path is None:
        run.prompter = _prompter(run, model_dir)
        for line in await anyio.to_thread.run_sync(_require_room, run):
            run.console.say(line)
    require_roles(pairs, run.prompter.chat)
    run.group_ids = count_from(state.group_id if state else -1)
    run.sample_ids = count_from(state.sample_id if state else -1)


async def _settle_prompts(run: RunContext) -> None:
    """Make the run's prompts and record them; changed ones are shown."""
    given = run.experiment
    run.prompts = prompts_for(given.prompt, given.judge, run.placement.judge)

    def read() -> PromptSet | None:
        with open_run(run.paths) as reader:
            return recorded_prompts(reader)

    before = await anyio.to_thread.run_sync(read)
    event = to_event(run.prompts, before=before)
    if event is not None:
        if before is not None:
            run.console.say(event.message)
        await run.writer.put(event)


async def _refused(run: RunContext) -> dict[str, str]:
    """Problems that GRPO and searches leave out, by id with the reason; shown and recorded."""
    splits = prepare.examined_splits(run.experiment)
    if run.pool is None or not splits:
        return {}
    refused = await prepare.find_refused(run.problems, splits, run.paths, run.pool, run.progress)
    if refused:
        num = sum(len(in_split(run.problems, split)) for split in splits)
        line = prepare.refusal(refused, num_problems=num)
        await run.record("problems_refused", line, says=True, problems=refused)
    return refused


def _require_room(run: RunContext) -> set[str]:
    """Remarks on the room for prompts. Raises ConfigError, before anything is judged or trained, if
    a stage has no problem whose prompt fits."""
    found = set[str]()
    for stage in run.experiment.stage:
        if isinstance(stage, SftStage) or run.experiment.model.is_absent:
            continue  # a server without a model here counts its own tokens
        split = Split.GRPO if isinstance(stage, GrpoStage) else split_of(stage)
        if problems := in_split(run.problems, split):
            turns = turns_trained(run.experiment) if isinstance(stage, GrpoStage) else 1
            found.add(run.prompter.require_room(problems, max_turns=turns))
    return found - {""}


def _prompter(run: RunContext, model_dir: Path) -> TemplatePrompter:
    """The model's template; without a model messages, whose lengths are counted in characters."""
    if run.experiment.model.is_absent:
        chat = cast("ChatTemplate", PlainChat(run.prompts.thinking))
        unit = CHARACTERS_PER_TOKEN
    else:
        chat, unit = ChatTemplate.load(model_dir, thinking=run.prompts.thinking), 1
    serve, rollout = run.experiment.serve, run.experiment.rollout
    return TemplatePrompter(
        prompts=run.prompts, chat=chat, context_tokens=serve.context_tokens * unit,
        max_completion_tokens=rollout.max_completion_tokens * unit, tools=tuple(rollout.tools),
        max_calls=rollout.tool_calls, has_template=not serve.url,
    )  # fmt: skip


async def _weights(run: RunContext, model_dir: Path, state: LastState | None) -> WeightSync:
    serve, cluster = run.experiment.serve, run.experiment.cluster
    is_on_gpus = cluster.serve and cluster.serve_on == "gpu"
    start = Weights(full=model_dir, adapter=run.experiment.model.adapter)
    begin = await anyio.to_thread.run_sync(
        find_starting_weights, start, state, run.experiment, run.paths.weights
    )
    return WeightSync(
        begin, attempt=run.attempt, precision=serve.precision, sink=run.writer,
        on_gpu=any(run.placement.serve) or is_on_gpus,
        gate=TurnGate(timeout_s=serve.request_timeout_s),
    )  # fmt: skip
