"""The page of the store: views and tables of run.db and tokens.db, with the meaning of each column.

The list of views and tables is that of `forge sql RUN`; meanings come from the comments of their
SQL and from `docs/generate/columns.toml`.
"""

from __future__ import annotations

import re
import sqlite3
import tomllib
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from docs.generate.markdown import code, page, table, text
from forge.store.schema.create import RUN_SCHEMA, TOKEN_SCHEMA, create
from forge.store.schema.views import VIEWS
from forge.views.sql import Relation, list_relations

MEANINGS = Path(__file__).with_name("columns.toml")
BY_NAME = "columns"
"""Table of MEANINGS with the meanings of names that have one everywhere."""
HEAD = ("Column", "Meaning")
_COMMENTED = re.compile(r"^\s+(\w+) [^\n]*?--\s*(.+)$", re.MULTILINE)
INTRO = """\
A run is a directory; `run.db` in it is one SQLite file, which stock `sqlite3` reads while the run
goes on. `forge sql RUN "SELECT ..."` decodes compressed texts as well (`store.texts = "zstd"`),
`forge sql RUN` lists what there is, `forge sql --list` the queries to begin with, and
`forge export parquet` writes every table and view to files. Most questions need one view and no
join.

Times are Unix seconds (UTC), booleans 0 or 1, shares 0 to 1. A turn is identified by
(`group_id`, `rollout`, `turn`). Rows are never deleted, except of `tokens` (`store.keep_tokens`);
a resumed run adds rows with its number of attempt. [How the store works](../explanation/store.md).
"""
TOKENS = "`tokens.db` lies beside it and has one table, with what the engine sampled."


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A view or table with the meaning of each column, empty where there is none."""

    name: str
    kind: str
    comment: str
    columns: dict[str, str]


def store_page() -> str:
    """All views, then all tables."""
    found = relations()
    views = [part for each in found if each.kind == "view" for part in _section(each)]
    tables = [part for each in found if each.kind == "table" for part in _section(each)]
    tokens = [part for each in token_relations() for part in _section(each)]
    return page(
        "Store", INTRO, "## Views", *views, "## Tables", *tables, "## Token ids", TOKENS, *tokens
    )


def relations() -> list[Described]:
    """Views and tables of run.db."""
    return _describe(RUN_SCHEMA, VIEWS)


def token_relations() -> list[Described]:
    """Tables of tokens.db."""
    return _describe(TOKEN_SCHEMA, "")


@cache
def meanings() -> dict[str, dict[str, str]]:
    """Meanings by relation and column; those by name alone are in BY_NAME."""
    return tomllib.loads(MEANINGS.read_text(encoding="utf-8"))


def _describe(tables: str, views: str) -> list[Described]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        create(connection, path=Path("run.db"), tables=tables, views=views)
        names = "SELECT name, sql FROM sqlite_master WHERE type IN ('table', 'view')"
        sql = dict(connection.execute(names).fetchall())
        return [_with_meanings(each, sql[each.name]) for each in list_relations(connection.execute)]


def _with_meanings(relation: Relation, sql: str) -> Described:
    own = dict(_COMMENTED.findall(sql)) if relation.kind == "table" else {}
    sources = (meanings().get(relation.name, {}), own, meanings()[BY_NAME])
    columns = {
        column: next((source[column] for source in sources if column in source), "")
        for column in relation.columns
    }
    return Described(
        name=relation.name, kind=relation.kind, comment=relation.comment, columns=columns
    )


def _section(relation: Described) -> list[str]:
    rows = ((code(name), text(_sentence(meaning))) for name, meaning in relation.columns.items())
    comment = _sentence(relation.comment)
    return [f"### {relation.name}", text(comment), table(HEAD, rows)]


def _sentence(comment: str) -> str:
    """A comment with a capital letter and a full stop, unless it begins with a name or value."""
    if not comment or comment.endswith((".", "...")):
        return comment
    return f"{comment[0].upper()}{comment[1:]}."
