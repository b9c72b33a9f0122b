"""Compares the evaluations of a run: the gain of each training stage, and one problem answered
before and after; and two runs: settings, learning curves over the same steps, tokens or seconds,
problems won and lost, with intervals.

`compare(a, b, by="step")` gives a `Comparison`, data only; `render_comparison` prints it. Called by
`forge compare A B`, the monitor and notebooks. What cannot be compared is a line in `notes`: never
an error, and never a number with another meaning. All differences are b minus a.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from rich.console import Group as RichGroup
from rich.text import Text

from forge.store.reader import RunReader
from forge.views.fitting import Fitting
from forge.views.run_state import load_experiment, run_state, words_of
from forge.views.statistics import Estimate, Tally, compare_paired, estimate_difference
from forge.views.text import HIDDEN, NONE, digits, is_secret, percent, printable, without_empty

FIRST_ANSWERS = """
FROM groups g JOIN trajectories r USING (group_id)
LEFT JOIN turns a ON a.group_id = g.group_id AND a.rollout = r.rollout AND a.turn = 0
LEFT JOIN verdicts v ON v.group_id = g.group_id AND v.rollout = r.rollout AND v.turn = 0
LEFT JOIN problems p ON p.problem_id = g.problem_id
LEFT JOIN texts t ON t.text_id = p.source_id
WHERE g.stage = :stage AND g.step = :step AND g.purpose = 'eval' AND NOT g.is_greedy
    AND (a.reward IS NOT NULL OR r.num_turns = 0)
    AND g.group_id NOT IN (SELECT group_id FROM v_replayed)
"""
"""First answers of an evaluation, counted as `statistics.evaluation` does: sampled and scored; a
prompt that does not fit is unsolved."""

_TALLIES = f"""
SELECT g.problem_id, count(*) AS num, coalesce(sum(v.status = 'correct'), 0) AS correct
{FIRST_ANSWERS} GROUP BY g.problem_id
"""
_LEFT_OUT = """
SELECT json_extract(data, '$.stage') FROM events
WHERE kind = 'sft_rows' AND json_extract(data, '$.sources') IS NULL
"""
"""Indices of sft stages that had no row to train on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """pass@1 before and after training, on the problems that both evaluations sampled."""

    before: str
    after: str
    by: tuple[str, ...]
    """Names of the training stages between them."""
    estimate: Estimate
    """after − before, paired by problem."""

    def short(self) -> str:
        """`+25.0 pts`, with a question mark if the interval includes zero."""
        return f"{_points(self.estimate.value)} pts{'' if self.estimate.is_clear else '?'}"

    def points(self) -> str:
        """`+25.0 points (95 %: +17.2 to +33.1)`."""
        each = self.estimate
        if not math.isfinite(each.low + each.high):
            return f"{_points(each.value)} points"
        between = f"{_points(each.low)} to {_points(each.high)}"
        return f"{_points(each.value)} points (95 %: {between})"


def load_gains(
    reader: RunReader, evaluations: Sequence[Mapping[str, Any]], stages: Sequence[str]
) -> list[Gain]:
    """The gain of the training between each evaluation and the next one; none without training.

    Args:
        evaluations: rows of v_evaluations, oldest first.
        stages: name of each stage.
    """
    found: list[Gain] = []
    for by, before, after in _trained(reader, evaluations, stages):
        estimate = compare_paired(_load_tallies(reader, before), _load_tallies(reader, after))
        if estimate is not None:
            gain = Gain(before=before["stage"], after=after["stage"], by=by, estimate=estimate)
            found.append(gain)
    return found


def _trained(
    reader: RunReader, evaluations: Sequence[Mapping[str, Any]], stages: Sequence[str]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any], Mapping[str, Any]]]:
    """Names of the stages that trained from an evaluation to the next (`grpo-3`), and both rows.

    Evaluations that are stages of their own count; without one, the first and the last of those
    within stages.
    """
    own = [row for row in evaluations if "@" not in str(row["stage"])]
    left_out = {index for (index,) in reader.query(_LEFT_OUT).rows}
    for before, after in pairwise(own or [*evaluations[:1], *evaluations[1:][-1:]]):
        first, last = before["stage_index"], after["stage_index"]
        if first is None or last is None:
            continue
        by = tuple(
            stages[index]
            for index in range(max(first, 0), min(last + 1, len(stages)))
            if index not in left_out and not stages[index].startswith(("eval-", "search-"))
        )
        if by:
            yield by, before, after


