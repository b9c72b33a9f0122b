"""Commands that start judges, or engines for a model: judge, problems check, mcp, serve, solve,
eval."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forge.cli import options as opt
from forge.cli.options import app, as_request, find, group, require_linux
from forge.cli.printing import print_json, print_rich, print_text, say, waiting
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forge.adapters.pools import JudgeSettings
    from forge.commands.judge.judge import JudgingRequest


problems_app = group("problems", "Commands for problem files.")

Problem = Annotated[
    Path | None, typer.Argument(metavar="PROBLEM", help="Problem file, directory, or file of rows.")
]
Chosen = Annotated[
    str | None,
    typer.Option(
        "--problem",
        metavar="NAME",
        help='One problem of PROBLEM: name, number or "level=1 problem_id=19".',
    ),
]
Format = Annotated[
    str, typer.Option("--format", help="Columns of a file of rows, as in problems.format.")
]
Candidate = Annotated[
    str | None, typer.Argument(metavar="CANDIDATE", help="Kernel or answer: file, directory or -.")
]
Compile = Annotated[str, typer.Option("--compile", help="Compilation, as in judge.compile.")]
Baseline = Annotated[str, typer.Option(help="Baseline: eager or compile.")]
Again = Annotated[
    str | None,
    typer.Option(
        "--run", metavar="RUN", help="Judge the stored answers of a run again, beside its verdicts."
    ),
]
Also = Annotated[
    list[str] | None,
    typer.Option(help="Further protocol or PROTOCOL:POLICY, for comparison. Repeatable."),
]
Target = Annotated[
    str | None,
    typer.Option(help="GPU to judge for on the CPU, such as hip:gfx942; absent: cuda:90."),
]
IsTimed = Annotated[
    bool, typer.Option("--timing/--no-timing", help="Time correct candidates on a GPU.")
]
IsProfiled = Annotated[
    bool,
    typer.Option("--profile", help="Show launches, registers and bytes; on a GPU, time by kernel."),
]
IsExplained = Annotated[bool, typer.Option("--explain", help="Print the captured program.")]
Url = Annotated[str | None, typer.Option(help="Use a served pool instead.")]
IsServing = Annotated[bool, typer.Option("--serve", help="Serve judges to clients.")]
Turns = Annotated[int | None, typer.Option(help="--openenv: answers in an episode, 3 if absent.")]
IsOpenEnv = Annotated[
    bool, typer.Option("--openenv", help="--serve: serve PROBLEM as an OpenEnv environment too.")
]

OF_A_REQUEST = (
    "overrides", "shapes", "precision", "is_timed", "is_profiled", "is_explained", "as_json",
    "chosen",
)  # fmt: skip
"""Parameters that clients of --serve choose with each request."""


@app.command()
def judge(
    context: typer.Context,
    problem: Problem = None,
    candidate: Candidate = None,
    chosen: Chosen = None,
    format: Format = "kernelbench",
    overrides: opt.Constants = None,
    shapes: opt.Shapes = None,
    device: opt.Device = "auto",
    precision: opt.Precision = "fp32",
    isolation: opt.Isolation = "auto",
    compile: Compile = "ttir",
    baseline: Baseline = "eager",
    protocol: opt.Protocol = None,
    policy: opt.JudgePolicy = None,
    target: Target = None,
    also: Also = None,
    site_packages: opt.SitePackages = None,
    workers: opt.Workers = None,
    timeout: opt.Timeout = None,
    is_timed: IsTimed = True,
    is_profiled: IsProfiled = False,
    is_explained: IsExplained = False,
    url: Url = None,
    run: Again = None,
    store: opt.Store = opt.RUNS,
    is_serving: IsServing = False,
    is_openenv: IsOpenEnv = False,
    turns: Turns = None,
    socket: opt.Socket = None,
    listen: opt.Listen = None,
    as_json: opt.Json = False,
) -> None:
    """Judge candidates: a file, a directory, or stdin. With --serve, serve judges to clients, which
    may name problems of PROBLEM. With --run, judge a run's answers again."""
    require_linux()
    from forge.adapters.pools import JudgeSettings
    from forge.commands.judge.judge import (
        JudgingRequest,
        parse_overrides,
        parse_shapes,
        require_sources,
    )
    from forge.config.keys import one_of
    from forge.config.schema import Dtype, RowFormat

    settings = as_request(JudgeSettings, locals())
    if is_openenv and not is_serving:
        raise ConfigError("--openenv: belongs to --serve")
    if turns is not None and not is_openenv:
        raise ConfigError("--turns: belongs to --openenv")
    given = _given(context)
    if run is not None:
        return _judge_again(run, store, settings, given=given, as_json=as_json)
    rows = one_of("--format", format, RowFormat)
    if is_serving:
        for option in (option for name, option in given.items() if name in OF_A_REQUEST):
            raise ConfigError(f"{option}: not allowed with --serve, which judges as clients ask")
        where: dict[str, Any] = {
            "problems": problem, "candidate": candidate, "format": rows,
            "socket": socket, "listen": listen,
        }  # fmt: skip
        if not is_openenv:
            from forge.adapters.http.routes import serve

            return serve(settings, **where)
        from forge.adapters.openenv.server import serve_environment

        return serve_environment(settings, num_turns=3 if turns is None else turns, **where)
    if socket is not None or listen is not None:
        raise ConfigError(
            "--socket and --listen are addresses of --serve; --url names a served pool"
        )
    problem, candidate = require_sources(problem, candidate)
    one_of("--precision", precision, Dtype)
    constants = {
        "overrides": parse_overrides(overrides or ()),
        "shapes": parse_shapes(shapes or ()),
    }
    request = as_request(JudgingRequest, {**locals(), **constants})
    _print_judged(request, settings, as_json=as_json)


