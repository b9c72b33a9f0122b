"""The stages of a run in order: prepare (training pairs, refused problems, model, first weights),
then each stage between two events. Judges and engines are opened here and run while a stage needs
them. `reward.function` is tried before the run begins; where an attempt finds another file than the
last attempt, it says so.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.to_thread

from forge.cluster.cluster import Cluster, open_cluster
from forge.cluster.roles import engines_elsewhere, judges_elsewhere
from forge.config.schema import (
    EvalStage,
    Experiment,
    GrpoStage,
    JudgeTable,
    SearchStage,
    SftStage,
    Stage,
    split_of,
)
from forge.data.chat import ChatTemplate
from forge.data.problems import in_split, load_problems
from forge.data.prompts.prompt_set import PromptSet
from forge.data.server_chat import CHARACTERS_PER_TOKEN, PlainChat
from forge.evalpool.pool import Pool, open_pool
from forge.records import Evaluation, Event, Pair, Split
from forge.rollout.batches import count_from
from forge.rollout.ports import Scorer
from forge.rollout.prompter import TemplatePrompter
from forge.rollout.rewards.scorer import FunctionFile, open_scorer, try_function
from forge.runner.live.stopping import limit_reached
from forge.runner.past import EarlierAttempts
from forge.runner.plan.placement import (
    Placement,
    makes_pairs,
    needs_pairs,
    needs_serving,
    turns_trained,
)
from forge.runner.plan.shape import lora_rank
from forge.runner.prepare.prepare import (
    delete_damaged,
    find_refused,
    is_examined,
    prepare_model,
    prepare_pairs,
    refusal,
)
from forge.runner.prepare.prompt_facts import prompts_for, recorded_prompts, to_event
from forge.runner.stages.evaluate import measure_other, run_eval_stage, with_other_baseline
from forge.runner.stages.grpo import run_grpo_stage
from forge.runner.stages.run_context import RunContext
from forge.runner.stages.search import run_search_stage
from forge.runner.stages.sft import require_roles, run_sft_stage
from forge.runner.weights.sync import TurnGate, WeightSync, find_starting_weights, require_weights
from forge.serve.remote import Remote, open_remote
from forge.serve.replicas import Replicas, open_replicas
from forge.serve.weights import Weights
from forge.store.layout import RunPaths
from forge.store.reader import open_run
from forge.store.resume import LastState, events
from forge.tools.docs import reference
from forge.views.run_state import words_of


@dataclass(slots=True, kw_only=True)
class Work:
    run: RunContext
    past: EarlierAttempts

    async def run_to_end(self) -> None:
        run = self.run
        await self._load_problems()
        past = self.past
        if past.state is not None and past.stage_weights is not None:
            await anyio.to_thread.run_sync(require_weights, past.state, past.stage_weights)
        done = set(past.state.finished_stages) if past.state else set[int]()
        stages = [(i, s) for i, s in enumerate(run.experiment.stage) if i not in done]
        last_served = max((i for i, s in stages if not isinstance(s, SftStage)), default=-1)
        async with AsyncExitStack() as opened:
            if stages and run.experiment.cluster.address is not None:
                run.cluster = await opened.enter_async_context(self._open_cluster())
            if makes_pairs(run.experiment) or last_served >= 0:
                run.pool = await opened.enter_async_context(self._open_pool())
            await prepare_run(run, state=self.past.state)
            if run.experiment.reward.function and last_served >= 0:
                run.scorer = await opened.enter_async_context(open_run_scorer(run))
            async with self._counted(), AsyncExitStack() as serving:
                for index, stage in stages:
                    # With `sleeps`, engines do not fit beside a trainer that does not use them.
                    is_sft = isinstance(stage, SftStage)
                    if is_sft and (index > last_served or run.placement.sleeps):
                        await serving.aclose()
                        run.replicas = run.weights.serving = None
                    elif not is_sft and run.replicas is None:
                        run.progress.prepare("engine")
                        replicas = await serving.enter_async_context(self._open_replicas())
                        run.replicas = replicas
                        run.weights.serving = None if isinstance(replicas, Remote) else replicas
                    await self._run_stage(index, stage)
            run.replicas = run.weights.serving = None

    async def _load_problems(self) -> None:
        run = self.run
        run.problems = await anyio.to_thread.run_sync(
            lambda: load_problems(run.experiment.problems, seed=run.experiment.seed)
        )
        await run.writer.put(*run.problems)

    @asynccontextmanager
    async def _open_pool(self) -> AsyncGenerator[Pool]:
        run = self.run
        run.progress.prepare("judges")
        table, cluster = _without_key(run.experiment), run.experiment.cluster
        async with open_pool(
            table, socket_dir=run.socket_dir, log_dir=run.log_dir, observer=run.observer,
            gpus=run.placement.judge,
            elsewhere=judges_elsewhere(run.cluster, cluster, table) if run.cluster else (),
        ) as pool:  # fmt: skip
            try:
                yield pool
            finally:
                run.ending = ("judge",)

    def _open_cluster(self) -> AbstractAsyncContextManager[Cluster]:
        run = self.run
        return open_cluster(
            run.experiment.cluster, run=run.paths.name, socket_dir=run.socket_dir,
            log_dir=run.log_dir, observer=run.observer, say=run.console.say,
        )  # fmt: skip

    def _open_replicas(self) -> AbstractAsyncContextManager[Replicas | Remote]:
        """Engines of this run, or the servers of `serve.url`."""
        run, placement = self.run, self.run.placement
        table = placement.settled(run.experiment.serve)
        if table.url:
            return open_remote(
                table, chat=run.prompter.chat, say=run.console.say, thinking=run.prompts.thinking,
                by_messages=run.experiment.model.is_absent,
            )  # fmt: skip
        elsewhere, cluster = None, run.experiment.cluster
        if run.cluster is not None and cluster.serve:
            elsewhere = engines_elsewhere(run.cluster, cluster, table)
        work_dir = run.paths.root / "serve"  # whole models: too large for a socket's /tmp
        shutil.rmtree(work_dir, ignore_errors=True)
        work_dir.mkdir()
        return open_replicas(
            table, weights=run.weights.current, stop_token_ids=run.prompter.chat.stop_token_ids,
            socket_dir=run.socket_dir, log_dir=run.log_dir, work_dir=work_dir,
            observer=run.observer, gpus=placement.serve_uuids, shared=placement.shared,
            trainer_gpus=placement.train_uuids[:1] if table.weights == "ipc" else (),
            max_lora_rank=lora_rank(run.experiment.model), thinking=run.prompts.thinking,
            elsewhere=elsewhere,
        )  # fmt: skip

    @asynccontextmanager
    async def _counted(self) -> AsyncGenerator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_counters, self.run)
            yield
            tasks.cancel_scope.cancel()

    async def _run_stage(self, index: int, stage: Stage) -> None:
        """Run one stage between a start and an end event. A stop drops an evaluation; a trainer
        saves first."""
        run = self.run
        if run.stop.is_set:
            raise run.stop.stopped()
        start = (self.past.stage_weights or {}).get(index, run.weights.current)
        back_to = dict([self.past.back_to] if self.past.back_to else []).get(index)
        name = stage.label(index)
        groups = run.experiment.rollout.groups_per_step if isinstance(stage, GrpoStage) else None
        weights = start.to_json(run.paths.record)
        await run.record("stage_start", name, stage=index, weights=weights, groups_per_step=groups)
        began = time.monotonic()
        if isinstance(stage, EvalStage | SearchStage):
            await self._play(stage, index)
        elif isinstance(stage, SftStage):
            await run_sft_stage(run, stage, index, start=start, back_to=back_to)
        else:
            await run_grpo_stage(run, stage, index, start=start, back_to=back_to)
        seconds = time.monotonic() - began
        await run.record("stage_end", f"{name}: {seconds:.1f} s", stage=index, seconds=seconds)
        run.console.say(f"{name} done in {seconds:.0f} s")

    async def _play(self, stage: EvalStage | SearchStage, index: int) -> None:
        """Run an evaluation or a search, both of which a stop drops."""
        run, is_done, result = self.run, False, None
        judge = _without_key(run.experiment)
        has_both = run.experiment.eval.both_baselines and bool(run.placement.judge)
        async with run.stop.dropping():
            if isinstance(stage, EvalStage):
                result = await run_eval_stage(run, stage, index)
            else:
                await run_search_stage(run, stage, index)
            if has_both and result is not None:
                result = await with_other_baseline(run, result, judge, stage=index)
            elif has_both:
                await measure_other(run, judge, stage=index)
            is_done = True
        if not is_done:
            raise run.stop.stopped()
        if result is not None:
            self._say_evaluated(result)

    def _say_evaluated(self, result: Evaluation) -> None:
        interval = f"[{result.ci_low:.1%}, {result.ci_high:.1%}]"
        row = {**asdict(result), **result.detail}
        size = f"{result.num_problems} problems x {result.num_samples}"
        words = words_of(row)
        size = "; ".join(filter(None, (size, words["judged"], words["trained"])))
        compiles = f"compiles {result.compile_rate:.1%}"
        self.run.console.say(
            f"{result.stage}: pass@1 {result.pass_at_1:.1%} {interval}  {compiles}  ({size})"
        )
        if words["parts"]:
            self.run.console.say(f"{result.stage}: pass@1 of {words['parts']}")


def _without_key(experiment: Experiment) -> JudgeTable:
    """`[judge]`, whose children do not get the key of serve.url, whatever its variable's name."""
    judge, key = experiment.judge, experiment.serve.api_key_env
    return judge.model_copy(update={"env": {key: "", **judge.env}}) if key else judge


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
        for name in await anyio.to_thread.run_sync(delete_damaged, run.paths):
            line = f"{name}: its content has changed; it is made again"
            await run.record("file_damaged", line, says=True)
        pairs: list[Pair] = []
        if needs_pairs(run.experiment):
            run.progress.prepare("pairs")
            judge = None if run.pool is None else partial(run.pool.judge, timing=False)
            lines: list[str] = []
            pairs = await prepare_pairs(
                run.experiment, run.problems, prompts=run.prompts, paths=run.paths, judge=judge,
                progress=run.progress, say=lines.append,
            )  # fmt: skip
            for line in lines:
                await run.record("rows_read", line, says=True)
        run.refused = frozenset(await _refused(run))
        run.progress.prepare("model")
        model_dir = run.paths.weights / "absent"
        if not run.experiment.model.is_absent:
            model_dir = await prepare_model(
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
    """Problems that GRPO leaves out, by id with the reason; shown and recorded."""
    if run.pool is None or not is_examined(run.experiment):
        return {}
    refused = await find_refused(run.problems, run.paths, run.pool, run.progress)
    if refused:
        line = refusal(refused, num_problems=len(in_split(run.problems, Split.GRPO)))
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


FUNCTION_KIND = "reward_function"
HASH_DIGITS = 12


def require_function(experiment: Experiment, placement: Placement) -> None:
    """Call `reward.function` once on made verdicts, if a stage needs it. Raises ConfigError,
    Stalled or ChildDied with a line of its file."""
    if experiment.reward.function is not None and needs_serving(experiment):
        anyio.run(partial(try_function, experiment.reward, is_timed=bool(placement.judge)))


@asynccontextmanager
async def open_run_scorer(run: RunContext) -> AsyncGenerator[Scorer]:
    """The scorer of the run, whose file is recorded; a changed one is shown."""
    async with open_scorer(
        run.experiment.reward, socket_dir=run.socket_dir, log_dir=run.log_dir, observer=run.observer
    ) as (scorer, file):
        before = await anyio.to_thread.run_sync(_recorded, run.paths)
        event = function_event(file, before=before)
        if event is not None:
            if before:
                run.console.say(event.message)
            await run.writer.put(event)
        yield scorer


def function_event(file: FunctionFile, *, before: Mapping[str, Any]) -> Event | None:
    """The event that records a file; None if it is recorded already. `before`: data of the last
    such event."""
    data = file.to_json()
    if data == dict(before):
        return None
    digest = file.sha256[:HASH_DIGITS]
    message = f"reward.function: {file.path}:{file.name}, sha256 {digest}"
    if before.get("sha256", file.sha256) != file.sha256:
        old = str(before["sha256"])[:HASH_DIGITS]
        message += f"; it has changed since the last attempt ({old}): earlier rewards are kept"
    elif before:
        message += f"; it was {before.get('file')}:{before.get('function')}"
    return Event(at=time.time(), kind=FUNCTION_KIND, message=message, data=data)


def _recorded(paths: RunPaths) -> Mapping[str, Any]:
    """Data of the last event that recorded a file; empty if there is none."""
    with open_run(paths) as reader:
        found = events(reader, kind=FUNCTION_KIND)
    return found[-1].data if found else {}


async def keep_counters(run: RunContext) -> None:
    progress, limits = run.progress, run.experiment.limits
    while True:
        now = time.monotonic()
        if run.replicas is not None:
            progress.tokens.set(run.replicas.stats().generated_tokens, now)
        if run.pool is not None:
            progress.judged.set(run.pool.stats().num_judged, now)
        progress.measure_idle(run.busy())
        hours = (now - progress.started_at) / 3600
        reached = limit_reached(limits, hours=hours, tokens=progress.tokens.total)
        if reached and not run.stop.is_set:
            run.stop.set(reached)
            run.console.say(f"{reached}: finishing the step and saving")
        await anyio.sleep(0.5)
