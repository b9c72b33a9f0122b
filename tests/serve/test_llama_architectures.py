"""Each architecture that the llama engine serves, against transformers: log-probabilities of tiny
random models, weights written in place, and adapters."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from forge.errors import ConfigError
from forge.serve.architectures import ARCHITECTURES, why_not_llama
from forge.serve.llama.engine import LlamaEngine
from forge.serve.llama.model import ModelSettings
from tests.serve.conftest import Reference
from tests.serve.stepped import request, run

GAP = 1e-3
"""Allowed |Δ logprob|."""
GELU_GAP = 2e-3
"""The same where llama.cpp looks GELU up in a table of 16-bit floats."""
CONTEXT = 512
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 512,
    "short_factor": [1 + i / 10 for i in range(6)], "long_factor": [2.0 + i for i in range(6)],
    "partial_rotary_factor": 0.75,
}  # fmt: skip
LOCAL = {"rope_type": "default", "rope_theta": 1e4}
LINEAR = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": LOCAL,
}
WINDOW = {"sliding_window": 64, "num_hidden_layers": 5}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GRANITE = {
    "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "attention_multiplier": 0.1,
    "logits_scaling": 2.0,
}  # fmt: skip
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
BIASED = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
QUICK = {"llama": {}}
LONG: dict[str, dict[str, Any]] = {
    "llama, biases": BIASED,
    "llama, wide heads": {"head_dim": 32},
    "llama, llama3": {"rope_parameters": LLAMA3},
    "llama, yarn": {"rope_parameters": YARN},
    "llama, linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "arcee": {},
    "cohere2": WINDOW,
    "ernie4_5": {},
    "gemma": {},
    "gemma2": {**WINDOW, "query_pre_attn_scalar": 16},
    "gemma3_text": {"sliding_window": 64, "num_hidden_layers": 7, "query_pre_attn_scalar": 16},
    "gemma3_text, linear": {"query_pre_attn_scalar": 16, "rope_parameters": LINEAR},
    "glm4": {},
    "gpt_oss": {
        **WINDOW,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": LOCAL,
    },
    "granite": GRANITE,
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "nemotron": {"attention_bias": True, "mlp_bias": True},
    "olmo2": {},
    "olmo3": WINDOW,
    "olmoe": {"num_key_value_heads": 4, "num_experts": 8, "num_experts_per_tok": 2},
    "phi": {"tie_word_embeddings": False},
    "phi3": {"sliding_window": None},
    "phi3, longrope": {"sliding_window": None, "rope_parameters": LONGROPE},
    "qwen2": {},
    "qwen2_moe": {**EXPERTS, "shared_expert_intermediate_size": 64},
    "qwen3, yarn": {"rope_parameters": YARN, "head_dim": 32},
    "qwen3_moe": {**EXPERTS, "norm_topk_prob": True},
    "seed_oss": {},
    "smollm3": {"num_hidden_layers": 5},
    "stablelm": {"use_qkv_bias": True},
    "starcoder2": {"sliding_window": None},
}
LONG_MARK = pytest.mark.long
CASES = [*QUICK, *(pytest.param(name, marks=LONG_MARK) for name in LONG)]


@pytest.mark.parametrize("name", CASES)
def test_logprobs_equal_those_of_transformers_before_and_after_new_weights(
    name: str,
    make_random: Callable[..., Reference],
    make_adapter: Callable[..., Reference],
    tmp_path: Path,
) -> None:
    model_type, values = name.split(",")[0], {**QUICK, **LONG}[name]
    first, second = (make_random(model_type, seed=seed, **values) for seed in (0, 1))
    settings = ModelSettings(model_dir=first.path, work_dir=tmp_path, context_tokens=CONTEXT)
    engine = LlamaEngine(settings, num_slots=1)
    assert engine.model.can_update_in_place
    linear = ATTENTION if "num_experts_per_tok" in values else "all-linear"
    served = [first, second, make_adapter(second, r=4, target_modules=linear), first]
    is_gelu = "gelu" in ARCHITECTURES[model_type].activation
    for version, each in enumerate(served):
        if version:
            engine.load_weights(each.path, version=version)
        for num_prompt in (3, 400):
            gap = largest_gap(engine, each, num_prompt)
            assert gap < (GELU_GAP if is_gelu else GAP), f"version {version}"
    engine.close()


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt_oss", "olmo3"])
def test_groups_and_prompts_beyond_a_window_run_side_by_side(
    name: str, make_random: Callable[..., Reference], tmp_path: Path
) -> None:
    """Saved and restored windows, samples of two versions, more samples than slots."""
    old, new = (make_random(name, seed=seed, **LONG[name]) for seed in (0, 1))
    settings = ModelSettings(model_dir=old.path, work_dir=tmp_path, context_tokens=CONTEXT)
    engine = LlamaEngine(settings, num_slots=4)
    asked = [request(300, n=6, max_tokens=80), request(5, n=2, max_tokens=120)]
    run(engine, *asked, steps=40)
    engine.load_weights(new.path, version=1)
    run(engine)
    for one in asked:
        for sample in one.samples:
            given = one.prompt.tolist(), sample.tokens.tolist()
            expected = np.where(sample.versions == 0, old.logprobs(*given), new.logprobs(*given))
            assert np.abs(expected - sample.logprobs).max() < GAP
    engine.close()


def largest_gap(engine: LlamaEngine, reference: Reference, num_prompt: int) -> float:
    prompt, completion = np.split(np.random.default_rng(0).integers(0, 512, num_prompt + 50), [-50])
    expected = reference.logprobs(prompt.tolist(), completion.tolist())
    return float(np.abs(engine.score(prompt, completion) - expected).max())


def test_a_model_of_images_and_texts_is_served_without_its_images(
    make_random: Callable[..., Reference], tmp_path: Path
) -> None:
    """The names of Gemma 3's own checkpoints."""
    text = make_random("gemma3_text", seed=0, query_pre_attn_scalar=16)
    tensors = load_file(text.path / "model.safetensors")
    named = {
        f"model.language_model.{name.removeprefix('model.')}": t for name, t in tensors.items()
    }
    named["model.vision_tower.vision_model.head.weight"] = torch.ones(3)
    save_file(named, text.path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((text.path / "config.json").read_text())
    whole = {"model_type": "gemma3", "text_config": config, "tie_word_embeddings": True}
    (text.path / "config.json").write_text(json.dumps(whole))
    settings = ModelSettings(model_dir=text.path, work_dir=tmp_path, context_tokens=CONTEXT)
    engine = LlamaEngine(settings, num_slots=1)
    assert largest_gap(engine, text, 40) < GELU_GAP
    engine.close()


@pytest.mark.parametrize(
    ("model_type", "values", "said"),
    [
        ("gemma2", {"query_pre_attn_scalar": 24}, "query_pre_attn_scalar is 24"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ("llama", {"rope_parameters": {**YARN, "rope_type": "dynamic"}}, "rope_type is 'dynamic'"),
        ("gpt_oss", {"rope_parameters": {**YARN, "truncate": False}}, "truncate is False"),
        ("qwen3_moe", {"norm_topk_prob": False}, "norm_topk_prob is False"),
        ("smollm3", {"no_rope_layers": [1, 1]}, None),
        ("smollm3", {"no_rope_layers": [0, 1]}, "no_rope_layers is"),
        ("gemma3", {"text_config": {"hidden_activation": "silu"}}, "hidden_act is 'silu'"),
        ("rwkv", {}, "model_type is 'rwkv'; llama serves arcee, .* hf and vllm others"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 64}, "up to 64 tokens"),
    ],
)
def test_what_llama_cpp_would_compute_otherwise_is_named(
    model_type: str, values: dict[str, Any], said: str | None
) -> None:
    config = {
        "model_type": model_type, "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 512,
        "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6, "head_dim": 16, "num_experts_per_tok": 2,
    }  # fmt: skip
    found = why_not_llama({**config, **values}, context_tokens=CONTEXT)
    assert found == said if said is None else re.search(said, str(found))


def test_every_architecture_is_tested() -> None:
    tested = {name.split(",")[0] for name in [*QUICK, *LONG, "qwen3"]}
    assert tested == set(ARCHITECTURES)


def test_a_window_that_llama_cpp_lacks_limits_the_context(
    make_random: Callable[..., Reference], tmp_path: Path
) -> None:
    path = make_random("mistral", seed=0, sliding_window=64).path
    LlamaEngine(
        ModelSettings(model_dir=path, work_dir=tmp_path, context_tokens=64), num_slots=1
    ).close()
    with pytest.raises(ConfigError, match="up to 64 tokens"):
        LlamaEngine(
            ModelSettings(model_dir=path, work_dir=tmp_path, context_tokens=65), num_slots=1
        )
