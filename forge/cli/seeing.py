"""Commands that look at what runs left: runs, show, rollouts, compare."""

from __future__ import annotations

from typing import Annotated

import typer

from forge.cli.options import (
    RUNS,
    Json,
    RunName,
    Store,
    app,
    find,
)
from forge.cli.printing import print_json, print_rich, say


@app.command()
def runs(store: Store = RUNS, as_json: Json = False) -> None:
    """Every run, its state and its last evaluation."""
    from forge.views.run.runs import load_runs, render_runs

    found = load_runs(store)
    if not found and not as_json:
        return say(f"{store}/ holds no runs; --store looks elsewhere")
    print_json(found) if as_json else print_rich(render_runs(found))


@app.command()
def show(run: RunName = "last", store: Store = RUNS, as_json: Json = False) -> None:
    """What came out of a run: evaluations, the best kernel, counters."""
    from forge.views.run.show import render_show, show_run

    data = show_run(find(run, store))
    print_json(data) if as_json else print_rich(render_show(data))


@app.command()
def rollouts(
    run: RunName = "last",
    rollout: Annotated[str | None, typer.Option("--id", help="One rollout: g12.r3.")] = None,
    problem: Annotated[str | None, typer.Option(help="Id or glob: softmax-*.")] = None,
    family: Annotated[str | None, typer.Option(help="Family of the problem.")] = None,
    level: Annotated[int | None, typer.Option(help="Level of the problem.")] = None,
    status: Annotated[str | None, typer.Option(help="With a turn of this status.")] = None,
    min_speedup: Annotated[float | None, typer.Option(help="Correct, and so fast.")] = None,
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
    from forge.views.run import rollouts as view

    wanted = view.Filter(
        rollout=rollout, problem=problem, family=family, level=level, status=status,
        min_speedup=min_speedup, stage=stage, step=step, purpose=purpose, best=best, limit=limit,
    )  # fmt: skip
    with open_run(find(run, store)) as reader:
        found = view.load_rollouts(reader, wanted)
    if as_json:
        return print_json(found if turns else view.without_texts(found))
    print_rich(view.render_turns(found) if turns else view.render_list(found))


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="Run to compare with.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Run that is compared.")],
    by: Annotated[str, typer.Option(help="Give both the same: step, tokens or time.")] = "step",
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Two runs: settings, curves, problems won and lost, by level and device."""
    from forge.errors import ConfigError
    from forge.store.reader import open_run
    from forge.views import compare as view

    if by not in list(view.By):
        raise ConfigError(f"--by {by}: no such measure; there are {', '.join(view.By)}")
    with open_run(find(a, store)) as left, open_run(find(b, store)) as right:
        found = view.compare(left, right, by=view.By(by))
    print_json(found.to_json()) if as_json else print_rich(view.render_comparison(found))
