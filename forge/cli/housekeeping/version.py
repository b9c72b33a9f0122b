"""`forge --version`: the version, and the commit of the checkout or of the build."""

from __future__ import annotations

from typing import Annotated

import typer

from forge.cli.options import app
from forge.cli.printing import print_text
from forge.version import __version__


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
