"""The result of a distillation, for people and for `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forge.commands.distill.journal import ACCEPTED, REJECTED
from forge.errors import ForgeError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from forge.commands.distill.journal import RowFacts
    from forge.commands.distill.request import DistillRequest, Price

MAX_NAMES = 5
"""Problems that a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemResult:
    """Attempts at one problem."""

    problem_id: str
    result: str
    """accepted, rejected, unjudgeable, or failed: no answer, or no verdict."""
    num_attempts: int
    num_turns: int
    speedup: float | None
    """Speed-up of the accepted kernel; None if it was not timed."""
    prompt_tokens: int | None
    """None if the server did not count."""
    completion_tokens: int | None
    cost: float | None
    """Dollars; None without a price or without counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Distilled:
    """The directory after the command."""

    request: DistillRequest
    model: str
    problems: Sequence[str]
    """Ids of all problems of the request."""
    rows: Sequence[RowFacts]
    failures: Mapping[str, ForgeError] = field(default_factory=dict[str, ForgeError])
    """Errors by problem id."""
    cause: ForgeError | None = None
    """The reason for an early end."""

    @property
    def results(self) -> list[ProblemResult]:
        """Problems that were begun, in the order of the request."""
        rows: dict[str, list[RowFacts]] = {}
        for row in self.rows:
            rows.setdefault(row.problem_id, []).append(row)
        return [
            _result(
                name, rows.get(name, []), is_failed=name in self.failures, price=self.request.price
            )
            for name in self.problems
            if name in rows or name in self.failures
        ]

    @property
    def failure(self) -> ForgeError | None:
        """The error that ends the command, in one line, if a problem is left without a result."""
        error = self.cause or next(iter(self.failures.values()), None)
        if error is None:
            return None
        num_done = sum(each.result != "failed" for each in self.results)
        named = ", ".join(list(self.failures)[:MAX_NAMES])
        more = ", ..." if len(self.failures) > MAX_NAMES else ""
        return type(error)(
            f"{error}; {len(self.problems) - num_done} of {len(self.problems)} problems are not "
            f"done ({named}{more}); {self.request.out} has all answers and {len(self.rows)} "
            "finished attempts, and the same command continues"
        )

    def to_json(self) -> dict[str, Any]:
        """The result for `--json`."""
        results = self.results
        return {
            "out": str(self.request.out),
            "model": self.model,
            "num_problems": len(self.problems),
            "num_accepted": sum(each.result == "accepted" for each in results),
            "prompt_tokens": _sum([each.prompt_tokens for each in results]),
            "completion_tokens": _sum([each.completion_tokens for each in results]),
            "cost": _cost(results),
            "problems": [
                {name: getattr(each, name) for name in ProblemResult.__dataclass_fields__}
                for each in results
            ],
        }

    def render(self) -> RenderableType:
        """A table with a line for each problem."""
        from rich.table import Table
        from rich.text import Text

        table = Table("problem", "result", box=None, pad_edge=False)
        numbers = ("attempts", "turns", "speed-up", "prompt", "completion")
        for name in (*numbers, *(("$",) if self.request.price else ())):
            table.add_column(name, justify="right")
        for each in self.results:
            speedup = "–" if each.speedup is None else f"{each.speedup:.2f}x"
            cells = [each.problem_id, each.result, str(each.num_attempts), str(each.num_turns)]
            cells += [speedup, _count(each.prompt_tokens), _count(each.completion_tokens)]
            cells += [_money(each.cost)] if self.request.price else []
            table.add_row(*map(Text, cells))
        return table

    def describe(self) -> str:
        """The sums, and how to train on the rows."""
        results, out = self.results, self.request.out
        accepted = [each for each in results if each.result == "accepted"]
        prompt = _count(_sum([each.prompt_tokens for each in results]))
        completion = _count(_sum([each.completion_tokens for each in results]))
        parts = [
            f"{len(accepted)} of {len(self.problems)} problems accepted",
            f"{prompt} prompt and {completion} completion tokens",
        ]
        cost = _cost(results)
        if cost is not None:
            each = f", ${cost / len(accepted):.4f} an accepted one" if accepted else ""
            parts.append(f"${cost:.4f}: ${cost / len(results):.4f} a problem{each}")
        lines = ["; ".join(parts)]
        if num_untimed := sum(each.speedup is None for each in accepted):
            lines.append(f"{num_untimed} accepted kernels are correct, and not timed")
        if any(each.prompt_tokens is None for each in results):
            lines.append("tokens marked with ? were not counted by the server")
        if accepted:
            lines.append(
                f'[data] source = "file", format = "messages", path = "{out / ACCEPTED}"; '
                f"rejected attempts are in {out / REJECTED}"
            )
        return "\n".join(lines)


def _result(
    name: str, rows: Sequence[RowFacts], *, is_failed: bool, price: Price | None
) -> ProblemResult:
    accepted = next((row for row in rows if row.accepted), None)
    prompt = _sum([row.prompt_tokens for row in rows])
    completion = _sum([row.completion_tokens for row in rows])
    cost = None
    if price is not None and prompt is not None and completion is not None:
        cost = price.of(prompt_tokens=prompt, completion_tokens=completion)
    if accepted is not None:
        result = "accepted"
    elif is_failed:
        result = "failed"
    else:
        result = "unjudgeable" if rows[-1].status == "unjudgeable" else "rejected"
    return ProblemResult(
        problem_id=name,
        result=result,
        num_attempts=len(rows),
        num_turns=sum(row.num_turns for row in rows),
        speedup=None if accepted is None else accepted.speedup,
        prompt_tokens=prompt,
        completion_tokens=completion,
        cost=cost,
    )


def _sum(counts: Sequence[int | None]) -> int | None:
    """The sum; None if one of them is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _cost(results: Sequence[ProblemResult]) -> float | None:
    costs = [each.cost for each in results if each.cost is not None]
    return sum(costs) if costs and len(costs) == len(results) else None


def _count(number: int | None) -> str:
    return "?" if number is None else f"{number:,}"


def _money(cost: float | None) -> str:
    return "?" if cost is None else f"{cost:.4f}"
