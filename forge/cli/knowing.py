"""Commands that describe this installation: keys, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import RUNS, Json, Store, app
from forge.cli.printing import print_json, print_rich, print_text, waiting


@app.command()
def keys(
    table: Annotated[
        str, typer.Argument(help="Table or key: model, rollout.group_size, ...; absent: all.")
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
    file: Annotated[
        Path | None, typer.Argument(metavar="[X.toml]", help="Check its serve.python too.")
    ] = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Check this machine, and name the fix for each problem."""
    from forge.commands.doctor.examine import examine
    from forge.commands.doctor.finding import can_run, render, summarize, to_json
    from forge.config.load import load_experiment

    serve = None if file is None else load_experiment(file).serve
    with waiting("checking this machine", is_shown=not as_json):
        findings = examine(store, serve=serve)
    if as_json:
        print_json(to_json(findings))
    else:
        print_rich(render(findings))
        print_text(summarize(findings))
    if not can_run(findings):
        raise typer.Exit(3)
