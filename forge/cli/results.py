"""Commands that show results of runs: runs, show, rollouts, compare, sql, and the monitor, tui."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from forge.cli.options import RUNS, Json, RunName, Store, app, as_request, find
from forge.cli.printing import print_json, print_parts, print_rich, say
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
    from forge.views.runs import load_all, render_runs

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
    level: Annotated[int | None, typer.Option(help="Problem level.")] = None,
    status: Annotated[str | None, typer.Option(help="Rollouts with a turn of this status.")] = None,
    min_speedup: Annotated[
        float | None, typer.Option(help="Correct, with at least this speed-up.")
    ] = None,
    stage: Annotated[int | None, typer.Option(help="Stage, counted from 0.")] = None,
    step: Annotated[int | None, typer.Option(help="Training step.")] = None,
    purpose: Annotated[str | None, typer.Option(help="Purpose: train, eval or search.")] = None,
    best: Annotated[bool, typer.Option("--best", help="Highest reward first.")] = False,
    turns: Annotated[bool, typer.Option("--turns", help="Show whole conversations.")] = False,
    limit: Annotated[int, typer.Option(help="Maximum number of rollouts.")] = 20,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """List rollouts of a run, latest first."""
    from forge.store.reader import open_run
    from forge.views import rollouts as view

    wanted = as_request(view.Filter, locals())
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
    """Compare two runs: settings, curves, problems won and lost, by level."""
    from forge.store.reader import open_run
    from forge.views import compare as view

    if by not in view.UNITS:
        raise ConfigError(f"--by {by}: no such measure; allowed: {', '.join(view.UNITS)}")
    with open_run(find(a, store)) as left, open_run(find(b, store)) as right:
        found = view.compare(left, right, by=by)
    print_json(found) if as_json else print_rich(view.render_comparison(found))


@app.command()
def sql(
    run: Annotated[
        str, typer.Argument(metavar="[RUN]", help="Run to query; absent: the latest.")
    ] = "last",
    query: Annotated[
        str | None, typer.Argument(metavar='["SELECT ..."]', help="One statement that reads.")
    ] = None,
    named: Annotated[str | None, typer.Option("--named", help="Run a named query.")] = None,
    lists: Annotated[
        bool, typer.Option("--list", help="List the named queries, of common questions.")
    ] = False,
    params: Annotated[
        list[str] | None,
        typer.Option(
            "--param",
            metavar="NAME=VALUE",
            help="Parameter of a named query, e.g. problem=softmax-0042.",
        ),
    ] = None,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Query a run with read-only SQL. Without a query, list its tables and views."""
    from forge.store.reader import explain_sql, open_run
    from forge.views import sql as view

    if query is None and " " in run:
        run, query = "last", run
    if (lists, query is not None, named is not None).count(True) > 1:
        raise ConfigError("forge sql: one of --list, --named and a query")
    if lists:
        return print_json(view.named_json()) if as_json else print_rich(view.render_named())
    if query is not None and not query.strip():
        raise ConfigError(
            'forge sql: the query is empty; "forge sql RUN" alone lists tables and views'
        )
    if named is not None:
        asked = view.find_named(named)
        text, bound = asked.sql, asked.bind(_parse_params(params))
    else:
        text, bound = query, _parse_params(params)
    with open_run(find(run, store)) as reader:
        if text is None:
            relations = view.list_relations(lambda sql: reader.query(sql).rows)
            if as_json:
                return print_json(relations)
            return print_rich(view.render_relations(relations))
        with explain_sql(view.PLACE):
            found = reader.stream(text, bound)
            if not found.columns:
                raise ConfigError("forge sql: found a statement without a result; use SELECT ...")
            if as_json:
                print_parts(view.json_parts(found))
            else:
                print_rich(view.render_found(found))


def _parse_params(given: list[str] | None) -> dict[str, Any]:
    """Values by name, numbers where possible. Raises ConfigError for anything but NAME=VALUE."""
    from forge.store.reader import LARGEST

    out: dict[str, Any] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise ConfigError(f"--param {each}: no value; use NAME=VALUE")
        out[name] = _number(value)
        if isinstance(out[name], int) and abs(out[name]) > LARGEST:
            raise ConfigError(f"--param {name}: found {len(value)} digits; at most {LARGEST}")
    return out


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


@app.command("tui")
def tui_command(run: RunName = "last", store: Store = RUNS) -> int:
    """Monitor a run in the terminal, live or after its end."""
    _require_terminal()
    paths = find(run, store)
    from forge.exits import BUG
    from forge.tui.app import WatchApp

    # A warning on stderr would overwrite the screen.
    logging.basicConfig(handlers=[logging.NullHandler()], force=True)
    watch = WatchApp(paths)
    watch.run()
    code = watch.return_code or 0
    return BUG if code == 1 else code  # the traceback was printed when the screen closed


def _require_terminal() -> None:
    is_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    if not is_terminal or os.environ.get("TERM") == "dumb":
        raise ConfigError(
            "forge tui: needs a terminal; without one, "
            '"forge status RUN", "forge show RUN" and "forge logs -f RUN" print text'
        )
