"""Questions of an RL researcher, by number: `forge questions`, also `forge report questions`.

Each question names the `named_queries` that answer it; `forge sql --named` runs them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.store.statements import RowTable, SqlReader, explain_sql
from forge.views.sql.named_queries import QUERIES
from forge.views.sql.sentences import sentence
from forge.views.sql.sql import render_found, render_table
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Group as RichGroup
    from rich.table import Table as RichTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ResearchQuestion:
    """A question and the queries or the command that answer it."""

    number: int
    text: str
    queries: tuple[str, ...] = ()
    """Names in `named_queries.QUERIES`."""
    command: str = ""
    """Command that answers it, if no query of one run can."""


def _number(*rows: tuple[str, tuple[str, ...] | str]) -> tuple[ResearchQuestion, ...]:
    return tuple(
        ResearchQuestion(number=n, text=text, command=answer)
        if isinstance(answer, str)
        else ResearchQuestion(number=n, text=text, queries=answer)
        for n, (text, answer) in enumerate(rows, start=1)
    )


QUESTIONS = _number(
    ("Is it learning, and on which problems?", ("learning", "pass-rate", "levels")),
    ("Which groups had no variance, and how much generation was wasted?", ("flat-groups",)),
    ("What does it fail on now? Failure mix over time", ("failure-mix", "failures")),
    (
        "When and by which policy was a problem's best kernel found, how do its timings repeat?",
        ("best-of-problem", "best-kernels"),
    ),
    ("How stale are samples, what was dropped? Reward and KL by age", ("stale-steps", "staleness")),
    ("Are high rewards hacked? The top 1 % with suspicious signs", ("suspects",)),
    ("How do two policy versions answer the same problem?", ("side-by-side",)),
    ("Is it padding? Lengths, truncation, reward by length", ("lengths", "reward-by-length")),
    ("Where did the wall time go? What was idle?", ("wall-time", "idle")),
    ("How noisy is the judge? Repeated timings of a kernel, by device", ("judge-noise",)),
    ("Which samples trained at a step, with which advantages?", ("batch",)),
    ("Does one reward term dominate? Means and correlation", ("reward-terms", "reward-shares")),
    ("Does entropy collapse? Duplicate answers by group and step", ("duplicates",)),
    (
        "pass@1, pass@k, fast_p with intervals; when did it beat the first evaluation?",
        ("evaluations", "pass-at-k", "fast-p", "first-better"),
    ),
    ("How does run A compare with run B at equal steps, tokens or time?", "forge compare A B"),
    ("Which problems never gave a reward, or were never solved?", ("unsolved", "unjudgeable")),
    ("What happened in the 60 s before the end?", ("last-minute",)),
)


def find_question(asked: str) -> ResearchQuestion:
    """The question of this number. Raises ConfigError if there is none or it takes two runs."""
    found = next((each for each in QUESTIONS if str(each.number) == asked), None)
    if found is None:
        order = "" if asked.isdecimal() else "; the number comes before the run"
        raise ConfigError(
            f"forge questions {asked}: no such question; there are 1 to {len(QUESTIONS)}{order}"
        )
    if found.command:
        raise ConfigError(f"forge questions {asked}: asks two runs; use {found.command}")
    return found


def answer(
    reader: SqlReader, question: ResearchQuestion, params: Mapping[str, Any] | None = None
) -> dict[str, RowTable]:
    """Result of each of the question's queries; a parameter goes to the queries that have it.

    Raises:
        ConfigError: no query has the parameter, or a query fails.
    """
    given = dict(params or {})
    queries = {name: QUERIES[name] for name in question.queries}
    known = {name for query in queries.values() for name in query.params}
    for name in given.keys() - known:
        has = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"--param {name}: no such parameter; this question has {has}")
    with explain_sql(f"forge questions {question.number}"):
        return {
            name: reader.query(query.sql, {param: given.get(param) for param in query.params})
            for name, query in queries.items()
        }


def to_json() -> list[dict[str, Any]]:
    """All questions as JSON, with each query's SQL and parameters."""
    return [
        {
            "number": each.number,
            "question": each.text,
            "command": each.command or f"forge questions {each.number} RUN",
            "queries": [
                {"name": name, "sql": QUERIES[name].sql, "params": dict(QUERIES[name].params)}
                for name in each.queries
            ],
        }
        for each in QUESTIONS
    ]


def render_questions() -> RichTable:
    """All questions as a table for the terminal."""
    rows = tuple((q.number, q.text, q.command or ", ".join(q.queries)) for q in QUESTIONS)
    return render_table(RowTable(columns=("", "question", "answered by"), rows=rows))


def render_answers(question: ResearchQuestion, answers: Mapping[str, RowTable]) -> RichGroup:
    """The answer in one sentence; then each query's table below its title and its parameters."""
    from rich.console import Group as RichGroup
    from rich.text import Text

    parts: list[Any] = [Text(f"{question.number}. {question.text}", style="bold")]
    if said := sentence(question.number, answers):
        parts.append(Text(printable(said)))
    for name, table in answers.items():
        query = QUERIES[name]
        parts += [Text(""), Text(f"{name}: {query.question}", style="cyan")]
        parts += [Text(f"  --param {k}=…  {meaning}") for k, meaning in query.params.items()]
        parts.append(render_found(table) if table.rows else Text("no rows"))
    return RichGroup(*parts)
