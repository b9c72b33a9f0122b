"""Commands for training rows: data from-run, prompt, build, harvest, show."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli import options as opt
from forge.cli.options import as_request, find, group, require_linux
from forge.cli.printing import print_json, print_rich, print_text, say, waiting

data_app = group("data", "Commands for training rows.")

IncludesHeldout = Annotated[
    bool, typer.Option("--include-heldout", help="Include held-out problems (leaks them).")
]
Tokenizer = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Model whose tokens count as length.")
]


@data_app.command("from-run")
def from_run(
    run: opt.RunName = "last",
    out: Annotated[
        Path, typer.Option(metavar="FILE.jsonl", help="File to write, one row per line.")
    ] = ...,  # type: ignore[assignment]
    best_per_problem: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Keep the N best rows of each kind per problem; absent: all."
        ),
    ] = None,
    min_speedup: Annotated[float | None, typer.Option(help="Minimum speed-up.")] = None,
    includes_heldout: IncludesHeldout = False,
    store: opt.Store = opt.RUNS,
    as_json: opt.Json = False,
) -> None:
    """Write a run's correct answers as SFT rows: [data] source = "file", format = "messages"."""
    from forge.runner.prepare.own_answers import AnswerFilter, describe, write_rows
    from forge.store.reader import open_run

    wanted = as_request(AnswerFilter, locals())
    with open_run(find(run, store)) as reader:
        written = write_rows(reader, wanted, out=out)
    print_json(written) if as_json else print_text(describe(written))


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
    assumed: opt.Assumed = None,
    overrides: opt.Overrides = None,
    store: opt.Store = opt.RUNS,
    as_json: opt.Json = False,
) -> None:
    """Print exactly what a model is sent about a problem."""
    from forge.commands.data_prompt import PromptRequest, show_prompt

    paths = None if run is None else find(run, store)
    request = as_request(PromptRequest, {**locals(), "run": paths})
    with waiting("prompt", is_shown=bool(attempts) and not as_json):
        shown = show_prompt(request)
    if as_json:
        return print_json(shown.to_json())
    if shown.note and not is_ids:
        say(f"messages without a chat template: {shown.note}")
    if shown.unknown and not is_ids:
        say(f"not in a first message: {shown.unknown}")
    print_text(shown.ids() if is_ids else shown.text())


@data_app.command("build")
def build(
    path: Annotated[Path, typer.Argument(metavar="X.toml", help="Settings of the build.")],
    overrides: opt.Overrides = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="End with the first broken row, as input.strict.")
    ] = False,
    as_json: opt.Json = False,
) -> None:
    """Build training rows from a data set: filter, check, remove duplicates, split."""
    require_linux()
    from forge.commands import data_build as view
    from forge.commands.data_show import steps_table
    from forge.config.load import load_build

    given = [*(overrides or ()), *(["input.strict=true"] if strict else [])]
    settings = load_build(path, overrides=given)
    manifest = view.build_rows(settings)
    if as_json:
        return print_json(manifest)
    print_rich(steps_table(manifest["steps"]))
    print_text(view.describe(manifest, settings.output.dir))


@data_app.command("harvest")
def harvest(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="Checkout of paritybench; directory of modules or problem files; rows:PATH; "
            "compositions:N; package:NAME; torch-samples.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Directory for the files; one that exists continues."),
    ] = ...,  # type: ignore[assignment]
    policy: Annotated[
        str, typer.Option(help="own: kernels do all work; hybrid: products may be torch's.")
    ] = "own",
    only_problems: Annotated[
        bool, typer.Option("--problems-only", help="Make problems, and no answers or rows.")
    ] = False,
    keeps_heldout: Annotated[
        bool,
        typer.Option(
            "--score", help="Answer held-out problems too, for their yields; no row has them."
        ),
    ] = False,
    heldout: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH",
            help="Further problems or rows that none may be like, beside KernelBench. Repeatable.",
        ),
    ] = None,
    similarity: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Similarity from which two are the same.")
    ] = 0.9,
    heldout_share: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of problems set apart, by whole files.")
    ] = 0.05,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Try the first N distinct problems.")
    ] = None,
    tokenizer: Tokenizer = None,
    preset: Annotated[str, typer.Option(help="Prompts of the rows: a name of prompt.preset.")] = (
        "standard"
    ),
    device: opt.Device = "auto",
    workers: opt.Workers = None,
    as_json: opt.Json = False,
) -> None:
    """Make problems of PyTorch code, answers by the compiler, and rows. The same command again
    continues."""
    require_linux()
    from forge.adapters.pools import JudgeSettings
    from forge.commands import data_harvest as view
    from forge.commands.data_show import steps_table

    judge = JudgeSettings(device=device, workers=workers)
    request = as_request(view.HarvestRequest, locals(), judge=judge)
    manifest = view.harvest(request)
    if as_json:
        return print_json(manifest)
    print_rich(steps_table(manifest["steps"]))
    print_text(view.describe(manifest, out))


@data_app.command("show")
def show(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="File of rows, or directory.")],
    limit: Annotated[int, typer.Option(min=0, help="Number of samples.")] = 1,
    tokenizer: Tokenizer = None,
    as_json: opt.Json = False,
) -> None:
    """Show samples of a file of rows, their lengths, and the steps of its build."""
    from forge.commands import data_show as view

    found = view.look(path, num=limit, tokenizer=tokenizer)
    print_json(found.to_json()) if as_json else print_rich(view.render(found))
