"""Shapes of models, and their GPU memory by role."""

from __future__ import annotations

import json

import pytest

from forge.config.schema import (
    GrpoStage,
    LoraTable,
    ModelTable,
    ProblemsTable,
    QuantizeTable,
    ServeTable,
    SftStage,
    TinyModel,
)
from forge.errors import ConfigError
from forge.evalpool.capacity import CONTEXT_BYTES, MAX_EXECUTORS, MAX_ORACLES, NUM_OTHER_CONTEXTS
from forge.runner.plan import measured
from forge.runner.plan.gpu_costs import JUDGE_SHARE, judge_bytes, serve_bytes, train_bytes
from forge.runner.plan.model_shape import KNOWN, decoder, lora_rank, model_shape

GRPO = GrpoStage(kind="grpo", steps=1, learning_rate=1e-6)
SFT = SftStage(kind="sft", steps=1, learning_rate=1e-6)
FULL = ModelTable(path="Qwen/Qwen3-8B")
LORA = ModelTable(path="Qwen/Qwen3-8B", lora=LoraTable(r=64))
SHAPE = decoder(KNOWN["qwen3-8b"])


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen/Qwen3-0.6B", 0.596), ("Qwen/Qwen3-8B", 8.19), ("Qwen/Qwen3-30B-A3B", 30.5),
     ("Qwen/Qwen3-30B-A3B-Instruct-2507", 30.5), ("meta-llama/Llama-3.1-8B-Instruct", 8.03),
     ("facebook/KernelLLM", 8.03), ("arcee-ai/Trinity-Mini", 26.1)],
)  # fmt: skip
def test_known_models_have_their_published_sizes(name, billions):
    shape = model_shape(ModelTable(path=name))
    assert shape is not None
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
    monkeypatch.setattr(f"{model_shape.__module__}.measure", lambda config: pytest.fail("asked"))
    config = {**KNOWN["qwen3-0.6b"], "model_type": model_type, **changes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shape = model_shape(ModelTable(path=str(tmp_path)))
    assert shape is not None
    assert shape.params == params


@pytest.mark.parametrize("text", ["[]", "null", "{", '{"params": 1}'])
def test_a_damaged_shape_in_the_cache_is_made_again(text, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shape = {"params": 1, "linear": {}, "experts": {}, "kv": []}
    monkeypatch.setattr(measured, "_ask", lambda config: shape)
    make = measured._measure.__wrapped__
    make(text)
    (kept,) = tmp_path.glob("forge/shapes/*")
    kept.write_text(text)
    assert make(text) == shape
    assert json.loads(kept.read_text()) == shape


def test_a_cached_hub_model_is_read_from_its_snapshot(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--org--mine" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
              "intermediate_size": 128, "vocab_size": 300, "model_type": "llama"}  # fmt: skip
    (snapshot / "config.json").write_text(json.dumps(config))
    shape = model_shape(ModelTable(path="org/mine"))
    assert shape is not None
    assert (shape.head_dim, shape.kv_values, shape.model_type) == (32, 256, "llama")


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
    assert shape is not None
    assert shape.params == sum(p.numel() for p in made.parameters())


def test_a_mixture_counts_its_experts_once_and_its_adapter_in_them():
    shape = decoder(KNOWN["qwen3-30b-a3b"])
    assert 0.9 < shape.expert_params / shape.params < 1
    attention = LoraTable(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    experts = attention.model_copy(update={"target_parameters": ["mlp.experts.down_proj"]})
    assert shape.adapter_params(experts) > 10 * shape.adapter_params(attention) > 0


def test_experts_in_4_bits_take_a_quarter_and_are_expanded_a_layer_at_a_time():
    shape = decoder(KNOWN["trinity-mini"])
    assert shape.quantized_params / shape.params == pytest.approx(0.97, abs=0.01)
    attention = LoraTable(r=8, target_modules=["q_proj"])
    experts = attention.model_copy(update={"target_parameters": ["mlp.experts.down_proj"]})

    def bytes_of(lora: LoraTable, is_quantized: bool, **stage: bool) -> int:
        table = ModelTable(path="x", lora=lora, quantize=QuantizeTable() if is_quantized else None)
        found = train_bytes(
            SFT.model_copy(update={"batch_size": 1, **stage}), table, shape,
            num_gpus=1, parallel="ddp", context_tokens=1024,
        )  # fmt: skip
        return found.peak

    saved = bytes_of(attention, False) - bytes_of(attention, True)
    layer = 2 * shape.expert_params / shape.sparse_layers
    assert saved == pytest.approx((2 - 0.56) * shape.quantized_params - 1.15 * layer, rel=0.01)
    assert bytes_of(experts, True) > bytes_of(attention, True) + 2 * layer
    kept = bytes_of(attention, True, gradient_checkpointing=False)
    assert kept > bytes_of(attention, True) + 2 * shape.expert_params


def test_settings_that_save_memory_save_it_in_the_plan():
    def peak(
        model: ModelTable = FULL,
        stage: GrpoStage | SftStage = GRPO,
        num_gpus: int = 1,
        parallel: str = "ddp",
        context_tokens: int = 1024,
    ) -> int:
        return train_bytes(
            stage, model, SHAPE, num_gpus=num_gpus, parallel=parallel, context_tokens=context_tokens
        ).peak

    quantized = LORA.model_copy(update={"quantize": QuantizeTable()})
    assert peak() > peak(ModelTable(path="x", dtype="bfloat16")) > peak(LORA) > peak(quantized)
    assert peak(num_gpus=4, parallel="fsdp2") < peak(num_gpus=4) / 2
    assert peak(stage=GRPO.model_copy(update={"optimizer": "adamw_8bit"})) < peak()
    assert peak(stage=GRPO.model_copy(update={"micro_batch_tokens": 1024})) < peak()
    assert peak(stage=GRPO.model_copy(update={"gradient_checkpointing": False})) > peak()
    assert peak(stage=GRPO.model_copy(update={"beta": 0.1})) - peak() == pytest.approx(
        4 * SHAPE.params, rel=1e-6
    )
    assert peak(stage=SFT.model_copy(update={"micro_batch_tokens": 65536})) > peak(stage=SFT)
    wide = GRPO.model_copy(update={"micro_batch_tokens": 32768})
    assert peak(context_tokens=32768) == peak(stage=wide), "one sample may be that long"


def test_full_training_takes_18_bytes_a_parameter_between_steps():
    resident = train_bytes(
        GRPO, FULL, SHAPE, num_gpus=1, parallel="ddp", context_tokens=1024
    ).resident
    assert resident / SHAPE.params == pytest.approx(18, rel=0.02)


def test_an_engine_needs_more_memory_for_longer_contexts():
    def need(engine: str = "vllm", num_gpus: int = 1, **keys):
        table = ServeTable(**keys)
        return serve_bytes(table, FULL, SHAPE, engine=engine, num_gpus=num_gpus)

    assert need().least > 4 * SHAPE.params, "exact is f32"
    assert 4 * SHAPE.params > need(precision="fast").least > 2 * SHAPE.params
    assert need(context_tokens=32768).least > need().least
    assert need(num_gpus=2).least < need().least
    assert need("llama", precision="exact").full > need("llama", precision="fast").full
    assert need("llama").least == need("llama").full, "llama.cpp allocates its whole cache"


def test_a_judge_needs_room_for_the_tensors_of_its_problems():
    small = judge_bytes(ProblemsTable(), memory_bytes=80 << 30)
    assert judge_bytes(ProblemsTable(sizes="gpu"), memory_bytes=80 << 30) - small == 4 << 30
    full = ProblemsTable(source="dir")
    assert judge_bytes(full, memory_bytes=80 << 30) > small
    less = full.model_copy(update={"overrides": {"batch_size": 4}})
    assert judge_bytes(less, memory_bytes=80 << 30) == small


def test_a_judge_needs_room_for_every_context_it_may_hold():
    least, large = (
        judge_bytes(ProblemsTable(), memory_bytes=one << 30) - int(JUDGE_SHARE * (one << 30))
        for one in (8, 141)
    )
    assert least == (NUM_OTHER_CONTEXTS + 1 + 1 + 1) * CONTEXT_BYTES
    assert large == (NUM_OTHER_CONTEXTS + 2 * MAX_EXECUTORS + MAX_ORACLES) * CONTEXT_BYTES


def test_the_lora_rank_of_a_run_is_the_largest_of_its_adapters(tmp_path):
    assert lora_rank(FULL) == 0
    assert lora_rank(FULL, adapter=tmp_path) == 0, "a directory without a config"
    assert lora_rank(LORA) == 64
    (tmp_path / "adapter_config.json").write_text('{"r": 96}')
    assert lora_rank(LORA, adapter=tmp_path) == 96
    assert lora_rank(FULL.model_copy(update={"adapter": tmp_path})) == 96
