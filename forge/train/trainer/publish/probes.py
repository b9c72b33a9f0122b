"""What a publish is proven with: tokens of the run's own, scored by the trainer with the weights
that it publishes and with those before.

The tokens are chosen once and kept beside the checkpoints: scores of the same tokens before and
after a step are what tells its weights from the last ones, and a resumed stage has them before its
first batch. Random tokens would not do: in bf16 a model is unsure of them in another way than any
two of its versions differ (0.02 to 0.04 nats with 4 layers already).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from peft import PeftModel
    from transformers import PreTrainedModel

    from forge.records import Sample

PROBE_TOKENS = 128
"""At most. With 32, bf16 rounding of one token decides too often (false alarms of the rule in
runner/weights.py: 1 in 15 probes; with 128 none of the 240 on the samples chosen here)."""
PROMPT_TOKENS = 256
ROW_TOKENS = 32
"""Of an SFT row, and as many before them: engines of any context take these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A prompt's end and the beginning of what follows it."""

    prompt: Sequence[int]
    completion: Sequence[int]

    @classmethod
    def of_samples(cls, samples: Sequence[Sample]) -> Tokens:
        """Of the sample that was the greatest surprise to the model itself: tokens that it is
        certain of are the same to all versions."""
        most = min(samples, key=lambda s: math.fsum(s.logprobs[:PROBE_TOKENS]))
        return cls(
            prompt=most.prompt_ids[-PROMPT_TOKENS:], completion=most.completion_ids[:PROBE_TOKENS]
        )

    @classmethod
    def of_rows(cls, rows: Iterable[dict[str, Any]]) -> Tokens | None:
        """Of the SFT row with most to learn from; None where none has a token before that."""
        row = max(rows, key=lambda row: sum(label != -100 for label in row["labels"][1:]))
        labelled = (i for i, label in enumerate(row["labels"]) if i and label != -100)
        start = next(labelled, None)
        if start is None:
            return None
        ids = row["input_ids"]
        return cls(
            prompt=ids[max(start - ROW_TOKENS, 0) : start],
            completion=ids[start : start + ROW_TOKENS],
        )


class Prober:
    """A stage's probe tokens and their scores under the weights last handed over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tokens: Tokens | None = None
        self._before: list[float] | None = None
        if path.is_file():
            self._tokens = Tokens(**json.loads(path.read_text()))

    @property
    def is_ready(self) -> bool:
        """Whether there are tokens, and scores from before the next publish."""
        return self._before is not None

    def choose(self, samples: Sequence[Sample], model: Any, *, keeps: bool) -> None:
        """Before the first step: from its batch, scored with the weights as they are served.
        Collective.

        Args:
            keeps: write the file; one rank does.

        """
        if self._tokens is None:
            self._tokens = Tokens.of_samples(samples)
            if keeps:
                self._write(self._tokens)
        self._before = score(model, self._tokens.prompt, self._tokens.completion)

    def take(self, model: Any) -> dict[str, Any] | None:
        """The probe of the weights as they are; None where the stage has no tokens yet.
        Collective."""
        if self._tokens is None:
            return None
        found = probe(model, self._tokens)
        if self._before is not None:
            found["before"] = self._before
        self._before = found["logprobs"]
        return found

    def _write(self, tokens: Tokens) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        partial = self._path.with_suffix(".partial")
        ids = {"prompt": list(tokens.prompt), "completion": list(tokens.completion)}
        partial.write_text(json.dumps(ids))
        partial.rename(self._path)


def probe(model: PreTrainedModel | PeftModel, tokens: Tokens) -> dict[str, Any]:
    """The tokens with their log probabilities under the weights as they are, at temperature 1."""
    return {
        "prompt_ids": list(tokens.prompt),
        "completion_ids": list(tokens.completion),
        "logprobs": score(model, tokens.prompt, tokens.completion),
    }


@torch.no_grad()
def score(
    model: PreTrainedModel | PeftModel, prompt: Sequence[int], completion: Sequence[int]
) -> list[float]:
    """Teacher-forced log probability of each completion token."""
    was_training = model.training
    model.eval()
    try:
        ids_1T = torch.tensor([[*prompt, *completion]], device=model.device)
        logits_1TV = model(input_ids=ids_1T, use_cache=False).logits
    finally:
        model.train(was_training)
    start = len(prompt) - 1
    logprobs_TV = logits_1TV[0, start:-1].float().log_softmax(-1)
    targets_T1 = ids_1T[0, start + 1 :, None]
    return logprobs_TV.gather(-1, targets_T1)[:, 0].tolist()
