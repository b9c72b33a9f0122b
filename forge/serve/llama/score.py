"""Teacher forcing: log probabilities of given tokens, which publish probes and tests compare with
the trainer's.

Called by `engine` between two steps, with a reserved sequence id. Promise: inputs are checked
before llama.cpp gets them, and the sequence is empty afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forge.serve.request import check_score

if TYPE_CHECKING:
    from forge.serve.llama.batch import DecodeBatch
    from forge.serve.llama.model import LlamaModel


def score(
    model: LlamaModel,
    batch: DecodeBatch,
    prompt: np.ndarray,
    completion: np.ndarray,
    *,
    sequence: int,
) -> np.ndarray:
    """Log probability at temperature 1 of each completion token after all before it. [T]"""
    context_tokens = model.settings.context_tokens
    check_score(prompt, completion, num_vocab=model.num_vocab, context_tokens=context_tokens)
    tokens = np.concatenate([prompt, completion]).astype(np.int32)
    try:
        return _score(model, batch, tokens, prompt.size, sequence)
    finally:
        model.drop(sequence)


def _score(
    model: LlamaModel, batch: DecodeBatch, tokens: np.ndarray, num_prompt: int, sequence: int
) -> np.ndarray:
    """Logits at position p score token p + 1, so they are requested from the prompt's last token
    on."""
    start, logprobs = 0, []
    while start < num_prompt - 1:
        end = min(start + batch.capacity, num_prompt - 1)
        batch.clear()
        batch.add_run(sequence, tokens[start:end], start)
        model.decode(batch)
        start = end
    max_rows = min(batch.capacity, model.settings.num_sequences)
    while start < tokens.size - 1:
        end = min(start + max_rows, tokens.size - 1)
        batch.clear()
        batch.add_run(sequence, tokens[start:end], start)
        batch.want_last(end - start)
        logprobs.append(_logprobs(model.decode(batch), tokens[start + 1 : end + 1]))
        start = end
    return np.concatenate(logprobs)


def _logprobs(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64))
    return shifted[np.arange(tokens.size), tokens] - total
