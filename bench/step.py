"""Compares GRPO steps of a recipe, synchronous and overlapped, from the same weights.

    python bench/step.py                                  # the quickstart, on this machine's CPU
    python bench/step.py experiments/h200-from-scratch.toml --steps 20
    python bench/step.py --weights runs/quickstart-1/weights/sft-001600 --steps 12
    python bench/step.py --arm uniform: --arm priority:rollout.sampler=priority
    python bench/step.py X.toml --shape 0.6b --no-judge --completions 128 --tokens 256  # see below

Runs the stages before the recipe's first grpo stage once (or takes `--weights`), then that stage
alone for `--steps` steps in each arm, one after another, each as a separate run under `--dir`.
Arms are `name:key=value,key=value`; the default is max_staleness 0 against 1. `--set` applies to
all. Steps 1 to `--skip` are not counted: they contain the trainer's start and the first batch.

`--shape` measures the step that `bench/trl_baseline.py` of the same `--completions`, `--tokens`,
`--lora` and `--no-judge` measures: random weights (made once, kept under `--dir`; its `--model`
takes them too), one turn an answer. `--no-judge` replaces judges by a made-up reward
(`bench/no_judge.py`). On one card trainer and engine share it; on two, engines get the first:

    SAME="experiments/h200-from-scratch.toml --shape 0.6b --no-judge --completions 128 --tokens 256
        --set stage.2.micro_batch_tokens=16384"
    python bench/step.py $SAME --steps 8 --set 'devices.gpus=["0"]'
    python bench/step.py $SAME --steps 8 --set 'devices.gpus=["0","1"]' --lora 64
    CUDA_VISIBLE_DEVICES=0 python bench/trl_baseline.py $SAME --steps 8 --colocate

Prints, by arm: wall time of a step, groups with a signal a second, the share of flat ones (they
have none and are replaced within a budget), completion tokens generated and trained a second,
samples of a step and their mean prompt, the idle share of trainer, engines and judges, how stale
samples were when trained, how long publishes took, reward and pass rate of the first and the last
third, with `--eval` pass@1 on held-out problems after the last step (the only fair comparison of
samplers, which change the training problems); writes every step as JSON. Uses the command line, as
a user does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from step_shape import add_arguments, random_weights, resized, split_changes, without_judge

from forge.config.load import dump_experiment, load_experiment
from forge.config.schema import EvalStage, Experiment, GrpoStage, ModelTable
from forge.process.devices import inventory
from forge.store.layout import RunPaths, find_run
from forge.store.reader import open_run

ROOT = Path(__file__).resolve().parent.parent
QUICKSTART = ROOT / "experiments" / "quickstart.toml"
ARMS = ("synchronous:rollout.max_staleness=0", "overlapped:rollout.max_staleness=1")
ROLES = ("trainer", "serve", "judge")


def main() -> None:
    args = parse()
    args.dir.mkdir(parents=True, exist_ok=True)
    recipe = load_experiment(args.recipe, overrides=args.set)
    if args.shape:
        weights = random_weights(args.shape, store=args.dir)
    else:
        weights = args.weights or train_before(recipe, store=args.dir)
    arms: dict[str, Any] = {}
    for arm in args.arm or ARMS:
        name, _, changes = arm.partition(":")
        overrides = split_changes(changes)
        arms[name] = measure(args, recipe, weights, name=name, overrides=overrides)
        report = {
            "command": " ".join(["python", *sys.argv]),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "machine": machine(),
            "skipped_steps": args.skip,
            "arms": arms,
        }
        args.out.write_text(json.dumps(report, indent=1) + "\n")
        print(tables(arms), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path, nargs="?", default=QUICKSTART)
    parser.add_argument("--weights", type=Path, help="a checkpoint that the grpo stage begins with")
    parser.add_argument("--steps", type=int, default=12, help="GRPO steps of each arm")
    parser.add_argument("--skip", type=int, default=2, help="first steps that are not counted")
    parser.add_argument("--eval", action="store_true", help="measure each arm's last weights")
    parser.add_argument("--arm", action="append", metavar="NAME:KEY=VALUE,...")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    add_arguments(parser)
    parser.add_argument("--dir", type=Path, default=ROOT / "runs" / "step")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "step.json")
    args = parser.parse_args()
    if args.steps <= args.skip:
        parser.error(f"--steps: found {args.steps}; more than --skip = {args.skip}")
    if not args.shape and (args.completions or args.tokens or args.lora):
        parser.error("--completions, --tokens, --lora: with --shape; else --set says it")
    if args.shape and args.weights:
        parser.error("--shape: makes the weights; not with --weights")
    if args.eval and args.no_judge:
        parser.error("--eval: needs judges; not with --no-judge")
    return args


def train_before(recipe: Experiment, *, store: Path) -> Path:
    """Runs the recipe's training stages before its first grpo stage; returns their weights."""
    before = []
    for stage in recipe.stage:
        if isinstance(stage, GrpoStage):
            break
        before += [stage] if stage.kind == "sft" else []
    if not before:
        assert recipe.model.path, "a recipe that begins with grpo begins with a model"
        return Path(recipe.model.path)
    paths = run_forge(recipe.model_copy(update={"name": "step-sft", "stage": before}), store=store)
    with open_run(paths) as reader:
        return Path(reader.value("SELECT path FROM policies ORDER BY version DESC LIMIT 1"))


