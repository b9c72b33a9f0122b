"""Table of many verdicts, one line each, and a summary. Called by `forge judge`."""

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

    from forge.commands.judge.files import JudgeJob
    from forge.records import Verdict

STYLES = {Status.CORRECT: "green", Status.INFRA_ERROR: "yellow"}
MAX_DETAIL = 120


def render(jobs: Sequence[JudgeJob], verdicts: Sequence[Verdict]) -> Group:
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
        table.add_row(*cells, Text(_detail(verdict)))
    return Group(table, Text(""), Text(summary(verdicts)))


def summary(verdicts: Sequence[Verdict]) -> str:
    """`12 candidates: 7 correct, 3 wrong, 2 compile_error`."""
    counts = Counter(str(verdict.status) for verdict in verdicts)
    order = [str(status) for status in Status if counts[str(status)]]
    listed = ", ".join(f"{counts[status]} {status}" for status in order)
    return f"{len(verdicts)} candidate{'' if len(verdicts) == 1 else 's'}: {listed}"


def _detail(verdict: Verdict) -> str:
    detail = printable(" | ".join(verdict.detail.split("\n")))
    return detail if len(detail) <= MAX_DETAIL else f"{detail[: MAX_DETAIL - 1]}…"
