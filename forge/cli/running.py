"""Commands that start and control runs: init, run, plan, resume, stop, save, evaluate, status and
logs; and train, the replay of a step.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forge.cli import options as opt
from forge.cli.options import app, find, require_linux, settings
from forge.cli.printing import print_json, print_lines, print_rich, print_text, say, waiting
from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.process.control import ControlClient
    from forge.store.layout import RunPaths


def _complete_recipe(incomplete: str) -> list[str]:
    """Names of recipes for the shell's completion."""
    from forge.config.recipes import list_recipes

    return [each.name for each in list_recipes() if each.name.startswith(incomplete)]


@app.command()
def init(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE]",
            help="Name of a recipe; absent: list them.",
            autocompletion=_complete_recipe,
        ),
    ] = None,
    as_json: opt.Json = False,
) -> None:
    """Write a recipe, an experiment file to start from, into the current folder."""
    from forge.config.recipes import list_recipes, write_recipe

    if recipe is not None:
        written = write_recipe(recipe, into=Path())
        if as_json:
            return print_json([str(path) for path in written])
        for path in written:
            print_text(f"wrote {path}")
        return print_text(
            f'"forge plan {written[0]}" shows what it needs, "forge run {written[0]}" runs it'
        )
    recipes = list_recipes()
    if as_json:
        return print_json([{"name": each.name, "summary": each.summary} for each in recipes])
    from rich.table import Table

    table = Table("recipe", "what it does", box=None, padding=(0, 2, 0, 0))
    for each in recipes:
        table.add_row(each.name, each.summary)
    print_rich(table)


@app.command()
def run(
    file: Annotated[
        Path | None, typer.Argument(metavar="X.toml", help="Experiment file; none with --fork.")
    ] = None,
    fork: Annotated[
        str | None,
        typer.Option(metavar="RUN:STEP", help="Continue a checkpoint of another run in a new one."),
    ] = None,
    detach: opt.Detach = False,
    overrides: opt.Overrides = None,
    wait_s: opt.Wait = 0.0,
    store: opt.StoreOfFile = None,
    as_json: opt.Json = False,
) -> None:
    """Run an experiment from the start, or from a checkpoint of another run."""
    require_linux()
    given = settings(overrides, store)
    if fork is not None:
        if file is not None:
            raise ConfigError(
                f"--fork {fork}: found {file} beside it; a fork has the experiment of its parent, "
                "which --set changes"
            )
        from forge.runner.past import fork_run

        paths = fork_run(fork, store_dir=store or opt.RUNS, overrides=given)
        paths = _resume(paths, is_detached=detach, wait_s=wait_s, quiet=as_json)
    elif file is None:
        raise ConfigError("forge run: found no X.toml; an experiment file, or --fork RUN:STEP")
    elif detach:
        from forge.commands.detach import run_detached
        from forge.config.load import load_experiment
        from forge.runner.prepare.hub import locate_model, locate_rows, with_run

        experiment = load_experiment(file, overrides=given)
        experiment = with_run(experiment, say=None if as_json else say)
        locate_model(experiment.model, say=None if as_json else say)  # while the user is watching
        locate_rows(experiment, say=None if as_json else say)
        argv = ["run", str(file), f"--wait={wait_s}"]
        argv += [f"--set={item}" for item in given]
        paths = run_detached(argv, store_dir=experiment.store.dir, wait_s=wait_s)
    else:
        from forge.runner.run import run_experiment

        paths = run_experiment(file, overrides=given, quiet=as_json, wait_s=wait_s)
    _say_where(paths, is_detached=detach, as_json=as_json)


def _resume(
    paths: RunPaths, *, from_step: int | None = None, is_detached: bool, wait_s: float, quiet: bool
) -> RunPaths:
    if not is_detached:
        from forge.runner.run import resume_run

        return resume_run(paths, from_step=from_step, quiet=quiet, wait_s=wait_s)
    from forge.commands.detach import run_detached
    from forge.store.reader import open_run

    open_run(paths).close()  # first: of another version, its keys may be unknown too
    argv = ["resume", str(paths.root), f"--wait={wait_s}"]
    argv += [] if from_step is None else [f"--from={from_step}"]
    return run_detached(argv, store_dir=paths.root.parent, wait_s=wait_s)


@app.command()
def plan(
    file: opt.ExperimentFile,
    overrides: opt.Overrides = None,
    assumed: opt.Assumed = None,
    store: opt.StoreOfFile = None,
    as_json: opt.Json = False,
) -> None:
    """Check an experiment and the machine; print placement and time."""
    from forge.config.load import load_experiment
    from forge.runner.plan.plan import plan as make_plan
    from forge.runner.prepare.hub import with_run

    given = settings(overrides, store)
    experiment = load_experiment(file, overrides=given, is_here=assumed is None)
    experiment = with_run(experiment, merges=False)
    machine = None
    if assumed is not None:
        from forge.runner.plan.machine import assume, this_machine

        machine = assume(assumed, here=this_machine(experiment.store.dir))
    made = make_plan(experiment, machine=machine)
    if as_json:
        return print_json(made.to_json())
    from forge.runner.plan.plan import render

    print_rich(render(made))


