"""What an RL researcher asks of a run, by number: `forge questions`, also `forge report questions`.

Each question names the queries (`named_queries`) that answer it, which `forge sql --named` runs
too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forge.errors import ConfigError
from forge.store.reader import RowTable
from forge.views.sql.named_queries import QUERIES
from forge.views.sql.sql import Asked, explain_sql, render_found, render_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Group as RichGroup
    from rich.table import Table as RichTable


@dataclass(frozen=True, slots=True, kw_only=True)
class ResearchQuestion:
    """One question and where its answer is."""

    number: int
    words: str
    queries: tuple[str, ...] = ()
    """Names in `named_queries.QUERIES`."""
    command: str = ""
    """Where a query of one run cannot answer."""


def _number(*rows: tuple[str, tuple[str, ...] | str]) -> tuple[ResearchQuestion, ...]:
    return tuple(
        ResearchQuestion(number=n, words=words, command=answer)
        if isinstance(answer, str)
        else ResearchQuestion(number=n, words=words, queries=answer)
        for n, (words, answer) in enumerate(rows, start=1)
    )


QUESTIONS = _number(
    ("Is it learning, and on which problems?", ("learning", "pass-rate", "levels")),
    ("Which groups had no variance: how much generation was wasted?", ("flat-groups",)),
    ("What is it failing on now? Failure mix over time", ("failure-mix", "failures")),
    (
        "A problem's best kernel: when found, by which policy, and how does it time again?",
        ("best-of-problem", "best-kernels"),
    ),
    ("How stale are samples, what was dropped, reward and KL by age", ("stale-steps", "staleness")),
    ("Are high rewards hacked? The top 1 % with what is odd about them", ("suspects",)),
    ("One problem under two policies, side by side", ("side-by-side",)),
    ("Lengths, truncation, reward against length: is it padding?", ("lengths", "reward-by-length")),
    ("Where did the wall time go? Who idles?", ("wall-time", "idle")),
    ("Judge noise: one kernel timed again, by device", ("judge-noise",)),
    ("Which samples trained at a step, with which advantages?", ("batch",)),
    ("Reward terms: means, correlation, does one dominate?", ("reward-terms", "reward-shares")),
    ("Duplicate answers by group and step: does entropy collapse?", ("duplicates",)),
    (
        "pass@1, pass@k, fast_p with intervals; the first that beats the first evaluation",
        ("evaluations", "pass-at-k", "fast-p", "first-better"),
    ),
    ("Run A against run B at equal steps, tokens or time", "forge compare A B"),
    ("Which problems never gave a reward, or were never solved?", ("unsolved",)),
    ("Everything that happened in the 60 s before the end", ("last-minute",)),
)


def find_question(asked: str) -> ResearchQuestion:
    """By number. Raises ConfigError naming the numbers there are."""
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
    reader: Asked, question: ResearchQuestion, params: Mapping[str, Any] | None = None
) -> dict[str, RowTable]:
    """The answer of each of its queries. A parameter goes to those that have it; raises ConfigError
    for one that none has.
    """
    given = dict(params or {})
    queries = {name: QUERIES[name] for name in question.queries}
    known = {name for query in queries.values() for name in query.params}
    for name in given.keys() - known:
        has = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"--param {name}: no such parameter; this question has {has}")
    out: dict[str, RowTable] = {}
    for name, query in queries.items():
        bound = query.bind({k: v for k, v in given.items() if k in query.params})
        with explain_sql(f"forge questions {question.number}"):
            out[name] = reader.query(query.sql, bound)
    return out


def to_json() -> list[dict[str, Any]]:
    """The list for programs, with each query's SQL and parameters."""
    return [
        {
            "number": each.number,
            "question": each.words,
            "command": each.command or f"forge questions {each.number} RUN",
            "queries": [
                {"name": name, "sql": QUERIES[name].sql, "params": dict(QUERIES[name].params)}
                for name in each.queries
            ],
        }
        for each in QUESTIONS
    ]


def render_questions() -> RichTable:
    """The list for people."""
    rows = tuple((q.number, q.words, q.command or ", ".join(q.queries)) for q in QUESTIONS)
    return render_table(RowTable(columns=("", "question", "answered by"), rows=rows))


def render_answers(question: ResearchQuestion, answers: Mapping[str, RowTable]) -> RichGroup:
    """Each query's table under what it asks and the parameters that it would take."""
    from rich.console import Group as RichGroup
    from rich.text import Text

    parts: list[Any] = [Text(f"{question.number}. {question.words}", style="bold")]
    for name, table in answers.items():
        query = QUERIES[name]
        parts += [Text(""), Text(f"{name}: {query.question}", style="cyan")]
        parts += [Text(f"  --param {k}=…  {words}") for k, words in query.params.items()]
        parts.append(render_found(table) if table.rows else Text("no rows"))
    return RichGroup(*parts)
