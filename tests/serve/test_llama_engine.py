"""The llama engine's own promise, and the thread that steps an engine."""

import threading
from pathlib import Path
from typing import Any, cast

import anyio
import numpy as np
import pytest

from forge.serve.engine.rows import Draw, Knobs, uniforms
from forge.serve.engine.worker import Worker
from forge.serve.llama.engine import LlamaEngine, TokenSampler
from forge.serve.llama.model import ModelSettings
from forge.serve.port import EngineStatus
from tests.serve.conftest import Reference
from tests.serve.stepped import request, run


def test_the_prompt_of_a_group_is_evaluated_once(tied: Reference, tmp_path: Path) -> None:
    settings = ModelSettings(model_dir=tied.path, work_dir=tmp_path, context_tokens=1280)
    engine = LlamaEngine(settings, num_slots=6)
    run(engine, request(700, n=8), request(5, n=2))
    assert engine.status().prompt_tokens == 700 + 5
    engine.close()


class FakeEngine:
    is_active, features = False, frozenset[str]()

    def __init__(self) -> None:
        self.admitted: list[Any] = []
        self.aborted: list[Any] = []

    def add(self, request: Any) -> None:
        self.admitted.append(request)

    def abort(self, request: Any) -> None:
        self.aborted.append(request)

    def status(self) -> EngineStatus:
        return EngineStatus(version=0)

    def close(self) -> None:
        return


async def test_a_request_cancelled_before_it_is_admitted_is_aborted() -> None:
    engine, is_free = FakeEngine(), threading.Event()
    worker = Worker(lambda: cast("Any", engine), name="fake")
    worker.start()
    try:
        async with anyio.create_task_group() as busy:
            busy.start_soon(worker.call, lambda _: is_free.wait(5))
            async with anyio.create_task_group() as asking:
                asking.start_soon(worker.generate, cast("Any", "request"))
                await anyio.sleep(0.01)
                assert not engine.admitted
                asking.cancel_scope.cancel()
            is_free.set()
        await worker.call(lambda _: None)
        assert (engine.admitted, engine.aborted) == (["request"], ["request"])
    finally:
        worker.stop()


VOCAB = 700
"""Vocabulary size: above a block, but not a multiple of it."""
LOGITS = np.random.default_rng(0).normal(0, 2, VOCAB).astype(np.float32)


def draw(
    logits: np.ndarray,
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> Draw:
    rows = len(logits)
    knobs = Knobs(
        temperature=np.full(rows, temperature),
        top_k=np.full(rows, top_k),
        top_p=np.full(rows, top_p),
    )
    counters = np.full(rows, seed, np.uint64), np.arange(rows), np.zeros(rows, np.int64)
    sampler = TokenSampler(num_vocab=logits.shape[1], max_rows=rows)
    return sampler.draw(logits, knobs, uniforms(*counters))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_frequencies_equal_the_softmax(temperature: float) -> None:
    num = 10_000
    out = draw(np.tile(LOGITS, (num, 1)), temperature=temperature)
    expected = np.exp(log_softmax(LOGITS / temperature))
    found = np.bincount(out.token, minlength=VOCAB) / num
    assert np.abs(found - expected).max() < 5 * np.sqrt(expected.max() / num)
    assert np.abs(out.logprob - log_softmax(LOGITS / temperature)[out.token]).max() < 1e-5


def test_top_k_then_top_p_keep_the_tokens_of_transformers() -> None:
    temperature, top_k, top_p = 0.8, 20, 0.7
    probs = np.exp(log_softmax(LOGITS / temperature))
    order = np.argsort(-probs)[:top_k]
    mass = probs[order].cumsum() / probs[order].sum()
    kept = order[: int(np.searchsorted(mass, top_p)) + 1]
    out = draw(np.tile(LOGITS, (2000, 1)), temperature=temperature, top_k=top_k, top_p=top_p)
    assert set(out.token.tolist()) == set(kept.tolist())
    expected = np.log(probs[out.token] / probs[kept].sum())
    assert np.abs(out.logprob - expected).max() < 1e-5


@pytest.mark.parametrize("u", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval_give_possible_tokens(u: float) -> None:
    logits = np.full((1, VOCAB), -np.float32(200), np.float32)
    logits[0, 300:400] = 0.0
    knobs = Knobs(temperature=np.ones(1), top_k=np.zeros(1, int), top_p=np.ones(1))
    out = TokenSampler(num_vocab=VOCAB, max_rows=1).draw(logits, knobs, np.array([u]))
    assert 300 <= out.token[0] < 400
