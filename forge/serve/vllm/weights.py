"""Checks of a directory before vLLM loads it: vLLM writes weights in place, so a failed load leaves
them half overwritten.

Called by `engine`. Promise: a directory that `check_weights` accepts has the tensors and shapes of
the checkpoint that the engine started with, or is an adapter within the engine's maximum rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forge.errors import ConfigError
from forge.serve.checkpoint_files import list_tensors, read_json, weight_files
from forge.serve.engine.weight_files import (
    ADAPTER_CONFIG,
    check_names,
    holds_adapter,
    read_lora_config,
)
from forge.serve.port import ADAPTER, FULL

Shapes = dict[str, tuple[int, ...]]


def checkpoint_shapes(path: Path) -> Shapes:
    """Shapes of a checkpoint's tensors by name, read from the headers of its files. A head that is
    the embedding is left out. Raises ConfigError."""
    shapes: Shapes = {}
    for file in weight_files(path):
        shapes.update({name: tensor.shape for name, tensor in list_tensors(file).items()})
    if read_json(path / "config.json").get("tie_word_embeddings"):
        shapes.pop("lm_head.weight", None)
    return shapes


def check_weights(path: Path, *, served: Mapping[str, tuple[int, ...]], max_lora_rank: int) -> str:
    """Return ADAPTER or FULL. Raises ConfigError, in one line, for weights that cannot be
    served."""
    if holds_adapter(path):
        _check_adapter(path, max_lora_rank=max_lora_rank)
        return ADAPTER
    found = checkpoint_shapes(path)
    check_names(path, found=found.keys(), needed=served.keys())
    for name, shape in found.items():
        if shape != served[name]:
            raise ConfigError(f"{path}: {name} is {list(shape)}, {list(served[name])} is served")
    return FULL


def _check_adapter(path: Path, *, max_lora_rank: int) -> None:
    where = path / ADAPTER_CONFIG
    if not max_lora_rank:
        raise ConfigError(f"{path}: the engine was started without room for adapters")
    config = read_lora_config(path)
    if type(rank := config.get("r")) is not int:
        raise ConfigError(f"{where}: r is {rank!r}; allowed is an integer")
    if rank > max_lora_rank:
        raise ConfigError(f"{where}: rank {rank}; the engine has room for {max_lora_rank}")
    for key in ("use_dora", "modules_to_save", "rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise ConfigError(f"{where}: {key} is {config[key]!r}; the vllm engine needs it off")
    if not list_tensors(path / "adapter_model.safetensors"):
        raise ConfigError(f"{path}: the adapter holds no tensors")
