"""Writes random weights for benches that need only a model's shape: dense Qwen3
checkpoints and LoRA adapters on all their linear layers.

    python bench/random_models.py full --shape 0.6b --seed 0 --out /tmp/model
    python bench/random_models.py adapter --shape 8b --rank 64 --seed 1 --out /tmp/adapter

The other benches run it as a separate process, so that the GPU is free afterwards.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from forge.serve.llama.architecture import sizes_from, tensor_layout  # noqa: E402

SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
             "vocab_size": 512, "tie_word_embeddings": True},
    "0.6b": {"hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
             "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
             "vocab_size": 151936, "tie_word_embeddings": True},
    "8b": {"hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32,
           "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
           "vocab_size": 151936, "tie_word_embeddings": False},
}  # fmt: skip
"""Settings of Qwen3 models in config.json, by shape."""
SHARD_BYTES = 4 << 30
SCALE = 0.02
"""Standard deviation of the weights."""
ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def config_of(shape: str) -> dict[str, Any]:
    """The model's config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "bfloat16",
        **SHAPES[shape],
    }


def make_checkpoint(path: Path, *, shape: str, seed: int) -> None:
    """Writes a whole model in bf16, in shards."""
    path.mkdir(parents=True, exist_ok=True)
    config = config_of(shape)
    layout = tensor_layout(sizes_from(config, where=shape))
    draw, shard, num_bytes, weight_map = _drawer(seed), {}, 0, {}
    names = list(layout)
    for name in names:
        tensor = draw(layout[name].shape, is_norm=len(layout[name].shape) == 1)
        shard[name], num_bytes = tensor, num_bytes + tensor.nbytes
        if num_bytes >= SHARD_BYTES or name == names[-1]:
            file = f"model-{len(set(weight_map.values())):05}.safetensors"
            save_file(shard, path / file, metadata={"format": "pt"})
            weight_map |= dict.fromkeys(shard, file)
            shard, num_bytes = {}, 0
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "config.json").write_text(json.dumps(config, indent=1))


def make_adapter(path: Path, *, shape: str, rank: int, seed: int) -> None:
    """Writes a LoRA adapter on every linear layer, far enough from zero to have an effect."""
    path.mkdir(parents=True, exist_ok=True)
    draw, tensors = _drawer(seed), dict[str, torch.Tensor]()
    for name, out_size, in_size in _linear_layers(shape):
        prefix = f"base_model.model.{name}"
        tensors[f"{prefix}.lora_A.weight"] = draw((rank, in_size))
        tensors[f"{prefix}.lora_B.weight"] = draw((out_size, rank))
    save_file(tensors, path / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": shape,
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.0,
        "target_modules": list(ADAPTED),
        "bias": "none",
        "inference_mode": True,
    }
    (path / "adapter_config.json").write_text(json.dumps(config))


def _linear_layers(shape: str) -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of each linear layer."""
    for name, slot in tensor_layout(sizes_from(config_of(shape), where=shape)).items():
        module = name.removesuffix(".weight")
        if module.endswith(ADAPTED):
            yield module, slot.shape[0], slot.shape[1]


def _drawer(seed: int) -> Any:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device).manual_seed(seed)

    def draw(shape: tuple[int, ...], *, is_norm: bool = False) -> torch.Tensor:
        if is_norm:
            return torch.ones(shape, dtype=torch.bfloat16)
        drawn = torch.randn(shape, generator=generator, device=device, dtype=torch.float32)
        return (drawn * SCALE).to(torch.bfloat16).cpu()

    return draw


def main() -> int:
    """Writes one directory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["full", "adapter"])
    parser.add_argument("--shape", choices=list(SHAPES), default="0.6b")
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.kind == "full":
        make_checkpoint(args.out, shape=args.shape, seed=args.seed)
    else:
        make_adapter(args.out, shape=args.shape, rank=args.rank, seed=args.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
