"""A run, from the experiment file to exit. Read this file first.

run_experiment / resume_run          decide what to do, own the run directory
└─ supervise                         one tree of task groups; everything below dies with it
   ├─ store.writer                   opened first, closed last: nothing recorded is lost
   ├─ control.sock                   trainer, `forge status`, `forge stop`
   ├─ signals, console, STATUS.json  beside the work, never waited for
   └─ prepare → stages in order
      ├─ pool       judges           from the first need (pairs, eval, grpo) to the end
      └─ replicas   engines          from the first eval or grpo to the last
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from forge.config.load import load_experiment
from forge.config.schema import EvalStage, Experiment, GrpoStage, SftStage
from forge.data.chat import ChatTemplate
from forge.data.problems import load_problems
from forge.data.splits import in_split
from forge.errors import ForgeError
from forge.evalpool.pool import open_pool
from forge.exits import Ending, ending_of
from forge.process.sockets import open_socket_dir
from forge.records import AttemptEnd, Evaluation, Event, Problem, Split
from forge.rollout.batches import count_from
from forge.runner.attempt import describe_attempt
from forge.runner.claiming import open_claimed
from forge.runner.console import Console
from forge.runner.context import Run
from forge.runner.control import Control, serve_control
from forge.runner.evaluate import run_eval_stage
from forge.runner.gate import TurnGate
from forge.runner.grpo import run_grpo_stage
from forge.runner.hub import locate_model
from forge.runner.machine import this_machine
from forge.runner.needs import makes_pairs, needs_pairs
from forge.runner.observer import StoreObserver
from forge.runner.placement import Placement
from forge.runner.plan import Plan, plan
from forge.runner.plan_view import render as render_plan
from forge.runner.prepare import prepare_model, prepare_pairs
from forge.runner.progress import Progress
from forge.runner.prompter import TemplatePrompter
from forge.runner.sft import run_sft_stage
from forge.runner.shapes import lora_rank
from forge.runner.stopping import StopRequest, limit_reached, watch_signals
from forge.runner.trainable import find_refused, is_examined, refusal
from forge.runner.weights import WeightSync, begin_again
from forge.serve.replicas import open_replicas
from forge.serve.weights import Weights
from forge.store.layout import (
    RunPaths,
    create_run,
    next_attempt,
    open_run_lock,
    write_file,
    write_status,
)
from forge.store.reader import open_run
from forge.store.resume import LastState, events, last_state
from forge.store.writer import Writer, open_writer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from forge.config.schema import JudgeTable
    from forge.process.gpu_claim import Claim

log = logging.getLogger(__name__)

STATUS_EVERY_S = 1.0
LONGEST_REASON = 2000
"""Characters of what an attempt ended with; a dead child's carries lines of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What an earlier attempt left. Empty for a new run."""

    state: LastState | None = None
    stage_weights: dict[int, Weights] | None = None
    """Stage index to the weights it began with."""


def run_experiment(
    path: Path,
    *,
    overrides: Sequence[str] = (),
    quiet: bool = False,
    wait_s: float | None = None,
) -> RunPaths:
    """Run an experiment file from the start. Returns the run directory; raises ForgeError.

    The machine is checked, its cards are ours, and a hub model is here, before the run directory is
    made.

    Args:
        wait_s: for cards of another run, instead of devices.wait_s.
    """
    from forge.config.dump import dump_experiment

    console = Console(quiet=quiet)
    experiment = load_experiment(path, overrides=overrides)
    with _planned(experiment, console, experiment.name, wait_s) as (planned, cards):
        console.show(render_plan(planned))
        model = locate_model(experiment.model, say=None if quiet else console.say)
        pinned = experiment.model.model_copy(update={"revision": model.revision})
        paths = create_run(experiment.name, store_dir=experiment.store.dir)
        cards.rename(paths.name)
        with open_run_lock(paths):
            recorded = experiment.model_copy(update={"model": pinned})
            write_file(paths.experiment, dump_experiment(recorded))
            located = experiment.model_copy(update={"model": model})
            anyio.run(_supervise, paths, located, Past(), console, planned.placement)
    return paths


def resume_run(paths: RunPaths, *, quiet: bool = False, wait_s: float | None = None) -> RunPaths:
    """Continue a run where it stood. What is finished is skipped; nothing recorded is deleted."""
    console = Console(quiet=quiet)
    with open_run_lock(paths):  # first: what another process still writes is no past
        experiment = load_experiment(paths.experiment)
        store = experiment.store.model_copy(update={"dir": paths.root.parent})
        experiment = experiment.model_copy(update={"store": store})
        with open_run(paths) as reader:
            past = Past(
                state=last_state(reader),
                stage_weights={
                    e.data["stage"]: Weights.from_json(e.data["weights"])
                    for e in events(reader, kind="stage_start")
                },
            )
        if past.state and len(past.state.finished_stages) == len(experiment.stage):
            console.say(f"{paths.name} has finished; there is nothing to resume")
            return paths
        with _planned(experiment, console, paths.name, wait_s) as (planned, _):
            model = locate_model(experiment.model, say=None if quiet else console.say)
            experiment = experiment.model_copy(update={"model": model})
            anyio.run(_supervise, paths, experiment, past, console, planned.placement)
    return paths


def _planned(
    experiment: Experiment, console: Console, run: str, wait_s: float | None
) -> AbstractContextManager[tuple[Plan, Claim]]:
    """The plan of this machine, and its cards, which are ours until the context ends."""
    return open_claimed(
        lambda machine: plan(experiment, machine=machine),
        look=partial(this_machine, experiment.store.dir, serve=experiment.serve),
        run=run,
        wait_s=experiment.devices.wait_s if wait_s is None else wait_s,
        say=console.say,
    )


