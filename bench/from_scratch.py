"""Prints the results of an h200-from-scratch run as Markdown tables, and draws its curve.

    forge run experiments/h200-from-scratch.toml
    python bench/from_scratch.py h200-from-scratch-1 --picture docs/from-scratch.svg

Reads the run's database and nothing else, so it works on a copy of `run.db` (a directory with that
file in it) as well. Intervals are 95 %, clustered by problem. pass@1 and fast_1 count first turns
at temperature 1; multi-turn counts a rollout whose last turn is correct.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.store.layout import find_run
from forge.store.reader import open_run
from forge.views.statistics import Tally, compare_paired, estimate_mean

if TYPE_CHECKING:
    from forge.store.reader import RunReader

FIRST_TURNS = """
SELECT problem_id, coalesce(is_correct AND speedup > 1, 0) AS is_fast
FROM v_turns WHERE purpose = 'eval' AND NOT is_greedy AND turn = 0 AND stage = ?
    AND group_id NOT IN (SELECT group_id FROM v_replayed)
"""
TIMES = """
SELECT count(*) AS num, min(candidate_us) AS low, avg(candidate_us) AS mean, max(speedup) AS best,
    exp(avg(ln(speedup))) AS typical
FROM v_turns WHERE purpose = 'eval' AND is_correct AND candidate_us IS NOT NULL AND stage = ?
"""
COLUMNS = (
    "evaluation",
    "pass@1",
    "multi-turn",
    "against one turn",
    "compiles",
    "fast_1",
    "correct kernels timed",
    "speed-up, geometric mean (best)",
)
STEPS = """
SELECT s.step, s.reward, s.pass_rate, s.pass_rate_multi, s.compile_rate, s.speedup,
    (SELECT avg(staleness) FROM v_samples a WHERE a.stage = s.stage AND a.step = s.step)
        AS staleness,
    (SELECT idle_share FROM v_idle i WHERE i.stage = s.stage AND i.step = s.step
        AND role = 'trainer') AS idle_trainer,
    (SELECT idle_share FROM v_idle i WHERE i.stage = s.stage AND i.step = s.step
        AND role = 'serve') AS idle_serve,
    (SELECT idle_share FROM v_idle i WHERE i.stage = s.stage AND i.step = s.step
        AND role = 'judge') AS idle_judge,
    (SELECT max(step_s) FROM v_idle i WHERE i.stage = s.stage AND i.step = s.step) AS seconds
FROM v_steps s ORDER BY s.stage, s.step
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", help="name or directory of the run")
    parser.add_argument("--dir", type=Path, default=Path("runs"), help="where runs are")
    parser.add_argument("--picture", type=Path, help="write the curve here (.svg or .png)")
    parser.add_argument("--out", type=Path, help="write what was read as JSON")
    args = parser.parse_args()
    with open_run(find_run(args.run, store_dir=args.dir)) as reader:
        found = read(reader)
    print(tables(found))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    if args.picture:
        draw(found, args.picture)


def read(reader: RunReader) -> dict[str, Any]:
    """Evaluations, training steps and wall seconds by stage."""
    ends = [json.loads(row["data"]) for row in reader.rows(
        "SELECT data FROM events WHERE kind = 'stage_end'"
    )]  # fmt: skip
    return {
        "evaluations": [_evaluation(reader, row) for row in reader.rows(
            "SELECT * FROM v_evaluations WHERE stage LIKE 'eval-%'"
        )],
        "steps": [dict(row) for row in reader.rows(STEPS)],
        "stage_seconds": {str(end["stage"]): end["seconds"] for end in ends},
    }  # fmt: skip


def _evaluation(reader: RunReader, row: Any) -> dict[str, Any]:
    by_problem: dict[str, list[int]] = defaultdict(list)
    for turn in reader.rows(FIRST_TURNS, (row["stage_index"],)):
        by_problem[turn["problem_id"]].append(turn["is_fast"])
    fast = estimate_mean([sum(fasts) / len(fasts) for fasts in by_problem.values()])
    times = next(iter(reader.rows(TIMES, (row["stage_index"],))))
    kept = ("stage", "step", "pass_at_1", "ci_low", "ci_high", "pass_at_1_multi", "compile_rate",
            "num_problems", "num_samples", "max_turns")  # fmt: skip
    return {
        **{key: row[key] for key in kept},
        "detail": json.loads(row["detail"]),
        "fast_1": None if fast is None else [fast.value, fast.low, fast.high],
        "times": dict(times),
    }


