"""The transformers engine against plain transformers in f32 and against llama, in this process."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from forge.errors import ConfigError
from forge.records import Finish
from forge.serve.engine.draws import Knobs, uniforms
from forge.serve.hf.engine import HfEngine, HfSettings
from forge.serve.hf.sampler import draw
from forge.serve.llama.engine import LlamaEngine
from forge.serve.llama.model import ModelSettings
from forge.serve.llama.sampler import TokenSampler
from tests.serve.stepped import gap, request, run

if TYPE_CHECKING:
    from conftest import Reference

    from forge.serve.port import Request

GAP = 1e-4
"""Allowed mean |Δ logprob| in exact mode."""


def make_engine(path: Path, *, num_slots: int = 6, **settings: Any) -> HfEngine:
    values = {"context_tokens": 1280, **settings}
    return HfEngine(HfSettings(model_dir=path, num_slots=num_slots, **values))


def test_ragged_samples_in_one_batch_equal_transformers(tied: Reference) -> None:
    """More samples than slots: some start while others run, and lengths differ."""
    engine = make_engine(tied.path)
    asked = [
        request(5, n=4, max_tokens=20),
        request(300, n=3, temperature=0.7, max_tokens=7),
        request(1, temperature=0.0, max_tokens=31),
        request(41, n=2, temperature=1.3, max_tokens=15),
    ]
    run(engine, *asked)
    assert max(gap(tied, one) for one in asked) <= GAP
    assert [len(s.tokens) for one in asked for s in one.samples] == [20] * 4 + [7] * 3 + [
        31,
        15,
        15,
    ]


def test_llama_and_hf_generate_the_same_tokens_for_a_seed(tied: Reference, tmp_path: Path) -> None:
    asked = [request(40, n=4, seed=3), request(7, n=2, temperature=0.8, top_k=50, top_p=0.9)]
    again = [request(40, n=4, seed=3), request(7, n=2, temperature=0.8, top_k=50, top_p=0.9)]
    settings = ModelSettings(model_dir=tied.path, work_dir=tmp_path, context_tokens=1280)
    llama = LlamaEngine(settings, num_slots=6)
    run(llama, *asked)
    run(make_engine(tied.path), *again)
    for one, other in zip(asked, again, strict=True):
        for sample, twin in zip(one.samples, other.samples, strict=True):
            assert sample.tokens.tolist() == twin.tokens.tolist()
            assert np.abs(sample.logprobs - twin.logprobs).max() <= 1e-3
    llama.close()


def test_bf16_stays_near_transformers(tied: Reference) -> None:
    one = request(60, n=4, max_tokens=40)
    run(make_engine(tied.path, is_exact=False), one)
    assert GAP < gap(tied, one) < 0.05


def test_running_samples_continue_under_new_weights(tied: Reference, newer: Reference) -> None:
    engine = make_engine(tied.path)
    asked = [request(30, n=8, max_tokens=20), request(31, n=2, max_tokens=20)]
    run(engine, *asked, steps=8)
    assert engine.load_weights(newer.path, version=5) == "full"
    run(engine)
    for one in asked:
        for sample in one.samples:
            tokens, prompt = sample.tokens.tolist(), one.prompt.tolist()
            assert len(tokens) == 20
            old = sample.versions == 0
            expected = np.where(old, tied.logprobs(prompt, tokens), newer.logprobs(prompt, tokens))
            assert np.abs(expected - sample.logprobs).max() < 1e-3
    samples = [sample for one in asked for sample in one.samples]
    assert sum(set(sample.versions.tolist()) == {0, 5} for sample in samples) == 6


def test_an_adapter_replaces_the_last_and_full_weights_remove_it(
    tied: Reference, newer: Reference, make_adapter: Callable[..., Reference]
) -> None:
    engine = make_engine(tied.path)
    first, second = make_adapter(tied, r=4), make_adapter(tied, r=8, lora_alpha=32)
    on_newer = make_adapter(newer, r=4, use_rslora=True)
    for version, expected in enumerate((first, second, newer, on_newer, tied), start=1):
        kind = engine.load_weights(expected.path, version=version)
        assert kind == ("full" if expected in (tied, newer) else "adapter")
        one = request(40, n=2)
        run(engine, one)
        assert gap(expected, one) <= GAP
        assert {int(v) for sample in one.samples for v in sample.versions} == {version}


def test_scores_are_those_of_the_served_weights(
    tied: Reference, newer: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forge.serve.hf.engine.SCORE_TOKENS", 16)
    engine = make_engine(tied.path)
    one = request(30, n=4, max_tokens=12)
    run(engine, one, steps=3)
    prompt, completion = np.arange(100) % 512, np.arange(50)
    for reference, version in ((tied, 0), (newer, 1)):
        if version:
            engine.load_weights(reference.path, version=version)
        expected = reference.logprobs(prompt.tolist(), completion.tolist())
        assert np.abs(engine.score(prompt, completion) - expected).max() <= 1e-3
    run(engine)
    assert [len(sample.tokens) for sample in one.samples] == [12] * 4


def drop_a_tensor(path: Path, name: str = "model.safetensors") -> None:
    tensors = load_file(path / name)
    del tensors[sorted(tensors)[1]]
    save_file(tensors, path / name, metadata={"format": "pt"})


def cut(path: Path, name: str = "model.safetensors") -> None:
    (path / name).write_bytes((path / name).read_bytes()[:-1000])


def widen(path: Path) -> None:
    config = json.loads((path / "config.json").read_text())
    config["num_hidden_layers"] = 3
    (path / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("damage", [drop_a_tensor, cut, widen, shutil.rmtree])
@pytest.mark.parametrize("adapted", [False, True])
def test_a_refused_checkpoint_changes_nothing(
    damage: Callable[[Path], None],
    adapted: bool,
    tied: Reference,
    newer: Reference,
    make_adapter: Callable[..., Reference],
    tmp_path: Path,
) -> None:
    engine = make_engine(tied.path)
    served = tied
    if adapted:
        served = make_adapter(tied, r=4)
        engine.load_weights(served.path, version=1)
    shutil.copytree(newer.path, tmp_path / "bad")
    damage(tmp_path / "bad")
    with pytest.raises(ConfigError, match="bad"):
        engine.load_weights(tmp_path / "bad", version=9)
    one = request(40)
    run(engine, one)
    assert gap(served, one) <= GAP
    assert engine.status().version == int(adapted)


def of_another_kind(path: Path, name: str) -> None:
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**config, "peft_type": "LOHA"}))


def of_another_size(path: Path, name: str) -> None:
    config = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**config, "r": 5}))


def of_no_layer(path: Path, name: str) -> None:
    config = json.loads((path / "adapter_config.json").read_text())
    config["target_modules"] = ["nowhere"]
    (path / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    "damage", [drop_a_tensor, cut, of_another_kind, of_another_size, of_no_layer]
)
@pytest.mark.parametrize("adapted", [False, True])
def test_a_refused_adapter_changes_nothing(
    damage: Callable[[Path, str], None],
    adapted: bool,
    tied: Reference,
    make_adapter: Callable[..., Reference],
    tmp_path: Path,
) -> None:
    engine = make_engine(tied.path)
    served = tied
    if adapted:
        served = make_adapter(tied, r=4)
        engine.load_weights(served.path, version=1)
    shutil.copytree(make_adapter(tied, r=8).path, tmp_path / "bad")
    damage(tmp_path / "bad", "adapter_model.safetensors")
    with pytest.raises(ConfigError, match="bad"):
        engine.load_weights(tmp_path / "bad", version=9)
    one = request(40)
    run(engine, one)
    assert gap(served, one) <= GAP
    good = make_adapter(tied, r=2)
    engine.load_weights(good.path, version=2)
    run(engine, again := request(40))
    assert gap(good, again) <= GAP


def test_an_aborted_request_frees_its_slots(tied: Reference) -> None:
    engine = make_engine(tied.path, num_slots=4)
    gone, kept = request(60, n=9, max_tokens=300), request(50, n=2, max_tokens=30)
    run(engine, kept, gone, steps=3)
    engine.abort(gone)
    assert [sample.finish for sample in gone.samples] == [Finish.ABORT] * 9
    assert engine.status().running == 2
    run(engine)
    assert gap(tied, kept) <= GAP


def test_a_seed_gives_the_same_tokens_in_any_batch(tied: Reference) -> None:
    def tokens(seed: int, *neighbours: Request) -> list[list[int]]:
        one = request(30, n=4, max_tokens=20, seed=seed)
        run(make_engine(tied.path), *neighbours, one)
        return [sample.tokens.tolist() for sample in one.samples]

    first = tokens(1)
    assert first == tokens(1, request(100, n=5), request(7))
    assert first != tokens(2)
    assert len({tuple(sample) for sample in first}) == 4, "samples of a group differ"


def test_a_stop_token_ends_a_sample_and_is_its_last(tied: Reference) -> None:
    one = request(20, n=6, max_tokens=100, stop_token_ids=tuple(range(0, 512, 32)))
    run(make_engine(tied.path), one)
    stopped = [sample for sample in one.samples if sample.finish is Finish.STOP]
    assert stopped
    for sample in stopped:
        assert sample.tokens[-1] % 32 == 0
        assert (sample.tokens[:-1] % 32 != 0).all()


def test_logits_that_overflow_end_their_samples_only(
    tied: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(tied.path)
    bad, good = request(10), request(11, max_tokens=30)
    run(engine, bad, good, steps=3)
    decode = engine._model.decode

    def overflow(tokens: list[int], memory: Any) -> torch.Tensor:
        logits = decode(tokens, memory)
        logits[0] = torch.nan
        return logits

    monkeypatch.setattr(engine._model, "decode", overflow)
    engine.step()
    monkeypatch.setattr(engine._model, "decode", decode)
    run(engine)
    assert "not finite" in bad.error
    assert bad.samples[0].finish is Finish.ABORT
    assert gap(tied, good) <= GAP


def test_draws_equal_those_of_the_numpy_sampler() -> None:
    rng = np.random.default_rng(0)
    rows, vocab = 400, 700
    logits = rng.normal(0, 2, (rows, vocab)).astype(np.float32)
    knobs = Knobs(
        temperature=rng.choice([0.0, 0.7, 1.0, 1.5], rows),
        top_k=rng.choice([0, 1, 20, 9999], rows),
        top_p=rng.choice([0.3, 0.9, 1.0], rows),
    )
    uniform = uniforms(np.full(rows, 5, np.uint64), np.arange(rows), np.zeros(rows, np.int64))
    expected = TokenSampler(num_vocab=vocab, max_rows=rows).draw(logits, knobs, uniform)
    found = draw(torch.from_numpy(logits), knobs, uniform)
    assert (found.token == expected.token).all()
    assert np.abs(found.logprob - expected.logprob).max() < 1e-5
    assert np.abs(found.logprob_t1 - expected.logprob_t1).max() < 1e-5
    assert found.is_finite.all()


def make_moe(path: Path, kind: str, *, seed: int) -> Any:
    """A small random mixture of experts, saved."""
    import transformers

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
        "moe_intermediate_size": 16, "num_experts": 4, "num_experts_per_tok": 2,
        "vocab_size": 512, "max_position_embeddings": 512, "initializer_range": 0.1,
    }  # fmt: skip
    if kind == "Afmoe":
        # Sliding windows shorter than the sequences below, and a dense layer first.
        sizes |= {"sliding_window": 16, "num_dense_layers": 1, "num_hidden_layers": 4}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval().float()
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize("kind", ["Qwen3Moe", "Afmoe"])
def test_mixtures_of_experts_equal_transformers(kind: str, tied: Reference, tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    first = make_moe(tmp_path / "first", kind, seed=0)
    second = make_moe(tmp_path / "second", kind, seed=1)
    engine = make_engine(tmp_path / "first", context_tokens=256)
    for path, model in (("first", first), ("second", second)):
        if path == "second":
            engine.load_weights(tmp_path / path, version=1)
        asked = [request(40, n=3, max_tokens=20), request(7, n=2)]
        run(engine, *asked)
        reference = replace(tied, path=tmp_path / path, model=model)
        assert max(gap(reference, one) for one in asked) <= GAP
    torch.manual_seed(5)
    lora = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM",
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT uses deprecated names
        adapted = get_peft_model(second, lora).eval()
    adapted.save_pretrained(str(tmp_path / "adapter"))
    assert engine.load_weights(tmp_path / "adapter", version=2) == "adapter"
    run(engine, one := request(40, n=3, max_tokens=20))
    assert gap(replace(tied, model=adapted), one) <= GAP
    engine.load_weights(tmp_path / "first", version=3)
    plain = make_moe(tmp_path / "again", kind, seed=0)
    run(engine, one := request(40, n=3, max_tokens=20))
    assert gap(replace(tied, model=plain), one) <= GAP
