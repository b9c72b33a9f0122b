"""Commands that prepare training rows: data build, data show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.exporting import data_app
from forge.cli.options import Json, Overrides, require_linux
from forge.cli.printing import print_json, print_rich, print_text


@data_app.command("build")
def build(
    path: Annotated[Path, typer.Argument(metavar="X.toml", help="Settings of the build.")],
    overrides: Overrides = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with the first broken row, as input.strict.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of processes; absent: one per core.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Build training rows from a data set: filter, check, remove duplicates, split."""
    require_linux()
    from forge.commands import data_build as view
    from forge.commands.data_show import steps_table
    from forge.config.load import load_build

    given = [*(overrides or ()), *(["input.strict=true"] if strict else [])]
    built = view.build_rows(
        load_build(path, overrides=given), workers=workers, is_shown=not as_json
    )
    if as_json:
        return print_json(built.manifest)
    print_rich(steps_table(built.manifest["steps"]))
    print_text(built.describe())


@data_app.command("show")
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File of rows, or directory.")],
    num: Annotated[int, typer.Option("--num", min=0, help="Number of samples.")] = 1,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Model whose tokens count as length.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show samples of a file of rows, their lengths, and the steps of its build."""
    from forge.commands import data_show as view

    found = view.look(path, num=num, tokenizer=tokenizer)
    print_json(found.to_json()) if as_json else print_rich(view.render(found))
