"""`forge sql`: queries runs with SQL."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forge.cli.options import RUNS, Json, Store, app, find
from forge.cli.printing import print_json, print_parts, print_rich, print_text
from forge.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from forge.store.statements import SqlReader


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
    runs: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Query several runs; each view has a column run."),
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    store: Store = RUNS,
    as_json: Json = False,
) -> None:
    """Query a run with read-only SQL. Without a query, list its tables and views."""
    from forge.store.statements import explain_sql
    from forge.views.sql import sql as view

    if query is None and (runs is not None or " " in run) and run != "last":
        run, query = "last", run
    _check_together(
        {
            "RUN": run != "last", "a query": query is not None, "--named": named is not None,
            "--runs": runs is not None, "--csv": as_csv, "--json": as_json, "--list": lists,
        }
    )  # fmt: skip
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
    with _open(run, runs, store) as reader:
        if text is None:
            return _list(reader, as_json=as_json)
        with explain_sql(view.PLACE):
            found = reader.stream(text, bound)
            if not found.columns:
                raise ConfigError("forge sql: found a statement without a result; use SELECT ...")
            if as_json:
                print_parts(view.json_parts(found))
            elif as_csv:
                print_parts(view.csv_parts(found, is_shown=sys.stdout.isatty()))
            else:
                print_rich(view.render_found(found))


@contextmanager
def _open(run: str, runs: str | None, store: Path) -> Generator[SqlReader]:
    from forge.store.reader import open_run

    if runs is None:
        with open_run(find(run, store)) as reader:
            yield reader
        return
    from forge.views.sql.several import SeveralReader

    names = [name for name in runs.split(",") if name]
    with SeveralReader([find(name, store) for name in names]) as reader:
        yield reader


def _check_together(given: dict[str, bool]) -> None:
    for one, other in (
        ("--named", "--runs"), ("--named", "a query"), ("RUN", "--runs"), ("--csv", "--json"),
        ("--list", "--named"), ("--list", "a query"), ("--list", "--runs"), ("--list", "--csv"),
    ):  # fmt: skip
        if given[one] and given[other]:
            why = "; --named queries one run" if other == "--runs" and one == "--named" else ""
            raise ConfigError(f"forge sql: found {one} and {other}; one of them{why}")


def _list(reader: SqlReader, *, as_json: bool) -> None:
    from forge.views.sql import sql as view

    relations = view.list_relations(reader)
    if as_json:
        return print_text(view.relations_json(relations))
    if reader.schema != "main":
        print_text(f"each has a column run; for one run alone: {reader.schema}.v_steps\n")
    print_rich(view.render_relations(relations))


def _parse_params(given: list[str] | None) -> dict[str, Any]:
    """Values by name, numbers where possible. Raises ConfigError for anything but NAME=VALUE."""
    from forge.views.sql.sql import LARGEST

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
