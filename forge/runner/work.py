"""Which stage of a run comes when, and what it does: prepare, then each stage between two events.

Opened by `run.py`, which holds what a run has for its whole life. Judges and engines live here, as
long as a stage needs them.
"""

from __future__ import annotations

import shutil
import time
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import anyio

from forge.config.schema import EvalStage, GrpoStage, SftStage
from forge.data.chat import ChatTemplate
from forge.data.splits import in_split
from forge.evalpool.pool import open_pool
from forge.records import Evaluation, Event, Split
from forge.rollout.batches import count_from
from forge.rollout.prompter import TemplatePrompter
from forge.runner.background import keep_counters
from forge.runner.plan.model_shape import lora_rank
from forge.runner.plan.needs import makes_pairs, needs_pairs
from forge.runner.prepare.prepare import prepare_model, prepare_pairs
from forge.runner.prepare.refused_problems import find_refused, is_examined, refusal
from forge.runner.stages.evaluate import run_eval_stage
from forge.runner.stages.grpo import run_grpo_stage
from forge.runner.stages.run_context import Run
from forge.runner.stages.sft import run_sft_stage
from forge.runner.weights.gate import TurnGate
from forge.runner.weights.sync import WeightSync, begin_again
from forge.serve.replicas import open_replicas
from forge.serve.weights import Weights

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from forge.config.schema import Experiment, JudgeTable
    from forge.records import Problem
    from forge.runner.live.console import Console
    from forge.runner.live.observer import StoreObserver
    from forge.runner.live.progress import Progress
    from forge.runner.live.stopping import StopRequest
    from forge.runner.plan.placement import Placement
    from forge.runner.stages.control import Control
    from forge.runner.status.status import Components
    from forge.store.layout import RunPaths
    from forge.store.resume import LastState
    from forge.store.write.writer import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What an earlier attempt left. Empty for a new run."""

    state: LastState | None = None
    stage_weights: dict[int, Weights] | None = None
    """Stage index to the weights it began with."""


@dataclass(slots=True, kw_only=True)
class Work:
    """Prepare, then the stages. Owns pool and replicas while a stage needs them."""

    paths: RunPaths
    experiment: Experiment
    past: Past
    attempt: int
    progress: Progress
    stop: StopRequest
    console: Console
    writer: Writer
    observer: StoreObserver
    control: Control
    components: Components
    socket_dir: Path
    problems: Sequence[Problem]
    placement: Placement

    async def run(self) -> None:
        """Everything from pairs to the last stage. What is opened later is closed earlier."""
        done = set(self.past.state.finished_stages) if self.past.state else set()
        stages = [(i, s) for i, s in enumerate(self.experiment.stage) if i not in done]
        last_served = max((i for i, s in stages if _needs_serving(s)), default=-1)
        async with AsyncExitStack() as opened:
            pool = None
            if makes_pairs(self.experiment) or last_served >= 0:
                pool = await opened.enter_async_context(self._open_pool())
            self.components.pool = pool
            run = self.components.run = await self._prepare(pool)
            run.pool = pool
            async with self._counted(run):
                async with AsyncExitStack() as serving:
                    for index, stage in stages:
                        if index > last_served:
                            break
                        if _needs_serving(stage) and run.replicas is None:
                            replicas = await serving.enter_async_context(self._open_replicas(run))
                            run.replicas = run.weights.serving = replicas
                        elif isinstance(stage, SftStage) and self.placement.sleeps:
                            # Beside this trainer the engines do not fit, and nobody asks them.
                            await serving.aclose()
                            run.replicas = run.weights.serving = None
                        await self._run_stage(run, index, stage)
                run.replicas = run.weights.serving = None
                for index, stage in stages:
                    if index > last_served:
                        await self._run_stage(run, index, stage)

    @asynccontextmanager
    async def _open_pool(self) -> AsyncIterator:
        self.progress.prepare("judges")
        async with open_pool(
            _without_key(self.experiment),
            socket_dir=self.socket_dir,
            log_dir=self.paths.logs(self.attempt),
            observer=self.observer,
            gpus=self.placement.judge,
        ) as pool:
            try:
                yield pool
            finally:
                self.components.ending.add("judge")

    @asynccontextmanager
    async def _open_replicas(self, run: Run) -> AsyncIterator:
        self.progress.prepare("engine")
        placement = self.placement
        table = placement.settled(self.experiment.serve)
        if table.url:
            from forge.serve.remote.remote import open_remote

            async with open_remote(table, chat=run.prompter, say=self.console.say) as remote:
                yield remote
            return
        work_dir = self.paths.root / "serve"  # whole models: too large for a socket's /tmp
        shutil.rmtree(work_dir, ignore_errors=True)
        work_dir.mkdir()
        async with open_replicas(
            table,
            weights=run.weights.current,
            stop_token_ids=run.prompter.chat.stop_token_ids,
            socket_dir=self.socket_dir,
            log_dir=run.log_dir,
            work_dir=work_dir,
            observer=self.observer,
            gpus=placement.serve_uuids,
            shared=placement.shared,
            max_lora_rank=lora_rank(self.experiment.model),
        ) as replicas:
            yield replicas

    async def _prepare(self, pool) -> Run:
        """Pairs, model and template; the context that stages share."""
        pairs, init_dir, refused = [], None, {}
        async with self.stop.dropping():
            if needs_pairs(self.experiment):
                self.progress.prepare("pairs")
                pairs = await prepare_pairs(
                    self.experiment,
                    self.problems,
                    paths=self.paths,
                    judge=None if pool is None else partial(pool.judge, timing=False),
                    progress=self.progress,
                )
            refused = await self._refused(pool)
            self.progress.prepare("model")
            init_dir = await prepare_model(
                self.experiment, pairs, self.problems,
                paths=self.paths,
                log_dir=self.paths.logs(self.attempt), observer=self.observer,
            )  # fmt: skip
        if init_dir is None:
            raise self.stop.stopped()
        state = self.past.state
        serve, rollout = self.experiment.serve, self.experiment.rollout
        start = Weights(full=init_dir, adapter=self.experiment.model.adapter)
        weights = WeightSync(
            await anyio.to_thread.run_sync(
                begin_again, start, state, self.experiment, self.paths.weights
            ),
            attempt=self.attempt,
            precision=serve.precision,
            on_gpu=any(self.placement.serve),
            gate=TurnGate(timeout_s=serve.request_timeout_s),
            sink=self.writer,
        )
        self.progress.policy_version = weights.version
        chat = ChatTemplate.load(init_dir)
        run = Run(
            experiment=self.experiment, paths=self.paths, attempt=self.attempt,
            socket_dir=self.socket_dir,
            writer=self.writer, observer=self.observer, progress=self.progress,
            console=self.console,
            stop=self.stop, problems=self.problems, refused=frozenset(refused), weights=weights,
            prompter=TemplatePrompter(
                chat=chat, context_tokens=serve.context_tokens,
                max_completion_tokens=rollout.max_completion_tokens
            ),
            group_ids=count_from(state.group_id if state else -1),
            sample_ids=count_from(state.sample_id if state else -1),
            control=self.control, placement=self.placement,
        )  # fmt: skip
        return run

    async def _refused(self, pool) -> dict[str, str]:
        """What GRPO leaves out, said and recorded."""
        if pool is None or not is_examined(self.experiment):
            return {}
        refused = await find_refused(
            self.experiment, self.problems, paths=self.paths, pool=pool, progress=self.progress
        )
        if refused:
            line = refusal(refused, num_problems=len(in_split(self.problems, Split.GRPO)))
            self.console.say(line)
            data = {"problems": refused}
            await self.writer.put(
                Event(at=time.time(), kind="problems_refused", message=line, data=data)
            )
        return refused

    @asynccontextmanager
    async def _counted(self, run: Run) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(keep_counters, run)
            yield
            tasks.cancel_scope.cancel()

    async def _run_stage(
        self, run: Run, index: int, stage: EvalStage | SftStage | GrpoStage
    ) -> None:
        """One stage, between a start and an end event; a stop in an evaluation drops it, a
        trainer saves first."""
        if self.stop.is_set:
            raise self.stop.stopped()
        start = (self.past.stage_weights or {}).get(index, run.weights.current)
        await self.writer.put(
            Event(
                at=time.time(), kind="stage_start", message=f"{stage.kind}-{index}",
                data={"stage": index, "weights": start.to_json()},
            )
        )  # fmt: skip
        began = time.monotonic()
        if isinstance(stage, EvalStage):
            await self._run_eval(run, stage, index)
        elif isinstance(stage, SftStage):
            await run_sft_stage(run, stage, index, start=start)
        else:
            await run_grpo_stage(run, stage, index, start=start)
        seconds = time.monotonic() - began
        await self.writer.put(
            Event(
                at=time.time(), kind="stage_end", message=f"{stage.kind}-{index}: {seconds:.1f} s",
                data={"stage": index, "seconds": seconds},
            )
        )  # fmt: skip
        self.console.say(f"{stage.kind}-{index} done in {seconds:.0f} s")

    async def _run_eval(self, run: Run, stage: EvalStage, index: int) -> None:
        result: Evaluation | None = None
        async with self.stop.dropping():
            result = await run_eval_stage(run, stage, index)
        if result is None:
            raise self.stop.stopped()
        interval = f"[{result.ci_low:.1%}, {result.ci_high:.1%}]"
        size = f"{result.num_problems} problems x {result.num_samples}"
        compiles = f"compiles {result.compile_rate:.1%}"
        self.console.say(
            f"eval-{index}: pass@1 {result.pass_at_1:.1%} {interval}  {compiles}  ({size})"
        )


def _without_key(experiment: Experiment) -> JudgeTable:
    """`[judge]`, whose children do not get the key of serve.url, whatever its variable's name."""
    judge, key = experiment.judge, experiment.serve.api_key_env
    return judge.model_copy(update={"env": {key: "", **judge.env}}) if key else judge


def _needs_serving(stage: EvalStage | SftStage | GrpoStage) -> bool:
    return isinstance(stage, EvalStage | GrpoStage)