@app.command()
def resume(
    run: opt.RunName,
    from_step: Annotated[
        int | None,
        typer.Option(
            "--from",
            min=0,
            metavar="STEP",
            help="Step of the interrupted stage to continue after; later checkpoints are deleted.",
        ),
    ] = None,
    detach: opt.Detach = False,
    wait_s: opt.Wait = 0.0,
    store: opt.Store = opt.RUNS,
    as_json: opt.Json = False,
) -> None:
    """Continue a run from its last checkpoint, or from an earlier one. An archive is unpacked
    beside itself first."""
    require_linux()
    from forge.store.archive import is_archive, unpack_to_resume

    if is_archive(run):
        paths = unpack_to_resume(Path(run))
        say(f"{run}: unpacked to {paths.root}")
    else:
        paths = find(run, store)
    paths = _resume(paths, from_step=from_step, is_detached=detach, wait_s=wait_s, quiet=as_json)
    _say_where(paths, is_detached=detach, as_json=as_json)


@app.command()
def train(
    replayed: Annotated[
        str | None,
        typer.Option("--replay", metavar="RUN:STEP", help="Train a recorded GRPO step again."),
    ] = None,
    stage: Annotated[
        int | None,
        typer.Option(min=0, help="Number of the stage; absent: the last that trained the step."),
    ] = None,
    overrides: opt.Overrides = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the checkpoint after the step into it."),
    ] = None,
    store: opt.Store = opt.RUNS,
    as_json: opt.Json = False,
) -> None:
    """Train a recorded step again from its samples, without engine or judge; compare the loss."""
    require_linux()
    if replayed is None:
        raise ConfigError(
            'forge train: found no --replay RUN:STEP; "forge run X.toml" trains an experiment'
        )
    from forge.commands.replay import replay

    with waiting("training the step", is_shown=not as_json):
        report = replay(
            replayed, overrides=overrides or (), stage=stage, out=out, store_dir=store, say=say
        )
    print_json(report.to_json()) if as_json else print_rich(report.render())


@app.command()
def stop(run: opt.RunName = "last", store: opt.Store = opt.RUNS) -> None:
    """Stop a run after its current step and a checkpoint."""
    paths = find(run, store)
    _client(paths).stop()
    print_text(f'{paths.name} is stopping; "forge resume {paths.name}" continues it')


@app.command()
def save(run: opt.RunName = "last", store: opt.Store = opt.RUNS) -> None:
    """Save a checkpoint after the current step of a run."""
    print_text(_client(find(run, store)).save())


@app.command()
def evaluate(run: opt.RunName = "last", store: opt.Store = opt.RUNS) -> None:
    """Evaluate the policy of a grpo stage after its current step."""
    print_text(_client(find(run, store)).evaluate())


@app.command()
def status(
    run: opt.RunName = "last", store: opt.Store = opt.RUNS, as_json: opt.Json = False
) -> None:
    """Show the state and progress of a run."""
    from forge.commands.status import load_status

    found = load_status(find(run, store))
    print_json(found.to_json()) if as_json else print_rich(found.render())
    if found.silence is not None:
        raise found.silence


@app.command()
def logs(
    run: opt.RunName = "last",
    process: Annotated[
        str | None, typer.Argument(help="Process: serve-0, judge-1, trainer, ...; absent: all.")
    ] = None,
    num_lines: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Number of lines per process.")
    ] = 20,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow new lines until the run ends.")
    ] = False,
    level: Annotated[
        str | None,
        typer.Option(metavar="LEVEL", help="Minimum level: debug, info, warning, error."),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--grep", metavar="REGEX", help="Show matching lines only, ignoring case."),
    ] = None,
    store: opt.Store = opt.RUNS,
) -> None:
    """Show the last lines of the logs of a run's processes."""
    from forge.views.logs import parse_filter, read_logs

    wanted = parse_filter(process, level, pattern)
    print_lines(read_logs(find(run, store), wanted, num_lines=num_lines, is_followed=is_followed))


def _client(paths: RunPaths) -> ControlClient:
    from forge.views.run_state import open_client

    client = open_client(paths)
    if client is None:
        raise ConfigError(
            f'{paths.name} is not running; "forge show {paths.name}" shows its results'
        )
    return client


def _say_where(paths: RunPaths, *, is_detached: bool, as_json: bool) -> None:
    if as_json:
        return print_json({"name": paths.name, "path": str(paths.root)})
    print_text(str(paths.root))
    if is_detached:
        say(
            f'"forge tui {paths.name}" watches it, "forge logs {paths.name} -f" follows its logs, '
            f'"forge stop {paths.name}" ends it; "forge ps" lists what runs'
        )
