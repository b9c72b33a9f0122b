"""Drawing one token for each row of logits in numpy, all rows at once: Python code for each row
would cost more than a small model.

Promise: temperature, then top-k, then top-p, the order of transformers and vLLM. llama.cpp's own
samplers use another order, so their log probabilities match no trainer's.
Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import numpy as np

from forge.serve.engine.rows import Draw, Knobs

BLOCK = 256
"""Number of probabilities summed as one block: cumulative sums then run over V/256 blocks and
inside one block."""


class TokenSampler:
    """Reuses its padded buffer of probabilities, so that a step allocates little."""

    def __init__(self, *, num_vocab: int, max_rows: int) -> None:
        self.num_vocab = num_vocab
        self._num_blocks = -(-num_vocab // BLOCK)
        self._padded = np.zeros((max_rows, self._num_blocks * BLOCK), np.float32)

    @np.errstate(invalid="ignore", over="ignore")  # reported as is_finite
    def draw(self, logits: np.ndarray, knobs: Knobs, uniform: np.ndarray) -> Draw:
        """Draw one token for each row. `logits` [R, V] do not change; `uniform` is [R]."""
        rows = np.arange(len(logits))
        top = logits.max(axis=1)
        shifted = logits - top[:, None]
        probs = self._padded[: len(logits), : self.num_vocab]
        np.exp(shifted, out=probs)
        log_total_t1 = np.log(probs.sum(axis=1, dtype=np.float64))
        is_finite = np.isfinite(log_total_t1) & np.isfinite(top)
        scaled, log_total = shifted, log_total_t1
        greedy = knobs.temperature == 0.0
        if not (greedy | (knobs.temperature == 1.0)).all():
            temperature = np.where(greedy, 1.0, knobs.temperature).astype(np.float32)
            scaled = shifted / temperature[:, None]
            np.exp(scaled, out=probs)
            log_total = np.log(probs.sum(axis=1, dtype=np.float64))
        cut = ((knobs.top_k > 0) | (knobs.top_p < 1.0)) & ~greedy & is_finite
        if cut.any():
            log_total = log_total.copy()
            for row in np.flatnonzero(cut):
                log_total[row] = _truncate(
                    probs[row], int(knobs.top_k[row]), float(knobs.top_p[row])
                )
        token = self._invert(len(logits), uniform)
        if greedy.any():
            token = np.where(greedy, logits.argmax(axis=1), token)
        return Draw(
            token=token,
            logprob=scaled[rows, token] - log_total,
            is_finite=is_finite,
        )

    def _invert(self, num_rows: int, uniform: np.ndarray) -> np.ndarray:
        """First index whose cumulative probability exceeds uniform · total: first the block, then
        the index in it. [R]"""
        rows = np.arange(num_rows)
        blocks = self._padded[:num_rows].reshape(num_rows, self._num_blocks, BLOCK)
        ends = blocks.sum(axis=2).cumsum(axis=1, dtype=np.float64)
        target = uniform * ends[:, -1]
        block = np.minimum((ends <= target[:, None]).sum(axis=1), self._num_blocks - 1)
        before = np.where(block > 0, ends[rows, block - 1], 0.0)
        inner = blocks[rows, block].cumsum(axis=1, dtype=np.float64)
        place = np.minimum((inner <= (target - before)[:, None]).sum(axis=1), BLOCK - 1)
        token = block * BLOCK + place
        # Rounding at the end of a block may select a token of probability 0: take the one before.
        for row in np.flatnonzero(self._padded[rows, token] == 0.0):
            possible = np.flatnonzero(self._padded[row, : token[row]])
            token[row] = possible[-1] if possible.size else 0
        return token


def _truncate(probs: np.ndarray, top_k: int, top_p: float) -> float:
    """Zero what top-k and then top-p cut off, in place. Returns the log of the remaining sum.
    probs [V]"""
    order = np.argsort(-probs, kind="stable")
    keep = min(top_k, order.size) if top_k > 0 else order.size
    if top_p < 1.0:
        mass = probs[order[:keep]].cumsum(dtype=np.float64)
        keep = min(keep, int(np.searchsorted(mass, top_p * mass[-1])) + 1)
    probs[order[keep:]] = 0.0
    return float(np.log(probs.sum(dtype=np.float64)))
