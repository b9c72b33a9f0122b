"""A recipe with random weights of its model's shape, for a few steps of each stage: what training
costs on this machine, before anything is downloaded.

    python bench/recipe.py quickstart --steps 4                    # this machine's CPU, a minute
    python bench/recipe.py qwen3-8b-full --steps 6 --set rollout.max_completion_tokens=2048

Takes a file or a name in `experiments/`. The model is written once under `--dir`, in bf16; rows of
SFT are random, from a quarter of `max_length` to all of it; problems are generated, and judges are
replaced by a made-up reward (`bench/no_judge.py`). Only training is kept; of its times a tenth of
the steps is left out, at least one. Then the run is forked after the last stage's checkpoint.

Prints, by stage: seconds of a step, tokens a second (prompts included, a shared prefix as often as
it occurs), their model FLOPs as a share of the card's dense bf16 peak (6 a parameter and token, 4
under an adapter, and attention; repeated work does not count, after Chowdhery et al., PaLM,
appendix B), peak memory, idle shares, seconds of a publish, seconds for which a step waited for a
checkpoint, and seconds from the fork to its first step. What is not known is said to be.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from step import ROLES, machine, run_forge
from step_shape import without_judge

from forge.config.load import load_experiment
from forge.config.schema import DataTable, Experiment, ProblemsTable, TrainStage
from forge.runner.plan.duration import CARDS
from forge.runner.plan.machine import this_machine
from forge.runner.plan.plan import plan
from forge.runner.plan.shape import KNOWN, config_dir, model_shape, read_config
from forge.store.layout import RunPaths, find_run
from forge.store.reader import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forge.process.devices import Gpu

ROOT = Path(__file__).resolve().parent.parent
NUM_ROWS = 256


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", help="a file, or a name in experiments/")
    parser.add_argument("--steps", type=int, default=6, help="steps of each stage")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm/recipes"))
    args = parser.parse_args()
    named = ROOT / "experiments" / f"{args.recipe}.toml"
    path = named if named.exists() else Path(args.recipe)
    recipe = load_experiment(path, overrides=args.set, is_here=False)
    args.dir.mkdir(parents=True, exist_ok=True)
    experiment = changed(recipe, steps=args.steps, at=args.dir.absolute())
    paths = run_forge(experiment, store=args.dir, is_judged=False)
    began = time.time()
    again = ["--fork", f"{paths.root}:{args.steps - 1}", "--store", str(args.dir.absolute())]
    command = [sys.executable, str(ROOT / "bench" / "no_judge.py"), "run", *again]
    subprocess.run(command, check=True, cwd=ROOT, stdout=sys.stderr)
    resumed = find_run(experiment.name, store_dir=args.dir)
    made = plan(experiment, machine=this_machine(experiment.store.dir, serve=experiment.serve))
    found = {
        "recipe": experiment.name,
        "machine": machine(),
        "stages": figures(paths, experiment, cards=made.placement.train),
        "resume_s": round(min(row["at"] for row in metrics_of(resumed)) - began, 1),
    }
    print(json.dumps(found, indent=1))
    shutil.rmtree(paths.root)
    shutil.rmtree(resumed.root)


def changed(recipe: Experiment, *, steps: int, at: Path) -> Experiment:
    """The recipe for a few steps, on random weights and rows of this folder."""
    stages, longest = [], 0
    for stage in recipe.stage:
        if not isinstance(stage, TrainStage):
            continue
        update: dict[str, Any] = {"steps": steps, "warmup_steps": 0, "save_every": steps - 1}
        if stage.kind == "sft":
            update |= {"epochs": None, "source": "data"}
            longest = max(longest, stage.max_length)
        stages.append(stage.model_copy(update=update))
    data = DataTable()
    if longest:
        data = DataTable(source="file", path=write_rows(at / f"rows-{longest}.jsonl", longest))
    model = recipe.model
    if not model.init:
        path = str(write_model(recipe, at))
        model = model.model_copy(update={"path": path, "revision": None, "adapter": None})
    update = {
        "name": f"recipe-{recipe.name}", "model": model, "data": data, "stage": stages, "round": [],
        "problems": ProblemsTable(), "eval": recipe.eval.model_copy(update={"every": 0}),
    }  # fmt: skip
    return without_judge(recipe.model_copy(update=update))


def write_rows(path: Path, max_length: int) -> Path:
    """Random conversations of a quarter to all of that many tokens, a fifth of them the prompt. Of
    the words' letters, each is a token: the vocabulary has little more than bytes."""
    draw = random.Random(0)

    def text(size: int) -> str:
        return "".join(draw.choices("bcdfghjklmnpqrstvwxz", k=size))

    with path.open("w") as file:
        for _ in range(NUM_ROWS):
            size = draw.randrange(max_length // 4, max_length - 40)
            row = {"prompt": text(size // 5), "completion": text(size - size // 5)}
            file.write(json.dumps(row) + "\n")
    return path


def write_model(recipe: Experiment, at: Path) -> Path:
    """Random weights in bf16 of the recipe's model, with a small tokenizer."""
    name = (recipe.model.path or "").rpartition("/")[2].lower()
    folder = at / f"model-{name}"
    if (folder / "tokenizer.json").exists():
        return folder
    if found := config_dir(recipe.model):
        raw = dict(read_config(found))
    else:
        fitting = [known for known in KNOWN if name == known or name.startswith(f"{known}-")]
        if not fitting:
            sys.exit(f"model.path: found {recipe.model.path}, of unknown shape; {', '.join(KNOWN)}")
        raw = {**KNOWN[max(fitting, key=len)], "max_position_embeddings": 40_960}
    import torch
    import transformers
    from trainers_workload import make_model

    config: Any = transformers.AutoConfig.for_model(**{**raw, "dtype": "bfloat16"})
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(str(folder))
    tokenizer = make_model("tiny", at / "tokenizer")
    for file in ("chat_template.jinja", "tokenizer_config.json", "tokenizer.json"):
        shutil.copy(tokenizer / file, folder / file)
    return folder


def metrics_of(paths: RunPaths) -> list[dict[str, Any]]:
    with open_run(paths) as reader:
        return reader.rows(
            "SELECT * FROM metrics WHERE step > 0 AND (key LIKE 'train/%' OR key LIKE '%/seconds')"
        )


def figures(paths: RunPaths, experiment: Experiment, *, cards: Sequence[Gpu]) -> list[Any]:
    """Figures of each stage from the run's store; `cards` are the trainer's."""
    metrics, found = metrics_of(paths), []
    for number, stage in enumerate(experiment.stage):
        assert isinstance(stage, TrainStage)
        first = [row for row in metrics if row["stage"] == number]
        skipped = max(stage.steps // 10, 1)
        steps: dict[int, dict[str, float]] = {}
        for row in first:
            steps.setdefault(row["step"], {})[row["key"]] = row["value"]
        counted = [values for step, values in steps.items() if step > skipped]
        ends = {row["step"]: row["at"] for row in first}
        tokens_per_s = middle(counted, "train/tokens/per_s")
        if tokens_per_s and stage.kind == "sft":  # it counts all but the prompts
            tokens_per_s = round(1.25 * tokens_per_s)
        spans = [ends[step + 1] - at for step, at in ends.items() if step and step + 1 in ends]
        found.append({
            "stage": f"{stage.kind}-{number}",
            "steps": len(steps),
            "step_s": middle(counted, "step/wall/seconds") or (spans and statistics.median(spans)),
            "tokens_per_s": tokens_per_s,
            "share_of_peak": share_of_peak(experiment, stage, tokens_per_s, cards=cards),
            "peak_gb": round(highest(first, "train/peak_bytes/max") / 1e9, 2) or "unknown",
            "idle": {role: ratio(counted, f"idle/{role}/seconds") for role in ROLES},
            "publish_s": middle(counted, "weights/publish/seconds"),
            "checkpoint_wait_s": highest(first, "train/checkpoint/seconds"),
        })  # fmt: skip
    return found


def share_of_peak(
    experiment: Experiment, stage: Any, tokens_per_s: float | None, *, cards: Sequence[Gpu]
) -> Any:
    """Model FLOPs of that rate by the peak of the trainer's cards; in words what is not known."""
    peak = next((card.flops for name, card in CARDS.items() if cards and name in cards[0].name), 0)
    shape = model_shape(experiment.model)
    if not peak or shape is None or tokens_per_s is None:
        missing = "rate" if peak and shape else "shape" if peak else "peak"
        return f"unknown: no {missing} of {cards[0].name if cards else 'a CPU'}"
    used, config = shape.active_params, read_config(Path(experiment.model.path or ""))
    if not config.get("tie_word_embeddings"):  # an input embedding of its own multiplies nothing
        used -= shape.vocab * shape.hidden
    is_sft = stage.kind == "sft"
    length = stage.max_length * 5 / 8 if is_sft else experiment.serve.context_tokens / 2
    factor = 6 if experiment.model.lora is None else 4
    flops = factor * (used + shape.layers * shape.heads * shape.head_dim * length)
    return round(tokens_per_s * flops / (peak * len(cards)), 3)


def middle(steps: list[dict[str, float]], key: str) -> float | None:
    values = [step[key] for step in steps if key in step]
    return round(statistics.median(values), 3) if values else None


def highest(rows: list[dict[str, Any]], key: str) -> float:
    return max((row["value"] for row in rows if row["key"] == key), default=0.0)


def ratio(steps: list[dict[str, float]], part: str) -> float | None:
    total = sum(step.get("step/wall/seconds", 0.0) for step in steps)
    return round(sum(step.get(part, 0.0) for step in steps) / total, 3) if total else None


if __name__ == "__main__":
    main()
