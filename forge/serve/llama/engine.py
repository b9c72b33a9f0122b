"""Continuous batching over llama.cpp: one `llama_decode` in each step for all running samples.

A step carries one token of every running sequence plus a chunk of waiting prompts. A group's prompt
is evaluated once; its KV is saved and restored into each sample's own sequence, and kept while
samples wait for a slot.

Why a loop of our own: llama-cpp-python's `Llama` generates one sequence at a time, and its server
puts one lock around it, takes text prompts only, ignores `n` and loads adapters at start only.

    add ─▶ prefills (to evaluate) ─▶ forks (evaluated, waiting for slots) ─▶ slots ─▶ finished
               ▲                                                               │
               └──────── new weights: running samples are evaluated again ─────┘

Promises: no request makes llama.cpp abort (`Request.check` runs before it is queued); every token
has its policy version; the same requests in the same order with the same seed give the same tokens;
one sequence id is reserved for scoring, so a score never waits; a draw applies temperature, then
top-k, then top-p, the order of transformers and vLLM (llama.cpp's own samplers use another order,
so their log probabilities match no trainer's).

Shapes: R rows, V vocabulary.
"""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from forge.errors import ConfigError
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
from forge.serve.llama import model
from forge.serve.port import EngineSample, EngineStatus, Request

BLOCK = 256
"""Number of probabilities summed as one block: cumulative sums then run over V/256 blocks and
inside one block."""


class TokenSampler:
    """Draws one token for each row of logits, all rows at once: Python code for each row would cost
    more than a small model. Reuses its padded buffer, so that a step allocates little."""

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
        return Draw(token=token, logprob=scaled[rows, token] - log_total, is_finite=is_finite)

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


class Slots:
    """llama.cpp's sequence ids: free, held by a prompt under evaluation, or running a sample.

    The lowest free id is used first. llama.cpp evaluates sequences as one graph only if their ids
    are consecutive, so a hole costs up to a third of the speed (measured); `hole` finds the move
    that closes one.
    """

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots))
        self.rows: dict[int, Row] = {}
        """Running samples by id."""

    @property
    def running(self) -> list[int]:
        return sorted(self.rows)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def hold(self) -> int:
        return self._free.pop(0)

    def release(self, slot: int) -> None:
        bisect.insort(self._free, slot)

    def enter(self, slot: int, sample: EngineSample) -> None:
        """Run a sample under a reserved id, which continues the tokens that it has."""
        self.rows[slot] = Row.of(sample)

    def leave(self, slot: int) -> EngineSample:
        """Remove a sample, with its tokens. The id stays reserved."""
        return self.rows.pop(slot).leave()

    def hole(self) -> tuple[int, int] | None:
        """The highest running id and a free one below it, if there is one."""
        highest = max(self.rows, default=-1)
        if not self._free or self._free[0] > highest:
            return None
        return highest, self._free[0]

    def move(self, source: int, target: int) -> None:
        """Change the id of a running sequence. Both ids are reserved afterwards."""
        self._free.remove(target)
        self.rows[target] = self.rows.pop(source)


@dataclass(slots=True, eq=False, kw_only=True)
class Prefill:
    tokens: np.ndarray
    samples: list[EngineSample]
    done: int = 0
    slot: int | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class Fork:
    """An evaluated prompt whose samples wait for slots."""

    prefill: Prefill
    state: bytes
    logits: np.ndarray
    """Logits of the prompt's last token. [V]"""


@dataclass(slots=True, eq=False)
class Starts:
    """Samples that get their first token in this step: the slot and the row of logits of each."""

    slots: list[int] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)


MAX_SLOTS = model.MAX_SEQUENCES - 1
"""One sequence id is reserved for scoring."""


