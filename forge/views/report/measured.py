"""Charts of evaluations: pass@1, pass@k, fast_p."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from forge.views.report.asking import Asker, label
from forge.views.report.charts import Chart, Kind, Line, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_CURVES = 6
"""Evaluations in one chart of curves: the first, the last, and some between."""
MOST_EVALUATIONS = 400

EVALUATIONS = """
SELECT stage, stage_index, step, policy_version, num_problems, num_samples, max_turns, pass_at_1,
    ci_low, ci_high, pass_at_1_greedy, pass_at_1_multi, compile_rate, num_trained_problems,
    num_judged_problems, unjudgeable
FROM v_evaluations ORDER BY at DESC, stage LIMIT :most
"""

PASS_AT_K = """
SELECT stage, step, policy_version, k, pass_at_k, ci_low, ci_high FROM v_pass_at_k
"""

FAST_P = """
SELECT stage, step, p, fast_p, ci_low, ci_high FROM v_fast_p ORDER BY stage, step, p
"""

PARTS = """
SELECT part, name, num, pass_at_1, compile_rate FROM v_eval_parts
WHERE stage = :stage AND step = :step AND policy_version = :policy_version
    AND part IN ('family', 'level', 'turn')
LIMIT 400
"""


def load_parts(asker: Asker, evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last evaluation by family, level and turn."""
    if not evaluations:
        return []
    last = {name: evaluations[-1][name] for name in ("stage", "step", "policy_version")}
    return asker.rows("the evaluation by family and level", PARTS, last)


def evaluation_chart(evaluations: Sequence[dict[str, Any]]) -> Chart:
    """pass@1 with its interval, and the other rates, by evaluation."""
    xs = list(range(len(evaluations)))

    def column(name: str) -> list[float | None]:
        return [row[name] for row in evaluations]

    lines = [
        Line(
            label="pass@1", x=xs, y=column("pass_at_1"), low=column("ci_low"),
            high=column("ci_high"),
        ),
        Line(label="greedy", x=xs, y=column("pass_at_1_greedy")),
        Line(label="any turn", x=xs, y=column("pass_at_1_multi")),
        Line(label="compiles", x=xs, y=column("compile_rate")),
    ]  # fmt: skip
    return Chart(
        name="evaluations", title="Evaluations", x_label="evaluation",
        y_label="share of judged problems",
        kind=Kind.DOTS, names=tuple(label(row["stage"]) for row in evaluations),
        lines=tuple(line for line in lines if line.points), is_share=True,
        note="pass@1: first turns at temperature 1, with the 95 % interval over problems. Greedy: "
        "first turns at temperature 0. Any turn: rollouts with a correct turn. Compiles: first "
        "turns whose own kernel launched.",
    )  # fmt: skip


def pass_at_k_chart(asker: Asker) -> Chart:
    """pass@k with its interval, one line per evaluation with enough samples."""
    rows = asker.rows("pass@k", PASS_AT_K)
    lines = [
        Line(
            label=label(name), x=[row["k"] for row in of], y=[row["pass_at_k"] for row in of],
            low=[row["ci_low"] for row in of], high=[row["ci_high"] for row in of],
        )
        for name, of in _chosen(rows) if len(of) > 1
    ]  # fmt: skip
    return Chart(
        name="pass-at-k", title="pass@k", x_label="k", y_label="share of judged problems",
        lines=tuple(lines), is_share=True,
        note="The chance that one of k first turns is correct (unbiased), over the judged problems "
        "with k samples; the band is the 95 % interval over problems.",
    )  # fmt: skip


def fast_p_chart(asker: Asker, evaluations: Sequence[dict[str, Any]]) -> Chart:
    """Share of first turns that are correct and more than p times as fast, one line per
    evaluation.
    """
    names = {(row["stage_index"], row["step"]): row["stage"] for row in evaluations}
    rows = asker.rows("fast_p", FAST_P)
    for row in rows:
        fallback = f"stage {row['stage']} step {row['step']}"
        row["stage"] = names.get((row["stage"], row["step"]), fallback)
    timed = [row for row in rows if row["fast_p"] is not None]
    lines = [
        Line(
            label=label(name),
            x=[r["p"] for r in of],
            y=[r["fast_p"] for r in of],
            low=[r["ci_low"] for r in of if has_intervals],
            high=[r["ci_high"] for r in of if has_intervals],
        )
        for name, of in _chosen(timed)
        for has_intervals in [all(r["ci_low"] is not None for r in of)]
        if len(of) > 1 and any(row["fast_p"] for row in of)
    ]
    return Chart(
        name="fast-p", title="fast_p", x_label="p, times as fast as the baseline",
        y_label="share of first turns", lines=tuple(lines), is_share=True,
        note="First turns of evaluations that are correct and more than p times as fast; the band "
        "is the 95 % interval over problems.",
    )  # fmt: skip


def _chosen(rows: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Rows by evaluation, in order; if there are many, the first, the last and some between."""
    by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_name[row["stage"]].append(row)
    names = [each[0] for each in spread([[name] for name in by_name], MOST_CURVES)]
    return [(name, by_name[name]) for name in names]
