"""The command that asks a teacher for traces: data distill."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from forge.cli.exporting import data_app
from forge.cli.options import Device, Json, Overrides, require_linux
from forge.cli.printing import print_json, print_rich, print_text, say
from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.commands.distill import Price

Problems = Annotated[
    Path,
    typer.Argument(
        metavar="PROBLEMS", help="Experiment file (its problems and judge), directory, or file."
    ),
]
Url = Annotated[
    str, typer.Option(metavar="URL", help="OpenAI-compatible server: http://HOST:PORT[/PATH].")
]
Out = Annotated[
    Path, typer.Option(metavar="DIR", help="Directory for the rows; one that exists continues.")
]
Model = Annotated[str | None, typer.Option(help="Model of the server; absent: the only one there.")]
ApiKeyEnv = Annotated[
    str | None, typer.Option(metavar="VARIABLE", help="Environment variable with the API key.")
]
Attempts = Annotated[
    int, typer.Option(min=1, help="Attempts at a problem; the first accepted one ends it.")
]
Turns = Annotated[int, typer.Option(min=1, help="Turns of an attempt.")]
MaxTokens = Annotated[
    int, typer.Option(min=1, help="Maximum length of an answer, with its thinking.")
]
Temperature = Annotated[
    float | None, typer.Option(help="Temperature; absent: the server's default.")
]
Seed = Annotated[int | None, typer.Option(min=0, help="Seed; absent: none is sent.")]
Body = Annotated[
    str | None,
    typer.Option(
        metavar="JSON", help="""Further fields of each request: '{"reasoning_effort": "high"}'."""
    ),
]
MinSpeedup = Annotated[
    float, typer.Option(help="Minimum speed-up of an accepted kernel, where times are measured.")
]
Concurrency = Annotated[int, typer.Option(min=1, help="Problems in play at the same time.")]
AnswerTimeout = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", help="Maximum wait for one answer."),
]
PriceOption = Annotated[
    str | None,
    typer.Option(metavar="IN,OUT", help="Dollars per million prompt and completion tokens."),
]
IncludesHeldout = Annotated[
    bool, typer.Option("--include-heldout", help="Include held-out problems (leaks them).")
]
Preset = Annotated[
    str | None,
    typer.Option(help="Prompts for a directory or file: a name of prompt.preset [standard]."),
]
Workers = Annotated[int | None, typer.Option(min=1, help="Number of judges without a GPU.")]
JudgeUrl = Annotated[str | None, typer.Option(help="Use a served pool of judges instead.")]


@data_app.command("distill")
def distill(
    problems: Problems,
    url: Url = ...,  # type: ignore[assignment]
    out: Out = ...,  # type: ignore[assignment]
    model: Model = None,
    api_key_env: ApiKeyEnv = None,
    attempts: Attempts = 1,
    turns: Turns = 3,
    max_tokens: MaxTokens = 8192,
    temperature: Temperature = None,
    seed: Seed = None,
    body: Body = None,
    min_speedup: MinSpeedup = 1.0,
    concurrency: Concurrency = 8,
    timeout_s: AnswerTimeout = 600.0,
    price: PriceOption = None,
    includes_heldout: IncludesHeldout = False,
    overrides: Overrides = None,
    preset: Preset = None,
    device: Device = "auto",
    workers: Workers = None,
    judge_url: JudgeUrl = None,
    as_json: Json = False,
) -> None:
    """Ask a teacher for kernels, judge them, and write its traces as SFT rows. The same command
    again continues."""
    require_linux()
    from forge.adapters.settings import JudgeSettings
    from forge.commands.distill import DistillRequest
    from forge.commands.distill import distill as run_distillation
    from forge.serve.remote.teacher import TeacherSettings

    request = DistillRequest(
        problems=problems, out=out, attempts=attempts, turns=turns, max_tokens=max_tokens,
        temperature=temperature, seed=seed, min_speedup=min_speedup, concurrency=concurrency,
        overrides=tuple(overrides or ()), includes_heldout=includes_heldout,
        price=_parse_price(price), preset=preset,
        judge=JudgeSettings(device=device, workers=workers, url=judge_url),
        teacher=TeacherSettings(
            url=url, model=model, api_key_env=api_key_env, timeout_s=timeout_s,
            body=_parse_body(body),
        ),
    )  # fmt: skip
    found = run_distillation(request, say=say, is_shown=not as_json)
    if as_json:
        print_json(found.to_json())
    else:
        print_rich(found.render())
        print_text(found.describe())
    if found.failure is not None:
        raise found.failure


def _parse_price(text: str | None) -> Price | None:
    from forge.commands.distill import Price

    if text is None:
        return None
    try:
        prompt, completion = map(float, text.split(","))
    except ValueError:
        prompt = completion = -1.0
    if not (0 <= prompt < float("inf") and 0 <= completion < float("inf")):
        raise ConfigError(f"--price {text}: two numbers of dollars, such as 0.27,1.10")
    return Price(prompt=prompt, completion=completion)


def _parse_body(text: str | None) -> dict[str, Any]:
    from forge.process.strict_json import parse_json

    try:
        found: Any = {} if text is None else parse_json(text.encode())
    except ValueError as error:
        raise ConfigError(f"--body {text}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"""--body {text}: an object, such as '{{"reasoning_effort": "high"}}'""")
    return cast("dict[str, Any]", found)
