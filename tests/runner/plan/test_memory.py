"""GPU memory by role: the formula against measured peaks; shapes before they are loaded."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge.config.schema import (
    GrpoStage,
    LoraTable,
    ModelTable,
    ProblemsTable,
    QuantizeTable,
    SftStage,
    TinyModel,
)
from forge.errors import ConfigError
from forge.runner.plan.memory import TrainBytes, judge_bytes, micro_batch, train_bytes
from forge.runner.plan.shape import KNOWN, decoder, model_shape, tiny_shape
from forge.runner.weights.model_dir import lora_rank
from tests.examples import examples

GRPO = GrpoStage(kind="grpo", steps=1, learning_rate=1e-6)
SFT = SftStage(kind="sft", steps=1, learning_rate=1e-6)
SHARED = GRPO.model_copy(update={"packing": True})
KEPT = SFT.model_copy(update={"gradient_checkpointing": False})
COMPILED = KEPT.model_copy(update={"compile": True})
FULL = ModelTable(path="x")
BF16 = ModelTable(path="x", dtype="bfloat16")
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
LORA = ModelTable(path="x", dtype="bfloat16", lora=LoraTable(r=64, target_modules=MODULES + MLP))
QLORA = ModelTable(
    path="x", lora=LoraTable(r=64, target_modules=MODULES, target_parameters=EXPERTS),
    quantize=QuantizeTable(),
)  # fmt: skip
SMALL, LARGE, MIXTURE = (
    decoder(KNOWN[name]) for name in ("qwen3-0.6b", "qwen3-8b", "trinity-mini")
)
SCRATCH = tiny_shape(
    TinyModel(
        hidden_size=640, num_layers=10, num_heads=10, num_kv_heads=5, intermediate_size=1920,
        vocab_size=2048,
    )
)  # fmt: skip

SMOLLM = decoder({
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49_152,
    "tie_word_embeddings": True,
})  # fmt: skip


def need(
    stage: Any = GRPO, model: ModelTable = FULL, shape: Any = LARGE, **keys: Any
) -> TrainBytes:
    keys = {"num_gpus": 1, "parallel": "ddp", "tokens": 4096, **keys}
    return train_bytes(stage, model, shape, **keys)


@pytest.mark.parametrize(
    ("gigabytes", "asked"),
    [
        # bench/trainers.py --shape 0.6b on H200s, 2026-11-21, d71944a and 94b3e96: torch's peaks,
        # with the tokens of its largest micro-batches.
        (13.69, {"shape": SMALL, "tokens": 16326}),
        (21.56, {"shape": SMALL, "tokens": 65394, "is_whole": True}),
        (14.73, {"shape": SMALL, "stage": SHARED, "tokens": 29058, "is_whole": True}),
        (16.07, {"shape": SMALL, "tokens": 16326, "num_gpus": 2}),
        (7.87, {"shape": SMALL, "tokens": 16326, "num_gpus": 2, "parallel": "fsdp2"}),
        # bench/sft.py on an H100, 2026-11-25, d29912d5: an 8B, and Trinity-Mini in 4 bits.
        (24.5, {"stage": SFT, "model": LORA, "tokens": 8192}),
        (33.2, {"stage": SFT, "model": QLORA, "shape": MIXTURE}),
        # SFT of h200-from-scratch on an H100, 2026-11-26, 4ede8413: without the context's 0.9 GB.
        (14.3, {"stage": KEPT, "shape": SCRATCH, "tokens": 32768}),
        # SmolLM2-135M's shape on an H200, 2026-11-29, a62cf4a0, torch 2.11, plain and compiled.
        (34.55, {"stage": KEPT, "shape": SMOLLM, "tokens": 32768}),
        (22.49, {"stage": COMPILED, "shape": SMOLLM, "tokens": 32768}),
        (20.0, {"stage": COMPILED, "model": BF16, "shape": SMOLLM, "tokens": 32768}),
    ],
)
def test_the_formula_is_within_a_tenth_of_measured_peaks(
    gigabytes: float, asked: dict[str, Any]
) -> None:
    planned = need(**asked)
    assert (planned.peak - planned.context) / 1e9 == pytest.approx(gigabytes, rel=0.1)


def test_a_copy_for_engines_takes_memory_between_steps_and_beside_an_overlapped_one() -> None:
    plain, size = need(), 10 << 30
    between, beside = (
        plain.with_copy(size, is_beside_a_step=each, readers=0) for each in (False, True)
    )
    read = plain.with_copy(size, is_beside_a_step=True, readers=2)
    assert read.peak == beside.peak + 2 * plain.context, "each engine has a context there"
    assert between.resident == beside.resident == plain.resident + size
    assert between.peak == max(plain.peak, plain.resident + size)
    assert beside.peak == plain.peak + size


@settings(max_examples=examples(60), deadline=None)
@given(
    grown=st.sampled_from(["tokens", "num_layers", "hidden_size", "intermediate_size"]),
    tokens=st.integers(1, 1 << 16), layers=st.integers(1, 63), units=st.integers(1, 60),
    lora=st.booleans(), recomputes=st.booleans(), num_gpus=st.sampled_from([1, 2, 8]),
    parallel=st.sampled_from(["ddp", "fsdp2"]), is_whole=st.booleans(),
)  # fmt: skip
def test_a_larger_step_or_model_never_takes_less(
    grown: str, tokens: int, layers: int, units: int, lora: bool, **keys: Any
) -> None:
    sizes = {"num_layers": layers, "hidden_size": 64 * units, "intermediate_size": 128 * units}
    less, more = ({"tokens": tokens, **sizes} for _ in range(2))
    more[grown] += 64
    model = LORA if lora else FULL
    peaks = [
        need(model=model, tokens=each.pop("tokens"),
             shape=tiny_shape(TinyModel.model_construct(**{**TinyModel().model_dump(), **each})),
             **keys).peak
        for each in (less, more)
    ]  # fmt: skip
    assert peaks[0] <= peaks[1]


def test_settings_that_save_memory_save_it_in_the_plan() -> None:
    def changed(**keys: Any) -> GrpoStage:
        return GRPO.model_copy(update=keys)

    peak = need().peak
    quantized = LORA.model_copy(update={"quantize": QuantizeTable()})
    sizes = [need(model=m).peak for m in (BF16, LORA, quantized)]
    assert peak > sizes[0] > sizes[1] > sizes[2]
    assert need(num_gpus=4, parallel="fsdp2").peak < need(num_gpus=4).peak / 2
    shards = [need(model=m, num_gpus=4, parallel="fsdp2").weights for m in (FULL, BF16)]
    assert shards[0] == shards[1], "accelerate trains f32 shards"
    host = need(changed(offload=True), num_gpus=4, parallel="fsdp2")
    assert (host.weights, host.optimizer, host.gradients) == (0, 0, 0)
    assert host.step == need(num_gpus=4, parallel="fsdp2").step
    assert need(changed(optimizer="adamw_8bit")).peak == peak - 6 * LARGE.params
    assert need(changed(gradient_checkpointing=False)).peak == need(recomputes=False).peak > peak
    assert need(changed(beta=0.1)).peak - peak == pytest.approx(4 * LARGE.params, rel=1e-6)
    halves = [need(changed(gradient_checkpointing=num), tokens=1 << 15).peak for num in (36, 18, 1)]
    assert halves == sorted(halves)
    assert halves[0] == need(tokens=1 << 15).peak
    assert need(is_whole=True).peak < peak
    assert need(SHARED, tokens=65536).peak > need(tokens=65536).peak
    assert need().resident / LARGE.params == pytest.approx(12, rel=0.02), "no gradients are left"


def test_a_micro_batch_has_the_longest_row_and_no_more_rows_than_there_are() -> None:
    def of(stage: Any, num_gpus: int = 1, context_tokens: int = 1024) -> tuple[int, bool]:
        return micro_batch(
            stage, num_gpus=num_gpus, context_tokens=context_tokens, num_samples=32
        )  # fmt: skip

    assert of(GRPO) == (4096, False)
    assert of(GRPO, context_tokens=32768) == (32768, False), "one sample may be that long"
    assert of(GRPO.model_copy(update={"micro_batch_tokens": 1 << 20})) == (32 * 1024, True)
    assert of(SFT.model_copy(update={"batch_size": 8}), 2) == (4 * SFT.max_length, True)


def test_a_judge_needs_room_for_the_tensors_of_its_problems() -> None:
    small = judge_bytes(ProblemsTable(), memory_bytes=80 << 30)
    assert judge_bytes(ProblemsTable(sizes="gpu"), memory_bytes=80 << 30) - small == 4 << 30
    full = ProblemsTable(source="dir")
    assert judge_bytes(full, memory_bytes=80 << 30) > small
    less = full.model_copy(update={"overrides": {"batch_size": 4}})
    assert judge_bytes(less, memory_bytes=80 << 30) == small


QWEN = ModelTable(path="Qwen/Qwen3-8B")
ADAPTED = ModelTable(path="Qwen/Qwen3-8B", lora=LoraTable(r=64))


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
    assert lora_rank(QWEN) == 0
    assert lora_rank(QWEN, adapter=tmp_path) == 0, "a directory without a config"
    assert lora_rank(ADAPTED) == 64
    (tmp_path / "adapter_config.json").write_text('{"r": 96}')
    assert lora_rank(ADAPTED, adapter=tmp_path) == 96
    assert lora_rank(QWEN.model_copy(update={"adapter": tmp_path})) == 96
