"""Commands that ask judges and models: judge, problems check, chat, serve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import (
    RUNS,
    Constants,
    Device,
    Isolation,
    Json,
    Overrides,
    Precision,
    Store,
    app,
    problems_app,
    require_linux,
)
from forge.cli.printing import print_json, print_rich, say, waiting, write


@app.command()
def judge(
    problem: Annotated[
        Path | None, typer.Argument(metavar="PROBLEM", help="Reference module, or a directory.")
    ] = None,
    candidate: Annotated[
        str | None, typer.Argument(metavar="CANDIDATE", help="Kernel or answer, directory, or -.")
    ] = None,
    overrides: Constants = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    isolation: Isolation = "auto",
    compile_to: Annotated[str, typer.Option("--compile", help="As judge.compile.")] = "ttir",
    baseline: Annotated[str, typer.Option(help="As judge.baseline: eager or compile.")] = "eager",
    workers: Annotated[int | None, typer.Option(min=1, help="Judges; one a core.")] = None,
    is_timed: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Time what is correct, on a GPU.")
    ] = True,
    is_profiled: Annotated[bool, typer.Option("--profile", help="GPU time by kernel.")] = False,
    url: Annotated[str | None, typer.Option(help="Ask a served pool instead.")] = None,
    is_serving: Annotated[bool, typer.Option("--serve", help="Run judges for others.")] = False,
    socket: Annotated[Path | None, typer.Option(help="--serve: Unix socket to make.")] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="--serve: address.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Verdicts on candidates: one file, a directory, or stdin. Or judges for others (--serve)."""
    require_linux()
    from forge.commands.judge import judge as view
    from forge.commands.judge.request import JudgeRequest
    from forge.commands.judge.settings import JudgeSettings

    settings = JudgeSettings(
        device=device, isolation=isolation, compile=compile_to, baseline=baseline,
        workers=workers, url=url,
    )  # fmt: skip
    if is_serving:
        return view.serve(settings, given=(problem, candidate), socket=socket, listen=listen)
    if socket is not None or listen is not None:
        from forge.errors import ConfigError

        raise ConfigError("--socket and --listen are where --serve listens; --url asks a pool")
    request = JudgeRequest.make(
        problem, candidate, overrides=overrides or (), precision=precision, is_timed=is_timed,
        is_profiled=is_profiled,
    )  # fmt: skip
    with waiting("judging", is_shown=not (as_json or request.is_directory)):
        judged = view.judge(request, settings, is_shown=not as_json)
    print_json(judged.to_json()) if as_json else print_rich(judged.render())
    if judged.is_faulty:
        raise typer.Exit(3)


@problems_app.command("check")
def check_problems(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of problems, or a file.")],
    overrides: Constants = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    isolation: Isolation = "auto",
    as_json: Json = False,
) -> None:
    """Which problems can be judged, and which would pay an answer that does less than they ask."""
    require_linux()
    from forge.commands.judge import problems_view as view
    from forge.commands.judge.overrides import parse_overrides
    from forge.commands.judge.problems import check_path
    from forge.commands.judge.settings import JudgeSettings

    found = check_path(
        path,
        settings=JudgeSettings(device=device, isolation=isolation),
        overrides=parse_overrides(overrides or ()),
        precision=precision,
        is_shown=not as_json,
    )
    print_json(view.to_json(found)) if as_json else print_rich(view.render(found))
    if not all(each.is_usable for each in found):
        raise typer.Exit(2)


@app.command()
def chat(
    run: Annotated[str, typer.Argument(metavar="RUN[@STEP]", help="Run, at a step if given.")],
    problem: Annotated[str, typer.Option(help="Problem file or bare function.")] = "-",
    turns: Annotated[int, typer.Option(min=1, max=16, help="Attempts.")] = 3,
    temperature: Annotated[float, typer.Option(min=0.0, max=2.0, help="0 is greedy.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of the sampling.")] = 0,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Ask a run's model for a kernel; every turn is judged and stored."""
    require_linux()
    from dataclasses import asdict

    from forge.commands import chat as view

    if problem == "-" and sys.stdin is not None and sys.stdin.isatty():
        say("a problem, or a function of tensors, then Ctrl-D; --problem names a file")
    source, name = view.read_source(problem)
    request = view.ChatRequest(
        run=run, source=source, name=name, turns=turns, temperature=temperature, seed=seed
    )
    with waiting("engine and judge start", is_shown=not as_json) as end_waiting:

        def say_more(text: str) -> None:
            end_waiting()
            write(text)

        played = view.chat(request, store_dir=store, say=None if as_json else say_more)
    if as_json:
        print_json(asdict(played))


@app.command()
def serve(
    source: Annotated[str, typer.Argument(metavar="X.toml|RUN[@STEP]", help="Whose model.")],
    socket: Annotated[Path | None, typer.Option(help="Unix socket to make.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address.")] = None,
    overrides: Overrides = None,
    store: Store = RUNS,
) -> None:
    """Run engines alone: for [serve] url of another run, and for clients of OpenAI's API."""
    require_linux()
    from forge.commands import serve as serving

    request = serving.ServeRequest(
        source=source, overrides=overrides or (), socket=socket, listen=listen
    )
    with waiting("engines start", is_shown=True) as end_waiting:

        def say_so(text: str) -> None:
            end_waiting()
            say(text)

        serving.serve(request, store_dir=store, say=say_so)
