"""Commands that write files from a run: report, archive, export, kernels export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import RUNS, Json, RunName, Store, app, complete_run, find, group
from forge.cli.printing import print_json, print_lines, print_rich, print_text, waiting
from forge.errors import ConfigError
from forge.records import split_step
from forge.views.text import size

kernels_app = group("kernels", "Commands for kernels of a run.")


@app.command()
def report(
    run: RunName = "last",
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File; absent: RUN/report.html, or beside an archive."),
    ] = None,
    plots: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each figure as SVG and PNG too.")
    ] = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Write a run as one self-contained HTML file with figures."""
    from forge.views.report.page import write_report

    paths = find(run, store)
    if out is None and Path(run).is_file():  # an archive, whose directory ends with this command
        out = Path(run).absolute().with_name(f"{paths.name}.html")
    with waiting("report", is_shown=not as_json):
        path = write_report(paths, out=out, plots=plots)
    print_json({"name": paths.name, "report": str(path)}) if as_json else print_text(str(path))


@app.command()
def archive(
    run: RunName = "last",
    with_weights: Annotated[
        bool,
        typer.Option(
            "--weights/--no-weights", help="Include what a resume needs, or only the records."
        ),
    ] = True,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File to write; absent: RUN.forge.zip beside the run."),
    ] = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Write a run as one file, which show, sql and others read and resume continues."""
    from forge.store.archive import write_archive

    if Path(run).is_file():
        raise ConfigError(f"{run}: a file; RUN is a directory or a name")
    with waiting("archive", is_shown=not as_json):
        path, num_files = write_archive(find(run, store), out, with_weights=with_weights)
    num_bytes = path.stat().st_size
    if as_json:
        return print_json({"archive": str(path), "bytes": num_bytes})
    again = ", forge resume continues it" if with_weights else ""
    held = f"{num_files} files, {num_bytes / 1e6:.1f} MB"
    print_text(f"{path}: {held}; forge show, report and sql read it{again}")


@app.command()
def export(
    form: Annotated[str, typer.Argument(metavar="FORMAT", help="Format: parquet or model.")],
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[:STEP]",
            help="Run: directory, archive, name, name-n or `last`; its model also at a step.",
            autocompletion=complete_run,
        ),
    ] = "last",
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Directory for the files; of a model: absent or new."),
    ] = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Model: whole weights; absent: as trained.")
    ] = False,
    adapter: Annotated[bool, typer.Option("--adapter", help="Model: its PEFT adapter.")] = False,
    gguf: Annotated[bool, typer.Option("--gguf", help="Model: a file for llama.cpp.")] = False,
    push: Annotated[
        str, typer.Option(metavar="NAME", help="Model: upload to this private hub repository.")
    ] = "",
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Write a run's tables, or its model with a model card, to files."""
    kinds = [name for name, on in (("merge", merge), ("adapter", adapter), ("gguf", gguf)) if on]
    if form == "model":
        if len(kinds) > 1:
            raise ConfigError(
                "forge export model: one of --merge, --adapter, --gguf; absent: as trained"
            )
        from forge.commands.export_model import ModelForm, export_model

        name, step = split_step(run)
        paths, kind = find(name, store), ModelForm(kinds[0]) if kinds else None
        with waiting("export", is_shown=not as_json):
            made = export_model(paths, kind=kind, out=out, step=step, push_to=push)
        if as_json:
            return print_json(made)
        path, note = made["path"], made.get("note")
        print_text(f"{path}: {size(made['bytes'])}; verified: {made['answer']!r}")
        return print_lines(filter(None, (note and f"{path}: {note}", made.get("url"))))
    if form != "parquet":
        raise ConfigError(f"forge export {form}: no such format; there are parquet and model")
    for option in [*kinds, *(["push"] if push else [])]:
        raise ConfigError(f"forge export parquet: --{option} is for a model")
    from forge.commands import export_parquet as view
    from forge.store.reader import open_run
    from forge.views.fitting import Fitting

    paths = find(run, store)
    if out is None:
        raise ConfigError("forge export parquet: --out DIR is missing; a directory for the files")
    with open_run(paths) as reader:
        found = view.export(reader, out=out)
    if as_json:
        return print_json(found)
    rows = [(each["path"], each["num_rows"], each["num_bytes"]) for each in found]
    print_rich(Fitting(("file", "rows", "bytes"), rows))


@kernels_app.command("export")
def export_best(
    run: RunName = "last",
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

    found = export_kernels(find(run, store), out=out, license=license)
    if as_json:
        return print_json(found)
    print_text(f"{found['path']}: {len(found['kernels'])} kernels")
