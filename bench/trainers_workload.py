"""Training workloads without a real model: a random Qwen3, steps of samples as forge plays
them (`bench/trainers.py`), and a reward without a judge (`bench/step.py`, `bench/trl_baseline.py`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.records import Sample

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32,
             "intermediate_size": 128, "vocab_size": 512, "tie_word_embeddings": True},
    "0.6b": {"hidden_size": 1024, "num_layers": 28, "num_heads": 16, "num_kv_heads": 8,
             "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
             "tie_word_embeddings": True},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Size of a step."""

    groups: int
    siblings: int
    turns: int
    prompt_tokens: int
    completion_tokens: int
    """Maximum completion tokens; the minimum is a quarter of it."""

    @property
    def num_samples(self) -> int:
        return self.groups * self.siblings * self.turns


LOADS = {
    "tiny": Load(groups=2, siblings=4, turns=2, prompt_tokens=60, completion_tokens=40),
    "0.6b": Load(groups=8, siblings=8, turns=2, prompt_tokens=512, completion_tokens=256),
}


def make_step(load: Load, *, vocab: int, seed: int) -> list[Sample]:
    """Samples of one step. The lengths are the same for every seed, so that all steps cost the
    same.
    """
    sizes, draw = random.Random(0), random.Random(seed)

    def tokens(size: int) -> tuple[int, ...]:
        return tuple(draw.randrange(10, vocab) for _ in range(size))

    found: list[Sample] = []
    for group in range(load.groups):
        prompt = tokens(load.prompt_tokens)
        for rollout in range(load.siblings):
            seen = prompt
            for turn in range(load.turns):
                size = sizes.randrange(load.completion_tokens // 4, load.completion_tokens + 1)
                answer = tokens(size)
                found.append(
                    Sample(
                        sample_id=len(found), group_id=group, rollout=rollout, turn=turn,
                        prompt_ids=seen, completion_ids=answer, policy_version=1,
                        logprobs=tuple(-math.log(vocab) + draw.gauss(0, 0.1) for _ in answer),
                        advantage=draw.gauss(0, 1),
                    )
                )  # fmt: skip
                seen = seen + answer + tokens(load.prompt_tokens // 8)
    return found


def made_up_reward(token_ids: Sequence[int]) -> float:
    """Reward 1 for an answer whose ids have an odd sum, else 0: half of random answers. A few steps
    do not learn it, so groups keep their signal (2 in 256 groups of 8 are flat).
    """
    return float(sum(token_ids) % 2)


def make_model(shape: str, at: Path) -> Path:
    """A random Qwen3 and a tokenizer with a few hundred entries, little more than bytes, so that
    the short prompts of generated problems have as many tokens as real ones: 410 on average.
    """
    from forge.config.schema import TinyModel
    from forge.train.trainer.model.init_model import make_model as make

    table = TinyModel.model_construct(**SHAPES[shape], max_context_tokens=32768)
    sizes = {**table.model_dump(), "initializer_range": 0.02}
    make(sizes, texts=["def f(x): return tl.load(x)"] * 20, model_dir=at, seed=0)
    return at
