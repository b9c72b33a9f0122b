"""Commands that describe this installation: keys, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import RUNS, Json, Store, app
from forge.cli.printing import print_json, print_rich, print_text


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
    from forge.commands.doctor import examine, render, to_json
    from forge.config.load import load_experiment

    findings = examine(store, serve=None if file is None else load_experiment(file).serve)
    print_json(to_json(findings)) if as_json else print_rich(render(findings))
    if not all(finding.is_ok for finding in findings):
        raise typer.Exit(3)
