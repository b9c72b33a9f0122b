"""The command line. Each command names a function elsewhere; nothing heavy is imported before it
runs.

The only place where an error becomes one line and an exit code (`main`): 0 done, 2 config, 3
machine, 4 a child failed, 5 stalled, 70 our bug (with traceback), 130 stopped by the user.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.console import RenderableType

    from forge.store.layout import RunPaths

app = typer.Typer(
    help="Turn a language model into one that writes fast, correct Triton kernels.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

problems_app = typer.Typer(
    help="Problems that are files.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(problems_app, name="problems")

ExperimentFile = Annotated[Path, typer.Argument(metavar="X.toml", help="Experiment file.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Directory, name, name-n, or `last`.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key: rollout.group_size=4."),
]
Constants = Annotated[
    list[str] | None,
    typer.Option(
        "--override", "--set", metavar="NAME=VALUE", help="A module constant: batch_size=16."
    ),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Precision = Annotated[str, typer.Option(help="fp32, fp16 or bf16.")]
Isolation = Annotated[str, typer.Option(help="As judge.isolation.")]
Wait = Annotated[
    float | None,
    typer.Option("--wait", min=0, metavar="SECONDS", help="For GPUs that another run uses."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Store = Annotated[Path, typer.Option("--store", help="Where run directories are.")]
RUNS = Path("runs")


@app.command()
def run(
    file: ExperimentFile,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Leave it running.")] = False,
    overrides: Overrides = None,
    wait_s: Wait = None,
    as_json: Json = False,
) -> None:
    """Run an experiment from the start."""
    _require_linux()
    if detach:
        from forge.config.load import load_experiment
        from forge.runner.detach import run_detached
        from forge.runner.hub import locate_model

        experiment = load_experiment(file, overrides=overrides or ())
        locate_model(experiment.model, say=None if as_json else _say)  # while somebody looks on
        wait_s = experiment.devices.wait_s if wait_s is None else wait_s
        argv = ["run", str(file), f"--wait={wait_s}"]
        argv += [f"--set={item}" for item in overrides or ()]
        paths = run_detached(argv, store_dir=experiment.store.dir, wait_s=wait_s)
    else:
        from forge.runner.run import run_experiment

        paths = run_experiment(file, overrides=overrides or (), quiet=as_json, wait_s=wait_s)
    _say_where(paths, as_json=as_json)


@app.command()
def plan(
    file: ExperimentFile,
    overrides: Overrides = None,
    assumed: Annotated[
        str | None,
        typer.Option("--assume", metavar="MACHINE", help='Not this machine: "8xH100-80GB".'),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check an experiment and this machine; print who runs where and how long it takes."""
    from forge.config.load import load_experiment
    from forge.runner.plan import plan as make_plan

    experiment = load_experiment(file, overrides=overrides or (), is_here=assumed is None)
    machine = None
    if assumed is not None:
        from forge.runner.assume import assume
        from forge.runner.machine import this_machine

        machine = assume(assumed, here=this_machine(experiment.store.dir))
    made = make_plan(experiment, machine=machine)
    if as_json:
        return _print_json(made.to_json())
    from forge.runner.plan_view import render

    _print_rich(render(made))


@app.command()
def resume(run: RunName, wait_s: Wait = None, store: Store = RUNS, as_json: Json = False) -> None:
    """Continue a run where it stood."""
    _require_linux()
    from forge.runner.run import resume_run

    paths = resume_run(_find(run, store), quiet=as_json, wait_s=wait_s)
    _say_where(paths, as_json=as_json)


@app.command()
def stop(run: RunName = "last", store: Store = RUNS) -> None:
    """Let a running run finish its step, save, and end."""
    from forge.control.client import ControlClient

    paths = _find(run, store)
    ControlClient(_control_socket(paths)).stop()
    _print(f'{paths.name} is stopping; "forge resume {paths.name}" continues it')


@app.command()
def status(run: RunName = "last", store: Store = RUNS, as_json: Json = False) -> None:
    """Where a run stands."""
    import time

    from forge.store.reader import open_run
    from forge.views.standing import load_standing

    with open_run(_find(run, store)) as reader:
        standing = load_standing(reader, now=time.time())
    if as_json:
        return _print_json(standing.to_json())
    _print(f"{standing.run}: {standing.state}, attempt {standing.attempt}")
    if standing.state == "running":
        from forge.control.client import ControlClient

        _print(ControlClient(_control_socket(_find(run, store))).status().to_line())


