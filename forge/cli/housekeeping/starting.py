"""The command that gives a user an experiment file to start from: init."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import Json, app
from forge.cli.printing import print_json, print_rich, print_text


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
    as_json: Json = False,
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