def tables(found: dict[str, Any]) -> str:
    lines = [
        "| " + " | ".join(COLUMNS) + " |",
        "|---" * len(COLUMNS) + "|",
    ]
    for row in found["evaluations"]:
        times, fast = row["times"], row["fast_1"]
        lines.append(
            f"| {row['stage']}, {row['num_problems']} × {row['num_samples']} "
            f"| {_share(row['pass_at_1'], row['ci_low'], row['ci_high'])} "
            f"| {_percent(row['pass_at_1_multi'])} (up to {row['max_turns']}) "
            f"| {_relative(row)} | {_percent(row['compile_rate'])} "
            f"| {_share(*fast) if fast else '–'} | {times['num']} "
            f"| {_times(times['typical'])} ({_times(times['best'])}) |"
        )
    lines += ["", *_differences(found["evaluations"])]
    seconds = found["stage_seconds"]
    listed = ", ".join(f"stage {stage}: {value:.0f} s" for stage, value in seconds.items())
    lines += ["", f"{listed}; together {sum(seconds.values()) / 60:.1f} min", ""]
    keys = ("step", "seconds", "reward", "pass_rate", "pass_rate_multi", "compile_rate", "speedup",
            "staleness", "idle_trainer", "idle_serve", "idle_judge")  # fmt: skip
    lines += ["| " + " | ".join(keys) + " |", "|---" * len(keys) + "|"]
    for step in found["steps"]:
        cells = ["–" if step[key] is None else f"{step[key]:.4g}" for key in keys]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _differences(evaluations: list[dict[str, Any]]) -> list[str]:
    """Differences paired by problem, each evaluation against the previous one."""
    lines = []
    for earlier, later in pairwise(evaluations):
        result = compare_paired(_tallies(earlier), _tallies(later), k=1)
        if result is not None:
            lines.append(
                f"{later['stage']} − {earlier['stage']}, pass@1 paired by problem: "
                f"{100 * result.value:+.1f} points "
                f"({100 * result.low:+.1f} to {100 * result.high:+.1f})"
            )
    return lines


def _tallies(evaluation: dict[str, Any]) -> dict[str, Tally]:
    tallies = evaluation["detail"]["tallies"]
    return {key: Tally(num=num, correct=correct) for key, (num, correct) in tallies.items()}


def _relative(row: dict[str, Any]) -> str:
    if not row["pass_at_1"] or row["pass_at_1_multi"] is None:
        return "–"
    return f"{row['pass_at_1_multi'] / row['pass_at_1'] - 1:+.0%}"


def _share(value: float, low: float, high: float) -> str:
    return f"{value:.1%} ({100 * low:.0f}–{100 * high:.0f})"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def draw(found: dict[str, Any], path: Path) -> None:
    """Shares of training rollouts by step, with the evaluations as points at both ends."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    steps = [step for step in found["steps"] if step["pass_rate"] is not None]
    numbers = [step["step"] for step in steps]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    for key, label in (
        ("compile_rate", "compiles"),
        ("pass_rate_multi", "correct, all turns"),
        ("pass_rate", "correct, first turn"),
    ):
        left.plot(numbers, [100 * step[key] for step in steps], label=label)
    ends = [numbers[0] - 1, numbers[-1]] if numbers else [0]
    for at, row in zip(ends, found["evaluations"][-len(ends) :], strict=False):
        value, low, high = (100 * row[key] for key in ("pass_at_1", "ci_low", "ci_high"))
        left.errorbar(
            [at], [value], yerr=[[value - low], [high - value]], fmt="ko", capsize=3,
            label="held-out pass@1" if at == ends[0] else None,
        )  # fmt: skip
    left.set(xlabel="GRPO step", ylabel="%", ylim=(0, 100))
    left.legend(frameon=False, fontsize="small")
    timed = [step for step in steps if step["speedup"] is not None]
    right.plot([step["step"] for step in timed], [step["speedup"] for step in timed])
    right.axhline(1, color="grey", linewidth=0.8)
    right.set(xlabel="GRPO step", ylabel="speed-up over eager")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    main()