@app.command()
def logs(
    run: RunName = "last",
    process: Annotated[str | None, typer.Argument(help="serve-0, judge-1, trainer, ...")] = None,
    num_lines: Annotated[int, typer.Option("-n", min=1, help="Lines of each.")] = 20,
    is_followed: Annotated[
        bool, typer.Option("--follow", "-f", help="Until the run ends.")
    ] = False,
    store: Store = RUNS,
) -> None:
    """The last lines of a run's processes."""
    from forge.runner.logs import follow, last_lines, log_files

    paths = _find(run, store)
    files = log_files(paths, process=process)
    _print_lines(last_lines(files, num_lines=num_lines))
    if is_followed:
        _print_lines(follow(paths, files))


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
    _require_linux()
    from forge.runner import judging as view
    from forge.runner.judge_settings import Settings

    settings = Settings(
        device=device, isolation=isolation, compile=compile_to, baseline=baseline,
        workers=workers, url=url,
    )  # fmt: skip
    if is_serving:
        return view.serve(settings, given=(problem, candidate), socket=socket, listen=listen)
    question = view.Question.make(
        problem, candidate, overrides=overrides or (), precision=precision, is_timed=is_timed,
        is_profiled=is_profiled,
    )  # fmt: skip
    with _waiting("judging", is_shown=not (as_json or question.is_directory)):
        judged = view.judge(question, settings, is_shown=not as_json)
    _print_json(judged.to_json()) if as_json else _print_rich(judged.render())
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
    _require_linux()
    from forge.runner import problem_view as view
    from forge.runner.judge_settings import Settings
    from forge.runner.overrides import parse_overrides
    from forge.runner.problem_check import check_path

    found = check_path(
        path,
        settings=Settings(device=device, isolation=isolation),
        overrides=parse_overrides(overrides or ()),
        precision=precision,
        is_shown=not as_json,
    )
    _print_json(view.to_json(found)) if as_json else _print_rich(view.render(found))
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
    _require_linux()
    from dataclasses import asdict

    from forge.runner import chat as view

    source, name = view.read_source(problem)
    request = view.ChatRequest(
        run=run, source=source, name=name, turns=turns, temperature=temperature, seed=seed
    )
    with _waiting("engine and judge start", is_shown=not as_json) as end_waiting:

        def say(text: str) -> None:
            end_waiting()
            _write(text)

        played = view.chat(request, store_dir=store, say=None if as_json else say)
    if as_json:
        _print_json(asdict(played))


@app.command()
def serve(
    source: Annotated[str, typer.Argument(metavar="X.toml|RUN[@STEP]", help="Whose model.")],
    socket: Annotated[Path | None, typer.Option(help="Unix socket to make.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address.")] = None,
    overrides: Overrides = None,
    store: Store = RUNS,
) -> None:
    """Run engines alone: for [serve] url of another run, and for clients of OpenAI's API."""
    _require_linux()
    from forge.runner import serving

    request = serving.ServeRequest(
        source=source, overrides=overrides or (), socket=socket, listen=listen
    )
    with _waiting("engines start", is_shown=True) as end_waiting:

        def say(text: str) -> None:
            end_waiting()
            _say(text)

        serving.serve(request, store_dir=store, say=say)


@app.command()
def runs(store: Store = RUNS, as_json: Json = False) -> None:
    """Every run, its state and its last evaluation."""
    from forge.views.runs import load_runs, render_runs

    found = load_runs(store)
    _print_json(found) if as_json else _print_rich(render_runs(found))


@app.command()
def show(run: RunName = "last", store: Store = RUNS, as_json: Json = False) -> None:
    """What came out of a run: evaluations, the best kernel, counters."""
    from forge.views.show import render_show, show_run

    data = show_run(_find(run, store))
    _print_json(data) if as_json else _print_rich(render_show(data))


