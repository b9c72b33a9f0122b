"""Many verdicts for people: a line each, and what they come to. Called by `forge judge`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from forge.records import Status
from forge.views.text.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.commands.judge.files import Job
    from forge.records import Verdict

STYLES = {Status.CORRECT: "green", Status.INFRA_ERROR: "yellow"}
MAX_WORDS = 120


def render(jobs: Sequence[Job], verdicts: Sequence[Verdict]) -> Group:
    """The table and the summary."""
    is_timed = any(verdict.timing is not None for verdict in verdicts)
    names = ["candidate", "problem", "verdict", "reason"]
    table = Table(*names, *(["speed-up"] if is_timed else []), "", box=None, pad_edge=False)
    for job, verdict in zip(jobs, verdicts, strict=True):
        cells = [
            Text(printable(job.name)),
            Text(printable(job.problem.problem_id)),
            Text(verdict.status, style=STYLES.get(verdict.status, "red")),
            Text(printable(verdict.reason)),
        ]
        if is_timed:
            cells.append(Text(f"{verdict.timing.speedup:.2f}" if verdict.timing else ""))
        table.add_row(*cells, Text(_words(verdict)))
    return Group(table, Text(""), Text(summary(verdicts)))


def summary(verdicts: Sequence[Verdict]) -> str:
    """`12 candidates: 7 correct, 3 wrong, 2 compile_error`."""
    counts = Counter(str(verdict.status) for verdict in verdicts)
    order = [str(status) for status in Status if counts[str(status)]]
    told = ", ".join(f"{counts[status]} {status}" for status in order)
    return f"{len(verdicts)} candidate{'' if len(verdicts) == 1 else 's'}: {told}"


def _words(verdict: Verdict) -> str:
    words = printable(" | ".join(verdict.detail.split("\n")))
    return words if len(words) <= MAX_WORDS else f"{words[: MAX_WORDS - 1]}…"
