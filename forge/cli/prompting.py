"""The command that shows a prompt: data prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.exporting import data_app
from forge.cli.options import RUNS, Json, Overrides, Store, find
from forge.cli.printing import print_json, print_text, say, waiting


@data_app.command("prompt")
def prompt(
    problem: Annotated[str, typer.Argument(metavar="PROBLEM", help="Problem: an id, a file or -.")],
    experiment: Annotated[
        Path | None,
        typer.Option(metavar="X.toml", help="Prompts of an experiment; absent: the default ones."),
    ] = None,
    run: Annotated[str | None, typer.Option(metavar="RUN", help="Prompts of a run.")] = None,
    attempts: Annotated[
        list[str] | None,
        typer.Option(
            "--attempt",
            metavar="FILE",
            help="An answer of a model: judged, with the next turn's prompt. Repeatable.",
        ),
    ] = None,
    is_ids: Annotated[bool, typer.Option("--ids", help="Print token ids.")] = False,
    assumed: Annotated[
        str | None,
        typer.Option("--assume", metavar="MACHINE", help='Another machine, e.g. "8xH100-80GB".'),
    ] = None,
    overrides: Overrides = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Print exactly what a model is sent about a problem."""
    from forge.commands.data_prompt import PromptRequest, show_prompt

    request = PromptRequest(
        problem=problem,
        experiment=experiment,
        run=None if run is None else find(run, store),
        overrides=overrides or (),
        assumed=assumed,
        attempts=attempts or (),
    )
    with waiting("prompt", is_shown=bool(attempts) and not as_json):
        shown = show_prompt(request)
    if as_json:
        return print_json(shown.to_json())
    if shown.note and not is_ids:
        say(f"messages without a chat template: {shown.note}")
    if shown.unknown and not is_ids:
        say(f"not in a first message: {shown.unknown}")
    print_text(shown.ids() if is_ids else shown.text())
