"""Reading a trainer's directory of weights: a full Hugging Face checkpoint or a PEFT LoRA adapter.

Called by `model` at start and for every publish. Promise: the weights that `open_weights` returns
are complete and have the right shapes; anything else is a ConfigError of one line with the file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forge.errors import ConfigError
from forge.serve.checkpoint_files import StoredTensor, list_tensors, read_json, weight_files
from forge.serve.engine.weight_files import (
    ADAPTER_CONFIG,
    check_names,
    holds_adapter,
    read_lora_config,
)
from forge.serve.llama.architecture import Sizes, sizes_from, tensor_layout

LORA_KEY = re.compile(r"^(?:base_model\.model\.)?(?P<module>.*)\.lora_(?P<side>[AB])\.weight$")


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
