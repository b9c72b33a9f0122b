"""The stages of a run in order: prepare, then each stage between two events. Judges and engines are
opened here and run while a stage needs them.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass

import anyio

from forge.cluster.cluster import Cluster, open_cluster
from forge.cluster.roles import engines_elsewhere, judges_elsewhere
from forge.config import schema
from forge.data.problems import load_problems
from forge.evalpool.pool import Pool, open_pool
from forge.records import Evaluation
from forge.runner.attempt import keep_counters
from forge.runner.past import EarlierAttempts
from forge.runner.plan.placement import makes_pairs
from forge.runner.prepare_run import prepare_run
from forge.runner.reward_function import open_run_scorer
from forge.runner.stages.evaluate import measure_other, run_eval_stage, with_other_baseline
from forge.runner.stages.grpo import run_grpo_stage
from forge.runner.stages.run_context import RunContext
from forge.runner.stages.search import run_search_stage
from forge.runner.stages.sft import run_sft_stage
from forge.runner.weights.model_dir import lora_rank
from forge.runner.weights.resume import require_weights
from forge.serve.remote import Remote, open_remote
from forge.serve.replicas import Replicas, open_replicas
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
        last_served = max((i for i, s in stages if not isinstance(s, schema.SftStage)), default=-1)
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
                    is_sft = isinstance(stage, schema.SftStage)
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
            observer=run.observer, gpus=placement.serve_uuids, shared=placement.shared_by_engines,
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

    async def _run_stage(self, index: int, stage: schema.Stage) -> None:
        """Run one stage between a start and an end event. A stop drops an evaluation; a trainer
        saves first."""
        run = self.run
        if run.stop.is_set:
            raise run.stop.stopped()
        start = (self.past.stage_weights or {}).get(index, run.weights.current)
        back_to = dict([self.past.back_to] if self.past.back_to else []).get(index)
        name = stage.label(index)
        groups = (
            run.experiment.rollout.groups_per_step if isinstance(stage, schema.GrpoStage) else None
        )
        weights = start.to_json(run.paths.record)
        await run.record("stage_start", name, stage=index, weights=weights, groups_per_step=groups)
        began = time.monotonic()
        if isinstance(stage, schema.EvalStage | schema.SearchStage):
            await self._play(stage, index)
        elif isinstance(stage, schema.SftStage):
            await run_sft_stage(run, stage, index, start=start, back_to=back_to)
        else:
            await run_grpo_stage(run, stage, index, start=start, back_to=back_to)
        seconds = time.monotonic() - began
        await run.record("stage_end", f"{name}: {seconds:.1f} s", stage=index, seconds=seconds)
        run.console.say(f"{name} done in {seconds:.0f} s")

    async def _play(self, stage: schema.EvalStage | schema.SearchStage, index: int) -> None:
        """Run an evaluation or a search, both of which a stop drops."""
        run, is_done, result = self.run, False, None
        judge = _without_key(run.experiment)
        has_both = run.experiment.eval.both_baselines and bool(run.placement.judge)
        async with run.stop.dropping():
            if isinstance(stage, schema.EvalStage):
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


def _without_key(experiment: schema.Experiment) -> schema.JudgeTable:
    """`[judge]`, whose children do not get the key of serve.url, whatever its variable's name."""
    judge, key = experiment.judge, experiment.serve.api_key_env
    return judge.model_copy(update={"env": {key: "", **judge.env}}) if key else judge