@app.command()
def sql(
    run: Annotated[str, typer.Argument(metavar="[RUN]")] = "last",
    query: Annotated[str | None, typer.Argument(metavar='["SELECT ..."]')] = None,
    named: Annotated[str | None, typer.Option("--named", help="A query that has a name.")] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Ask a run anything, read-only. Without a query: what there is to ask."""
    from forge.store.reader import open_run
    from forge.views import sql as view

    if query is None and " " in run:
        run, query = "last", run
    with open_run(_find(run, store)) as reader:
        if query is None and named is None:
            relations = view.list_relations(reader)
            return (
                _print(view.relations_json(relations))
                if as_json
                else _print_rich(view.render_relations(relations))
            )
        table = view.run_named(reader, named) if named else view.run_sql(reader, query or "")
    if as_json or as_csv:
        return _print(view.to_json(table) if as_json else view.to_csv(table).rstrip("\r\n"))
    _print_rich(view.render_table(table))


@app.command()
def rollouts(
    run: RunName = "last",
    problem: Annotated[str | None, typer.Option(help="Id or glob: softmax-*.")] = None,
    status: Annotated[str | None, typer.Option(help="With a turn of this status.")] = None,
    stage: Annotated[int | None, typer.Option(help="Index of the stage.")] = None,
    step: Annotated[int | None, typer.Option(help="Training step.")] = None,
    purpose: Annotated[str | None, typer.Option(help="train, eval or chat.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Highest reward first.")] = False,
    turns: Annotated[bool, typer.Option("--turns", help="Whole conversations.")] = False,
    limit: Annotated[int, typer.Option(help="How many.")] = 20,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Rollouts of a run, latest first."""
    from forge.store.reader import open_run
    from forge.views import rollouts as view

    wanted = view.Filter(
        problem=problem, status=status, stage=stage, step=step, purpose=purpose, best=best,
        limit=limit,
    )  # fmt: skip
    with open_run(_find(run, store)) as reader:
        found = view.load_rollouts(reader, wanted)
    if as_json:
        return _print_json(found if turns else view.without_texts(found))
    _print_rich(view.render_turns(found) if turns else view.render_list(found))


@app.command()
def keys(
    table: Annotated[str, typer.Argument(help="model, rollout, stage, ...; all if absent.")] = "",
    schema: Annotated[bool, typer.Option("--schema", help="JSON schema for editors.")] = False,
    as_json: Json = False,
) -> None:
    """Every key of an experiment file: type, range, default, unit and what it is."""
    from forge.config import keys as view

    if schema:
        return _print(view.schema_json().rstrip("\n"))
    found = view.find_keys(table)
    if as_json:
        return _print_json([key.to_json() for key in found])
    from forge.config.keys_view import render

    _print_rich(render(found))


@app.command()
def doctor(
    file: Annotated[
        Path | None, typer.Argument(metavar="[X.toml]", help="Look at its serve.python too.")
    ] = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """What this machine has, and what to do about what it lacks."""
    from forge.config.load import load_experiment
    from forge.runner.doctor import examine
    from forge.runner.doctor_view import render, to_json

    findings = examine(store, serve=None if file is None else load_experiment(file).serve)
    _print_json(to_json(findings)) if as_json else _print_rich(render(findings))
    if not all(finding.is_ok for finding in findings):
        raise typer.Exit(3)


def main() -> None:
    """Entry point: runs a command and exits with its code."""
    sys.exit(run_command(sys.argv[1:]))


def run_command(argv: list[str]) -> int:
    """Runs one command line and returns its exit code; what went wrong is on stderr."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        _require_stdout()
        code = app(argv, prog_name="forge", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        from forge.exits import explain

        return explain(error)
    return code if isinstance(code, int) else 0


@contextmanager
def _waiting(words: str, *, is_shown: bool) -> Iterator[Callable[[], None]]:
    """A moving line with the time on stderr, until the end or until what it yields is called."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    with Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
        console=console, transient=True, redirect_stdout=False, redirect_stderr=False,
        disable=not (is_shown and console.is_terminal),
    ) as progress:  # fmt: skip
        progress.add_task(words, total=None)
        yield progress.stop


def _find(run: str, store: Path) -> RunPaths:
    from forge.store.layout import find_run

    return find_run(run, store_dir=store)


def _control_socket(paths: RunPaths) -> Path:
    from forge.errors import ConfigError
    from forge.store.layout import is_owned, read_status

    socket_path = read_status(paths).get("control_socket")
    if not is_owned(paths) or not socket_path:
        raise ConfigError(
            f'{paths.name} is not running; "forge show {paths.name}" has what it left'
        )
    return Path(socket_path)


def _require_stdout() -> None:
    """What is opened first would take its number, and be written to."""
    if sys.stdout is None:
        from forge.errors import ConfigError

        raise ConfigError("stdout is closed; >/dev/null drops what is printed")


def _require_linux() -> None:
    if sys.platform != "linux":
        from forge.errors import MachineError

        raise MachineError(
            f"forge runs on Linux only, and this is {sys.platform}; reading commands work"
        )


def _say_where(paths: RunPaths, *, as_json: bool) -> None:
    if as_json:
        return _print_json({"name": paths.name, "path": str(paths.root)})
    _print(str(paths.root))


def _print(text: str) -> None:
    print(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _write(text: str) -> None:
    """As it comes: a model's words, so control characters are made visible."""
    from forge.views.terminal import printable

    print(printable(text), end="", flush=True)


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _print_json(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, default=str)
    print(text.encode(errors="backslashreplace").decode())  # half a surrogate pair, as JSON has it


def _print_rich(renderable: RenderableType) -> None:
    """A terminal gets its own width; a pipe gets whole lines."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 200
    Console(width=width, highlight=False).print(renderable)


if __name__ == "__main__":
    main()
