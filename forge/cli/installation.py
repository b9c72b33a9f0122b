"""Commands about this installation and its runs as a whole: keys, doctor, cluster check, ps, gc,
--version.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forge.cli.options import RUNS, ExperimentFile, Json, Overrides, Store, app, find, group
from forge.cli.printing import print_json, print_lines, print_rich, print_text, say, waiting
from forge.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.commands.doctor.probe import Finding

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
    from forge.commands.doctor.probe import summarize, to_json

    if target is not None and not target.endswith(".toml"):
        from forge.commands.doctor.run import examine_run

        paths = find(target, store)
        with waiting(f"checking {paths.name}", is_shown=not as_json):
            checkup = examine_run(paths)
        once = ", once the run has ended" if checkup.is_running else ""
        can = "can" if checkup.can_resume else "could not"
        last = f"{paths.name}: a resume {can} start{once}"
        return _report(checkup.findings, checkup.to_json(), as_json=as_json, last=last)
    from forge.commands.doctor.examine import examine
    from forge.config.load import load_experiment

    serve = None if target is None else load_experiment(Path(target)).serve
    with waiting("checking this machine", is_shown=not as_json):
        findings = examine(store, serve=serve)
    _report(findings, to_json(findings), as_json=as_json, last=summarize(findings))


def _report(findings: Sequence[Finding], data: Any, *, as_json: bool, last: str = "") -> None:
    """Prints findings, and a last line; exit code 3 if one of them is an error."""
    from forge.commands.doctor.probe import can_run, render

    if as_json:
        print_json(data)
    else:
        print_rich(render(findings))
        if last:
            print_text(last)
    if not can_run(findings):
        raise typer.Exit(3)


@cluster_app.command("check")
def check_nodes(file: ExperimentFile, overrides: Overrides = None, as_json: Json = False) -> None:
    """Check the nodes of an experiment's Ray cluster, and name the fix for each problem."""
    import anyio

    from forge.commands.cluster_check import find_all, survey_cluster
    from forge.commands.doctor.probe import to_json
    from forge.config.load import load_experiment

    experiment = load_experiment(file, overrides=overrides or ())
    with waiting("asking the nodes", is_shown=not as_json):
        findings = find_all(experiment, anyio.run(survey_cluster, experiment))
    _report(findings, to_json(findings), as_json=as_json)


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
    from forge.views.text import size

    found = find_garbage(
        store, now=time.time(), with_checkpoints=with_checkpoints, with_models=with_models
    )
    if not found and not as_json:
        return say(f"{store}/: nothing to remove")
    if not as_json:
        print_lines(describe(found))
    items = [each.to_json() for each in found] if as_json else []
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
