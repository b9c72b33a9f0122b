"""Weights of a trainer for llama.cpp: a Hugging Face checkpoint or a PEFT LoRA adapter, checked and
converted.

Called by `model` at start and for every publish. Promises: the weights that `open_weights` returns
are complete and have the right shapes, and a model that llama.cpp would compute differently from
transformers is refused; anything else is a ConfigError of one line with the file. Converted
matrices are f32 (`exact`) or bf16 (`fast`), vectors always f32, all finite. LoRA scaling is folded
into B, so that rsLoRA and alpha_pattern are exact. GGUF files hold no vocabulary: forge tokenises
itself, and llama.cpp aborts on ours.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from forge.errors import ConfigError
from forge.serve.checkpoint_files import (
    ADAPTER_CONFIG,
    StoredTensor,
    check_names,
    holds_adapter,
    list_tensors,
    read_json,
    read_lora_config,
    weight_files,
)

LORA_KEY = re.compile(r"^(?:base_model\.model\.)?(?P<module>.*)\.lora_(?P<side>[AB])\.weight$")
ARCHITECTURE = "qwen3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """All weights of a model."""

    path: Path
    sizes: Sizes
    tensors: Mapping[str, StoredTensor]
    """By GGUF name; exactly the tensors of `tensor_layout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraPair:
    """One adapted matrix: W + scale · B·A."""

    gguf_name: str
    a: StoredTensor
    """[r, in]"""
    b: StoredTensor
    """[out, r]"""
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A PEFT LoRA adapter."""

    path: Path
    pairs: tuple[LoraPair, ...]


def open_weights(path: Path, *, served: Sizes | None) -> Checkpoint | Adapter:
    """Read the headers of a directory and check them. With `served`, the shapes must be those of
    the served model."""
    if holds_adapter(path):
        if served is None:
            raise ConfigError(f"{path}: an adapter needs a model to sit on")
        return _open_adapter(path, served)
    return _open_checkpoint(path, served)


def _open_checkpoint(path: Path, served: Sizes | None) -> Checkpoint:
    sizes = sizes_from(read_json(path / "config.json"), where=f"{path}/config.json")
    if served is not None and sizes != served:
        changed = [n for n in Sizes.__slots__ if getattr(sizes, n) != getattr(served, n)]
        found = ", ".join(f"{n} {getattr(sizes, n)} ({getattr(served, n)} served)" for n in changed)
        raise ConfigError(f"{path}: another model than the one served: {found}")
    stored: dict[str, StoredTensor] = {}
    for file in weight_files(path):
        stored.update(list_tensors(file))
    layout = tensor_layout(sizes)
    if sizes.is_tied:
        stored.pop("lm_head.weight", None)
    check_names(path, found=stored.keys(), needed=layout.keys())
    for name, slot in layout.items():
        if stored[name].shape != slot.shape:
            raise ConfigError(
                f"{path}: {name} is {list(stored[name].shape)}, must be {list(slot.shape)}"
            )
    return Checkpoint(
        path=path,
        sizes=sizes,
        tensors={slot.gguf_name: stored[name] for name, slot in layout.items()},
    )


def _open_adapter(path: Path, sizes: Sizes) -> Adapter:
    where = path / ADAPTER_CONFIG
    config = read_lora_config(path)
    for key in (
        "use_dora",
        "modules_to_save",
        "fan_in_fan_out",
        "lora_bias",
        "alora_invocation_tokens",
    ):
        if config.get(key):
            raise ConfigError(f"{where}: {key} is {config[key]!r}; the llama engine needs it off")
    if config.get("bias", "none") != "none":
        raise ConfigError(f"{where}: bias is {config['bias']!r}; the llama engine needs 'none'")
    if not isinstance(config.get("lora_alpha"), int | float):
        raise ConfigError(f"{where}: lora_alpha is {config.get('lora_alpha')!r}; must be a number")
    sides: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in list_tensors(path / "adapter_model.safetensors").items():
        if (match := LORA_KEY.match(name)) is None:
            raise ConfigError(f"{path}: {name}: only lora_A and lora_B of linear layers are served")
        sides.setdefault(match["module"], {})[match["side"]] = tensor
    if not sides:
        raise ConfigError(f"{path}: the adapter holds no tensors")
    pairs = [_pair(path, module, found, config, sizes) for module, found in sides.items()]
    return Adapter(path=path, pairs=tuple(pairs))


def _pair(
    path: Path, module: str, found: dict[str, StoredTensor], config: dict[str, Any], sizes: Sizes
) -> LoraPair:
    slot = tensor_layout(sizes).get(f"{module}.weight")
    if slot is None or len(slot.shape) != 2 or module == "model.embed_tokens":
        raise ConfigError(f"{path}: {module} is no linear layer of the model served")
    if len(found) != 2:
        raise ConfigError(f"{path}: {module} has only lora_{next(iter(found))}")
    a, b = found["A"], found["B"]
    out_size, in_size = slot.shape
    if len(a.shape) != 2 or a.shape[1] != in_size or b.shape != (out_size, a.shape[0]):
        raise ConfigError(
            f"{path}: {module}: lora_A {list(a.shape)} and lora_B {list(b.shape)} do not fit"
            f" [{out_size}, {in_size}]"
        )
    return LoraPair(gguf_name=slot.gguf_name, a=a, b=b, scale=_scale(config, module, a.shape[0]))


def _scale(config: dict[str, Any], module: str, rank: int) -> float:
    """PEFT's scale: alpha / r, or alpha / √r for rsLoRA; an entry of alpha_pattern replaces
    alpha."""
    patterns = (config.get("alpha_pattern") or {}).items()
    own = (alpha for pattern, alpha in patterns if re.match(rf"(.*\.)?({pattern})$", module))
    alpha = next(own, config["lora_alpha"])
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


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


class Precision(StrEnum):
    """Types of weights and KV."""

    EXACT = "exact"
    """f32 weights and KV, no flash attention: equal to transformers in f32."""
    FAST = "fast"
    """bf16 matrices, f16 KV, flash attention where llama.cpp has it."""


def arrays(checkpoint: Checkpoint, precision: Precision) -> Iterator[tuple[str, np.ndarray]]:
    """Pairs of GGUF name and array of every tensor: float32, or the bits of bfloat16 as uint16."""
    for name, tensor in checkpoint.tensors.items():
        yield name, _array(tensor, precision)


def _array(tensor: StoredTensor, precision: Precision) -> np.ndarray:
    values = tensor.read_f32()
    # A float64 sum of float32 is finite exactly when every element is: one pass, no mask.
    if not np.isfinite(values.sum(dtype=np.float64)):
        raise ConfigError(f"{tensor.path}: {tensor.name} holds NaN or infinity")
    if precision is Precision.FAST and values.ndim > 1:
        return tensor.read_bf16()
    return values


def write_model(checkpoint: Checkpoint, path: Path, precision: Precision) -> None:
    """Write a whole model."""
    with _written(path, gguf.GGUFType.MODEL) as writer:
        _add_sizes(writer, checkpoint.sizes)
        writer.add_tokenizer_model("none")
        for name, array in arrays(checkpoint, precision):
            _add_tensor(writer, name, array)


def write_adapter(adapter: Adapter, path: Path) -> None:
    """Write a LoRA adapter in f32. With alpha 0 llama.cpp applies A and B without scaling."""
    with _written(path, gguf.GGUFType.ADAPTER) as writer:
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 0.0)
        for pair in adapter.pairs:
            b = _array(pair.b, Precision.EXACT) * np.float32(pair.scale)
            _add_tensor(writer, f"{pair.gguf_name}.lora_a", _array(pair.a, Precision.EXACT))
            _add_tensor(writer, f"{pair.gguf_name}.lora_b", b)


@contextmanager
def _written(path: Path, kind: str) -> Iterator[gguf.GGUFWriter]:
    """Complete or absent: a temporary name, then rename."""
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(str(part), ARCHITECTURE)
    writer.add_type(kind)
    try:
        yield writer
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    os.replace(part, path)


def _add_sizes(writer: gguf.GGUFWriter, sizes: Sizes) -> None:
    writer.add_context_length(sizes.max_context_tokens)
    writer.add_embedding_length(sizes.hidden_size)
    writer.add_block_count(sizes.num_layers)
    writer.add_feed_forward_length(sizes.intermediate_size)
    writer.add_head_count(sizes.num_heads)
    writer.add_head_count_kv(sizes.num_kv_heads)
    writer.add_key_length(sizes.head_dim)
    writer.add_value_length(sizes.head_dim)
    writer.add_layer_norm_rms_eps(sizes.rms_norm_eps)
    writer.add_rope_freq_base(sizes.rope_theta)
    writer.add_vocab_size(sizes.vocab_size)


def _add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray) -> None:
    if array.dtype == np.uint16:
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, array.view(np.uint8), raw_dtype=kind)
    else:
        writer.add_tensor(name, array)