def measure(
    args: argparse.Namespace,
    recipe: Experiment,
    weights: Path,
    *,
    name: str,
    overrides: list[str],
) -> dict[str, Any]:
    """Runs one arm and reads its record of each step."""
    changed = load_experiment(args.recipe, overrides=[*args.set, *overrides])
    stage = next((s for s in changed.stage if isinstance(s, GrpoStage)), None)
    if stage is None:
        sys.exit(f"{args.recipe}: no grpo stage")
    steps = {"steps": args.steps, "save_every": args.steps}
    is_adapter = (weights / "adapter_config.json").exists()
    model = {"adapter": weights} if is_adapter else {"init": None, "path": str(weights)}
    experiment = changed.model_copy(
        update={
            "name": f"step-{name}",
            "model": ModelTable(**{**changed.model.model_dump(exclude={"tiny"}), **model}),
            "stage": [stage.model_copy(update=steps), *([EvalStage(kind="eval")] * args.eval)],
            "eval": changed.eval.model_copy(update={"every": 0}),
        }
    )
    if args.shape:
        experiment = resized(
            experiment, completions=args.completions, tokens=args.tokens, lora=args.lora
        )
    if args.no_judge:
        experiment = without_judge(experiment)
    paths = run_forge(experiment, store=args.dir, is_judged=not args.no_judge)
    found = steps_of(paths)
    counted = [step for step in found if step["step"] > args.skip]
    with open_run(paths) as reader:
        heldout = reader.rows("SELECT pass_at_1, ci_low, ci_high FROM v_evaluations")
    if args.shape:
        for folder in (paths.weights, paths.checkpoints):  # gigabytes of noise, in every arm
            shutil.rmtree(folder)
    return {
        "run": str(paths.root),
        "overrides": overrides,
        **summary(counted),
        "heldout": heldout[-1] if heldout else None,
        "steps": found,
    }


def run_forge(experiment: Experiment, *, store: Path, is_judged: bool = True) -> RunPaths:
    """Runs `forge run ...` with its progress on our stderr. Ends the benchmark if it fails."""
    table = experiment.store.model_copy(update={"dir": store.absolute()})
    file = store / f"{experiment.name}.toml"
    file.write_text(dump_experiment(experiment.model_copy(update={"store": table})))
    forge = ["-m", "forge"] if is_judged else [str(ROOT / "bench" / "no_judge.py")]
    command = [sys.executable, *forge, "run", str(file.absolute())]
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)
    return find_run(experiment.name, store_dir=store)


def steps_of(paths: RunPaths) -> list[dict[str, Any]]:
    """Figures of every step in the store."""
    with open_run(paths) as reader:
        metrics = reader.rows("SELECT step, key, value FROM v_metrics ORDER BY step")
        stale = reader.rows("SELECT step, staleness, num_samples FROM v_staleness ORDER BY step")
        curve = reader.rows("SELECT step, reward, pass_rate FROM v_steps")
        prompts = reader.rows(
            "SELECT step, count(*) AS num_samples, avg(num_prompt_tokens) AS prompt_tokens "
            "FROM v_samples GROUP BY step"
        )
    steps: dict[int, dict[str, Any]] = {}
    for row in metrics:
        steps.setdefault(row["step"], {"step": row["step"]})[row["key"]] = row["value"]
    for row in stale:
        ages = steps[row["step"]].setdefault("staleness", {})
        ages[str(row["staleness"])] = row["num_samples"]
    for row in curve:
        if row["step"] in steps:
            steps[row["step"]].update(reward=row["reward"], pass_rate=row["pass_rate"])
    for row in prompts:
        steps.setdefault(row["step"], row).update(row)
    return [step for step in steps.values() if "step/wall/seconds" in step]


