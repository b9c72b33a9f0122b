"""`forge --version`: the version, and the commit of a checkout."""

from __future__ import annotations

from typing import Annotated

import typer

from forge.cli.options import app
from forge.cli.printing import print_text


def _show(is_asked: bool) -> None:
    if not is_asked:
        return
    import forge
    from forge.commands.store.checkout import describe_checkout

    print_text(f"forge {forge.__version__}{describe_checkout()}")
    raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show, is_eager=True, help="Show version and commit."),
    ] = False,
) -> None:
    """Options of forge itself."""
