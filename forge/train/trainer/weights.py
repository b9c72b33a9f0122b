"""Weights on their way out of a trainer: complete directories that an engine, PEFT or transformers
can load."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from forge.train.durable import whole_dir

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

    from forge.records import Sample

# What a model directory holds besides its weights; copied, so that each published directory is
# complete.
_SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "generation_config.json",
)
# Enough tokens to tell one policy version from the next, cheap to score on every replica.
PROBE_TOKENS = 32
PROBE_PROMPT_TOKENS = 256


def save_weights(
    model: PreTrainedModel | PeftModel, path: Path, *, model_dir: Path, sync: bool
) -> None:
    """Write a directory: full weights with config and tokenizer, or for a PEFT model the adapter
    that is trained, alone."""
    with whole_dir(path, sync=sync) as partial:
        if hasattr(model, "peft_config"):  # TRL may have put its reference beside it
            model.save_pretrained(str(partial), selected_adapters=["default"])
        else:
            model.save_pretrained(str(partial))
        for name in _SIDE_FILES:
            if (model_dir / name).is_file():
                _copy(model_dir / name, partial / name)


def free_dir(parent: Path, name: str) -> Path:
    """A path nobody used: a resumed stage publishes a step again, and the first may still be
    read."""
    path, number = parent / name, 1
    while path.exists():
        number += 1
        path = parent / f"{name}.{number}"
    return path


def probe(
    model: PreTrainedModel | PeftModel, sample: Sample | None, *, seed: int
) -> dict[str, Any]:
    """A few tokens with their log probabilities under the weights as they are, at temperature 1.

    The tokens are a sample's; before there is one, random ones (any ids will do to compare two
    forward passes).
    """
    if sample is None:
        generator = torch.Generator().manual_seed(seed)
        size = model.config.get_text_config().vocab_size
        ids = torch.randint(0, size, (2 * PROBE_TOKENS,), generator=generator).tolist()
        prompt, completion = ids[:PROBE_TOKENS], ids[PROBE_TOKENS:]
    else:
        prompt = list(sample.prompt_ids[-PROBE_PROMPT_TOKENS:])
        completion = list(sample.completion_ids[:PROBE_TOKENS])
    return {
        "prompt_ids": prompt,
        "completion_ids": completion,
        "logprobs": score(model, prompt, completion),
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


def _copy(source: Path, target: Path) -> None:
    """A hard link where the file system allows: these files never change once written."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