def summary(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Sums and means over the counted steps. Shares are of wall time, not means of shares."""

    def total(key: str) -> float:
        return sum(step.get(key) or 0.0 for step in steps)

    wall_s = total("step/wall/seconds")
    flat = total("rollout/flat_groups/count")
    groups = total("rollout/groups/count") - flat
    ages = [(int(age), n) for s in steps for age, n in s.get("staleness", {}).items()]
    third = max(len(steps) // 3, 1)
    return {
        "num_steps": len(steps),
        "wall_s": wall_s,
        "step_s": {
            "mean": wall_s / len(steps),
            "median": statistics.median(step["step/wall/seconds"] for step in steps),
        },
        "groups_per_s": groups / wall_s,
        "flat_share": flat / max(groups + flat, 1.0),
        "generated_tokens_per_s": total("rollout/tokens/sum") / wall_s,
        "trained_tokens_per_s": total("train/tokens/sum") / wall_s,
        "forwarded_tokens_per_s": total("train/forward_tokens/sum") / wall_s,
        "samples": total("num_samples") / len(steps),
        "prompt_tokens": sum(s.get("num_samples", 0) * s.get("prompt_tokens", 0.0) for s in steps)
        / max(total("num_samples"), 1.0),
        "train_s": total("train/step/seconds") / len(steps),
        "publish_s": total("weights/publish/seconds") / len(steps),
        "idle": {role: total(f"idle/{role}/seconds") / wall_s for role in ROLES},
        "staleness": {
            "mean": sum(age * n for age, n in ages) / max(sum(n for _, n in ages), 1),
            "max": max((age for age, _ in ages), default=0),
        },
        "in_flight_groups": total("rollout/in_flight_groups/count") / len(steps),
        "stale_groups": total("rollout/stale_groups/count"),
        "first_third": curve_of(steps[:third]),
        "last_third": curve_of(steps[-third:]),
    }


def curve_of(steps: list[dict[str, Any]]) -> dict[str, float | None]:
    """Mean reward and pass rate; None where nothing was scored."""
    found: dict[str, float | None] = {}
    for key in ("reward", "pass_rate"):
        values = [step[key] for step in steps if step.get(key) is not None]
        found[key] = statistics.fmean(values) if values else None
    return found


def machine() -> str:
    cards = ", ".join(gpu.name for gpu in inventory())
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, {cards or 'no GPU'}"


def tables(arms: dict[str, Any]) -> str:
    """Results as Markdown; ratios are relative to the first arm."""
    first = next(iter(arms.values()))
    names = (
        "arm", "s a step (median)", "groups/s", "x", "flat", "generated tok/s", "trained tok/s",
        "samples", "prompt tokens", "trains s", "publish s", "idle trainer", "serve", "judge",
        "staleness mean, max", "in flight", "reward first → last third", "pass rate",
        "held-out pass@1",
    )  # fmt: skip
    lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for name, arm in arms.items():
        idle = " | ".join(f"{arm['idle'][role]:.0%}" for role in ROLES)
        begin, end = arm["first_third"], arm["last_third"]
        curves = " | ".join(
            f"{shown(begin[key])} → {shown(end[key])}" for key in ("reward", "pass_rate")
        )
        lines.append(
            f"| {name} | {arm['step_s']['mean']:.2f} ({arm['step_s']['median']:.2f}) "
            f"| {arm['groups_per_s']:.2f} | {arm['groups_per_s'] / first['groups_per_s']:.2f} "
            f"| {arm['flat_share']:.0%} | {arm['generated_tokens_per_s']:.0f} "
            f"| {arm['trained_tokens_per_s']:.0f} | {arm['samples']:.0f} "
            f"| {arm['prompt_tokens']:.0f} "
            f"| {arm['train_s']:.2f} | {arm['publish_s']:.2f} | {idle} "
            f"| {arm['staleness']['mean']:.2f}, {arm['staleness']['max']} "
            f"| {arm['in_flight_groups']:.1f} | {curves} | {interval(arm.get('heldout'))} |"
        )
    return "\n".join(lines)


def interval(found: dict[str, float] | None) -> str:
    if found is None:
        return "–"
    return f"{found['pass_at_1']:.1%} ({100 * found['ci_low']:.0f}–{100 * found['ci_high']:.0f})"


def shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
