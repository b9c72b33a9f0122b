"""Tiny random models, one of each architecture that `docs/reference/models.md` lists, in
directories like those of the hub: bf16, with tokenizer, chat template and generation config."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant"
    "<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }}</s>{% else %}"
    "[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
)
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIALS = {
    CHATML: ("<|im_start|>", "<|im_end|>"),
    LLAMA: ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    GEMMA: ("<start_of_turn>", "<end_of_turn>"),
    MISTRAL: ("[INST]", "[/INST]", "</s>"),
    PHI: ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
}
"""Special tokens of a template; the last one ends an answer."""

VOCAB = 384
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
    "max_position_embeddings": 2048, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
WINDOWS = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
GROUPED = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1,
    "n_shared_experts": 1, "topk_group": 1, "first_k_dense_replace": 1,
}  # fmt: skip
TIED = {"tie_word_embeddings": True}
GEMMA_3 = {**SIZES, **WINDOWS, "query_pre_attn_scalar": 32}
PICTURES = {"image_token_id": 300, "video_token_id": 301, "vision_start_token_id": 302,
            "vision_end_token_id": 303}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A row of the table in the reference."""

    models: str
    """Models that people know it by."""
    config: str
    """Class of its config."""
    keys: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    """Keys of `SIZES` that its config lacks."""
    kind: str = ""
    """Class of a model of several parts."""
    template: str = CHATML
    packs: bool = True
    """True if sequences can be packed."""
    modules: tuple[str, ...] = ("q_proj", "v_proj")
    """Modules that an adapter is tried on."""
    experts: tuple[str, ...] = ()
    """Fused experts that it is tried on, too."""


