"""The command that writes a report of a run: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import RUNS, Json, RunName, Store, app, find
from forge.cli.printing import print_json, print_text, waiting
from forge.cli.querying import ask_questions


@app.command()
def report(
    run: RunName = "last",
    rest: Annotated[
        list[str] | None, typer.Argument(metavar="| questions N RUN", hidden=True)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write; absent: RUN/report.html.")
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each figure as SVG and PNG too.")
    ] = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Write a run as one self-contained HTML file with figures."""
    if run == "questions" or rest:
        return ask_questions(run, rest or [], store=store, as_json=as_json)
    from forge.views.report import write_report

    paths = find(run, store)
    with waiting("report", is_shown=not as_json):
        path = write_report(paths, out=out, plots=plots)
    print_json({"name": paths.name, "report": str(path)}) if as_json else print_text(str(path))
