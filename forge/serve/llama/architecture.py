"""Architecture of a served model: sizes from `config.json`, and the tensors of a complete
checkpoint.

Called by `checkpoint` and `convert`. Promise: a model that llama.cpp would compute differently from
transformers is refused here with one line, so no other code needs to check.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forge.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """All settings of a dense Qwen3 that determine shapes or arithmetic. Models with equal sizes
    can exchange weights in place."""

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_context_tokens: int
    rms_norm_eps: float
    rope_theta: float
    is_tied: bool
    """True if the output head is the embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Destination of a checkpoint's tensor."""

    gguf_name: str
    shape: tuple[int, ...]


def sizes_from(config: Mapping[str, Any], *, where: str) -> Sizes:
    """Read a transformers config (keys of 4.x and 5.x). `where` is the prefix of error messages."""
    if (kind := config.get("model_type")) != "qwen3":
        raise ConfigError(f"{where}: model_type is {kind!r}; the llama engine serves 'qwen3'")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    refused = {
        "rope_type": (rope_type, "default"),
        "attention_bias": (bool(config.get("attention_bias", False)), False),
        "use_sliding_window": (bool(config.get("use_sliding_window", False)), False),
        "hidden_act": (config.get("hidden_act", "silu"), "silu"),
    }
    for key, (found, allowed) in refused.items():
        if found != allowed:
            raise ConfigError(f"{where}: {key} is {found!r}; the llama engine needs {allowed!r}")
    try:
        hidden_size, num_heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return Sizes(
            hidden_size=hidden_size,
            num_layers=int(config["num_hidden_layers"]),
            num_heads=num_heads,
            num_kv_heads=int(config["num_key_value_heads"]),
            head_dim=int(config.get("head_dim") or hidden_size // num_heads),
            intermediate_size=int(config["intermediate_size"]),
            vocab_size=int(config["vocab_size"]),
            max_context_tokens=int(config["max_position_embeddings"]),
            rms_norm_eps=float(config["rms_norm_eps"]),
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
            is_tied=bool(config.get("tie_word_embeddings", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{where}: not a usable Qwen3 config: {error!r}") from error


def tensor_layout(sizes: Sizes) -> dict[str, Slot]:
    """Transformers' name of every tensor of the model, with its GGUF name and shape."""
    hidden, vocab = sizes.hidden_size, sizes.vocab_size
    layout = {
        "model.embed_tokens.weight": Slot(gguf_name="token_embd.weight", shape=(vocab, hidden)),
        "model.norm.weight": Slot(gguf_name="output_norm.weight", shape=(hidden,)),
    }
    if not sizes.is_tied:
        layout["lm_head.weight"] = Slot(gguf_name="output.weight", shape=(vocab, hidden))
    for layer in range(sizes.num_layers):
        for name, (gguf_name, shape) in _block(sizes).items():
            layout[f"model.layers.{layer}.{name}.weight"] = Slot(
                gguf_name=f"blk.{layer}.{gguf_name}.weight", shape=shape
            )
    return layout


def _block(sizes: Sizes) -> dict[str, tuple[str, tuple[int, ...]]]:
    hidden, inner, head = sizes.hidden_size, sizes.intermediate_size, sizes.head_dim
    queries, keys = sizes.num_heads * head, sizes.num_kv_heads * head
    return {
        "input_layernorm": ("attn_norm", (hidden,)),
        "self_attn.q_proj": ("attn_q", (queries, hidden)),
        "self_attn.k_proj": ("attn_k", (keys, hidden)),
        "self_attn.v_proj": ("attn_v", (keys, hidden)),
        "self_attn.o_proj": ("attn_output", (hidden, queries)),
        "self_attn.q_norm": ("attn_q_norm", (head,)),
        "self_attn.k_norm": ("attn_k_norm", (head,)),
        "post_attention_layernorm": ("ffn_norm", (hidden,)),
        "mlp.gate_proj": ("ffn_gate", (inner, hidden)),
        "mlp.up_proj": ("ffn_up", (inner, hidden)),
        "mlp.down_proj": ("ffn_down", (hidden, inner)),
    }
