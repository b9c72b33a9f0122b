"""A run, from the experiment file to exit. Read this file first, then `work.py`.

run_experiment / resume_run          decide what to do, own the run directory; a report at the end
└─ supervise                         one tree of task groups; everything below ends with it
   ├─ store.writer                   opened first, closed last: nothing recorded is lost
   ├─ control.sock                   trainer, `forge status`, `forge stop`
   ├─ notifier, sinks                follow the store; neither can delay a run or fail it
   ├─ signals, console, STATUS.json  background tasks that the work never waits for
   ├─ components                     health of each process, for `forge status` and the TUI
   └─ prepare → stages in order      `work.py`
      ├─ pool       judges           from the first need (pairs, eval, grpo) to the end
      └─ replicas   engines          from the first eval or grpo to the last
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

import anyio

from forge.config.load import dump_experiment, load_experiment
from forge.config.schema import Experiment, ModelTable
from forge.data.prompts.prompt_set import make_prompts
from forge.data.template import text_of
from forge.errors import ForgeError, MachineError
from forge.exits import Ending, ending_of
from forge.process.gpu_locks import Claim
from forge.process.machine import collect_less_often, use_one_heap
from forge.process.sockets import open_socket_dir, remove_left_dirs, remove_socket_dir
from forge.runner.attempt import (
    describe_attempt,
    is_gone,
    keep_status,
    log_to,
    moved,
    record_end,
    record_status,
)
from forge.runner.control import ControlServer, serve_control
from forge.runner.live.progress import Console, Progress
from forge.runner.live.stopping import StopRequest, StoreObserver, watch_signals
from forge.runner.outlets.notify import open_notifier
from forge.runner.outlets.report import report_at_end
from forge.runner.outlets.sinks import open_sinks
from forge.runner.outlets.summary import show_summary, write_results
from forge.runner.past import EarlierAttempts, back_to_step, load_past
from forge.runner.plan.duration import record_rates
from forge.runner.plan.machine import open_claimed, this_machine
from forge.runner.plan.placement import Placement
from forge.runner.plan.plan import Plan, plan
from forge.runner.plan.plan import render as render_plan
from forge.runner.plan.requirements import require_template
from forge.runner.prepare.hub import locate_model, locate_rows, with_run, with_template
from forge.runner.reward_function import require_function
from forge.runner.stages.run_context import RunContext
from forge.runner.status import Components
from forge.runner.work import Work
from forge.store.layout import RunPaths, create_run, next_attempt, open_run_lock, write_file
from forge.store.reader import refuse_damage
from forge.store.write.writer import open_writer

log = logging.getLogger(__name__)

SUPERVISOR_LOG = "supervisor.log"


def run_experiment(
    path: Path, *, overrides: Sequence[str] = (), quiet: bool = False, wait_s: float = 0.0
) -> RunPaths:
    """Run an experiment file from the start. Returns the run directory; raises ForgeError.

    Before the run directory is made, the machine is checked, its GPUs are claimed (`wait_s` is the
    maximum wait for those of another run), a reward function is tried, and a model is downloaded.
    """
    console = Console(quiet=quiet)
    experiment = load_experiment(path, overrides=overrides)
    experiment = with_run(experiment, say=None if quiet else console.say)
    experiment = locate_rows(experiment, say=None if quiet else console.say)
    with (
        report_at_end(console) as begun,
        _planned(experiment, console, experiment.name, wait_s) as (planned, cards),
    ):
        console.show(render_plan(planned))
        require_function(experiment, planned.placement)
        model = locate_model(experiment.model, say=None if quiet else console.say)
        _say_template(experiment, model, planned, console)
        pinned = experiment.model.model_copy(
            update={"revision": model.revision, "chat_template": text_of(model.chat_template)}
        )
        paths = create_run(experiment.name, store_dir=experiment.store.dir)
        cards.rename(paths.name)
        with open_run_lock(paths):
            past = EarlierAttempts()
            recorded = experiment.model_copy(update={"model": pinned})
            write_file(paths.experiment, dump_experiment(recorded))
            model = with_template(model, paths.weights / "init")
            located = experiment.model_copy(update={"model": model})
            begun.append(paths)
            anyio.run(_supervise, paths, located, past, console, planned.placement)
    return paths


def resume_run(
    paths: RunPaths, *, from_step: int | None = None, quiet: bool = False, wait_s: float = 0.0
) -> RunPaths:
    """Continue a run. Finished stages are skipped; nothing recorded is deleted. `from_step`: step
    after which the interrupted stage continues; None for its last checkpoint."""
    console = Console(quiet=quiet)
    # The lock first: another process may still write the state that is read here.
    with report_at_end(console) as begun, open_run_lock(paths):
        refuse_damage(paths)
        experiment = load_experiment(paths.experiment)
        store = experiment.store.model_copy(update={"dir": paths.root.parent})
        experiment = experiment.model_copy(update={"store": store})
        past = load_past(paths, experiment)
        if past.missing:
            console.say(past.missing.message)
        if from_step is not None:
            past = back_to_step(past, from_step, experiment=experiment, paths=paths)
        if past.state and len(past.state.finished_stages) == len(experiment.stage):
            remove_left_dirs()  # this run may have been killed after its last row
            console.say(f"{paths.name} has finished; there is nothing to resume")
            if experiment.eval.suite is not None:
                write_results(paths, experiment.model, console)
            return paths
        with _planned(experiment, console, paths.name, wait_s) as (planned, _):
            for note in planned.notes:
                console.say(note)
            require_function(experiment, planned.placement)
            model = locate_model(experiment.model, say=None if quiet else console.say)
            _say_template(experiment, model, planned, console)
            model = with_template(model, paths.weights / "init")
            experiment = experiment.model_copy(update={"model": model})
            past = past.on_model(model, paths=paths)
            begun.append(paths)
            anyio.run(_supervise, paths, experiment, past, console, planned.placement)
    return paths


def _planned(
    experiment: Experiment, console: Console, run: str, wait_s: float
) -> AbstractContextManager[tuple[Plan, Claim]]:
    """The plan for this machine, and a claim on its GPUs until the context ends."""
    return open_claimed(
        lambda machine: plan(experiment, machine=machine),
        look=partial(this_machine, experiment.store.dir, serve=experiment.serve),
        run=run,
        wait_s=wait_s,
        say=console.say,
    )


def _say_template(
    experiment: Experiment, model: ModelTable, planned: Plan, console: Console
) -> None:
    """Say what a model that was not here when the plan was made has in its chat template."""
    located = experiment.model_copy(update={"model": model})
    for line in require_template(located, make_prompts(located.prompt)):
        if line not in planned.reasons:
            console.say(line)


async def _supervise(
    paths: RunPaths, experiment: Experiment, past: EarlierAttempts, console: Console,
    placement: Placement,
) -> None:  # fmt: skip
    use_one_heap()
    collect_less_often()
    attempt = next_attempt(paths, recorded=past.state.attempt if past.state else 0)
    log_to(paths.logs(attempt) / SUPERVISOR_LOG)
    console.say(str(paths.root))
    async with (
        open_writer(paths, experiment.store) as writer,
        open_sinks(experiment.sinks, paths, attempt=attempt, writer=writer, console=console),
        open_notifier(experiment.notify, paths, attempt=attempt, writer=writer, console=console),
    ):
        run = RunContext(
            experiment=experiment, paths=paths, attempt=attempt, placement=placement,
            writer=writer, observer=StoreObserver(writer, attempt), console=console,
            progress=Progress(run=paths.name, num_stages=len(experiment.stage)),
            stop=StopRequest(resume=f'"forge resume {paths.root}" continues'),
        )  # fmt: skip
        await _record_all(run, past)
    show_summary(paths, console, placement)
    record_rates(paths, placement)
    if experiment.eval.suite is not None:
        write_results(paths, experiment.model, console)


async def _record_all(run: RunContext, past: EarlierAttempts) -> None:
    description = await anyio.to_thread.run_sync(
        lambda: describe_attempt(run.attempt, seed=run.experiment.seed, gpus=run.placement.gpus)
    )
    await run.writer.put(description, *filter(None, [past.missing]))
    try:
        with open_socket_dir() as run.socket_dir:
            await _work(run, past)
    except BaseException as found:
        error = moved(run.paths) if is_gone(run.paths) else found
        ending = ending_of(error)
        if ending.is_stop:
            log.info("exit %d: %s", ending.code, ending.message)
        else:
            log.error("exit %d", ending.code, exc_info=error)
        if error is found:
            # What keeps it from being written is among the errors, or comes at the next write.
            with suppress(MachineError):
                record_status(run, state="stopped" if ending.is_stop else "failed")
        try:
            await record_end(run, ending)
        except ForgeError as failure:  # the store failed, and may be the cause
            raise BaseExceptionGroup("", [error, failure]) from None
        if error is found:
            raise
        raise error from found
    await record_end(run, Ending(code=0, message="done"))
    record_status(run, state="done")


async def _work(run: RunContext, past: EarlierAttempts) -> None:
    """Run the work in its own cancel scope, so that the second Ctrl-C cancels only the work:
    signals are still handled and the ends of children still recorded."""
    components = Components(run=run, log_path=run.log_dir / SUPERVISOR_LOG)
    control = ControlServer(run, status=lambda: run.progress.snapshot() | components.to_json())
    working = anyio.CancelScope()
    async with serve_control(control, run.control_socket), anyio.create_task_group() as tasks:
        watching = partial(
            watch_signals, run.stop, say=run.console.say, cancel_work=working.cancel,
            kill_all=partial(_kill_all, run),
        )  # fmt: skip
        await tasks.start(watching)
        background = tasks.start_soon
        background(run.observer.drain)
        background(control.raise_failure)
        background(run.console.follow, run.progress)
        background(keep_status, run)
        background(components.watch)
        with working:
            await Work(run=run, past=past).run_to_end()
        tasks.cancel_scope.cancel()
    if working.cancelled_caught:
        raise run.stop.stopped_at_once()


def _kill_all(run: RunContext) -> None:
    """End every child at once, leave nothing outside the run directory, and say so."""
    run.observer.kill_all()
    remove_socket_dir(run.socket_dir)
    run.console.end(run.stop.killed())
