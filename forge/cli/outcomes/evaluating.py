"""The command that evaluates any model on a suite: eval."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import RUNS, Device, Json, Overrides, Store, Wait, app, require_linux
from forge.cli.printing import print_json, print_text

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
Protocol = Annotated[
    str | None, typer.Option(help="Protocol: forge, kernelbench or drkernel, as in judge.protocol.")
]
Baseline = Annotated[
    str | None, typer.Option(help="Baseline of speed-ups: eager, compile or both.")
]
Samples = Annotated[
    int | None, typer.Option(min=1, help="Answers to each problem at temperature 1.")
]
Turns = Annotated[int | None, typer.Option(min=1, max=16, help="Turns of an answer.")]
Greedy = Annotated[
    bool | None, typer.Option("--greedy/--no-greedy", help="One more answer at temperature 0.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed of the answers, as in eval.seed.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Number of problems, spread over the suite; absent: all.")
]
ModelName = Annotated[
    str | None, typer.Option("--model", help="Model of the server; absent: the only one there.")
]
ApiKeyEnv = Annotated[
    str | None, typer.Option(metavar="VARIABLE", help="Environment variable with the API key.")
]


@app.command("eval")
def evaluate(
    source: Model,
    suite: SuiteName = None,
    protocol: Protocol = None,
    baseline: Baseline = None,
    samples: Samples = None,
    turns: Turns = None,
    greedy: Greedy = None,
    device: Device = "auto",
    seed: Seed = None,
    limit: Limit = None,
    model_name: ModelName = None,
    api_key_env: ApiKeyEnv = None,
    overrides: Overrides = None,
    wait_s: Wait = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Evaluate a checkpoint or a server on a suite: pass@k, fast_p, speed-ups. "forge resume"
    continues an interrupted one."""
    require_linux()
    from forge.commands.suite import EvalRequest, evaluate_suite

    request = EvalRequest(
        source=source, suite=suite, protocol=protocol, baseline=baseline, samples=samples,
        turns=turns, greedy=greedy, device=device, seed=seed, limit=limit, model_name=model_name,
        api_key_env=api_key_env, overrides=tuple(overrides or ()), store=Path(store),
    )  # fmt: skip
    found = evaluate_suite(request, quiet=as_json, wait_s=wait_s)
    print_json(found.result) if as_json else print_text(str(found.paths.root))
