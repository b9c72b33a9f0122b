"""Promises of the engines that forge steps, llama (with weights written in place and reloaded) and
hf: against plain transformers in f32, in this process.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forge.errors import ConfigError
from forge.records import Finish
from forge.serve.hf.engine import HfEngine, HfSettings
from forge.serve.llama.checkpoint import Precision
from forge.serve.llama.engine import LlamaEngine
from forge.serve.llama.model import LlamaModel, ModelSettings
from forge.serve.port import Request
from tests.serve.conftest import Reference
from tests.serve.stepped import gap, request, run

GAP = 1e-4
"""Allowed mean |Δ logprob| in exact mode."""

MakeEngine = Callable[..., Any]
RELOADING = pytest.mark.parametrize("kind", ["llama", "llama, reloaded", "hf"])
"""For tests that load weights: llama loads them in two ways."""


@pytest.fixture(params=["llama", "hf"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def make_engine(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeEngine]:
    made: list[Any] = []

    def make(path: Path, *, num_slots: int = 6, is_exact: bool = True) -> Any:
        if kind == "hf":
            settings = HfSettings(
                model_dir=path, num_slots=num_slots, context_tokens=1280, is_exact=is_exact
            )
            return HfEngine(settings)
        settings = ModelSettings(
            model_dir=path, work_dir=tmp_path, context_tokens=1280,
            precision=Precision.EXACT if is_exact else Precision.FAST,
        )  # fmt: skip
        if kind == "llama, reloaded":  # as with a build whose tensor map is not understood
            monkeypatch.setattr(LlamaModel, "_find_tensors", lambda _self, _checkpoint: {})
        made.append(LlamaEngine(settings, num_slots=num_slots))
        assert made[-1].model.can_update_in_place is (kind == "llama")
        return made[-1]

    yield make
    for engine in made:
        engine.close()


@pytest.mark.parametrize("which", ["tied", "untied"])
def test_exact_equals_transformers_in_groups_of_ragged_prompts(
    which: str, make_engine: MakeEngine, request: pytest.FixtureRequest
) -> None:
    """More samples than slots: some start while others run, and lengths differ."""
    reference: Reference = request.getfixturevalue(which)
    engine = make_engine(reference.path)
    asked = [ragged(5, 8, 1.0), ragged(700, 3, 0.7), ragged(1, 1, 0.0), ragged(512, 2, 1.3)]
    run(engine, *asked)
    assert max(gap(reference, one) for one in asked) <= GAP
    lengths = [[len(sample.tokens) for sample in one.samples] for one in asked]
    assert lengths == [[one.max_tokens] * one.n for one in asked]


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
    one = request(60, n=4, max_tokens=50)
    run(make_engine(tied.path, is_exact=False), one)
    assert GAP < gap(tied, one) < 0.05


@RELOADING
def test_running_samples_continue_under_new_weights(
    tied: Reference, newer: Reference, make_engine: MakeEngine
) -> None:
    """More samples than slots: some run, some wait with an evaluated prompt, some are queued."""
    engine = make_engine(tied.path)
    asked = [request(30, n=8, max_tokens=25), request(31, n=2, max_tokens=25)]
    run(engine, *asked, steps=10)
    engine.load_weights(newer.path, version=5)
    run(engine)
    for one in asked:
        for sample in one.samples:
            tokens, prompt = sample.tokens.tolist(), one.prompt.tolist()
            assert len(tokens) == 25
            old = sample.versions == 0
            expected = np.where(old, tied.logprobs(prompt, tokens), newer.logprobs(prompt, tokens))
            assert np.abs(expected - sample.logprobs).max() < 1e-3
    samples = [sample for one in asked for sample in one.samples]
    mixed = [sample for sample in samples if set(sample.versions.tolist()) == {0, 5}]
    assert len(mixed) == 6, "the samples that had a slot"


@RELOADING
def test_an_adapter_replaces_the_last_and_full_weights_remove_it(
    tied: Reference,
    newer: Reference,
    make_engine: MakeEngine,
    make_adapter: Callable[..., Reference],
) -> None:
    engine = make_engine(tied.path)
    patterns = {"rank_pattern": {"q_proj": 8}, "alpha_pattern": {"up_proj": 32}}
    served = [
        make_adapter(tied, r=4),
        make_adapter(tied, r=4, lora_alpha=8, **patterns),
        newer,
        make_adapter(newer, r=4, use_rslora=True),
        tied,
    ]
    for version, expected in enumerate(served, start=1):
        engine.load_weights(expected.path, version=version)
        one = request(40, n=2)
        run(engine, one)
        assert gap(expected, one) <= GAP
        assert gap(served[version - 2], one) > 0.05, "of other weights"
        assert {int(v) for sample in one.samples for v in sample.versions} == {version}


def test_scores_are_those_of_the_served_weights_and_change_no_running_sample(
    tied: Reference, newer: Reference, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.serve.hf.engine.SCORE_TOKENS", 16)
    engine = make_engine(tied.path)
    one = request(30, n=8)
    run(engine, one, steps=5)
    prompt, completion = np.arange(600) % 512, np.arange(50)
    expected = [each.logprobs(prompt.tolist(), completion.tolist()) for each in (tied, newer)]
    found = engine.score(prompt, completion)
    assert np.abs(found - expected[0]).mean() <= GAP
    assert np.abs(found - expected[1]).mean() > 0.1
    run(engine)
    assert gap(tied, one) <= GAP
    engine.load_weights(newer.path, version=1)
    assert np.abs(engine.score(prompt, completion) - expected[1]).mean() <= GAP


def test_a_seed_gives_the_same_tokens_and_another_seed_does_not(
    tied: Reference, make_engine: MakeEngine
) -> None:
    def tokens(seed: int, *neighbours: Request) -> list[list[int]]:
        one = request(30, n=4, max_tokens=20, seed=seed)
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
    one = request(20, n=6, max_tokens=100, stop_token_ids=tuple(range(0, 512, 32)))
    run(make_engine(tied.path), one)
    stopped = [sample for sample in one.samples if sample.finish is Finish.STOP]
    assert stopped
    for sample in stopped:
        assert sample.tokens[-1] % 32 == 0
        assert (sample.tokens[:-1] % 32 != 0).all()
    assert all(s.tokens.size == 100 for s in one.samples if s.finish is Finish.LENGTH)


def test_an_aborted_request_frees_its_slots(tied: Reference, make_engine: MakeEngine) -> None:
    engine = make_engine(tied.path, num_slots=4)
    gone, kept = request(60, n=9, max_tokens=300), request(50, n=2)
    for steps in (1, 5):
        run(engine, gone, steps=steps)
        engine.abort(gone)
        assert not engine.is_active
        assert [sample.finish for sample in gone.samples] == [Finish.ABORT] * 9
    run(engine, kept)
    assert gap(tied, kept) <= GAP


IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
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
]


def test_an_impossible_request_is_refused_and_changes_nothing(
    tied: Reference, make_engine: MakeEngine
) -> None:
    engine = make_engine(tied.path)
    values = {"prompt": np.arange(5), "n": 1, "max_tokens": 10, "temperature": 1.0, "seed": 0}
    for fields, said in IMPOSSIBLE:
        with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
            engine.add(Request(**{**values, **fields}))
        assert not engine.is_active


def test_logits_that_overflow_end_their_samples_only(
    tied: Reference, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(tied.path)
    bad, good = request(10), request(11, max_tokens=30)
    run(engine, bad, good, steps=3)
    model = engine._model if isinstance(engine, HfEngine) else engine.model
    decode = model.decode

    def overflow(*args: Any) -> Any:
        logits = decode(*args) * 1.0  # a copy
        logits[0] = np.nan
        return logits

    monkeypatch.setattr(model, "decode", overflow)
    engine.step()
    monkeypatch.setattr(model, "decode", decode)
    run(engine)
    assert "not finite" in bad.error
    assert bad.samples[0].finish is Finish.ABORT
    assert gap(tied, good) <= GAP
