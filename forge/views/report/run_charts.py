"""Charts of a run: evaluations, training by step, and time."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from forge.views.report.asking import ask, ask_one, label
from forge.views.report.charts import Chart, Kind, Line, make_line, spread
from forge.views.rollouts import MENTIONED_QUEUE_S
from forge.views.run_state import IDLE_BY_STAGE, parts_of, trained_label

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forge.store.reader import RunReader

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
        self, reader: RunReader, *, kinds: Sequence[str], evaluations: Sequence[dict[str, Any]] = ()
    ) -> None:
        steps = ask(reader, STEPS)
        self.steps = [row for row in steps if not row["is_open"]]
        self.open_steps = [row for row in steps if row["is_open"]]
        self._metrics = ask(reader, METRICS)
        self._staleness = ask(reader, STALENESS)
        self._failures = ask(reader, FAILURES)
        self._levels = ask(reader, LEVELS)
        self._terms = ask(reader, TERMS)
        self._kinds = kinds
        for row in self.steps:
            groups = row["num_groups"]
            row["flat_share"] = (row["num_flat_groups"] or 0) / groups if groups else None
        self._evaluations = evaluations
        self._add_bands(reader)

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

    def _add_bands(self, reader: RunReader) -> None:
        """Adds `reward_low` and `reward_high` to the steps: the ratio estimator over groups."""
        spread = {(row["stage"], row["step"]): row for row in ask(reader, SPREAD)}
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
        trained = [trained_label(row) for found in points for _, row in found]
        kind = "evaluated" if any(trained) else "held-out"
        lines = [
            Line(
                label=self._name(stages, stage, f"{kind} problems"), x=[x for x, _ in found],
                y=[row["pass_at_1"] for _, row in found], low=[row["ci_low"] for _, row in found],
                high=[row["ci_high"] for _, row in found], is_points=True,
            )
            for stage, found in zip(stages, points, strict=True) if found
        ]  # fmt: skip
        for stage, found in zip(stages, points, strict=True):
            lines += _source_lines(found, prefix=f"{self._name(stages, stage, kind)}: ")
        if not lines:
            return chart
        note = f"Points: first turns on {kind} problems, with the 95 % interval over problems."
        note += f" The last one: {trained[-1]}." if trained[-1] else ""
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


MOST_CURVES = 6
"""Evaluations in one chart of curves: the first, the last, and some between."""
MOST_EVALUATIONS = 400

EVALUATIONS = """
SELECT stage, stage_index, step, policy_version, num_problems, num_samples, max_turns, pass_at_1,
    ci_low, ci_high, pass_at_1_greedy, pass_at_1_multi, compile_rate, num_trained_problems,
    num_shared_problems, num_judged_problems, unjudgeable, by_source, by_level
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
    AND part IN ('source', 'family', 'level', 'turn')
LIMIT 400
"""


def load_parts(reader: RunReader, evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last evaluation by source, family, level and turn."""
    if not evaluations:
        return []
    last = {name: evaluations[-1][name] for name in ("stage", "step", "policy_version")}
    return ask(reader, PARTS, last)


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
        *_source_lines(list(enumerate(evaluations))),
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


def _source_lines(points: Sequence[tuple[int, dict[str, Any]]], prefix: str = "") -> list[Line]:
    """pass@1 of each of several sources, by evaluation."""
    found = [(x, parts_of(row)) for x, row in points]
    names = dict.fromkeys(name for _, parts in found for name in parts if name)
    of = {name: [(x, parts[name][""]) for x, parts in found if name in parts] for name in names}
    return [
        Line(label=label(f"{prefix}{name}"), x=[x for x, _ in each], y=[y for _, y in each],
             is_points=bool(prefix))
        for name, each in of.items()
    ]  # fmt: skip


def pass_at_k_chart(reader: RunReader) -> Chart:
    """pass@k with its interval, one line per evaluation with enough samples."""
    rows = ask(reader, PASS_AT_K)
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


def fast_p_chart(reader: RunReader, evaluations: Sequence[dict[str, Any]]) -> Chart:
    """Share of first turns that are correct and more than p times as fast, one line per
    evaluation.
    """
    names = {(row["stage_index"], row["step"]): row["stage"] for row in evaluations}
    rows = ask(reader, FAST_P)
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
    return [(name, by_name[name]) for name in spread(list(by_name), MOST_CURVES)]


IDLE = """
SELECT stage, step, role, idle_share FROM v_idle WHERE step_s > 0 ORDER BY stage, step, role
"""

