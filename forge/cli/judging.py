"""Commands that start judges: judge, problems check."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import (
    Constants,
    Device,
    Isolation,
    Json,
    Precision,
    Timeout,
    app,
    problems_app,
    require_linux,
)
from forge.cli.printing import print_json, print_rich, waiting
from forge.errors import ConfigError


@app.command()
def judge(
    problem: Annotated[
        Path | None, typer.Argument(metavar="PROBLEM", help="Problem file, or directory.")
    ] = None,
    candidate: Annotated[
        str | None,
        typer.Argument(metavar="CANDIDATE", help="Kernel or answer: file, directory or -."),
    ] = None,
    overrides: Constants = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    isolation: Isolation = "auto",
    compile_to: Annotated[
        str, typer.Option("--compile", help="Compilation, as in judge.compile.")
    ] = "ttir",
    baseline: Annotated[str, typer.Option(help="Baseline: eager or compile.")] = "eager",
    protocol: Annotated[
        str, typer.Option(help="Protocol: forge, kernelbench or drkernel, as in judge.protocol.")
    ] = "forge",
    also: Annotated[
        list[str] | None, typer.Option(help="Further protocol, for comparison. Repeatable.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of judges; absent: one per core.")
    ] = None,
    timeout: Timeout = None,
    is_timed: Annotated[
        bool, typer.Option("--timing/--no-timing", help="Time correct candidates on a GPU.")
    ] = True,
    is_profiled: Annotated[
        bool, typer.Option("--profile", help="Show GPU time by kernel.")
    ] = False,
    is_explained: Annotated[
        bool, typer.Option("--explain", help="Print the captured program.")
    ] = False,
    url: Annotated[str | None, typer.Option(help="Use a served pool instead.")] = None,
    is_serving: Annotated[bool, typer.Option("--serve", help="Serve judges to clients.")] = False,
    socket: Annotated[Path | None, typer.Option(help="--serve: Unix socket to create.")] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="--serve: address to listen on.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Judge candidates: a file, a directory, or stdin. With --serve, serve judges to clients."""
    require_linux()
    from forge.commands.judge import judge as view
    from forge.commands.judge.files import JudgingRequest, require_sources
    from forge.commands.judge.overrides import parse_overrides
    from forge.commands.judge.settings import JudgeSettings, check_precision

    settings = JudgeSettings(
        device=device, isolation=isolation, compile=compile_to, baseline=baseline,
        protocol=protocol, also=tuple(also or ()), workers=workers, timeout=timeout, url=url,
    )  # fmt: skip
    if is_serving:
        return view.serve(settings, given=(problem, candidate), socket=socket, listen=listen)
    if socket is not None or listen is not None:
        raise ConfigError(
            "--socket and --listen are addresses of --serve; --url names a served pool"
        )
    problem, candidate = require_sources(problem, candidate)
    check_precision(precision)
    request = JudgingRequest(
        problem=problem, candidate=candidate, overrides=parse_overrides(overrides or ()),
        precision=precision, is_timed=is_timed, is_profiled=is_profiled, is_explained=is_explained,
    )  # fmt: skip
    if is_explained and request.is_directory and not as_json:
        raise ConfigError(f"--explain: {candidate} is a directory; name one file, or add --json")
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
    timeout: Timeout = None,
    as_json: Json = False,
) -> None:
    """Find problems that cannot be judged, or that reward an answer that does less than asked."""
    require_linux()
    from forge.commands.judge import problems as view
    from forge.commands.judge.overrides import parse_overrides
    from forge.commands.judge.settings import JudgeSettings

    found = view.check_path(
        path,
        settings=JudgeSettings(device=device, isolation=isolation, timeout=timeout),
        overrides=parse_overrides(overrides or ()),
        precision=precision,
        is_shown=not as_json,
    )
    print_json(view.to_json(found)) if as_json else print_rich(view.render(found))
    if not all(each.is_usable for each in found):
        raise typer.Exit(2)