FUSED = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
NO_HEAD = ("head_dim",)
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(models="Llama 3, SmolLM2, Yi", config="LlamaConfig", template=LLAMA),
    "qwen2": Architecture(models="Qwen2.5", config="Qwen2Config", without=NO_HEAD, keys=TIED),
    "qwen2_moe": Architecture(
        models="Qwen1.5-MoE, Qwen2-57B-A14B", config="Qwen2MoeConfig", without=NO_HEAD,
        keys={**EXPERTS, "shared_expert_intermediate_size": 64}, experts=FUSED,
    ),
    "qwen3": Architecture(models="Qwen3", config="Qwen3Config", keys=TIED),
    "qwen3_moe": Architecture(
        models="Qwen3-30B-A3B, Qwen3-Coder", config="Qwen3MoeConfig", experts=FUSED,
        # TRL leaves this router loss in a config, and a cache makes its mask too short.
        keys={**EXPERTS, "norm_topk_prob": True, "output_router_logits": True},
    ),
    "qwen3_next": Architecture(
        models="Qwen3-Next", config="Qwen3NextConfig", packs=False,
        keys={**EXPERTS, **LINEAR, "shared_expert_intermediate_size": 32},
    ),
    "qwen3_5": Architecture(
        models="Qwen3.5", config="Qwen3_5Config", packs=False,
        kind="Qwen3_5ForConditionalGeneration",
        keys={
            "text_config": {**SIZES, **LINEAR, **TIED}, **PICTURES, **TIED,
            "vision_config": {"depth": 1, "hidden_size": 32, "intermediate_size": 64,
                              "num_heads": 2, "out_hidden_size": 64},
        },
    ),
    "gemma2": Architecture(
        models="Gemma 2", config="Gemma2Config", template=GEMMA, packs=False,
        keys={"sliding_window": 16, "query_pre_attn_scalar": 32},
    ),
    "gemma3_text": Architecture(
        models="Gemma 3 270M, 1B", config="Gemma3TextConfig", template=GEMMA, keys=GEMMA_3
    ),
    "gemma3": Architecture(
        models="Gemma 3 4B to 27B", config="Gemma3Config", template=GEMMA,
        kind="Gemma3ForConditionalGeneration",
        keys={
            "text_config": GEMMA_3, "mm_tokens_per_image": 4, "image_token_index": 300,
            "boi_token_index": 301, "eoi_token_index": 302,
            "vision_config": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                              "num_attention_heads": 2, "image_size": 28, "patch_size": 14},
        },
    ),
    "mistral": Architecture(
        models="Mistral 7B, Nemo, Small", config="MistralConfig", template=MISTRAL,
        keys={"sliding_window": 16},
    ),
    "mixtral": Architecture(
        models="Mixtral", config="MixtralConfig", template=MISTRAL, experts=FUSED,
        keys={"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "phi": Architecture(
        models="Phi-1.5, Phi-2", config="PhiConfig", without=NO_HEAD, template=PHI
    ),
    "phi3": Architecture(
        models="Phi-3, Phi-4", config="Phi3Config", without=NO_HEAD, template=PHI,
        keys={"sliding_window": 16}, modules=("qkv_proj", "o_proj"),
    ),
    "smollm3": Architecture(
        models="SmolLM3", config="SmolLM3Config", without=NO_HEAD,
        keys={"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0]},
    ),
    "glm4": Architecture(models="GLM-4-0414", config="Glm4Config", template=PHI),
    "glm4_moe": Architecture(
        models="GLM-4.5, GLM-4.6", config="Glm4MoeConfig", template=PHI, keys=GROUPED,
        experts=FUSED,
    ),
    "gpt_oss": Architecture(
        models="gpt-oss in bf16", config="GptOssConfig", packs=False,
        keys={**WINDOWS, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "nemotron": Architecture(
        models="Nemotron-4, Minitron", config="NemotronConfig", packs=False
    ),
    "nemotron_h": Architecture(
        models="Nemotron-H, Nemotron 3", config="NemotronHConfig", packs=False,
        without=("head_dim", "num_hidden_layers"),
        keys={
            **GROUPED, "layers_block_type": ["mamba", "attention", "moe"], "n_groups": 2,
            "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 16, "chunk_size": 16,
            "moe_shared_expert_intermediate_size": 32,
        },
    ),
    "falcon_h1": Architecture(
        models="Falcon-H1", config="FalconH1Config", packs=False,
        keys={"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16,
              "mamba_chunk_size": 16},
    ),
    "lfm2": Architecture(
        models="LFM2", config="Lfm2Config", without=NO_HEAD, packs=False,
        keys={"layer_types": ["conv", "full_attention"]},
    ),
    "olmo2": Architecture(models="OLMo 2", config="Olmo2Config", without=NO_HEAD),
    "olmo3": Architecture(models="OLMo 3", config="Olmo3Config", without=NO_HEAD, keys=WINDOWS),
    "granite": Architecture(models="Granite 3", config="GraniteConfig", without=NO_HEAD),
    "seed_oss": Architecture(models="Seed-OSS", config="SeedOssConfig"),
    "afmoe": Architecture(
        models="Trinity", config="AfmoeConfig", experts=FUSED,
        keys={**EXPERTS, **WINDOWS, "num_dense_layers": 1, "num_shared_experts": 1},
    ),
    "deepseek_v3": Architecture(
        models="DeepSeek-V3, Moonlight", config="DeepseekV3Config", without=NO_HEAD,
        keys={**GROUPED, "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 16,
              "qk_nope_head_dim": 16, "v_head_dim": 32, "num_key_value_heads": 2},
        modules=("q_b_proj", "o_proj"), experts=FUSED,
    ),
}  # fmt: skip
"""By the `model_type` of config.json."""


def make_architecture(name: str, at: Path) -> Path:
    """A random model of that architecture in bf16. A part that its class keeps in f32 is in f32."""
    import torch
    import transformers

    chosen = ARCHITECTURES[name]
    torch.manual_seed(0)
    sizes = {k: v for k, v in SIZES.items() if k not in chosen.without} if not chosen.kind else {}
    config: Any = getattr(transformers, chosen.config)(**sizes | chosen.keys)
    kind: Any = getattr(transformers, chosen.kind) if chosen.kind else None
    model = transformers.AutoModelForCausalLM.from_config(config) if kind is None else kind(config)
    with torch.no_grad():  # so that a wrong tensor changes the outputs
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(5)
    model.save_pretrained(str(at))
    rounded = type(model).from_pretrained(str(at), dtype=torch.bfloat16)
    rounded.save_pretrained(str(at))
    _write_tokenizer(chosen.template, at)
    return at


def byte_tokenizer(*special: str) -> Any:
    """A tokenizer whose tokens are bytes, and special ones."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in special])
    return tokenizer


def _write_tokenizer(template: str, at: Path) -> None:
    tokenizer = byte_tokenizer(*SPECIALS[template])
    tokenizer.save(str(at / "tokenizer.json"))
    end = SPECIALS[template][-1]
    ids = {"eos_token_id": tokenizer.token_to_id(end), "temperature": 0.6, "do_sample": True}
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end}
    (at / "tokenizer_config.json").write_text(json.dumps(names))
    (at / "generation_config.json").write_text(json.dumps(ids))
    (at / "chat_template.jinja").write_text(template)
