"""The llama engine against transformers, and its worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import numpy as np
import pytest

from forge.errors import ConfigError
from forge.records import Finish
from forge.serve.engine.worker import Worker
from forge.serve.llama.checkpoint import Precision
from forge.serve.llama.engine import LlamaEngine
from forge.serve.llama.model import ModelSettings
from forge.serve.port import EngineStatus, Request
from tests.serve.stepped import gap, request, run

if TYPE_CHECKING:
    from conftest import Reference

GAP = 1e-4
"""Allowed mean |Δ logprob| in exact mode."""

MakeEngine = Callable[..., LlamaEngine]


@pytest.fixture
def make_engine(tmp_path: Path) -> Iterator[MakeEngine]:
    made: list[LlamaEngine] = []

    def make(path: Path, *, num_slots: int = 6, **settings: Any) -> LlamaEngine:
        base = ModelSettings(model_dir=path, work_dir=tmp_path, context_tokens=1280, **settings)
        made.append(LlamaEngine(base, num_slots=num_slots))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.mark.parametrize("which", ["tied", "untied"])
def test_exact_equals_transformers_in_groups_of_ragged_prompts(
    which: str, make_engine: MakeEngine, request: pytest.FixtureRequest
) -> None:
    reference: Reference = request.getfixturevalue(which)
    engine = make_engine(reference.path)
    asked = [ragged(5, 8, 1.0), ragged(700, 3, 0.7), ragged(1, 1, 0.0), ragged(512, 2, 1.3)]
    run(engine, *asked)
    assert max(gap(reference, one) for one in asked) <= GAP
    assert engine.counts.prompt_tokens == 5 + 700 + 1 + 512, "a group's prompt is evaluated once"


def ragged(num_prompt: int, n: int, temperature: float) -> Request:
    return request(num_prompt, n=n, temperature=temperature, max_tokens=10 + num_prompt % 23)


def test_greedy_generates_the_tokens_of_transformers(
    tied: Reference, make_engine: MakeEngine
) -> None:
    one = request(33, temperature=0.0, max_tokens=80)
    run(make_engine(tied.path), one)
    tokens = one.samples[0].tokens
    best = tied.logits(one.prompt.tolist(), tokens.tolist()).argmax(dim=-1).numpy()
    assert tokens.tolist() == best.tolist()


def test_fast_stays_near_transformers(tied: Reference, make_engine: MakeEngine) -> None:
    one = request(60, n=4, max_tokens=60)
    run(make_engine(tied.path, precision=Precision.FAST), one)
    assert GAP < gap(tied, one) < 0.05


@pytest.mark.parametrize("in_place", [True, False])
def test_new_weights_are_served(
    in_place: bool, tied: Reference, newer: Reference, make_engine: MakeEngine
) -> None:
    engine = make_engine(tied.path, allow_in_place=in_place)
    assert engine.model.can_update_in_place is in_place
    engine.load_weights(newer.path, version=1)
    one = request(40, n=3)
    run(engine, one)
    assert gap(newer, one) <= GAP
    assert gap(tied, one) > 0.1
    assert {int(v) for sample in one.samples for v in sample.versions} == {1}


@pytest.mark.parametrize(
    "config",
    [
        {"r": 4, "lora_alpha": 16},
        {"r": 4, "lora_alpha": 8, "use_rslora": True},
        {"r": 4, "lora_alpha": 8, "rank_pattern": {"q_proj": 8}, "alpha_pattern": {"up_proj": 32}},
    ],
    ids=["plain", "rslora", "patterns"],
)
def test_an_adapter_gives_the_log_probabilities_of_peft(
    config: dict[str, Any],
    tied: Reference,
    make_engine: MakeEngine,
    make_adapter: Callable[..., Reference],
) -> None:
    adapted = make_adapter(tied, **config)
    engine = make_engine(tied.path)
    engine.load_weights(adapted.path, version=1)
    one = request(40, n=3)
    run(engine, one)
    assert gap(adapted, one) <= GAP
    assert gap(tied, one) > 0.05


def test_full_weights_replace_an_adapter(
    tied: Reference,
    newer: Reference,
    make_engine: MakeEngine,
    make_adapter: Callable[..., Reference],
) -> None:
    engine = make_engine(tied.path)
    engine.load_weights(make_adapter(tied, r=4).path, version=1)
    engine.load_weights(newer.path, version=2)
    one = request(40)
    run(engine, one)
    assert gap(newer, one) <= GAP


@pytest.mark.parametrize("in_place", [True, False])
def test_running_samples_continue_under_new_weights(
    in_place: bool, tied: Reference, newer: Reference, make_engine: MakeEngine
) -> None:
    """More samples than slots: some run, some wait with an evaluated prompt, some are queued."""
    engine = make_engine(tied.path, allow_in_place=in_place)
    asked = [request(30, n=8, max_tokens=25), request(31, n=2, max_tokens=25)]
    run(engine, *asked, steps=10)
    engine.load_weights(newer.path, version=1)
    run(engine)
    for one in asked:
        for sample in one.samples:
            tokens, prompt = sample.tokens.tolist(), one.prompt.tolist()
            old = sample.versions == 0
            assert len(tokens) == 25
            expected = np.where(old, tied.logprobs(prompt, tokens), newer.logprobs(prompt, tokens))
            assert np.abs(expected - sample.logprobs).max() < 1e-3
    samples = [sample for one in asked for sample in one.samples]
    mixed = [sample for sample in samples if len(set(sample.versions.tolist())) == 2]
    assert len(mixed) == 6, "the samples that had a slot"


def test_scores_reveal_a_stale_engine(
    tied: Reference, newer: Reference, make_engine: MakeEngine
) -> None:
    stale, fresh = make_engine(tied.path), make_engine(tied.path)
    fresh.load_weights(newer.path, version=1)
    prompt, completion = np.arange(600) % 512, np.arange(50)
    expected = newer.logprobs(prompt.tolist(), completion.tolist())
    assert np.abs(fresh.score(prompt, completion) - expected).mean() <= GAP
    assert np.abs(stale.score(prompt, completion) - expected).mean() > 0.1


def test_a_score_does_not_change_running_samples(tied: Reference, make_engine: MakeEngine) -> None:
    engine = make_engine(tied.path)
    one = request(30, n=8)
    run(engine, one, steps=5)
    engine.score(np.arange(300), np.arange(40))
    run(engine)
    assert gap(tied, one) <= GAP


def test_a_seed_gives_the_same_tokens_and_another_seed_does_not(
    tied: Reference, make_engine: MakeEngine
) -> None:
    def tokens(seed: int, *neighbours: Request) -> list[list[int]]:
        one = request(30, n=4, max_tokens=40, seed=seed)
        run(make_engine(tied.path), *neighbours, one)
        return [sample.tokens.tolist() for sample in one.samples]

    first = tokens(1)
    assert first == tokens(1)
    assert first == tokens(1, request(100, n=5), request(7)), "in any batch"
    assert first != tokens(2)
    assert len({tuple(sample) for sample in first}) == 4, "samples of a group differ"


def test_a_stop_token_ends_a_sample_and_is_its_last(
    tied: Reference, make_engine: MakeEngine
) -> None:
    one = request(20, n=6, max_tokens=400, stop_token_ids=tuple(range(0, 512, 32)))
    run(make_engine(tied.path), one)
    stopped = [sample for sample in one.samples if sample.finish is Finish.STOP]
    assert stopped
    for sample in stopped:
        assert sample.tokens[-1] % 32 == 0
        assert (sample.tokens[:-1] % 32 != 0).all()
    assert all(s.tokens.size == 400 for s in one.samples if s.finish is Finish.LENGTH)


def test_an_aborted_request_frees_its_slots(tied: Reference, make_engine: MakeEngine) -> None:
    engine = make_engine(tied.path, num_slots=4)
    gone, kept = request(600, n=9, max_tokens=300), request(50, n=2)
    for steps in (1, 5):
        run(engine, gone, steps=steps)
        engine.abort(gone)
        assert not engine.is_active
        assert [sample.finish for sample in gone.samples] == [Finish.ABORT] * 9
    run(engine, kept)
    assert gap(tied, kept) <= GAP


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"prompt": np.array([], np.int64)}, "prompt: found no token"),
        ({"prompt": np.array([512])}, "found token 512; allowed is 0 to 511"),
        ({"prompt": np.array([3, -1])}, "found token -1"),
        ({"prompt": np.zeros(1271, np.int64)}, "= 1281; allowed is 1280"),
        ({"n": 0}, "n: found 0"),
        ({"max_tokens": 0}, "max_tokens: found 0"),
        ({"temperature": -0.1}, "temperature: found -0.1"),
        ({"temperature": float("nan")}, "temperature: found nan"),
        ({"top_p": 0.0}, "top_p: found 0.0"),
        ({"top_k": -1}, "top_k: found -1"),
        ({"stop_token_ids": (512,)}, "stop_token_ids: found token 512"),
        ({"stop_token_ids": tuple(range(17))}, "stop_token_ids: count: found 17"),
    ],
)
def test_an_impossible_request_is_refused_and_changes_nothing(
    fields: dict[str, Any], said: str, tied: Reference, make_engine: MakeEngine
) -> None:
    engine = make_engine(tied.path)
    values = {"prompt": np.arange(5), "n": 1, "max_tokens": 10, "temperature": 1.0, "seed": 0}
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        engine.add(Request(**{**values, **fields}))
    assert not engine.is_active


def test_logits_that_overflow_end_their_samples_only(
    tied: Reference, newer: Reference, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(tied.path)
    bad, good = request(10), request(11, max_tokens=30)
    run(engine, bad, good, steps=3)
    decode = engine.model.decode

    def overflow(batch: Any) -> np.ndarray:
        logits = decode(batch).copy()
        logits[0] = np.nan
        return logits

    monkeypatch.setattr(engine.model, "decode", overflow)
    engine.step()
    monkeypatch.setattr(engine.model, "decode", decode)
    run(engine)
    assert "not finite" in bad.error
    assert bad.samples[0].finish is Finish.ABORT
    assert gap(tied, good) <= GAP


class FakeEngine:
    """Counts added and aborted requests."""

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


@pytest.mark.anyio
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


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
