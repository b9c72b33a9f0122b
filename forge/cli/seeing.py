"""Commands that show the results of runs: runs, show, rollouts, compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.cli.options import RUNS, Json, RunName, Store, app, find
from forge.cli.printing import print_json, print_rich, say
from forge.errors import ConfigError


@app.command()
def runs(
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            help="Run directories, archives, or directories of them; absent: --store.",
        ),
    ] = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """List all runs and archives with date, duration, state and best evaluation."""
    from forge.commands.archives import load_all
    from forge.views.runs import render_runs

    found = load_all(store, places or ())
    if not found and not as_json:
        where = ", ".join(f"{place}/" for place in places or [store])
        return say(f"{where} holds no runs; --store names another directory")
    print_json(found) if as_json else print_rich(render_runs(found))


@app.command()
def show(
    run: RunName = "last",
    turn: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Show one turn and its captured program: g12.r3.t1."),
    ] = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Show the results of a run: evaluations, best kernel, counts."""
    if turn is not None:
        from forge.commands.turn_view import load_turn, render_turn
        from forge.store.reader import open_run

        with open_run(find(run, store)) as reader:
            found = load_turn(reader, turn)
        return print_json(found) if as_json else print_rich(render_turn(found))
    from forge.views.show import render_show, show_run

    data = show_run(find(run, store))
    if Path(run).is_file():  # an archive, not the folder that it is read from
        data["path"] = str(Path(run).absolute())
    print_json(data) if as_json else print_rich(render_show(data))


@app.command()
def rollouts(
    run: RunName = "last",
    rollout: Annotated[
        str | None, typer.Option("--id", help="Id of one rollout, e.g. g12.r3.")
    ] = None,
    problem: Annotated[str | None, typer.Option(help="Problem id or glob, e.g. softmax-*.")] = None,
    family: Annotated[str | None, typer.Option(help="Problem family.")] = None,
    level: Annotated[int | None, typer.Option(help="Problem level.")] = None,
    status: Annotated[str | None, typer.Option(help="Rollouts with a turn of this status.")] = None,
    min_speedup: Annotated[
        float | None, typer.Option(help="Correct, with at least this speed-up.")
    ] = None,
    stage: Annotated[int | None, typer.Option(help="Stage, counted from 0.")] = None,
    step: Annotated[int | None, typer.Option(help="Training step.")] = None,
    purpose: Annotated[str | None, typer.Option(help="Purpose: train, eval or chat.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Highest reward first.")] = False,
    turns: Annotated[bool, typer.Option("--turns", help="Show whole conversations.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of rollouts.")] = 20,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """List rollouts of a run, latest first."""
    from forge.store.reader import open_run
    from forge.views import rollouts as view

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
    a: Annotated[str, typer.Argument(metavar="A", help="First run.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Second run.")],
    by: Annotated[str, typer.Option(help="Compare at equal step, tokens or time.")] = "step",
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Compare two runs: settings, curves, problems won and lost.

    Problems are listed by level and device.
    """
    from forge.store.reader import open_run
    from forge.views import compare as view

    if by not in list(view.By):
        raise ConfigError(f"--by {by}: no such measure; allowed: {', '.join(view.By)}")
    with open_run(find(a, store)) as left, open_run(find(b, store)) as right:
        found = view.compare(left, right, by=view.By(by))
    print_json(found.to_json()) if as_json else print_rich(view.render_comparison(found))
