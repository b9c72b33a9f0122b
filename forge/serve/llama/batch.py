"""The tokens of one `llama_decode`: numpy columns, and a `llama_batch` that points to them.

Filled by `engine` and `score`, read by `model`. Promise: never more tokens than the context holds,
nor more rows of logits than it reserves; llama.cpp aborts the process on either.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from forge.serve.llama.binding import Binding


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
        self.c_batch = self._c_batch(binding.c)

    def _c_batch(self, c: Any) -> Any:
        int_p = ctypes.POINTER(ctypes.c_int32)
        return c.llama_batch(
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