def _load_tallies(reader: RunReader, row: Mapping[str, Any]) -> dict[str, Tally]:
    """Sampled and correct first answers of an evaluation by problem."""
    place = {"stage": row["stage_index"], "step": row["step"]}
    return {
        each["problem_id"]: Tally(num=each["num"], correct=each["correct"])
        for each in reader.rows(_TALLIES, place)
    }


def _points(share: float) -> str:
    """`+25.0`, with a real minus sign."""
    return f"{100 * share:+.1f}".replace("-", "−")


ANSWER = """
SELECT t.turn_id, t.problem_id, t.status, t.reason, t.completion, t.detail, t.feedback, t.speedup,
    (SELECT body FROM texts WHERE text_id = p.source_id) AS source
FROM groups g CROSS JOIN v_turns t ON t.group_id = g.group_id
LEFT JOIN problems p ON p.problem_id = g.problem_id
WHERE g.stage = :stage AND g.step = :step AND g.problem_id = :problem AND g.purpose = 'eval'
    AND NOT g.is_greedy AND t.turn = 0 AND t.completion IS NOT NULL
    AND (t.status = 'correct') = :is_correct
ORDER BY t.status = 'wrong' DESC, t.group_id, t.rollout LIMIT 1
"""
"""A failed answer that compiled comes first: it says more than one without a kernel."""


def load_before_after(
    reader: RunReader, evaluations: Sequence[Mapping[str, Any]], stages: Sequence[str]
) -> dict[str, Any] | None:
    """A failed answer and a later, correct one to the same problem, around the last training that
    has such a pair; None if there is none.

    Returns:
        `by`, the training between them; `before` and `after`: rows of ANSWER, with `stage`, the
        evaluation, and `rate`, correct of all first answers.
    """
    for by, before, after in reversed(list(_trained(reader, evaluations, stages))):
        found = _pair(reader, before, after)
        if found is not None:
            return {"by": " and ".join(by), "before": found[0], "after": found[1]}
    return None


