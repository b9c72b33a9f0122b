"""Charts of training by step: reward, pass rate, speed-up, length, KL, entropy, staleness, loss,
failures.

Each stage has its own lines, labelled by kind and index if there are several.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from forge.views.report.asking import Asker, label
from forge.views.report.charts import Chart, Kind, Line, make_line

NUM_ERRORS = 2
"""Standard errors on each side of a band."""
LEAST_GROUPS = 3
"""Groups of a step from which its interval is estimated."""

STEPS = """
SELECT stage, step, is_open, num_groups, num_expected_groups, num_turns, num_flat_groups, reward,
    pass_rate, pass_rate_multi, compile_rate, speedup, best_speedup, completion_tokens,
    truncated_share
FROM v_steps ORDER BY stage, step
"""

METRICS = """
SELECT stage, step, key, value FROM v_metrics
WHERE key IN ('train/loss/mean', 'train/entropy/mean', 'train/grad_norm/value',
    'train/token_accuracy/mean', 'train/clipped/share') OR key GLOB 'train/kl*'
ORDER BY stage, step
"""

STALENESS = """
SELECT stage, step, sum(staleness * share) AS mean_age, max(staleness) AS highest_age
FROM v_staleness GROUP BY stage, step ORDER BY stage, step
"""

LEVELS = """
SELECT l.stage, l.step, l.level AS name,
    sum(l.pass_rate * l.num_groups) / sum(l.num_groups) AS value
FROM v_levels l JOIN v_steps s ON s.stage = l.stage AND s.step = l.step
WHERE l.pass_rate IS NOT NULL AND NOT s.is_open
GROUP BY l.stage, l.step, l.level ORDER BY l.stage, l.step, l.level
"""

TERMS = """
SELECT r.stage, r.step, r.term AS name,
    r.mean * r.num_turns / (s.num_turns - coalesce(s.num_masked, 0)) AS value
FROM v_reward_terms r JOIN v_steps s ON s.stage = r.stage AND s.step = r.step
WHERE r.purpose = 'train' AND NOT s.is_open ORDER BY r.stage, r.step, r.term
"""
"""A turn without a term earned nothing from it, so the means of all terms add up to the reward."""

SPREAD = """
SELECT g.stage, g.step, count(*) AS num, sum(g.num_turns) AS turns,
    sum(g.num_turns * g.num_turns) AS turns2, sum(g.num_turns * g.num_turns * g.reward) AS rewards2,
    sum(g.num_turns * g.num_turns * g.reward * g.reward) AS squares2
