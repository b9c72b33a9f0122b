"""The command that takes kernels out of a run: kernels export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import RUNS, Json, RunName, Store, app, find
from forge.cli.printing import print_json, print_text

kernels_app = typer.Typer(
    help="Commands for kernels of a run.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(kernels_app, name="kernels")


@kernels_app.command("export")
def export(
    run: RunName = "last",
    layout: Annotated[
        str,
        typer.Option(
            help="Layout: files, or kernels-hub (a project for Hugging Face's kernel-builder)."
        ),
    ] = "files",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="New or empty directory; absent: RUN-kernels."),
    ] = None,
    license: Annotated[
        str, typer.Option(metavar="ID", help="Licence that you give the kernels: mit, apache-2.0.")
    ] = "other",
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Write the best kernel of each problem with problem, verdict, times, a test and a note about
    licences."""
    from forge.commands.kernels import export_kernels

    found = export_kernels(find(run, store), layout=layout, out=out, license=license)
    if as_json:
        return print_json(found.to_json())
    print_text(f"{found.path}: {len(found.kernels)} kernels")