def _pair(
    reader: RunReader, before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    old, new = _load_tallies(reader, before), _load_tallies(reader, after)
    risen = [name for name in old.keys() & new.keys() if _rate(new[name]) > _rate(old[name])]
    if not risen:
        return None
    problem = min(risen, key=lambda name: (_rate(old[name]) - _rate(new[name]), name))
    failed = _answer(reader, before, problem, old[problem], is_correct=False)
    solved = _answer(reader, after, problem, new[problem], is_correct=True)
    return None if failed is None or solved is None else (failed, solved)


def _answer(
    reader: RunReader, row: Mapping[str, Any], problem: str, tally: Tally, *, is_correct: bool
) -> dict[str, Any] | None:
    asked = {
        "stage": row["stage_index"], "step": row["step"], "problem": problem,
        "is_correct": is_correct,
    }  # fmt: skip
    found = reader.one(ANSWER, asked)
    rate = f"{tally.correct} of {tally.num}"
    return None if found is None else {**found, "stage": row["stage"], "rate": rate}


def _rate(tally: Tally) -> float:
    return tally.correct / tally.num


UNITS = {"step": "steps", "tokens": "tokens", "time": "seconds"}
"""Quantity that both runs get the same amount of, to its unit: training steps, of GRPO if either
run has them, else of SFT; completion tokens generated for training; seconds of training steps,
without evaluations and without the time between attempts."""

Row = dict[str, Any]
Comparison = dict[str, Any]
"""What `forge compare --json` prints; a note explains each empty part.

`by`, a key of UNITS, and `budget`, the common amount of it: the smaller of the two totals.
`a`, `b`: `name`, `state`, `spent` (total of the quantity; None if it was not counted), `evaluation`
whose problems are compared (`eval-4 at step 20`), and its judging `devices`: `cpu` or GPUs.
`config`: settings that differ, by `find_changes`.
`curves`: `name`, a column of v_steps or a metric; `a`, `b`: (x, value) of every step that has one;
`at`: `a` and `b` at equal `x`, means of the last steps up to it (WINDOW); the last is the end of
the shorter run.
`score`: pass@1 of `a` and `b` on the problems that both evaluated; `difference`, an Estimate,
paired by problem; `num_won`, problems that b solves more often, `num_lost`, `num_even`.
`problems`: first answers to each problem, largest loss first: `_change`.
`by_source`, `by_level`: `name`, `score`, and `speed`, an Estimate of log2 of the problems'
`speedup_ratio`: 1 is twice as fast. No sources if all problems are of one.
`notes`: parts that could not be compared, each with the reason."""

WINDOW = 5
"""Steps averaged: one step's reward comes from few problems."""
NUM_PROBLEMS = 10
"""Problems shown of each kind; --json has all."""
NUM_POINTS = 3
"""Points of comparison that fit beside each other."""
VALUE_CHARACTERS = 30


def render_comparison(found: Comparison) -> RichGroup:
    """Score first, then its reasons: settings, curves, problems, parts."""
    parts: list[Any] = [Text(printable(_head(found)), style="bold")]
    if found["score"] is not None:
        parts.append(Text(_sentence(found["score"])))
    parts += [Text(printable(f"note: {note}"), style="yellow") for note in found["notes"]]
    for title, columns, rows in _tables(found):
        if rows:
            parts += [Text(""), Text(title, style="bold"), Fitting(columns, rows)]
    return RichGroup(*parts)


def _head(found: Comparison) -> str:
    sides = [
        f"{letter} {side['name']} ({side['state']}"
        + (f", {side['spent']:,.0f} {UNITS[found['by']]}" if side["spent"] is not None else "")
        + (f", {side['evaluation']}" if side["evaluation"] else "")
        + ")"
        for letter, side in (("a", found["a"]), ("b", found["b"]))
    ]
    return "\n".join(sides)


def _sentence(score: Row) -> str:
    difference = score["difference"]
    verdict = "beyond chance" if difference.is_clear else "within chance"
    return (
        f"pass@1 {percent(score['a'])} → {percent(score['b'])}: {_points(difference.value)} points "
        f"({_between(difference)}, 95 %): {verdict}\n"
        f"{difference.num_problems} problems, paired: {score['num_won']} won, "
        f"{score['num_lost']} lost, {score['num_even']} even"
    )


def _tables(found: Comparison) -> Iterator[tuple[str, Sequence[str], Sequence[Sequence[Any]]]]:
    """Title, columns and rows of each table."""
    settings = [(each["key"], _value(each["a"]), _value(each["b"])) for each in found["config"]]
    yield "settings that differ", ("key", "a", "b"), settings
    curves = [
        (
            curve["name"].removeprefix("train/").removesuffix("/mean"),
            *(f"{digits(at['a'])} → {digits(at['b'])}" for at in curve["at"][-NUM_POINTS:]),
        )
        for curve in found["curves"]
    ]
    shown = found["curves"][0]["at"][-NUM_POINTS:] if curves else ()
    heads = ("metric", *(f"{at['x']:,.0f} {UNITS[found['by']]}" for at in shown))
    yield f"curves at equal {found['by']}, means of the last {WINDOW} steps, a → b", heads, curves
    for part in ("source", "level"):
        heads = ("", "n", "a", "b", "b − a", "95 %", "won", "lost", "speed b/a")
        cells = [_part_cells(**each) for each in found[f"by_{part}"]]
        yield f"by {part}", *without_empty(heads, cells)
    for outcome, problems in (("won", found["problems"][::-1]), ("lost", found["problems"])):
        heads = ("problem", "level", "a", "b", "b − a", "speed-up a", "speed-up b")
        of = [each for each in problems if each["outcome"] == outcome]
        more = f", {len(of) - NUM_PROBLEMS} not shown" if len(of) > NUM_PROBLEMS else ""
        cells = [_problem_cells(each) for each in of[:NUM_PROBLEMS]]
        title = f"{outcome} by b: {len(of)} problems{more}"
        yield title, *without_empty(heads, cells)


def _part_cells(name: str, score: Row, speed: Estimate | None) -> tuple[Any, ...]:
    times, difference = NONE, score["difference"]
    if speed is not None:
        value, low, high = (2.0**x for x in (speed.value, speed.low, speed.high))
        times = f"{value:.2f}× ({low:.2f}–{high:.2f})"
    return (
        name, difference.num_problems, percent(score["a"]), percent(score["b"]),
        _points(difference.value), _between(difference), score["num_won"], score["num_lost"], times,
    )  # fmt: skip


def _problem_cells(each: Row) -> tuple[Any, ...]:
    solved = (f"{each[f'correct_{side}']}/{each[f'num_{side}']}" for side in "ab")
    speeds = (digits(each[f"speedup_{side}"]) for side in "ab")
    return each["problem_id"], each["level"], *solved, _points(each["difference"]), *speeds


def _between(difference: Estimate) -> str:
    return f"{_points(difference.low)} to {_points(difference.high)}"


def _value(value: Any) -> str:
    text = NONE if value is None else str(value)
    return text if len(text) <= VALUE_CHARACTERS else f"{text[: VALUE_CHARACTERS - 1]}…"


ABSENT = object()

_MADE_WITH = """
SELECT code_commit, code_diff <> '' AS has_diff, seed, versions, machine FROM attempts
ORDER BY attempt DESC LIMIT 1
"""


def find_changes(a: RunReader, b: RunReader) -> list[Row]:
    """Rows of `key`, `a` and `b`: of the experiment, then of the last attempt's code and machine,
    where they differ; None if a run has no such key. A stage that only one run has appears in
    `stages`, without its keys.

    Keys: `rollout.group_size`; `stages`; `stage.grpo.steps`, `stage.grpo[1].steps` for the second
    of a kind, `stage.grpo (round 2).steps`; `code.commit`, `versions.torch`, `machine.cores`.
    """
    settings = [_settings(reader) for reader in (a, b)]
    left, right = settings
    stages = [{_stage_of(key) for key in each} for each in settings]
    return [
        {"key": key, "a": _shown(key, left), "b": _shown(key, right)}
        for key in {**left, **right}
        if left.get(key, ABSENT) != right.get(key, ABSENT)
        and all(_stage_of(key) in each for each in stages)
    ]


def _shown(key: str, settings: Mapping[str, Any]) -> Any:
    return HIDDEN if key in settings and is_secret(key) else settings.get(key)


def _stage_of(key: str) -> str:
    """`stage.grpo[1]` of `stage.grpo[1].steps`; empty for a key of no stage."""
    return ".".join(key.split(".")[:2]) if key.startswith("stage.") else ""


def _settings(reader: RunReader) -> dict[str, Any]:
    """The flat experiment, code and machine. Stages are named by kind and round, so that those of
    one kind and round are compared with each other."""
    tables = load_experiment(reader)
    stages = tables.pop("stage", [])
    settings = dict(_flat(tables))
    kinds: list[str] = []
    for stage in stages:
        number = stage.pop("round", None)
        kind = str(stage.get("kind")) + (f" (round {number})" if number else "")
        before = f"[{kinds.count(kind)}]" if kind in kinds else ""
        settings |= _flat(stage, place=f"stage.{kind}{before}.")
        kinds.append(kind)
    settings["stages"] = " → ".join(kinds)
    made = reader.one(_MADE_WITH)
    if made is not None:
        settings |= {"code.commit": made["code_commit"], "code.is_changed": bool(made["has_diff"])}
        for name in ("versions", "machine"):
            settings |= _flat(json.loads(made[name]), place=f"{name}.")
    return settings


def _flat(table: Mapping[str, Any], *, place: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, place=f"{place}{key}.")
        elif isinstance(value, list) and value and all(isinstance(v, Mapping) for v in value):
            for index, one in enumerate(value):
                yield from _flat(one, place=f"{place}{key}[{index}].")
        else:
            yield f"{place}{key}", value


INSTEAD = "no curves; the last evaluations are compared"


def compare(a: RunReader, b: RunReader, *, by: str = "step") -> Comparison:
    """Compares by a key of UNITS."""
    runs, notes = (a, b), list[str]()
    of_rollouts = any(reader.value(_PLAYED) is not None for reader in runs)
    trained = [_load_trained_steps(reader, by, of_rollouts=of_rollouts) for reader in runs]
    budget = _budget(runs, trained, by, of_rollouts=of_rollouts, notes=notes)
    chosen = [
        _choose_evaluation(reader, steps, budget)
        for reader, steps in zip(runs, trained, strict=True)
    ]
    problems = _common(runs, chosen, by=by, budget=budget, notes=notes)
    has_sources = len({each["source"] for each in problems}) > 1
    left, right = (
        {
            "name": reader.paths.name, "state": run_state(reader), "spent": steps.total,
            "devices": sorted({one for row in answers.values() for one in row["devices"]}),
            "evaluation": name,
        }
        for reader, steps, (name, answers) in zip(runs, trained, chosen, strict=True)
    )  # fmt: skip
    return {
        "by": by,
        "budget": budget,
        "a": left,
        "b": right,
        "config": find_changes(a, b),
        "curves": _compare_curves(*trained, budget=budget) if budget else [],
        "score": _score(problems),
        "problems": problems,
        "by_source": _parts_of(problems, lambda each: each["source"]) if has_sources else [],
        "by_level": _parts_of(
            problems,
            lambda each: f"{each['source'] if has_sources else ''} level {each['level']}".strip(),
        ),
        "notes": notes,
    }


def _budget(
    runs: Sequence[RunReader], trained: Sequence[TrainedSteps], by: str, *,
    of_rollouts: bool, notes: list[str],
) -> float | None:  # fmt: skip
    """Common budget; None if a run has no steps or did not count the quantity."""
    known = list[float]()
    for reader, steps in zip(runs, trained, strict=True):
        if not steps.places:
            kind = "step of grpo" if of_rollouts else "step"
            notes.append(f"{reader.paths.name} has trained no {kind}: {INSTEAD}")
        elif steps.total is None:
            notes.append(f"{reader.paths.name} did not count its {UNITS[by]}: {INSTEAD}")
        else:
            known.append(steps.total)
    return min(known) if len(known) == 2 else None


def _common(
    runs: Sequence[RunReader], chosen: Sequence[tuple[str | None, Answers]], *,
    by: str, budget: float | None, notes: list[str],
) -> list[Row]:  # fmt: skip
    """Problems that are the same in both, by name and source, largest loss first."""
    names = [reader.paths.name for reader in runs]
    when = "" if budget is None else f" after at most {budget:,.0f} {UNITS[by]}"
    without = [name for name, (_, answers) in zip(names, chosen, strict=True) if not answers]
    notes += [f"{name} has no evaluation{when}: no problems won or lost" for name in without]
    if without:
        return []
    a, b = (answers for _, answers in chosen)
    both = sorted(a.keys() & b.keys())
    same = [name for name in both if a[name]["sha256"] == b[name]["sha256"]]
    if not both:
        named = f"{names[0]} evaluated {_some(a)}, {names[1]} {_some(b)}"
        notes.append(f"no problem in common: {named}")
    elif len(same) < len(both):
        number = len(both) - len(same)
        notes.append(f"{number} problems share a name but not their source: left out")
    if same and len(same) < max(len(a), len(b)):
        notes.append(f"{len(same)} problems in common, of {len(a)} and {len(b)} evaluated")
    changes = [_change(name, a[name], b[name]) for name in same]
    return sorted(changes, key=lambda each: (each["difference"], each["problem_id"]))


def _some(answers: Answers) -> str:
    first, *others = sorted(answers)
    return f"{first} and {len(others)} more" if others else first


def _change(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Row:
    """First answers of both runs to a problem: tallies, `difference` of the shares of correct ones,
    `outcome` (`won` if b is better, `lost`, `even`), the best speed-ups of correct ones, and b's
    over a's if one device has timed both: times of different cards are not comparable."""
    difference = b["correct"] / b["num"] - a["correct"] / a["num"]
    is_timed = a["speedup"] and b["speedup"]
    is_one_device = len(a["devices"]) == 1 and a["devices"] == b["devices"]
    return {
        "problem_id": name, "family": b["family"], "level": b["level"], "source": a["source"],
        "num_a": a["num"], "correct_a": a["correct"], "num_b": b["num"], "correct_b": b["correct"],
        "difference": difference,
        "outcome": "won" if difference > 0 else "lost" if difference < 0 else "even",
        "speedup_a": a["speedup"], "speedup_b": b["speedup"],
        "speedup_ratio": b["speedup"] / a["speedup"] if is_timed and is_one_device else None,
    }  # fmt: skip


def _score(problems: Sequence[Row]) -> Row | None:
    a, b = (
        {each["problem_id"]: Tally(num=each[f"num_{s}"], correct=each[f"correct_{s}"])
         for each in problems}
        for s in "ab"
    )  # fmt: skip
    difference = compare_paired(a, b)
    if difference is None:
        return None
    outcomes = Counter(each["outcome"] for each in problems)
    rates = (math.fsum(t.correct / t.num for t in of.values()) / len(of) for of in (a, b))
    return {
        **dict(zip("ab", rates, strict=True)), "difference": difference,
        **{f"num_{outcome}": outcomes[outcome] for outcome in ("won", "lost", "even")},
    }  # fmt: skip


def _parts_of(problems: Sequence[Row], name: Callable[[Row], str]) -> list[Row]:
    """Scores of the problems with the same name, by source and level."""
    found: dict[str, list[Row]] = defaultdict(list)
    for each in sorted(problems, key=lambda each: (each["source"], each["level"])):
        found[name(each)].append(each)
    ratios = {
        part: [math.log2(each["speedup_ratio"]) for each in of if each["speedup_ratio"]]
        for part, of in found.items()
    }
    return [
        {"name": part, "score": score, "speed": estimate_difference(ratios[part])}
        for part, of in found.items()
        if (score := _score(of)) is not None
    ]


STEP_COLUMNS = (
    "reward", "pass_rate", "pass_rate_multi", "compile_rate", "speedup", "best_speedup",
    "completion_tokens", "truncated_share",
)  # fmt: skip
METRICS = ("train/loss/mean", "train/entropy/mean", "train/kl_behaviour/mean")
SHARES = (0.25, 0.5, 0.75, 1.0)
"""Points of comparison, as shares of the common budget."""
ROUNDED = 1 + 1e-9
"""Allowance for sums of seconds."""

_STEPS = (
    f"SELECT stage, step, is_open, num_completion_tokens, {', '.join(STEP_COLUMNS)} FROM v_steps"
)
_METRICS = "SELECT stage, step, key, value, at, attempt FROM v_metrics WHERE key IN ({})"
_WALL = "step/wall/seconds"
_PLAYED = "SELECT 1 FROM groups WHERE purpose = 'train' LIMIT 1"
"""A row if the run trained on rollouts, or intends to."""

StageStep = tuple[int, int]
"""(stage, step)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedSteps:
    """Trained steps of one run, in order, with the cumulative cost of each."""

    places: tuple[StageStep, ...]
    spent: tuple[float | None, ...]
    """Cumulative cost of each place; None if it was not counted."""
    values: dict[str, dict[StageStep, float]]

    @property
    def total(self) -> float | None:
        """Cost of all steps; None if it was not counted."""
        return self.spent[-1] if self.places else 0.0

    def curve(self, name: str) -> tuple[tuple[float, float], ...]:
        values = self.values.get(name, {})
        return tuple(
            (x, values[place])
            for place, x in zip(self.places, self.spent, strict=True)
            if x is not None and place in values
        )


def _load_trained_steps(reader: RunReader, by: str, *, of_rollouts: bool) -> TrainedSteps:
    """The steps trained on rollouts, or those of SFT."""
    played = {(row["stage"], row["step"]): row for row in reader.rows(_STEPS)}
    keys = (*METRICS, _WALL)
    stages = {stage for stage, _ in played}
    values: dict[str, dict[StageStep, float]] = defaultdict(dict)
    marks: dict[StageStep, tuple[int, float]] = {}
    for row in reader.rows(_METRICS.format(", ".join("?" * len(keys))), keys):
        place = (row["stage"], row["step"])
        if (row["stage"] in stages) != of_rollouts:
            continue
        if row["value"] is not None:
            values[row["key"]][place] = row["value"]
        if row["key"].startswith("train/"):
            marks[place] = (row["attempt"], row["at"])
    places = tuple(sorted(marks))
    for place in places:
        row = played.get(place, {"is_open": True})
        for name in () if row["is_open"] else STEP_COLUMNS:
            if row[name] is not None:
                values[name][place] = row[name]
    walls = values.pop(_WALL, {}) if of_rollouts else {}  # SFT has one for the whole stage
    costs = list[float | None]()
    for index, place in enumerate(places):
        is_first = not index or places[index - 1][0] != place[0]
        before = None if is_first else places[index - 1]
        if by == "step":
            costs.append(place[1] - (before[1] if before else 0))
        elif by == "tokens":
            costs.append(played.get(place, {}).get("num_completion_tokens"))
        else:
            costs.append(walls.get(place, _seconds_between(before, place, marks)))
    return TrainedSteps(places=places, spent=tuple(accumulate(costs, _added)), values=dict(values))


def _added(total: float | None, cost: float | None) -> float | None:
    """None from the first step with an unknown cost."""
    return None if total is None or cost is None else total + cost


def _seconds_between(
    before: StageStep | None, place: StageStep, marks: Mapping[StageStep, tuple[int, float]]
) -> float:
    """Seconds since the step before, for one that was not measured; 0 across attempts."""
    if before is None or marks[before][0] != marks[place][0]:
        return 0.0
    return max(0.0, marks[place][1] - marks[before][1])


def _compare_curves(a: TrainedSteps, b: TrainedSteps, *, budget: float) -> list[Row]:
    """Curves of every metric that both runs have."""
    xs = [share * budget for share in SHARES]
    return [
        {
            "name": name, "a": left, "b": right,
            "at": [{"x": x, "a": _mean_at(left, x), "b": _mean_at(right, x)} for x in xs],
        }
        for name in (*STEP_COLUMNS, *METRICS)
        if (left := a.curve(name)) and (right := b.curve(name))
    ]  # fmt: skip


def _mean_at(curve: tuple[tuple[float, float], ...], x: float) -> float | None:
    end = bisect_right([point[0] for point in curve], x * ROUNDED)
    last = [value for _, value in curve[max(0, end - WINDOW) : end]]
    return sum(last) / len(last) if last else None


_EVALUATIONS = """
SELECT *, json_extract(detail, '$.sources') AS sources
FROM v_evaluations WHERE stage_index IS NOT NULL ORDER BY at DESC
"""
_ANSWERS = f"""
SELECT g.problem_id, coalesce(p.family, '') AS family, coalesce(p.level, 0) AS level, t.sha256,
    json_group_array(DISTINCT v.device) AS devices, count(*) AS num,
    coalesce(sum(v.status = 'correct'), 0) AS correct,
    max(CASE WHEN v.status = 'correct' THEN v.speedup END) AS speedup
{FIRST_ANSWERS} GROUP BY g.problem_id
"""
Answers = Mapping[str, Mapping[str, Any]]
"""Rows of _ANSWERS by problem, with the list of `devices` and the name of the `source`."""


def _choose_evaluation(
    reader: RunReader, steps: TrainedSteps, budget: float | None
) -> tuple[str | None, Answers]:
    """The latest evaluation within the budget, or of all if costs are unknown: its name and its
    first answers; None and no answers without one."""
    for row in reader.rows(_EVALUATIONS):
        place = (row["stage_index"], row["step"])
        index = bisect_right(steps.places, place)
        spent = steps.spent[index - 1] if index else 0.0
        if spent is not None and budget is not None and spent > budget * ROUNDED:
            continue
        sources = json.loads(row["sources"] or "{}")
        answers = {
            each["problem_id"]: each
            | {
                "source": sources.get(each["problem_id"], ""),
                "devices": sorted(filter(None, json.loads(each["devices"]))),
            }
            for each in reader.rows(_ANSWERS, {"stage": place[0], "step": place[1]})
        }
        if answers:
            name = f"{row['stage']} at step {row['step']}"
            return ", ".join(filter(None, (name, words_of(row)["trained"]))), answers
    return None, {}
