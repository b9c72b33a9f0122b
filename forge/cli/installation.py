"""Commands about this installation and its runs as a whole: keys, doctor, cluster check, ps, gc,
--version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import RUNS, ExperimentFile, Json, Overrides, Store, app, find, group
from forge.cli.printing import print_json, print_lines, print_rich, print_text, say, waiting
from forge.version import __version__

cluster_app = group("cluster", "Commands for other machines.")


@app.command()
def keys(
    table: Annotated[
        str,
        typer.Argument(
            metavar="[TABLE|KEY]", help="model, grpo, rollout.group_size, ...; absent: all."
        ),
    ] = "",
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema for editors.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Describe keys of an experiment: type, range, default, unit."""
    from forge.config import keys as view

    if schema:
        return print_text(view.schema_json().rstrip("\n"))
    found = view.find_keys(table)
    if as_json:
        return print_json([key.to_json() for key in found])
    print_rich(view.render(found))


@app.command()
def doctor(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="[X.toml|RUN]",
            help="Check serve.python of an experiment too; or the records and files of a run.",
        ),
    ] = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Check this machine or a run, and name the fix for each problem."""
    if target is not None and not target.endswith(".toml"):
        return _examine_run(target, store, as_json=as_json)
    from forge.commands.doctor.examine import examine
    from forge.commands.doctor.probe import can_run, render, summarize, to_json
    from forge.config.load import load_experiment

    serve = None if target is None else load_experiment(Path(target)).serve
    with waiting("checking this machine", is_shown=not as_json):
        findings = examine(store, serve=serve)
    if as_json:
        print_json(to_json(findings))
    else:
        print_rich(render(findings))
        print_text(summarize(findings))
    if not can_run(findings):
        raise typer.Exit(3)


def _examine_run(run: str, store: Path, *, as_json: bool) -> None:
    from forge.commands.doctor.probe import render
    from forge.commands.doctor.run import examine_run

    paths = find(run, store)
    with waiting(f"checking {paths.name}", is_shown=not as_json):
        found = examine_run(paths)
    if as_json:
        print_json(found.to_json())
    else:
        print_rich(render(found.findings))
        once = ", once the run has ended" if found.is_running else ""
        can = "can" if found.can_resume else "could not"
        print_text(f"{paths.name}: a resume {can} start{once}")
    if not found.can_resume:
        raise typer.Exit(3)


@cluster_app.command("check")
def check_nodes(file: ExperimentFile, overrides: Overrides = None, as_json: Json = False) -> None:
    """Check the nodes of an experiment's Ray cluster, and name the fix for each problem."""
    import anyio

    from forge.commands.cluster_check import find_all, survey_cluster
    from forge.commands.doctor.probe import can_run, render, to_json
    from forge.config.load import load_experiment

    experiment = load_experiment(file, overrides=overrides or ())
    with waiting("asking the nodes", is_shown=not as_json):
        findings = find_all(experiment, anyio.run(survey_cluster, experiment))
    if as_json:
        print_json(to_json(findings))
    else:
        print_rich(render(findings))
    if not can_run(findings):
        raise typer.Exit(3)


@app.command()
def ps(store: Store = RUNS, as_json: Json = False) -> None:
    """List the runs that are running now."""
    from forge.commands.status import load_running, render_running

    found = load_running(store)
    if as_json:
        return print_json(found)
    if not found:
        return say(f"{store}/: no run is running")
    print_rich(render_running(found))


@app.command()
def gc(
    with_checkpoints: Annotated[
        bool,
        typer.Option(
            "--checkpoints",
            help="Also checkpoints of done runs, except the newest and the best of each stage.",
        ),
    ] = False,
    with_models: Annotated[
        bool,
        typer.Option(
            "--models",
            help="Also models in ~/.cache/forge/models, made of GGUF files and adapters, that no "
            "run of the directory names.",
        ),
    ] = False,
    is_confirmed: Annotated[
        bool, typer.Option("--yes", help="Remove them; otherwise they are only listed.")
    ] = False,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """List what killed commands left in a store directory, and remove it with --yes."""
    import time

    from forge.commands.garbage import describe, find_garbage, remove
    from forge.views.text.numbers import size

    found = find_garbage(
        store, now=time.time(), with_checkpoints=with_checkpoints, with_models=with_models
    )
    if not found and not as_json:
        return say(f"{store}/: nothing to remove")
    if not as_json:
        print_lines(describe(found))
    items = [each.to_json() for each in found]
    freed, kept = remove(found) if is_confirmed else (0, [])
    if as_json:
        return print_json({"found": items, "removed": is_confirmed, "kept": kept})
    for line in kept:
        say(line)
    say(f"removed: {size(freed)}" if is_confirmed else "nothing was removed; --yes removes it")


def _show(is_asked: bool) -> None:
    if not is_asked:
        return
    from forge.origin import read_origin

    print_text(f"forge {__version__}{read_origin()}")
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show, is_eager=True, help="Show version and commit."),
    ] = False,
) -> None:
    """Options of forge itself."""