def _given(context: typer.Context) -> dict[str, str]:
    """Parameters that the command line has: name to option."""
    options = {param.name or "": param.opts[0] for param in context.command.params}
    sources = {name: context.get_parameter_source(name) for name in options}
    return {
        name: option
        for name, option in options.items()
        if (source := sources[name]) and source.name == "COMMANDLINE"
    }


def _judge_again(
    run: str, store: Path, settings: JudgeSettings, *, given: Mapping[str, str], as_json: bool
) -> None:
    """Judges a run's answers and prints what changed; exit code 3 if some could not be judged."""
    allowed = {
        "protocol", "policy", "device", "isolation", "workers", "timeout", "url", "run", "store",
        "as_json",
    }  # fmt: skip
    for option in (option for name, option in given.items() if name not in allowed):
        raise ConfigError(
            f"--run {run}: {option} is not allowed with it; --protocol, --policy, --device, "
            "--isolation, --workers, --timeout or --url replace the run's [judge]"
        )
    if Path(run).is_file():
        raise ConfigError(f'--run {run}: a file; "forge resume {run}" unpacks the archive of a run')
    from forge.commands.judge.again import judge_again, render

    report = judge_again(find(run, store), settings, given=list(given))
    print_json(report) if as_json else print_rich(render(report))
    if report["num_failed"]:
        raise typer.Exit(3)


def _print_judged(request: JudgingRequest, settings: JudgeSettings, *, as_json: bool) -> None:
    """Judges and prints the verdicts; exit code 3 if the judge itself failed, 2 if a problem cannot
    be judged."""
    from forge.commands.judge import judge as view

    if request.is_explained and request.is_directory and not as_json:
        raise ConfigError(
            f"--explain: {request.candidate} is a directory; name one file, or add --json"
        )
    with waiting("judging", is_shown=not (as_json or request.is_directory)):
        judged = view.judge(request, settings)
    print_json(judged.to_json()) if as_json else print_rich(judged.render())
    if judged.exit_code:
        raise typer.Exit(judged.exit_code)


@problems_app.command("check")
def check_problems(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of problems, or a file.")],
    chosen: Chosen = None,
    format: Format = "kernelbench",
    overrides: opt.Constants = None,
    shapes: opt.Shapes = None,
    device: opt.Device = "auto",
    precision: opt.Precision = "fp32",
    isolation: opt.Isolation = "auto",
    site_packages: opt.SitePackages = None,
    timeout: opt.Timeout = None,
    as_json: opt.Json = False,
) -> None:
    """Find problems that cannot be judged, or that reward an answer that does less than asked."""
    require_linux()
    from forge.adapters.pools import JudgeSettings
    from forge.commands.judge import judge as view
    from forge.config.keys import one_of
    from forge.config.schema import Dtype, RowFormat

    settings = as_request(JudgeSettings, locals())
    found = view.check_path(
        path,
        settings=settings,
        overrides=view.parse_overrides(overrides or ()),
        shapes=view.parse_shapes(shapes or ()),
        precision=one_of("--precision", precision, Dtype),
        chosen=chosen,
        row_format=one_of("--format", format, RowFormat),
    )
    print_json(view.examined_json(found)) if as_json else print_rich(view.render_examined(found))
    if not all(each.is_usable for each in found):
        raise typer.Exit(2)


