"""Commands that start engines for a model: serve, solve, eval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli import options as opt
from forge.cli.options import app, as_request, require_linux
from forge.cli.printing import print_json, print_rich, print_text, say, waiting

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
Baseline = Annotated[
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
Turns = Annotated[int | None, typer.Option(min=1, max=16, help="Turns of an answer.")]
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
    baseline: Baseline = None,
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
    baseline: Baseline = None,
    samples: Samples = None,
    budget: AnswerBudget = None,
    turns: Turns = None,
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
