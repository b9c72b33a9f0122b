"""Commands that tell what may be asked of this installation: keys, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import (
    RUNS,
    Json,
    Store,
    app,
)
from forge.cli.printing import print_json, print_rich, print_text


@app.command()
def keys(
    table: Annotated[
        str, typer.Argument(help="model, rollout, rollout.group_size, ...; all if absent.")
    ] = "",
    schema: Annotated[bool, typer.Option("--schema", help="JSON schema for editors.")] = False,
    as_json: Json = False,
) -> None:
    """Every key of an experiment file: type, range, default, unit and what it is."""
    from forge.config import keys as view

    if schema:
        return print_text(view.schema_json().rstrip("\n"))
    found = view.find_keys(table)
    if as_json:
        return print_json([key.to_json() for key in found])
    from forge.config.keys_view import render

    print_rich(render(found))


@app.command()
def doctor(
    file: Annotated[
        Path | None, typer.Argument(metavar="[X.toml]", help="Look at its serve.python too.")
    ] = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """What this machine has, and what to do about what it lacks."""
    from forge.commands.doctor import examine
    from forge.commands.doctor_view import render, to_json
    from forge.config.load import load_experiment

    findings = examine(store, serve=None if file is None else load_experiment(file).serve)
    print_json(to_json(findings)) if as_json else print_rich(render(findings))
    if not all(finding.is_ok for finding in findings):
        raise typer.Exit(3)