PHASES = """
SELECT phase, sum(num_turns) AS num_turns, sum(total_s) AS total_s,
    sum(total_s) / sum(num_turns) AS mean_s, max(max_s) AS max_s
FROM v_phases GROUP BY phase ORDER BY total_s DESC LIMIT 20
"""

QUEUED = """
SELECT (sum(judge_s) - (SELECT sum(total_s) FROM v_phases WHERE purpose = 'train'))
    / sum(num_turns) AS mean_s
FROM v_steps
"""

STEP_PARTS = {
    "step/wall/seconds": "whole step",
    "train/step/seconds": "trainer steps",
    "train/wait/seconds": "trainer waits for a batch",
    "train/publish_wait/seconds": "trainer waits for a publish",
    "weights/publish/seconds": "weights to the replicas",
}
"""Metric to its label."""

STEP_SECONDS = f"""
SELECT stage, step, key, value FROM v_metrics
WHERE key IN ({", ".join(f"'{key}'" for key in STEP_PARTS)}) AND value IS NOT NULL
ORDER BY stage, step
"""

STAGES = """
SELECT message, json_extract(data, '$.stage') AS stage, json_extract(data, '$.seconds') AS seconds
FROM v_events WHERE kind = 'stage_end' ORDER BY event_id LIMIT 100
"""

NUM_SLOWEST = 8


class TimeSpent:
    """Seconds of a run by role, stage, step and phase."""

    def __init__(self, reader: RunReader) -> None:
        self.idle = ask(reader, IDLE_BY_STAGE)
        self._idle_by_step = ask(reader, IDLE)
        self.phases = ask(reader, PHASES)
        self._queued_s = ask_one(reader, QUEUED).get("mean_s")
        self.stages = ask(reader, STAGES)
        seconds = ask(reader, STEP_SECONDS)
        self._steps: dict[tuple[int, int], dict[str, float]] = {}
        for row in seconds:
            self._steps.setdefault((row["stage"], row["step"]), {})[row["key"]] = row["value"]

    def slowest(self) -> list[dict[str, Any]]:
        """The steps that took longest, with their parts in seconds."""
        wall = "step/wall/seconds"
        timed = [(place, parts) for place, parts in self._steps.items() if wall in parts]
        timed.sort(key=lambda item: (-item[1][wall], item[0]))
        return [
            {"stage": stage, "step": step} | {name: parts.get(k) for k, name in STEP_PARTS.items()}
            for (stage, step), parts in timed[:NUM_SLOWEST]
        ]

    def charts(self) -> list[Chart]:
        """All charts of time, including empty ones."""
        return [self._idle_chart(), self._step_chart(), self._phase_chart()]

    def _idle_chart(self) -> Chart:
        stage = max((row["stage"] for row in self._idle_by_step), default=None)
        rows = [row for row in self._idle_by_step if row["stage"] == stage]
        roles = sorted({row["role"] for row in rows})
        lines = [
            make_line(
                label(role),
                [(row["step"], row["idle_share"]) for row in rows if row["role"] == role],
            )
            for role in roles
        ]
        return Chart(
            name="idle", title="Idle share", x_label=f"step of stage {stage}",
            y_label="share of the step", lines=tuple(lines), is_share=True,
            note="A replica or judge is idle without a request, the trainer while it waits for a "
            "batch.",
        )  # fmt: skip

    def _step_chart(self) -> Chart:
        stage = max((place[0] for place in self._steps), default=None)
        places = [place for place in self._steps if place[0] == stage]
        lines = [
            make_line(name, [(step, self._steps[stage, step].get(key)) for stage, step in places])
            for key, name in STEP_PARTS.items()
        ]
        return Chart(
            name="step-time", title="Seconds per step", x_label=f"step of stage {stage}",
            y_label="seconds", lines=tuple(line for line in lines if line.points),
        )  # fmt: skip

    def _phase_chart(self) -> Chart:
        names = tuple(label(row["phase"]) for row in self.phases)
        seconds = [row["total_s"] for row in self.phases]
        queued_s = self._queued_s or 0.0  # belongs to no phase
        note = f"Before these, a training turn waited {queued_s:.1f} s for a judge (mean)."
        return Chart(
            name="phases", title="Slowest phases of judging", x_label="phase",
            y_label="seconds, all judges together", kind=Kind.BARS, names=names,
            lines=(Line(label="seconds", x=list(range(len(names))), y=seconds),),
            note=note if queued_s >= MENTIONED_QUEUE_S else "",
        )  # fmt: skip
