"""Continuous batching over a transformers model: one forward pass in each step for all running
samples, and one draw on the device of its logits.

Waiting samples start in order while there are free slots. Samples of one request that start
together share the evaluation of their prompt.

    add ─▶ waiting ─▶ prefill ─▶ rows ─▶ finished
              ▲                    │
              └──── new weights ───┘   running samples are evaluated again

Promises: every token has its policy version; the same requests in the same order with the same seed
give the same tokens; refused weights change nothing; equal logits give the tokens of
`forge.serve.llama.sampler`; R numbers leave the device, not R × V.

Shapes: R rows, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from forge.records import Finish
from forge.serve.engine.rows import (
    Draw,
    Knobs,
    Row,
    counters_of,
    knobs_of,
    record,
    tokens_from,
    uniforms,
)
from forge.serve.engine.worker import StepEngine
from forge.serve.hf.model import HfModel, RowCache
from forge.serve.port import (
    SLEEP,
    EngineSample,
    EngineStatus,
    Request,
    check_score,
)

SCORE_TOKENS = 512
"""Tokens scored in one forward pass: their logits over a vocabulary of 150k take 300 MB in f32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfSettings:
    model_dir: Path
    context_tokens: int
    num_slots: int
    is_exact: bool = True
    device: str = "cpu"
    version: int = 0


class HfEngine(StepEngine):
    """A served model."""

    def __init__(self, settings: HfSettings) -> None:
        self._settings = settings
        self._device = torch.device(settings.device)
        dtype = torch.float32 if settings.is_exact else torch.bfloat16
        self._model = HfModel(settings.model_dir, dtype=dtype, device=self._device)
        self._version = settings.version
        self._waiting: deque[EngineSample] = deque()
        self._rows: list[Row] = []
        self._memory: RowCache | None = None
        self._generated_tokens = self._prompt_tokens = 0
        # Without a GPU there is no GPU memory to release.
        self.features = frozenset({SLEEP} if settings.device != "cpu" else ())

    def check(self, request: Request) -> None:
        request.check(num_vocab=self._model.num_vocab, context_tokens=self._settings.context_tokens)

    def add(self, request: Request) -> None:
        self.check(request)
        request.samples = [EngineSample(request, index) for index in range(request.n)]
        self._waiting.extend(request.samples)

    def abort(self, request: Request) -> None:
        self._waiting = deque(s for s in self._waiting if s.request is not request)
        self._drop([row for row in self._rows if row.sample.request is request])
        for sample in request.samples:
            sample.finish = sample.finish or Finish.ABORT

    @property
    def is_active(self) -> bool:
        return bool(self._rows or self._waiting)

    def new_tokens(self, sample: EngineSample, start: int) -> list[int]:
        return tokens_from(self._rows, sample, start)

    def load_weights(self, path: Path, *, version: int) -> None:
        self._model.load_weights(path)
        self._version = version
        self._waiting.extendleft(row.leave() for row in reversed(self._rows))
        self._rows, self._memory = [], None

    def score(self, prompt: np.ndarray, completion: np.ndarray) -> np.ndarray:
        num_vocab, context_tokens = self._model.num_vocab, self._settings.context_tokens
        check_score(prompt, completion, num_vocab=num_vocab, context_tokens=context_tokens)
        logits, memory = self._model.prefill(prompt.tolist())
        logprobs, last_V = [], logits[0]
        for start in range(0, completion.size, SCORE_TOKENS):
            ids = torch.from_numpy(completion[start : start + SCORE_TOKENS]).to(self._device)
            out_TV = self._model.forward(ids[None], memory)[0]
            # A token is predicted by the logits before it.
            table_TV = torch.cat([last_V[None], out_TV[:-1]]).float().log_softmax(dim=-1)
            logprobs.append(table_TV.gather(1, ids[:, None])[:, 0].cpu().numpy())
            last_V = out_TV[-1]
        return np.concatenate(logprobs)

    def sleep(self) -> None:
        self._model.move(torch.device("cpu"))
        torch.cuda.empty_cache()

    def wake(self) -> None:
        self._model.move(self._device)

    @torch.inference_mode()
    def step(self) -> list[EngineSample]:
        logits: list[torch.Tensor] = []
        if self._memory is not None:
            logits.append(self._model.decode([row.tokens[-1] for row in self._rows], self._memory))
        while self._waiting and len(self._rows) < self._settings.num_slots:
            logits += self._start()
        rows = self._rows
        drawn = draw(torch.cat(logits), knobs_of(rows), uniforms(*counters_of(rows)))
        self._generated_tokens += int(drawn.is_finite.sum())
        return self._drop([rows[place] for place in record(rows, drawn, version=self._version)])

    def _start(self) -> list[torch.Tensor]:
        """Start the next waiting sample, and others of its request that have the same tokens and a
        free slot. Returns their logits, [1, V] each."""
        first = self._waiting.popleft()
        starting = [first]
        free = self._settings.num_slots - len(self._rows)
        while len(starting) < free and self._waiting and not first.tokens.size:
            following = self._waiting[0]
            if following.request is not first.request or following.tokens.size:
                break
            starting.append(self._waiting.popleft())
        tokens = np.concatenate([first.request.prompt, first.tokens])
        logits, memory = self._model.prefill(tokens.tolist())
        self._prompt_tokens += tokens.size
        memory.repeat(len(starting))
        if self._memory is None:
            self._memory = memory
        else:
            self._memory.join(memory)
        self._rows += [Row.of(sample) for sample in starting]
        return [logits] * len(starting)

    def _drop(self, rows: list[Row]) -> list[EngineSample]:
        """Remove rows from the batch. Returns their samples."""
        if not rows:
            return []
        kept = [place for place, row in enumerate(self._rows) if row not in rows]
        self._rows = [self._rows[place] for place in kept]
        if not kept:
            self._memory = None
        elif self._memory is not None:
            self._memory.keep(kept)
        return [row.leave() for row in rows]

    def status(self) -> EngineStatus:
        """KV use is the share of slots in use."""
        return EngineStatus(
            version=self._version, running=len(self._rows), waiting=len(self._waiting),
            kv_use=len(self._rows) / self._settings.num_slots,
            generated_tokens=self._generated_tokens, prompt_tokens=self._prompt_tokens,
        )  # fmt: skip

    def close(self) -> None:
        self._waiting.clear()
        self._rows, self._memory = [], None