async def _supervise(
    paths: RunPaths,
    experiment: Experiment,
    past: Past,
    console: Console,
    placement: Placement | None = None,
) -> None:
    """Open what a run needs, in order; run prepare and stages; record how it ended."""
    placement = placement or Placement()
    attempt = next_attempt(paths)
    _log_to(paths.logs(attempt) / "supervisor.log")
    progress = Progress(run=paths.name, num_stages=len(experiment.stage))
    console.say(f"{paths.root}")
    async with open_writer(paths, experiment.store) as writer:
        description = await anyio.to_thread.run_sync(
            lambda: describe_attempt(attempt, seed=experiment.seed, gpus=placement.gpus)
        )
        await writer.put(description)
        try:
            await _open_and_run(
                paths, experiment, past, attempt, progress, console, writer, placement
            )
        except BaseException as error:
            ending = ending_of(error)
            log.error("exit %d", ending.code, exc_info=error)
            _write_status(paths, progress, state="stopped" if ending.is_stop else "failed")
            try:
                await _record_end(writer, attempt, ending)
            except ForgeError as failure:  # of the store: it may be the cause
                raise BaseExceptionGroup("", [error, failure]) from None
            raise
        await _record_end(writer, attempt, Ending(code=0, words="done"))
        _write_status(paths, progress, state="done")
    from forge.runner.summary import show_summary

    show_summary(paths, console, placement)


async def _open_and_run(
    paths: RunPaths,
    experiment: Experiment,
    past: Past,
    attempt: int,
    progress: Progress,
    console: Console,
    writer: Writer,
    placement: Placement,
) -> None:
    """The work in a scope of its own, and what outlives it beside it: while a second Ctrl-C takes
    the work down, signals are still heard and the ends of children recorded."""
    stop = StopRequest(resume=f'"forge resume {paths.root}" continues')
    observer = StoreObserver(writer, attempt)
    control = Control(status=progress.snapshot, stop=stop.set)
    working = anyio.CancelScope()
    with open_socket_dir() as socket_dir:
        control_socket = socket_dir / "control.sock"
        async with serve_control(control, control_socket), anyio.create_task_group() as tasks:
            beside = tasks.start_soon
            beside(observer.drain)
            beside(_signals, stop, console, working, observer)
            beside(control.raise_failure)
            beside(console.follow, progress)
            beside(_keep_status, paths, progress, control_socket)
            with working:
                problems = await anyio.to_thread.run_sync(
                    lambda: load_problems(experiment.problems, seed=experiment.seed)
                )
                await writer.put(*problems)
                work = _Work(
                    paths,
                    experiment,
                    past,
                    attempt,
                    progress,
                    stop,
                    console,
                    writer,
                    observer,
                    control,
                    socket_dir,
                    problems,
                    placement,
                )
                await work.run()
            tasks.cancel_scope.cancel()
    if working.cancelled_caught:
        raise stop.stopped_at_once()


@dataclass(slots=True)
class _Work:
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
            run = await self._prepare(pool)
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
        self.progress.label = "prepare: judges"
        async with open_pool(
            _without_key(self.experiment),
            socket_dir=self.socket_dir,
            log_dir=self.paths.logs(self.attempt),
            observer=self.observer,
            gpus=self.placement.judge,
        ) as pool:
            yield pool

    @asynccontextmanager
    async def _open_replicas(self, run: Run) -> AsyncIterator:
        placement = self.placement
        table = placement.settled(self.experiment.serve)
        if table.url:
            from forge.serve.remote import open_remote

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
                self.progress.label = "prepare: pairs"
                pairs = await prepare_pairs(
                    self.experiment,
                    self.problems,
                    paths=self.paths,
                    judge=None if pool is None else pool.judge,
                )
            refused = await self._refused(pool)
            self.progress.label = "prepare: model"
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
            tasks.start_soon(_keep_counters, run)
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


def _log_to(path: Path) -> None:
    """Send the supervisor's own log to a file: the terminal shows progress only."""
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _needs_serving(stage: EvalStage | SftStage | GrpoStage) -> bool:
    return isinstance(stage, EvalStage | GrpoStage)


async def _signals(
    stop: StopRequest, console: Console, working: anyio.CancelScope, observer: StoreObserver
) -> None:
    await watch_signals(
        stop, say=console.say, cancel_work=working.cancel, kill_all=observer.kill_all
    )


async def _keep_status(paths: RunPaths, progress: Progress, control_socket: Path) -> None:
    while True:
        _write_status(paths, progress, state="running", control_socket=str(control_socket))
        await anyio.sleep(STATUS_EVERY_S)


async def _keep_counters(run: Run) -> None:
    """Token and judgement counters and `[limits]`, twice a second."""
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


def _write_status(
    paths: RunPaths, progress: Progress, *, state: str, control_socket: str = ""
) -> None:
    status = {**progress.snapshot(), "state": state, "pid": os.getpid(), "at": time.time()}
    if control_socket:
        status["control_socket"] = control_socket
    write_status(paths, status)


async def _record_end(writer: Writer, attempt: int, ending: Ending) -> None:
    """Returns once it is on disk; each wait on the store has its own deadline."""
    row = AttemptEnd(
        attempt=attempt,
        ended_at=time.time(),
        exit_code=ending.code,
        reason=ending.words[:LONGEST_REASON],
    )
    with anyio.CancelScope(shield=True):
        await writer.put(row)
        await writer.flush()
