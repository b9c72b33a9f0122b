"""Small random mixtures of experts, in directories like those of the hub."""

from pathlib import Path
from typing import Any

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
    "num_experts": 4, "num_experts_per_tok": 2, "initializer_range": 0.2,
}  # fmt: skip


def make_mixture(kind: str, at: Path, *, tokenizer: Path, **changes: int) -> Path:
    """A random model of that architecture, in a directory like one of the hub."""
    import torch
    from transformers import AfmoeConfig, AfmoeForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    sizes: dict[str, Any] = SIZES | changes
    if kind == "afmoe":
        config = AfmoeConfig(
            **sizes, num_dense_layers=1, num_shared_experts=1, sliding_window=16,
            layer_types=["sliding_attention", "full_attention"],
        )  # fmt: skip
        model: Any = AfmoeForCausalLM(config)
    else:
        model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes))
    # TRL's SFT leaves this in the config, and batched generation would fail with it.
    model.config.output_router_logits = kind == "qwen3_moe"
    model.save_pretrained(str(at))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (at / name).write_bytes((tokenizer / name).read_bytes())
    return at
