"""Shapes of models, before they are loaded."""

import json

import pytest

from forge.config.schema import LoraTable, ModelTable, TinyModel
from forge.errors import ConfigError
from forge.runner.plan.shape import KNOWN, decoder, model_shape
from forge.runner.weights.model_dir import lora_rank

FULL = ModelTable(path="Qwen/Qwen3-8B")
LORA = ModelTable(path="Qwen/Qwen3-8B", lora=LoraTable(r=64))


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen/Qwen3-0.6B", 0.596), ("Qwen/Qwen3-8B", 8.19), ("Qwen/Qwen3-30B-A3B", 30.5),
     ("Qwen/Qwen3-30B-A3B-Instruct-2507", 30.5), ("meta-llama/Llama-3.1-8B-Instruct", 8.03),
     ("facebook/KernelLLM", 8.03), ("arcee-ai/Trinity-Mini", 26.1)],
)  # fmt: skip
def test_known_models_have_their_published_sizes(name, billions):
    shape = model_shape(ModelTable(path=name))
    assert shape.params / 1e9 == pytest.approx(billions, rel=0.01)


@pytest.mark.parametrize("name", ["org/nothing", "org/qwen3-8bit", "Qwen/Qwen3-80B"])
def test_a_similar_name_is_unknown(name):
    assert model_shape(ModelTable(path=name)) is None


@pytest.mark.parametrize(
    ("model_type", "changes", "params"),
    [
        ("qwen3", {}, 596_049_920),
        ("qwen2", {"sliding_window": 9, "use_sliding_window": False}, 596_157_440),
        ("mistral", {"sliding_window": None}, 596_042_752),
    ],
)
def test_the_shape_of_a_plain_decoder_is_computed_from_its_config(
    model_type, changes, params, tmp_path, monkeypatch
):
    monkeypatch.setattr(f"{model_shape.__module__}._measure", lambda config: pytest.fail("asked"))
    config = {**KNOWN["qwen3-0.6b"], "model_type": model_type, **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = model_shape(ModelTable(path=str(tmp_path)))
    assert shape.params == params


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("{", "config.json: not JSON"),
        ("[1]", "config.json: not a JSON object"),
        ("{}", "config.json: model_type"),
        ({"model_type": "../../x"}, "config.json: model_type: found '../../x'"),
        ("\ufeff{}", "config.json: not JSON"),
        ({"quantization_config": [1]}, r"config.json: quantization_config: found \[1\]"),
        ({"max_position_embeddings": -1}, "config.json: max_position_embeddings: found -1"),
        ({"hidden_size": -4}, "config.json: hidden_size: found -4"),
        ({"num_hidden_layers": "28"}, "config.json: num_hidden_layers: found '28'"),
        ({"vocab_size": True}, "config.json: vocab_size: found True"),
        ({"num_hidden_layers": 10**12}, "config.json: num_hidden_layers: found 1000000000000"),
        ({"hidden_size": None}, "config.json: lacks hidden_size"),
        ({"text_config": {"head_dim": 0.5}}, "config.json: text_config.head_dim: found 0.5"),
        ('{"x": "' + "x" * (9 << 20) + '"}', "config.json: 9 MiB"),
    ],
)
def test_a_config_that_no_model_has_is_refused_with_its_key(config, words, tmp_path):
    if not isinstance(config, str):
        config = json.dumps({**KNOWN["qwen3-8b"], **config})
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=words):
        model_shape(ModelTable(path=str(tmp_path)))


def test_a_tiny_model_has_the_parameters_that_transformers_makes():
    transformers = pytest.importorskip("transformers")
    tiny = TinyModel()
    config = transformers.Qwen3Config(
        hidden_size=tiny.hidden_size, num_hidden_layers=tiny.num_layers,
        num_attention_heads=tiny.num_heads, num_key_value_heads=tiny.num_kv_heads,
        head_dim=tiny.head_dim, intermediate_size=tiny.intermediate_size,
        vocab_size=tiny.vocab_size, tie_word_embeddings=True,
    )  # fmt: skip
    made = transformers.AutoModelForCausalLM.from_config(config)
    shape = model_shape(ModelTable(init="tiny"))
    assert shape.params == sum(p.numel() for p in made.parameters())


def test_a_mixture_counts_its_experts_once_and_its_adapter_in_them():
    shape = decoder(KNOWN["qwen3-30b-a3b"])
    assert 0.9 < shape.expert_params / shape.params < 1
    attention = LoraTable(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    experts = attention.model_copy(update={"target_parameters": ["mlp.experts.down_proj"]})
    assert shape.adapter_params(experts) > 10 * shape.adapter_params(attention) > 0


def test_the_lora_rank_of_a_run_is_the_largest_of_its_adapters(tmp_path):
    assert lora_rank(FULL) == 0
    assert lora_rank(FULL, adapter=tmp_path) == 0, "a directory without a config"
    assert lora_rank(LORA) == 64
    (tmp_path / "adapter_config.json").write_text('{"r": 96}')
    assert lora_rank(LORA, adapter=tmp_path) == 96
    assert lora_rank(FULL.model_copy(update={"adapter": tmp_path})) == 96