def draw(logits: torch.Tensor, knobs: Knobs, uniform: np.ndarray) -> Draw:
    """Draw one token for each row. `logits` [R, V] have any element type; `uniform` is [R]."""
    logits_RV = logits.float()
    is_greedy = knobs.temperature == 0.0
    temperature = np.where(is_greedy, 1.0, knobs.temperature)
    plain_RV = torch.log_softmax(logits_RV, dim=-1)
    sampled_RV = plain_RV
    if (temperature != 1.0).any():
        scaled_RV = logits_RV / _on(temperature, logits_RV)[:, None].float()
        sampled_RV = torch.log_softmax(scaled_RV, dim=-1)
    is_cut = ((knobs.top_k > 0) | (knobs.top_p < 1.0)) & ~is_greedy
    if is_cut.any():
        rows = _on(np.flatnonzero(is_cut), logits_RV)
        sampled_RV = sampled_RV.clone()
        sampled_RV[rows] = _truncated(sampled_RV[rows], knobs[np.flatnonzero(is_cut)])
    drawn_R = _inverted(sampled_RV.exp(), _on(uniform, logits_RV))
    token_R = torch.where(_on(is_greedy, logits_RV), logits_RV.argmax(dim=-1), drawn_R)
    chosen_R1 = token_R[:, None]
    return Draw(
        token=token_R.cpu().numpy(),
        logprob=sampled_RV.gather(1, chosen_R1)[:, 0].cpu().numpy(),
        is_finite=torch.isfinite(plain_RV.amax(dim=-1)).cpu().numpy(),
    )


def _inverted(probs_RV: torch.Tensor, uniform_R: torch.Tensor) -> torch.Tensor:
    """First index whose cumulative probability exceeds uniform · total; never one with probability
    0. [R]"""
    cumulative_RV = probs_RV.cumsum(dim=-1, dtype=torch.float64)
    total_R = cumulative_RV[:, -1]
    below_total_R = torch.nextafter(total_R, torch.zeros_like(total_R))
    target_R = torch.minimum(uniform_R * total_R, below_total_R)
    token_R1 = torch.searchsorted(cumulative_RV, target_R[:, None], right=True)
    return token_R1[:, 0].clamp(max=probs_RV.shape[1] - 1)


def _truncated(logprobs_RV: torch.Tensor, knobs: Knobs) -> torch.Tensor:
    """Log probabilities renormalised after top-k and then top-p; -inf for the others. [R, V]"""
    num_vocab = logprobs_RV.shape[1]
    order_RV = logprobs_RV.argsort(dim=-1, descending=True, stable=True)
    probs_RV = logprobs_RV.gather(1, order_RV).exp().double()
    keep_R = np.where(knobs.top_k > 0, np.minimum(knobs.top_k, num_vocab), num_vocab)
    rank_V = torch.arange(num_vocab, device=logprobs_RV.device)
    probs_RV = torch.where(rank_V < _on(keep_R, logprobs_RV)[:, None], probs_RV, 0.0)
    mass_RV = probs_RV.cumsum(dim=-1)
    limit_R1 = _on(knobs.top_p, logprobs_RV)[:, None] * mass_RV[:, -1:]
    # A token stays if the mass before it is below the limit; at top_p 1 all that top-k left stay.
    is_kept_RV = (mass_RV - probs_RV < limit_R1) & (probs_RV > 0)
    kept_RV = torch.zeros_like(is_kept_RV).scatter(1, order_RV, is_kept_RV)
    return torch.log_softmax(logprobs_RV.masked_fill(~kept_RV, -torch.inf), dim=-1)


def _on(array: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(like.device)
