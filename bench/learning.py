"""Measures whether the quickstart learns: several seeds, and a control that spends GRPO's wall
time on more SFT.

    python bench/learning.py --seeds 0 1 2 --samples 8 --out bench/learning.json
    python bench/learning.py --read bench/learning.json

For each seed: the quickstart (eval, sft, eval, grpo, eval), then a second run from the same SFT
weights whose only training stage is SFT for as many steps as fit the GRPO stage's wall time. Its
learning rate warms up to SFT's peak again and falls to zero. Prints pass@1 by stage, greedy,
pass@k, the paired differences, and tables by family and chain length; writes everything as JSON.
Intervals are clustered by problem, over the problems of all seeds; they describe these training
runs only, so results are also shown by seed. Uses the command line, as a user does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from forge.config.load import dump_experiment, load_experiment
from forge.config.schema import EvalStage, GrpoStage, ModelTable, SftStage
from forge.data.generator import Composition
from forge.store.layout import RunPaths, find_run
from forge.store.reader import open_run
from forge.views.statistics import Tally, compare_paired, estimate_pass_at_k

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "experiments" / "quickstart.toml"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--samples", type=int, default=8, help="rollouts a held-out problem")
    parser.add_argument("--dir", type=Path, default=ROOT / "runs" / "learning")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "learning.json")
    parser.add_argument("--read", type=Path, help="print the tables of a file, run nothing")
    args = parser.parse_args()
    if args.read:
        print(tables(json.loads(args.read.read_text())["seeds"]))
        return
    results = []
    for seed in args.seeds:
        results.append(measure_seed(seed, samples=args.samples, store=args.dir))
        report = {
            "command": " ".join(sys.argv),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
            "seeds": results,
        }
        args.out.write_text(json.dumps(report, indent=1) + "\n")
        print(tables(results), flush=True)


def measure_seed(seed: int, *, samples: int, store: Path) -> dict[str, Any]:
    """Runs the quickstart and its control for one seed."""
    name = f"learning-{seed}"
    base = [
        "--set",
        f"seed={seed}",
        "--set",
        f"store.dir={store}",
        "--set",
        f"eval.samples={samples}",
    ]
    run_forge(str(QUICKSTART), *base, "--set", f"name={name}")
    paths = find_run(name, store_dir=store)
    stages = load_experiment(QUICKSTART).stage
    sft = next(i for i, s in enumerate(stages) if isinstance(s, SftStage))
    grpo = next(i for i, s in enumerate(stages) if isinstance(s, GrpoStage))
    seconds = stage_seconds(paths)
    control = run_control(
        paths, sft=sft, grpo=grpo, seconds=seconds, seed=seed, samples=samples, store=store
    )
    evaluations = evaluations_of(paths)
    full = [e for e in evaluations if e["stage"].startswith("eval-")]
    return {
        "seed": seed,
        "seconds": {str(k): round(v, 1) for k, v in seconds.items()},
        "before": full[0],
        "sft": full[1],
        "grpo": full[2],
        "control": evaluations_of(control)[-1],
        "control_seconds": round(stage_seconds(control)[0], 1),
    }


def run_control(
    paths: RunPaths,
    *,
    sft: int,
    grpo: int,
    seconds: dict[int, float],
    seed: int,
    samples: int,
    store: Path,
) -> RunPaths:
    """Runs more SFT from the same weights for GRPO's wall time, at SFT's own peak learning rate and
    schedule.
    """
    experiment = load_experiment(paths.experiment)
    stage = experiment.stage[sft]
    assert isinstance(stage, SftStage)
    steps = max(1, round(seconds[grpo] / seconds[sft] * stage.steps))
    with open_run(paths) as reader:
        weights = reader.value(
            "SELECT path FROM policies WHERE stage = ? ORDER BY version DESC LIMIT 1", (sft,)
        )
    changed = experiment.model_copy(
        update={
            "name": f"control-{seed}",
            "model": ModelTable(path=weights),
            "stage": [
                stage.model_copy(
                    update={"steps": steps, "warmup_steps": min(stage.warmup_steps, steps // 10)}
                ),
                EvalStage(kind="eval", samples=samples),
            ],
        }
    )
    file = store / f"control-{seed}.toml"
    file.write_text(dump_experiment(changed))
    run_forge(str(file))
    return find_run(f"control-{seed}", store_dir=store)


def run_forge(*args: str) -> None:
    """Runs `forge run ...` with its progress on our stderr. Ends the benchmark if it fails."""
    subprocess.run([sys.executable, "-m", "forge", "run", *args], check=True, cwd=ROOT)


def stage_seconds(paths: RunPaths) -> dict[int, float]:
    """Wall seconds by stage index."""
    with open_run(paths) as reader:
        rows = reader.rows("SELECT data FROM events WHERE kind = 'stage_end'")
    found = (json.loads(row["data"]) for row in rows)
    return {data["stage"]: data["seconds"] for data in found}


def evaluations_of(paths: RunPaths) -> list[dict[str, Any]]:
    """Evaluations as `forge show --json` prints them."""
    done = subprocess.run(
        [sys.executable, "-m", "forge", "show", str(paths.root), "--json"],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    return json.loads(done.stdout)["evaluations"]


ARMS = ("before", "sft", "grpo", "control")


def tallies(results: list[dict[str, Any]], arm: str) -> dict[str, Tally]:
    """Number of samples and of correct samples for every held-out problem of every seed."""
    return {
        f"{result['seed']}/{problem}": Tally(num=num, correct=correct)
        for result in results
        for problem, (num, correct) in result[arm]["detail"]["tallies"].items()
    }


def tables(results: list[dict[str, Any]]) -> str:
    """The whole result as Markdown."""
    found = {arm: tallies(results, arm) for arm in ARMS}
    k = min(tally.num for tally in found["grpo"].values())
    lines = [f"| arm | pass@1 | by seed | greedy | multi-turn | pass@{k} | compiles |"]
    lines.append("|---" * 7 + "|")
    for arm in ARMS:
        rows = [result[arm] for result in results]
        seeds = " ".join(f"{row['pass_at_1']:.1%}" for row in rows)
        lines.append(
            f"| {arm} | {estimate(found[arm], 1)} | {seeds} | {mean(rows, 'pass_at_1_greedy')} | "
            f"{mean(rows, 'pass_at_1_multi')} | {estimate(found[arm], k)} | "
            f"{mean(rows, 'compile_rate')} |"
        )
    lines.append("")
    for earlier, n in (("sft", 1), ("control", 1), ("sft", k)):
        difference = compare_paired(found[earlier], found["grpo"], k=n)
        assert difference is not None
        lines.append(
            f"grpo − {earlier}, pass@{n}: {100 * difference.value:+.1f} points "
            f"({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"
        )
    families = {key: Composition.parse(key.partition("/")[2]) for key in found["grpo"]}
    for title, part in (
        ("family", {key: c.family for key, c in families.items()}),
        ("chain length", {key: str(len(c.chain)) for key, c in families.items()}),
    ):
        lines += ["", f"| {title} | " + " | ".join(ARMS[1:]) + " |", "|---" * len(ARMS) + "|"]
        for name in sorted(set(part.values())):
            cells = [
                estimate({key: t for key, t in found[arm].items() if part[key] == name}, 1)
                for arm in ARMS[1:]
            ]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def estimate(found: dict[str, Tally], k: int) -> str:
    """pass@k with its interval, or a dash if there are fewer samples."""
    result = estimate_pass_at_k(list(found.values()), k)
    if result is None:
        return "–"
    return f"{result.value:.1%} ({100 * result.low:.0f}–{100 * result.high:.0f})"


def mean(rows: list[dict[str, Any]], key: str) -> str:
    """Mean over the seeds, or a dash if it was not measured."""
    values = [row[key] for row in rows if row[key] is not None]
    return f"{statistics.fmean(values):.1%}" if values else "–"


if __name__ == "__main__":
    main()
