"""Random samples for the trainer's tests: independent ones, and siblings that share prefixes."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from forge.records import Sample


def make_samples(num: int, *, seed: int, spread: float = 0.3) -> list[Sample]:
    """Samples of different lengths with nothing in common.

    `spread` is the deviation of the log probabilities around those of a random tiny model.
    """
    draw = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(5, 300) for _ in range(draw.randrange(low, high)))

    found = []
    for i in range(num):
        answer = ids(1, 25)
        found.append(
            Sample(
                sample_id=i, group_id=0, rollout=i, turn=0, policy_version=0,
                prompt_ids=ids(4, 20), completion_ids=answer,
                logprobs=tuple(draw.gauss(-5.8, spread) for _ in answer),
                advantage=draw.gauss(0, 1),
            )
        )  # fmt: skip
    return found


def make_group(*, seed: int, siblings: int = 3, turns: int = 2) -> list[Sample]:
    """Siblings of one prompt; a turn's prompt is everything before it, and a few tokens more."""
    draw = random.Random(seed)

    def ids(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw.randrange(5, 300) for _ in range(draw.randrange(low, high)))

    found, prompt = [], ids(4, 20)
    for rollout in range(siblings):
        seen = prompt
        for turn in range(turns):
            answer = ids(1, 15)
            found.append(
                Sample(
                    sample_id=len(found), group_id=seed, rollout=rollout, turn=turn,
                    prompt_ids=seen, completion_ids=answer, policy_version=0,
                    logprobs=tuple(draw.gauss(-5.8, 0.4) for _ in answer),
                    advantage=draw.gauss(0, 1),
                )
            )  # fmt: skip
            seen = seen + answer + ids(0, 5)
    return found


def scored_by(model_dir: Path, samples: Sequence[Sample]) -> list[Sample]:
    """The samples with the model's own log probabilities."""
    from transformers import Qwen3ForCausalLM

    from forge.train.trainer.publish.weights import score

    model = Qwen3ForCausalLM.from_pretrained(model_dir)
    return [replace(s, logprobs=tuple(score(model, s.prompt_ids, s.completion_ids)))
            for s in samples]  # fmt: skip
