"""The running sequences: one row of numpy tables for each, indexed by llama.cpp's sequence id.

Owned by `engine`. Tables rather than objects, so that a step costs the same few numpy calls for one
sequence as for thirty-two. Promise: the lowest free id is used first. llama.cpp evaluates sequences
as one graph only if their ids are consecutive, so a hole costs up to a third of the speed
(measured); `hole` returns the move that closes one. Below them the stages of a request before it
runs: prompt to evaluate, waiting for slots, starting.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

import numpy as np

from forge.records import Finish
from forge.serve.engine.draws import Draw, Knobs
from forge.serve.port import MAX_STOP_IDS, SEED_MASK, EngineSample

NO_TOKEN = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A change of a sequence's id."""

    source: int
    target: int


class Slots:
    """Ids 0 to num_slots - 1: free, held by a prompt under evaluation, or running a sample."""

    def __init__(self, *, num_slots: int, context_tokens: int) -> None:
        self._free = list(range(num_slots))
        self._sample: list[EngineSample | None] = [None] * num_slots
        self.running = np.empty(0, np.int64)
        """Ids that run a sample, ascending."""
        self.num_cells = np.zeros(num_slots, np.int32)
        self.next_token = np.zeros(num_slots, np.int32)
        self.num_out = np.zeros(num_slots, np.int64)
        self._max_out = np.zeros(num_slots, np.int64)
        self._seed = np.zeros(num_slots, np.uint64)
        self._index = np.zeros(num_slots, np.int64)
        self._stop = np.full((num_slots, MAX_STOP_IDS), NO_TOKEN, np.int64)
        self._knobs = Knobs(
            temperature=np.zeros(num_slots),
            top_k=np.zeros(num_slots, np.int64),
            top_p=np.ones(num_slots),
        )
        self._token = np.zeros((num_slots, context_tokens), np.int32)
        self._logprob = np.zeros((num_slots, context_tokens), np.float32)
        self._logprob_t1 = np.zeros((num_slots, context_tokens), np.float32)
        self._version = np.zeros((num_slots, context_tokens), np.int64)

    @property
    def num_free(self) -> int:
        """Number of free ids."""
        return len(self._free)

    def hold(self) -> int:
        """Reserve the lowest free id."""
        return self._free.pop(0)

    def release(self, slot: int) -> None:
        """Make an id free."""
        bisect.insort(self._free, slot)

    def sample(self, slot: int) -> EngineSample:
        """The sample that runs under an id."""
        sample = self._sample[slot]
        assert sample is not None
        return sample

    def slot_of(self, sample: EngineSample) -> int | None:
        """The id under which a sample runs, if it runs."""
        return next((slot for slot, other in enumerate(self._sample) if other is sample), None)

    def hole(self) -> Move | None:
        """The move of the highest running sequence to a free id below it, if there is one."""
        if not self._free or not self.running.size or self._free[0] > self.running[-1]:
            return None
        return Move(source=int(self.running[-1]), target=self._free[0])

    def enter(self, slot: int, sample: EngineSample, *, num_cells: int) -> None:
        """Run a sample under a reserved id whose KV has `num_cells` tokens. The sample keeps the
        tokens that it has."""
        request, count = sample.request, sample.tokens.size
        self._sample[slot] = sample
        self.num_cells[slot] = num_cells
        self.num_out[slot] = count
        self._max_out[slot] = request.max_tokens
        self._seed[slot] = request.seed & SEED_MASK
        self._index[slot] = sample.index
        self._stop[slot] = NO_TOKEN
        self._stop[slot, : len(request.stop_token_ids)] = request.stop_token_ids
        self._knobs.temperature[slot] = request.temperature
        self._knobs.top_k[slot] = request.top_k
        self._knobs.top_p[slot] = request.top_p
        self._token[slot, :count] = sample.tokens
        self._logprob[slot, :count] = sample.logprobs
        self._logprob_t1[slot, :count] = sample.logprobs_t1
        self._version[slot, :count] = sample.versions
        self._note_running()

    def leave(self, slot: int) -> EngineSample:
        """Remove a sample and store its tokens in it. The id stays reserved."""
        sample, count = self.sample(slot), int(self.num_out[slot])
        sample.tokens = self._token[slot, :count].copy()
        sample.logprobs = self._logprob[slot, :count].copy()
        sample.logprobs_t1 = self._logprob_t1[slot, :count].copy()
        sample.versions = self._version[slot, :count].copy()
        self._sample[slot] = None
        self._note_running()
        return sample

    def move(self, move: Move) -> None:
        """Change the id of a running sequence. Both ids are reserved afterwards."""
        num_cells = int(self.num_cells[move.source])
        next_token = self.next_token[move.source]
        sample = self.leave(move.source)
        self._free.remove(move.target)
        self.enter(move.target, sample, num_cells=num_cells)
        self.next_token[move.target] = next_token

    def tokens_from(self, slot: int, start: int) -> list[int]:
        """Tokens of a running sample from an index on."""
        return self._token[slot, start : int(self.num_out[slot])].tolist()

    def _note_running(self) -> None:
        self.running = np.array([i for i, s in enumerate(self._sample) if s is not None], np.int64)

    def knobs(self, slots: np.ndarray) -> Knobs:
        """Sampling parameters of the slots. [R]"""
        return self._knobs[slots]

    def counters(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Seed, sample index and position of the next token, which determine its random number.
        [R]"""
        return self._seed[slots], self._index[slots], self.num_out[slots]

    def append(self, slots: np.ndarray, draw: Draw, *, version: int) -> list[int]:
        """Record one token for each slot. Returns the ids of the samples that it finishes, with
        their finish set."""
        place = self.num_out[slots]
        self._token[slots, place] = draw.token
        self._logprob[slots, place] = draw.logprob
        self._logprob_t1[slots, place] = draw.logprob_t1
        self._version[slots, place] = version
        self.next_token[slots] = draw.token
        self.num_out[slots] = place + 1
        stopped = (self._stop[slots] == draw.token[:, None]).any(axis=1)
        full = place + 1 >= self._max_out[slots]
        ended = stopped | full
        if not ended.any():
            return []
        for row in np.flatnonzero(ended):
            self.sample(slots[row]).finish = Finish.STOP if stopped[row] else Finish.LENGTH
        return slots[ended].tolist()


@dataclass(slots=True, eq=False, kw_only=True)
class Prefill:
    """Tokens to evaluate before samples can start."""

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


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counters since the start."""

    steps: int = 0
    generated_tokens: int = 0
    prompt_tokens: int = 0