FROM v_groups g WHERE g.purpose = 'train' AND g.reward IS NOT NULL GROUP BY g.stage, g.step
"""
"""Sums over the groups of a step, for the standard error of its mean reward."""

FAILURES = """
SELECT stage, step, status, sum(num_turns) AS num_turns FROM v_failures WHERE purpose = 'train'
GROUP BY stage, step, status ORDER BY stage, step
"""

Rows = list[dict[str, Any]]


class Training:
    """Training by step and stage, with its charts, which leave out open steps."""

    def __init__(
        self, asker: Asker, *, kinds: Sequence[str], evaluations: Sequence[dict[str, Any]] = ()
    ) -> None:
        steps = asker.rows("training by step", STEPS)
        self.steps = [row for row in steps if not row["is_open"]]
        self.open_steps = [row for row in steps if row["is_open"]]
        self._metrics = asker.rows("metrics", METRICS)
        self._staleness = asker.rows("staleness", STALENESS)
        self._failures = asker.rows("failures by step", FAILURES)
        self._levels = asker.rows("pass rate by level", LEVELS)
        self._terms = asker.rows("reward terms", TERMS)
        self._kinds = kinds
        for row in self.steps:
            groups = row["num_groups"]
            row["flat_share"] = (row["num_flat_groups"] or 0) / groups if groups else None
        self._evaluations = evaluations
        self._add_bands(asker)

    def num_steps(self) -> list[tuple[str, int]]:
        """Kind and number of trained steps of each stage."""
        found: dict[int, int] = {}
        for row in self._metrics:
            if row["key"] == "train/loss/mean":
                found[row["stage"]] = max(found.get(row["stage"], 0), row["step"])
        return [(self._kind(stage), num) for stage, num in sorted(found.items())]

    def main_charts(self) -> list[Chart]:
        """The charts that say whether it learned, including empty ones."""
        return [
            self._lines(
                self.steps, "reward", "Reward", "mean over turns", {"reward": "reward"},
                note="The band is two standard errors over the groups of a step.",
            ),
            self._with_held_out(self._lines(
                self.steps, "pass-rate", "Pass rate", "share",
                {"pass_rate": "first turn", "pass_rate_multi": "any turn",
                 "compile_rate": "first turn compiles"},
                is_share=True,
            )),
            self._lines(
                self.steps, "speedup", "Speed-up of correct kernels", "times as fast",
                {"speedup": "mean", "best_speedup": "highest"}, highest=("best_speedup",),
                note="As measured; kernels are ranked by the lower end of the interval.",
            ),
            self._metric("sft-loss", "SFT loss", "loss", {"train/loss/mean": ""}, kinds=("sft",)),
        ]  # fmt: skip

    def more_charts(self) -> list[Chart]:
        """All other charts of training, including empty ones."""
        return [
            self._named(self._levels, "levels", "Pass rate by level", "share", is_share=True),
            self._named(
                self._terms, "reward-terms", "Reward terms", "mean over turns",
                note="Mean reward by term; a turn without the term counts as 0.",
            ),
            self._lines(
                self.steps, "length", "Length", "tokens per answer", {"completion_tokens": "mean"},
            ),
            self._lines(
                self.steps, "waste", "Without a signal", "share",
                {"flat_share": "flat groups", "truncated_share": "truncated answers"},
                is_share=True,
                note="Flat: all siblings earned the same, so that the group teaches nothing.",
            ),
            self._metric("kl", "KL", "nats per token", self._keys_like("train/kl")),
            self._metric("entropy", "Entropy", "nats per token", {"train/entropy/mean": "mean"}),
            self._lines(
                self._staleness, "staleness", "Staleness", "steps",
                {"mean_age": "mean", "highest_age": "oldest"}, highest=("highest_age",),
                note="Steps between the weights that made a sample and those it trained.",
            ),
            self._metric("loss", "Loss", "loss", {"train/loss/mean": ""}, kinds=("grpo",)),
            self._metric(
                "sft-accuracy", "SFT token accuracy", "share",
                {"train/token_accuracy/mean": ""}, is_share=True,
            ),
            self._metric(
                "grad-norm", "Gradient norm", "norm", {"train/grad_norm/value": ""},
                kinds=("grpo",),
            ),
            self._metric(
                "sft-grad-norm", "SFT gradient norm", "norm", {"train/grad_norm/value": ""},
                kinds=("sft",),
            ),
        ]  # fmt: skip

    def failure_chart(self) -> Chart:
        """Turns of training by status, including correct ones, as shares of each step."""
        played = {(row["stage"], row["step"]): row["num_turns"] for row in self.steps}
        places = list(played)
        shares: dict[str, dict[tuple[int, int], float]] = defaultdict(dict)
        for row in self._failures:
            place = row["stage"], row["step"]
            if place in played:
                shares[row["status"]][place] = row["num_turns"] / played[place]
        order = sorted(shares, key=lambda name: -sum(shares[name].values()))
        failed = {name: [shares[name].get(place, 0.0) for place in places] for name in order}
        correct = [max(0.0, 1.0 - sum(column)) for column in zip(*failed.values(), strict=True)]
        if not failed:
            correct = [1.0] * len(places)
        is_one_stage = len({stage for stage, _ in places}) <= 1
        xs = [place[1] if is_one_stage else i + 1 for i, place in enumerate(places)]
        lines = [
            make_line(label(name), list(zip(xs, column, strict=True)))
            for name, column in [("correct", correct), *failed.items()]
        ]
        return Chart(
            name="failures", title="Turns by outcome",
            x_label="step" if is_one_stage else "step of all stages", y_label="share of turns",
            kind=Kind.STACK, lines=tuple(lines) if len(places) > 1 else (), is_share=True,
        )  # fmt: skip

    def _named(self, rows: Rows, name: str, title: str, y_label: str, **more: Any) -> Chart:
        """A chart of rows with a name and a value each: one line per name, sorted."""
        names = dict.fromkeys(str(name) for name in sorted({row["name"] for row in rows}))
        labels = {each: f"level {each}" if name == "levels" else each for each in names}
        pivoted = [
            {"stage": row["stage"], "step": row["step"], str(row["name"]): row["value"]}
            for row in rows
        ]
        return self._lines(pivoted, name, title, y_label, labels, **more)

    def _metric(
        self, name: str, title: str, y_label: str, keys: dict[str, str], *,
        kinds: Sequence[str] = (), **more: Any,
    ) -> Chart:  # fmt: skip
        """A chart of metrics, of the stages of these kinds, or of all."""
        rows = [
            {"stage": row["stage"], "step": row["step"], row["key"]: row["value"]}
            for row in self._metrics
            if row["key"] in keys and (not kinds or self._kind(row["stage"]) in kinds)
        ]
        return self._lines(rows, name, title, y_label, keys, **more)

    def _keys_like(self, prefix: str) -> dict[str, str]:
        """Metric to label: `train/kl_behaviour/mean` is `behaviour`."""
        keys = sorted({r["key"] for r in self._metrics if r["key"].startswith(prefix)})
        return {key: key[len(prefix) :].strip("_/").split("/")[0] or "mean" for key in keys}

    def _lines(
        self, rows: Rows, name: str, title: str, y_label: str, columns: dict[str, str], *,
        is_share: bool = False, highest: Sequence[str] = (), note: str = "",
    ) -> Chart:  # fmt: skip
        stages = list(dict.fromkeys(row["stage"] for row in rows))
        lines: list[Line] = []
        for stage in stages:
            for column, words in columns.items():
                reduce: Callable[[Sequence[float]], float] = max if column in highest else fmean
                points = [
                    (row["step"], row[column])
                    for row in rows
                    if row["stage"] == stage and column in row
                ]
                line = make_line(self._name(stages, stage, words), points, reduce=reduce)
                lines.append(_with_band(line, rows, stage, column))
        return Chart(
            name=name, title=title, x_label="step", y_label=y_label,
            lines=tuple(line for line in lines if line.points), is_share=is_share, note=note,
        )  # fmt: skip

    def _add_bands(self, asker: Asker) -> None:
        """Adds `reward_low` and `reward_high` to the steps: the ratio estimator over groups."""
        spread = {(row["stage"], row["step"]): row for row in asker.rows("bands", SPREAD)}
        for row in self.steps:
            sums, mean = spread.get((row["stage"], row["step"])), row["reward"]
            if sums is None or mean is None or sums["num"] < LEAST_GROUPS:
                continue
            squares = sums["squares2"] - 2 * mean * sums["rewards2"] + mean**2 * sums["turns2"]
            num = sums["num"]
            error = math.sqrt(max(squares, 0.0) * num / (num - 1)) / sums["turns"]
            row |= {"reward_low": mean - NUM_ERRORS * error}
            row["reward_high"] = mean + NUM_ERRORS * error

    def _with_held_out(self, chart: Chart) -> Chart:
        """The chart with a point for each evaluation within, before and after its stages."""
        stages = sorted({row["stage"] for row in self.steps})
        points = [_held_out(self._evaluations, self.steps, stage) for stage in stages]
        lines = [
            Line(
                label=self._name(stages, stage, "held-out problems"), x=[x for x, _ in found],
                y=[row["pass_at_1"] for _, row in found], low=[row["ci_low"] for _, row in found],
                high=[row["ci_high"] for _, row in found], is_points=True,
            )
            for stage, found in zip(stages, points, strict=True) if found
        ]  # fmt: skip
        if not lines:
            return chart
        note = "Points: first turns on held-out problems, with the 95 % interval over problems."
        return replace(chart, lines=(*chart.lines, *lines), note=note)

    def _kind(self, stage: int) -> str:
        return self._kinds[stage] if 0 <= stage < len(self._kinds) else "stage"

    def _name(self, stages: Sequence[int], stage: int, words: str) -> str:
        """`mean`; with several stages `grpo-3 mean`."""
        place = f"{self._kind(stage)}-{stage}"
        if not words:
            return label(place)
        return label(words if len(stages) == 1 else f"{place} {words}")


def _with_band(line: Line, rows: Rows, stage: int, column: str) -> Line:
    """The line with the interval of its column, if the rows have one and no points were merged."""
    low, high = f"{column}_low", f"{column}_high"
    band = [
        (row.get(low), row.get(high)) for row in rows if row["stage"] == stage and column in row
    ]
    if line.num_together > 1 or all(each is None for each, _ in band):
        return line
    return replace(line, low=[each for each, _ in band], high=[each for _, each in band])


def _held_out(
    evaluations: Sequence[dict[str, Any]], steps: Rows, stage: int
) -> list[tuple[int, dict[str, Any]]]:
    """(step, evaluation) within a stage, with the last one before it and the first after it."""
    last_step = max(row["step"] for row in steps if row["stage"] == stage)
    placed = [row for row in evaluations if row["stage_index"] is not None]
    before = [row for row in placed if row["stage_index"] < stage][-1:]
    after = [row for row in placed if row["stage_index"] > stage][:1]
    within = [(row["step"], row) for row in placed if row["stage_index"] == stage]
    return [*((0, row) for row in before), *within, *((last_step, row) for row in after)]
