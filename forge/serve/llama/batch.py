"""The tokens of one `llama_decode`: numpy columns, and a `llama_batch` that points to them; and
teacher forcing with it, which publish probes and tests compare with the trainer's.

Filled by `engine` and `score`, read by `model`. Promise: never more tokens than the context holds,
nor more rows of logits than it reserves; llama.cpp aborts the process on either.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from forge.serve.request import check_score

if TYPE_CHECKING:
    from forge.serve.llama.binding import Binding
    from forge.serve.llama.model import LlamaModel


class DecodeBatch:
    """Columns of up to `capacity` tokens. Rows of logits are in the order of the requested
    outputs."""

    def __init__(self, binding: Binding, *, capacity: int) -> None:
        self.capacity = capacity
        self.size = 0
        self.num_outputs = 0
        self.token = np.zeros(capacity, np.int32)
        self.position = np.zeros(capacity, np.int32)
        self.sequence = np.zeros(capacity, np.int32)
        self.output = np.zeros(capacity, np.int8)
        self._num_sequences = np.ones(capacity, np.int32)
        first = self.sequence.ctypes.data
        self._sequence_pointers = (first + 4 * np.arange(capacity)).astype(np.uint64)
        int_p = ctypes.POINTER(ctypes.c_int32)
        self.c_batch: Any = binding.c.llama_batch(
            0,
            self.token.ctypes.data_as(int_p),
            None,
            self.position.ctypes.data_as(int_p),
            self._num_sequences.ctypes.data_as(int_p),
            self._sequence_pointers.ctypes.data_as(ctypes.POINTER(int_p)),
            self.output.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    @property
    def room(self) -> int:
        """Number of tokens that still fit."""
        return self.capacity - self.size

    def clear(self) -> None:
        """Remove all tokens."""
        self.size = 0
        self.num_outputs = 0

    def add_step(self, sequences: np.ndarray, tokens: np.ndarray, positions: np.ndarray) -> None:
        """Add one token of each sequence, with logits. The batch must be empty. All [R]."""
        end = sequences.size
        assert self.size == 0
        assert end <= self.capacity
        self.token[:end] = tokens
        self.position[:end] = positions
        self.sequence[:end] = sequences
        self.output[:end] = 1
        self.size = self.num_outputs = end

    def add_run(self, sequence: int, tokens: np.ndarray, start: int) -> None:
        """Add consecutive tokens of one sequence from position `start`, without logits."""
        begin, end = self.size, self.size + tokens.size
        assert end <= self.capacity
        self.token[begin:end] = tokens
        self.position[begin:end] = np.arange(start, start + tokens.size)
        self.sequence[begin:end] = sequence
        self.output[begin:end] = 0
        self.size = end

    def want_last(self, count: int = 1) -> None:
        """Request logits of the last `count` tokens."""
        self.output[self.size - count : self.size] = 1
        self.num_outputs += count


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
    # Logits at position p score token p + 1: they are requested from the prompt's last token on.
    last, start, logprobs = prompt.size - 1, 0, []
    max_rows = min(batch.capacity, model.settings.num_sequences)
    try:
        while start < last:
            end = min(start + batch.capacity, last)
            batch.clear()
            batch.add_run(sequence, tokens[start:end], start)
            model.decode(batch)
            start = end
        while start < tokens.size - 1:
            end = min(start + max_rows, tokens.size - 1)
            batch.clear()
            batch.add_run(sequence, tokens[start:end], start)
            batch.want_last(end - start)
            logprobs.append(_logprobs(model.decode(batch), tokens[start + 1 : end + 1]))
            start = end
    finally:
        model.drop(sequence)
    return np.concatenate(logprobs)


def _logprobs(logits: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64))
    return shifted[np.arange(tokens.size), tokens] - total
