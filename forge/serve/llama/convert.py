"""Conversion of weights for llama.cpp: arrays for an update in place, and GGUF files of a model or
a LoRA adapter.

Called by `model`. Promise: matrices are f32 (`exact`) or bf16 (`fast`), vectors always f32, all
finite. LoRA scaling is folded into B, so that rsLoRA and alpha_pattern are exact. Files hold no
vocabulary: forge tokenises itself, and llama.cpp aborts on ours.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np

from forge.errors import ConfigError

if TYPE_CHECKING:
    from forge.serve.checkpoint_files import StoredTensor
    from forge.serve.llama.architecture import Sizes
    from forge.serve.llama.checkpoint import Adapter, Checkpoint

ARCHITECTURE = "qwen3"


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
