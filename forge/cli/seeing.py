"""Commands that look at what runs left: runs, show, sql, rollouts."""

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
from forge.cli.printing import print_json, print_rich, print_text


@app.command()
def runs(store: Store = RUNS, as_json: Json = False) -> None:
    """Every run, its state and its last evaluation."""
    from forge.views.runs import load_runs, render_runs

    found = load_runs(store)
    print_json(found) if as_json else print_rich(render_runs(found))


@app.command()
def show(run: RunName = "last", store: Store = RUNS, as_json: Json = False) -> None:
    """What came out of a run: evaluations, the best kernel, counters."""
    from forge.views.show import render_show, show_run

    data = show_run(find(run, store))
    print_json(data) if as_json else print_rich(render_show(data))


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
    with open_run(find(run, store)) as reader:
        if query is None and named is None:
            relations = view.list_relations(reader)
            return (
                print_text(view.relations_json(relations))
                if as_json
                else print_rich(view.render_relations(relations))
            )
        table = view.run_named(reader, named) if named else view.run_sql(reader, query or "")
    if as_json or as_csv:
        return print_text(view.to_json(table) if as_json else view.to_csv(table).rstrip("\r\n"))
    print_rich(view.render_table(table))


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
    with open_run(find(run, store)) as reader:
        found = view.load_rollouts(reader, wanted)
    if as_json:
        return print_json(found if turns else view.without_texts(found))
    print_rich(view.render_turns(found) if turns else view.render_list(found))
