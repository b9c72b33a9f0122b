"""Changes of `bench/step.py --shape` to a recipe: its GRPO step at another size, on random
weights, for comparison with `bench/trl_baseline.py` of the same arguments.

Both get the model and the tokenizer of `trainers_workload.make_model` and one turn an answer;
problems, prompts, group size, clipping and loss stay the recipe's.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from trainers_workload import SHAPES

from forge.config.schema import Experiment, LoraTable, RewardTable

NOBODY = "http://no-judge.invalid"
"""URL of a pool in runs without a judge: it needs no GPU, and plain forge fails to connect."""
MADE_UP = RewardTable(compiled=1.0, correct=0.0, speedup=0.0)
"""Reward 0 or 1, as in trl_baseline.py."""
BETWEEN = re.compile(r",(?![^\[\]]*\])")
"""Commas outside brackets."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options with the same names as in trl_baseline.py."""
    parser.add_argument("--shape", choices=SHAPES, help="random weights; nothing is trained before")
    parser.add_argument("--completions", type=int, default=0, help="a step; 0: the recipe's")
    parser.add_argument("--tokens", type=int, default=0, help="an answer; 0: the recipe's")
    parser.add_argument("--lora", type=int, default=0, help="rank, with --shape; 0: all weights")
    parser.add_argument("--no-judge", action="store_true", help="a made-up reward")


def split_changes(text: str) -> list[str]:
    """Splits an arm's `key=value,key=[a,b]` into its changes."""
    return [change for change in BETWEEN.split(text) if change]


def random_weights(shape: str, *, store: Path) -> Path:
    """A model directory, made once and reused by later calls of the same shape.

    A separate process makes it and frees its memory.
    """
    at = (store / f"model-{shape}").absolute()
    if not at.exists():
        command = [sys.executable, __file__, shape, str(at)]
        subprocess.run(command, check=True, stdout=sys.stderr)
    return at


def resized(experiment: Experiment, *, completions: int, tokens: int, lora: int) -> Experiment:
    """Changes for one turn per answer, with the given number of answers and tokens per step; 0
    keeps the recipe's value.

    Raises SystemExit if the answers do not divide into whole groups.
    """
    size = experiment.rollout.group_size
    if completions % size:
        raise SystemExit(f"--completions: found {completions}; a multiple of group_size = {size}")
    rollout: dict[str, Any] = {"max_turns": 1}
    if completions:
        rollout["groups_per_step"] = completions // size
    if tokens:
        rollout["max_completion_tokens"] = tokens
    changed: dict[str, Any] = {"rollout": experiment.rollout.model_copy(update=rollout)}
    if lora:
        table = LoraTable(r=lora, alpha=2.0 * lora)
        changed["model"] = experiment.model.model_copy(update={"lora": table})
    return experiment.model_copy(update=changed)


def without_judge(experiment: Experiment) -> Experiment:
    """Changes for `no_judge.py`: judges get no GPU, and no problem is examined."""
    judge = experiment.judge.model_copy(update={"url": [NOBODY]})
    problems = experiment.problems.model_copy(update={"allow_flagged": True})
    return experiment.model_copy(update={"judge": judge, "problems": problems, "reward": MADE_UP})


if __name__ == "__main__":
    from trainers_workload import make_model

    make_model(sys.argv[1], Path(sys.argv[2]))