class LlamaEngine(StepEngine):
    def __init__(self, settings: model.ModelSettings, *, num_slots: int, version: int = 0) -> None:
        if not 1 <= num_slots <= MAX_SLOTS:
            raise ConfigError(f"serve.slots: found {num_slots}; allowed is 1 to {MAX_SLOTS}")
        settings = replace(settings, num_sequences=num_slots + 1)
        self.model = model.LlamaModel(settings)
        self.version = version
        self._generated_tokens = self._prompt_tokens = 0
        self.num_slots = num_slots
        self.context_tokens = settings.context_tokens
        self._batch = model.DecodeBatch(self.model.binding, capacity=model.BATCH_TOKENS)
        self._slots = Slots(num_slots)
        self._sampler = TokenSampler(num_vocab=self.model.num_vocab, max_rows=num_slots)
        self._prefills: deque[Prefill] = deque()
        self._forks: deque[Fork] = deque()

    def check(self, request: Request) -> None:
        request.check(num_vocab=self.model.num_vocab, context_tokens=self.context_tokens)

    def add(self, request: Request) -> None:
        self.check(request)
        request.prompt = request.prompt.astype(np.int32)
        request.samples = [EngineSample(request, index) for index in range(request.n)]
        self._prefills.append(Prefill(tokens=request.prompt, samples=list(request.samples)))

    def abort(self, request: Request) -> None:
        for slot in self._slots.running:
            if self._slots.rows[slot].sample.request is request:
                self._end(slot)
        for prefill in [p for p in self._prefills if p.samples[0].request is request]:
            self._prefills.remove(prefill)
            if prefill.slot is not None:
                self._vacate(prefill.slot)
        for fork in [f for f in self._forks if f.prefill.samples[0].request is request]:
            self._forks.remove(fork)
        for sample in request.samples:
            sample.finish = sample.finish or Finish.ABORT

    @property
    def is_active(self) -> bool:
        return bool(self._slots.rows or self._prefills or self._forks)

    def new_tokens(self, sample: EngineSample, start: int) -> list[int]:
        return tokens_from(self._slots.rows.values(), sample, start)

    def load_weights(self, path: Path, *, version: int) -> None:
        self.model.load_weights(path)
        self.version = version
        # All KV is lost: samples that held some return to the front of the queue, oldest first.
        again = [self._interrupted(slot) for slot in self._slots.running]
        again += [fork.prefill for fork in self._forks]
        self._forks.clear()
        for prefill in [*self._prefills, *again]:
            if prefill.slot is not None:
                self._slots.release(prefill.slot)
            prefill.slot, prefill.done = None, 0
        self._prefills.extendleft(reversed(again))

    def _interrupted(self, slot: int) -> Prefill:
        sample = self._slots.leave(slot)
        tokens = np.concatenate([sample.request.prompt, sample.tokens])
        return Prefill(tokens=tokens, samples=[sample], slot=slot)

    def score(self, prompt: np.ndarray, completion: np.ndarray) -> np.ndarray:
        sequence = self.model.settings.num_sequences - 1
        return model.score(self.model, self._batch, prompt, completion, sequence=sequence)

    def step(self) -> list[EngineSample]:
        starts = Starts()
        self._start_forks(starts)
        if not self._prefills and not self._forks:
            self._compact()
        # Those that start have no token to feed yet.
        running = [slot for slot in self._slots.running if slot not in starts.slots]
        rows = [self._slots.rows[slot] for slot in running]
        self._batch.clear()
        self._batch.add_step(
            np.array(running, np.int32),
            np.array([row.tokens[-1] for row in rows], np.int32),
            np.array([row.sample.request.prompt.size + len(row.tokens) - 1 for row in rows]),
        )
        evaluated = self._add_prompts()
        logits = (
            self.model.decode(self._batch) if self._batch.size else np.empty((0, 0), np.float32)
        )
        self._finish_prompts(evaluated, logits[len(running) :], starts)
        return self._sample(running, logits[: len(running)], starts)

    def _compact(self) -> None:
        """Move the highest sequences into holes among the ids, which no waiting sample will
        fill."""
        while (move := self._slots.hole()) is not None:
            source, target = move
            self.model.restore(target, self.model.save(source))
            self._slots.move(source, target)
            self._vacate(source)

    def _add_prompts(self) -> list[Prefill]:
        """Fill the batch with waiting prompts, in order. Returns those that it completes."""
        complete: list[Prefill] = []
        for prefill in self._prefills:
            if not self._batch.room:
                break
            if prefill.slot is None:
                if not self._slots.num_free:
                    break
                prefill.slot = self._slots.hold()
            chunk = prefill.tokens[prefill.done : prefill.done + self._batch.room]
            self._batch.add_run(prefill.slot, chunk, prefill.done)
            prefill.done += chunk.size
            self._prompt_tokens += chunk.size
            if prefill.done == prefill.tokens.size:
                self._batch.want_last()
                complete.append(prefill)
        return complete

    def _finish_prompts(self, complete: list[Prefill], logits: np.ndarray, starts: Starts) -> None:
        """Start the first sample of each evaluated prompt in the prompt's slot, the others from a
        copy of its KV."""
        for prefill, row in zip(complete, logits, strict=True):
            self._prefills.remove(prefill)
            assert prefill.slot is not None
            first, *others = prefill.samples
            if others:
                rest = Prefill(tokens=prefill.tokens, samples=others, done=prefill.done)
                state = self.model.save(prefill.slot)
                self._forks.append(Fork(prefill=rest, state=state, logits=row.copy()))
            self._slots.enter(prefill.slot, first)
            starts.slots.append(prefill.slot)
            starts.rows.append(row)
        self._start_forks(starts)

    def _start_forks(self, starts: Starts) -> None:
        while self._forks and self._slots.num_free:
            fork = self._forks[0]
            slot = self._slots.hold()
            self.model.restore(slot, fork.state)
            self._slots.enter(slot, fork.prefill.samples.pop(0))
            starts.slots.append(slot)
            starts.rows.append(fork.logits)
            if not fork.prefill.samples:
                self._forks.popleft()

    def _sample(self, running: list[int], logits: np.ndarray, starts: Starts) -> list[EngineSample]:
        slots = running + starts.slots
        if not slots:
            return []
        if starts.slots:
            started = np.stack(starts.rows)
            logits = np.concatenate([logits, started]) if running else started
        rows = [self._slots.rows[slot] for slot in slots]
        draw = self._sampler.draw(logits, knobs_of(rows), uniforms(*counters_of(rows)))
        self._generated_tokens += int(draw.is_finite.sum())
        return [self._end(slots[place]) for place in record(rows, draw, version=self.version)]

    def _end(self, slot: int) -> EngineSample:
        sample = self._slots.leave(slot)
        self._vacate(slot)
        return sample

    def _vacate(self, slot: int) -> None:
        self.model.drop(slot)
        self._slots.release(slot)

    def status(self) -> EngineStatus:
        """KV use is the share of held slots."""
        waiting = [*self._prefills, *(fork.prefill for fork in self._forks)]
        return EngineStatus(
            version=self.version, running=len(self._slots.rows),
            waiting=sum(len(prefill.samples) for prefill in waiting),
            kv_use=1.0 - self._slots.num_free / self.num_slots,
            generated_tokens=self._generated_tokens, prompt_tokens=self._prompt_tokens,
        )  # fmt: skip

    def close(self) -> None:
        self.model.close()
