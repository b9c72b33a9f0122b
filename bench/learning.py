"""Does the quickstart learn? Its stages over several seeds, beside a control that spends GRPO's
wall time on more SFT.

    python bench/learning.py --seeds 0 1 2 --samples 8 --out bench/learning.json

For each seed: the quickstart (eval, sft, eval, grpo, eval), then a second run from the same SFT
weights whose only training stage is SFT for as many steps as fit the GRPO stage's wall time. Prints
pass@1 by stage with intervals clustered by problem, greedy, pass@k, and a table by family and chain
length; writes everything as JSON. Uses the command line like anybody else.
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

from forge.config.dump import dump_experiment
from forge.config.load import load_experiment
from forge.config.schema import EvalStage, GrpoStage, ModelTable, SftStage
from forge.store.layout import RunPaths, find_run
from forge.store.reader import open_run

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
    args = parser.parse_args()
    results = []
    for seed in args.seeds:
        results.append(measure_seed(seed, samples=args.samples, store=args.dir))
        report = {
            "command": " ".join(sys.argv),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
            "seeds": results,
            "summary": summarise(results),
        }
        args.out.write_text(json.dumps(report, indent=1) + "\n")
        print(table(report["summary"]), flush=True)


def measure_seed(seed: int, *, samples: int, store: Path) -> dict[str, Any]:
    """The quickstart and its control for one seed."""
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
    """More SFT from the same weights for GRPO's wall time, at SFT's own peak learning rate and
    schedule."""
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
    """`forge run ...`; its progress goes to our stderr. Ends the benchmark if it fails."""
    subprocess.run([sys.executable, "-m", "forge.cli", "run", *args], check=True, cwd=ROOT)


def stage_seconds(paths: RunPaths) -> dict[int, float]:
    """Wall seconds by stage index."""
    with open_run(paths) as reader:
        rows = reader.rows("SELECT data FROM events WHERE kind = 'stage_end'")
    found = (json.loads(row["data"]) for row in rows)
    return {data["stage"]: data["seconds"] for data in found}


def evaluations_of(paths: RunPaths) -> list[dict[str, Any]]:
    """As `forge show --json` gives them."""
    done = subprocess.run(
        [sys.executable, "-m", "forge.cli", "show", str(paths.root), "--json"],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    return json.loads(done.stdout)["evaluations"]


def summarise(results: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Means over seeds by arm."""
    arms: dict[str, dict[str, float]] = {}
    for arm in ("before", "sft", "grpo", "control"):
        rows = [result[arm] for result in results]
        k = max((int(k) for k in rows[0]["pass_at_k"]), default=1)
        arms[arm] = {
            "pass_at_1": statistics.fmean(r["pass_at_1"] for r in rows),
            "min": min(r["pass_at_1"] for r in rows),
            "max": max(r["pass_at_1"] for r in rows),
            "greedy": statistics.fmean(r["pass_at_1_greedy"] or 0.0 for r in rows),
            "multi_turn": statistics.fmean(r["pass_at_1_multi"] for r in rows),
            f"pass_at_{k}": statistics.fmean(
                r["pass_at_k"].get(str(k), r["pass_at_1"]) for r in rows
            ),
            "compile_rate": statistics.fmean(r["compile_rate"] for r in rows),
        }
    return arms


def table(summary: dict[str, dict[str, float]]) -> str:
    """Plain text."""
    keys = list(next(iter(summary.values())))
    lines = ["arm       " + "".join(f"{key:>14}" for key in keys)]
    lines += [
        f"{arm:<10}" + "".join(f"{row.get(k, 0.0):>14.3f}" for k in keys)
        for arm, row in summary.items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