@app.command()
def mcp(
    device: opt.Device = "auto",
    isolation: opt.Isolation = "auto",
    baseline: Baseline = "eager",
    protocol: opt.Protocol = None,
    policy: opt.JudgePolicy = None,
    target: Target = None,
    site_packages: opt.SitePackages = None,
    workers: opt.Workers = None,
    timeout: opt.Timeout = None,
    url: Url = None,
) -> None:
    """Serve the judge, run, profile and docs to a coding agent: MCP on stdin and stdout."""
    require_linux()
    from forge.adapters.pools import JudgeSettings
    from forge.commands.mcp import serve_mcp

    serve_mcp(as_request(JudgeSettings, locals()))


Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL|URL",
        help="RUN[:STEP], a directory with a model or an adapter, a hub name (owner/name), or an "
        "OpenAI-compatible server (http://HOST:PORT).",
    ),
]
SuiteName = Annotated[
    str | None,
    typer.Option(
        metavar="SUITE",
        help="kernelbench-l1 to kernelbench-l4, a directory of problems, or an experiment file; "
        "absent: the held-out problems of RUN.",
    ),
]
SpeedupBaseline = Annotated[
    str | None, typer.Option(help="Baseline of speed-ups: eager, compile or both.")
]
Samples = Annotated[int | None, typer.Option(min=1, help="Answers to each problem, sampled.")]
AnswerBudget = Annotated[
    int | None,
    typer.Option(
        "--budget",
        min=1,
        metavar="N",
        help="N answers to each problem instead of --samples, in rollouts with all turns: best@N.",
    ),
]
AnswerTurns = Annotated[int | None, typer.Option(min=1, max=16, help="Turns of an answer.")]
Greedy = Annotated[
    bool | None, typer.Option("--greedy/--no-greedy", help="One more answer at temperature 0.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the answers, as in eval.seed.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Number of problems, spread over the suite; absent: all.")
]


@app.command()
def serve(
    source: Annotated[
        str,
        typer.Argument(
            metavar="X.toml|RUN[:STEP]", help="Experiment or run whose model is served."
        ),
    ],
    socket: opt.Socket = None,
    listen: opt.Listen = None,
    overrides: opt.Overrides = None,
    store: opt.Store = opt.RUNS,
) -> None:
    """Serve a model to other runs and to OpenAI clients. Runs name the address in serve.url."""
    require_linux()
    from forge.commands import serve as serving

    request = as_request(serving.ServeRequest, locals())
    with waiting("engines start", is_shown=True) as end_waiting:

        def say_ready(text: str) -> None:
            end_waiting()
            say(text)

        serving.serve(request, store_dir=store, say=say_ready)


@app.command()
def solve(
    problems: Annotated[
        list[str],
        typer.Argument(
            metavar="PROBLEM...",
            help="X.py with a problem or a function of tensors, a directory of problems, or "
            "PACKAGE.MODULE:CLASS.",
        ),
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL|URL",
            help="RUN[:STEP], a directory with a model or an adapter, a hub name, or an "
            "OpenAI-compatible server (http://HOST:PORT).",
        ),
    ],
    budget: Annotated[
        str, typer.Option(help="What may be spent on all problems: 64 answers, 20m, 2M-tokens.")
    ],
    strategy: Annotated[
        str | None, typer.Option(help="best-of-n, refine or evolve; absent: refine.")
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="get_inputs and get_init_inputs of the only problem."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the best kernels.")
    ] = None,
    policy: opt.JudgePolicy = None,
    baseline: SpeedupBaseline = None,
    device: opt.Device = "auto",
    model_name: Annotated[
        str | None, typer.Option(help="Model of the server; absent: the only one there.")
    ] = None,
    api_key_env: opt.ApiKeyEnv = None,
    overrides: opt.Overrides = None,
    wait_s: opt.Wait = 0.0,
    store: opt.Store = opt.RUNS,
    as_json: opt.Json = False,
) -> None:
    """Search for faster kernels of modules, within a budget. "forge resume" continues an
    interrupted search."""
    require_linux()
    from forge.commands import solve as search
    from forge.commands.suite import EvalRequest

    asked = as_request(
        EvalRequest, locals(), source=model, budget=None, model_name_option="--model-name"
    )
    request = as_request(search.SolveRequest, locals(), model=asked)
    found = search.solve(request, quiet=as_json, wait_s=wait_s)
    if as_json:
        return print_json(found)
    print_rich(search.render_searches(found["problems"]))
    print_text(found["kernels"] or found["path"])


@app.command("eval")
def evaluate(
    source: Model,
    suite: SuiteName = None,
    protocol: opt.Protocol = None,
    policy: opt.JudgePolicy = None,
    baseline: SpeedupBaseline = None,
    samples: Samples = None,
    budget: AnswerBudget = None,
    turns: AnswerTurns = None,
    greedy: Greedy = None,
    device: opt.Device = "auto",
    seed: Seed = None,
    limit: Limit = None,
    model_name: opt.ServedModel = None,
    api_key_env: opt.ApiKeyEnv = None,
    overrides: opt.Overrides = None,
    wait_s: opt.Wait = 0.0,
    store: opt.Store = opt.RUNS,
    as_json: opt.Json = False,
) -> None:
    """Evaluate a checkpoint or a server on a suite: pass@k, best@N, fast_p, speed-ups. "forge
    resume" continues an interrupted one."""
    require_linux()
    from forge.commands.suite import EvalRequest, evaluate_suite

    request = as_request(EvalRequest, locals())
    paths, result = evaluate_suite(request, quiet=as_json, wait_s=wait_s)
    print_json(result) if as_json else print_text(str(paths.root))
