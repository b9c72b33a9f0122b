"""Weights of a trainer for llama.cpp: a Hugging Face checkpoint or a PEFT LoRA adapter, checked and
converted.

Promises: the weights that `open_weights` returns are complete and have the right shapes, and a
model that llama.cpp would compute differently from transformers is refused; anything else is a
ConfigError of one line with the file. Converted matrices are f32 (`exact`) or bf16 (`fast`),
vectors, biases and routers always f32, all finite. LoRA scaling is folded into B, so that rsLoRA
and alpha_pattern are exact. The engine's GGUF files hold no vocabulary, since forge tokenises
itself; `export` adds one to an exported file.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from forge.errors import ConfigError
from forge.serve import checkpoint_files
from forge.serve.architectures import Layout, read_layout

LORA_KEY = re.compile(r"^(?:base_model\.model\.)?(?P<module>.*)\.lora_(?P<side>[AB])\.weight$")
EXPERT = re.compile(r"^(?P<before>.+\.experts)\.(?P<index>\d+)(?P<rest>\..+)$")
"""A tensor of one expert; GGUF files hold those of all experts as one."""
FUSED = re.compile(r"^(?P<before>.+\.experts\.)gate_up_proj(?P<rest>.*)$")
"""Gates and inputs of all experts in one tensor; GGUF files hold two."""
NO_OTHER_ADAPTERS = (
    "use_dora", "modules_to_save", "fan_in_fan_out", "lora_bias", "alora_invocation_tokens",
)  # fmt: skip
"""Keys that an adapter's config must not have."""
OF_IMAGES = re.compile(r"(?:^|\.)(?:vision_tower|multi_modal_projector)\.")
"""Weights that no text needs."""

Pick = Callable[[np.ndarray], np.ndarray]
"""The part of a stored tensor that a GGUF tensor needs, in its order."""


class Precision(StrEnum):
    """Types of weights and KV."""

    EXACT = "exact"
    """f32 weights and KV, no flash attention: equal to transformers in f32."""
    FAST = "fast"
    """bf16 matrices, f16 KV, flash attention where llama.cpp has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    stored: checkpoint_files.StoredTensor
    pick: Pick | None = None

    def read(self, precision: Precision) -> np.ndarray:
        values = self.stored.read_f32()
        # A float64 sum of float32 is finite exactly when every element is: one pass, no mask.
        if not np.isfinite(values.sum(dtype=np.float64)):
            raise ConfigError(f"{self.stored.path}: {self.stored.name} holds NaN or infinity")
        if precision is Precision.FAST:
            values = self.stored.read_bf16()
        return values if self.pick is None else self.pick(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor of a GGUF file and its origin."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[Source, ...] = ()
    """One, or one of each expert; none for a constant."""
    constant: tuple[float, ...] = ()

    def precision_in(self, precision: Precision) -> Precision:
        """EXACT for what is always f32."""
        is_matrix = len(self.shape) > 1 and not self.name.endswith(".bias")
        return precision if is_matrix and "_inp" not in self.name else Precision.EXACT

    def num_bytes(self, precision: Precision) -> int:
        width = 4 if self.precision_in(precision) is Precision.EXACT else 2
        return int(np.prod(self.shape)) * width

    def read(self, precision: Precision) -> np.ndarray:
        if self.constant:
            return np.array(self.constant, np.float32)
        parts = [source.read(self.precision_in(precision)) for source in self.sources]
        values = np.stack(parts) if len(parts) > 1 else parts[0]
        return np.ascontiguousarray(values.reshape(self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    path: Path
    layout: Layout
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraPair:
    """One adapted matrix: W + scale · B·A."""

    gguf_name: str
    a: checkpoint_files.StoredTensor
    """[r, in]"""
    b: checkpoint_files.StoredTensor
    """[out, r]"""
    scale: float
    pick: Pick | None
    """The rows of B in the GGUF file's order; None as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    path: Path
    architecture: str
    pairs: tuple[LoraPair, ...]


def open_weights(path: Path, *, served: Layout | None) -> Checkpoint | Adapter:
    """Read the headers of a directory and check them. With `served`, the layout must be that of
    the served model."""
    if checkpoint_files.holds_adapter(path):
        if served is None:
            raise ConfigError(f"{path}: an adapter needs a model to sit on")
        return _open_adapter(path, served)
    return _open_checkpoint(path, served)


def layout_of(path: Path) -> Layout:
    config = checkpoint_files.read_json(path / "config.json")
    return read_layout(config, kinds=_kinds(), where=f"{path}/config.json")


@cache
def _kinds() -> Mapping[str, tuple[str, ...]]:
    """GGUF names of the tensors of every architecture that `gguf` knows."""
    return {
        name: tuple(gguf.TENSOR_NAMES[kind] for kind in gguf.MODEL_TENSORS[architecture])
        for architecture, name in gguf.MODEL_ARCH_NAMES.items()
        if architecture in gguf.MODEL_TENSORS
    }


def _open_checkpoint(path: Path, served: Layout | None) -> Checkpoint:
    layout = layout_of(path)
    if served is not None and layout != served:
        raise ConfigError(f"{path}: another model than the one served: {_changes(layout, served)}")
    found: dict[str, dict[int, Source]] = {}
    names: dict[str, str] = {}
    for file in checkpoint_files.weight_files(path):
        for name, stored in checkpoint_files.list_tensors(file).items():
            if (name == "lm_head.weight" and layout.is_tied) or OF_IMAGES.search(name):
                continue
            for target, index, source in _sources(stored, layout):
                found.setdefault(target, {})[index] = source
                names[target] = name
    needed = layout.shapes.keys()
    checkpoint_files.check_names(path, found=found.keys(), needed=needed, named=names)
    tensors = {name: _tensor(path, name, layout, found[name]) for name in layout.shapes}
    for name, constant in layout.constants.items():
        tensors[name] = Tensor(name=name, shape=(len(constant),), constant=constant)
    return Checkpoint(path=path, layout=layout, tensors=tensors)


def _changes(layout: Layout, served: Layout) -> str:
    new, old = ({"architecture": each.architecture.name, **each.metadata, "tied": each.is_tied}
                for each in (layout, served))  # fmt: skip
    changed = [key for key in {**old, **new} if new.get(key) != old.get(key)]
    return ", ".join(f"{key} {new.get(key)} ({old.get(key)} served)" for key in changed[:5])


def _sources(
    stored: checkpoint_files.StoredTensor, layout: Layout
) -> Iterator[tuple[str, int, Source]]:
    """GGUF names of a stored tensor, each with the index of its expert and the part of it."""
    names = _name_map(layout.architecture.name, layout.num_layers)
    is_interleaved = layout.architecture.is_interleaved
    name, index, pick = stored.name, 0, None
    if (fused := FUSED.match(name)) is not None:
        for number, half in enumerate(("gate_proj", "up_proj")):
            target = _target(names, f"{fused['before']}{half}{fused['rest']}")
            yield target, 0, Source(stored=stored, pick=_half(number, is_interleaved))
        return
    if (expert := EXPERT.match(name)) is not None:
        name, index = f"{expert['before']}{expert['rest']}", int(expert["index"])
    target = _target(names, name)
    if is_interleaved and target.endswith("_exps.weight"):
        pick = _transposed
    yield target, index, Source(stored=stored, pick=pick or _row_order(layout, target))
    if target == "token_embd.weight" and layout.is_tied and "output.weight" in layout.shapes:
        yield "output.weight", 0, Source(stored=stored)


def _transposed(values: np.ndarray) -> np.ndarray:
    return values.swapaxes(1, 2) if values.ndim > 2 else values


def _half(number: int, is_interleaved: bool) -> Pick:
    """Every second row of each expert, or the first or second half of them."""

    def pick(values: np.ndarray) -> np.ndarray:
        if is_interleaved:
            return _transposed(values)[:, number::2]
        size = values.shape[1] // 2
        return values[:, number * size : (number + 1) * size]

    return pick


def _row_order(layout: Layout, target: str) -> Pick | None:
    """The rows of queries and keys in llama.cpp's order, or norms with the 1 that transformers
    adds."""
    if layout.architecture.adds_one and target.endswith("norm.weight"):
        return lambda values: values + np.float32(1)
    if not (heads := layout.heads_of(target)):
        return None

    def pick(values: np.ndarray) -> np.ndarray:
        halves = values.reshape(heads, 2, -1, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)

    return pick


def _target(names: gguf.TensorNameMap, name: str) -> str:
    """GGUF name of a tensor; its own name if it has none."""
    name = re.sub(r"_bias$", ".bias", name).replace("language_model.", "", 1)
    if not name.endswith((".weight", ".bias")):
        name = f"{name}.weight"
    return names.get_name(name, try_suffixes=(".weight", ".bias")) or name


@cache
def _name_map(architecture: str, num_layers: int) -> gguf.TensorNameMap:
    found = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(found, num_layers)


def _tensor(path: Path, name: str, layout: Layout, found: Mapping[int, Source]) -> Tensor:
    shape, sources = layout.shapes[name], tuple(found[index] for index in sorted(found))
    first = sources[0].stored
    is_stacked = EXPERT.match(first.name) is not None
    if sorted(found) != list(range(shape[0] if is_stacked else 1)):
        raise ConfigError(f"{path}: {first.name}: {len(found)} experts, must be {shape[0]}")
    expected = shape[1:] if is_stacked else shape
    if FUSED.match(first.name):
        expected = (shape[0], 2 * shape[1], *shape[2:])
    if layout.architecture.is_interleaved and len(expected) == 3:
        expected = (expected[0], expected[2], expected[1])
    for source in sources:
        # Without axes of one element, which either side adds at will.
        if [n for n in source.stored.shape if n > 1] != [n for n in expected if n > 1]:
            raise ConfigError(
                f"{path}: {source.stored.name} is {list(source.stored.shape)},"
                f" must be {list(expected)}"
            )
    return Tensor(name=name, shape=shape, sources=sources)


def _open_adapter(path: Path, layout: Layout) -> Adapter:
    where = path / checkpoint_files.ADAPTER_CONFIG
    config = checkpoint_files.read_lora_config(path)
    for key in NO_OTHER_ADAPTERS:
        if config.get(key):
            raise ConfigError(f"{where}: {key} is {config[key]!r}; the llama engine needs it off")
    if config.get("bias", "none") != "none":
        raise ConfigError(f"{where}: bias is {config['bias']!r}; the llama engine needs 'none'")
    if not isinstance(config.get("lora_alpha"), int | float):
        raise ConfigError(f"{where}: lora_alpha is {config.get('lora_alpha')!r}; must be a number")
    sides: dict[str, dict[str, checkpoint_files.StoredTensor]] = {}
    for name, tensor in checkpoint_files.list_tensors(path / "adapter_model.safetensors").items():
        if (match := LORA_KEY.match(name)) is None:
            raise ConfigError(f"{path}: {name}: only lora_A and lora_B of linear layers are served")
        sides.setdefault(match["module"], {})[match["side"]] = tensor
    if not sides:
        raise ConfigError(f"{path}: the adapter holds no tensors")
    pairs = [_pair(path, module, found, config, layout) for module, found in sides.items()]
    return Adapter(path=path, architecture=layout.architecture.name, pairs=tuple(pairs))


def _pair(
    path: Path,
    module: str,
    found: dict[str, checkpoint_files.StoredTensor],
    config: dict[str, Any],
    layout: Layout,
) -> LoraPair:
    names = _name_map(layout.architecture.name, layout.num_layers)
    target = _target(names, f"{module}.weight")
    shape = layout.shapes.get(target, ())
    if len(shape) != 2 or target == "token_embd.weight":
        raise ConfigError(f"{path}: {module} is no linear layer of the model served")
    if len(found) != 2:
        raise ConfigError(f"{path}: {module} has only lora_{next(iter(found))}")
    a, b = found["A"], found["B"]
    out_size, in_size = shape
    if len(a.shape) != 2 or a.shape[1] != in_size or b.shape != (out_size, a.shape[0]):
        raise ConfigError(
            f"{path}: {module}: lora_A {list(a.shape)} and lora_B {list(b.shape)} do not fit"
            f" [{out_size}, {in_size}]"
        )
    return LoraPair(
        gguf_name=target, a=a, b=b, scale=_scale(config, module, a.shape[0]),
        pick=_row_order(layout, target),
    )  # fmt: skip


def _scale(config: dict[str, Any], module: str, rank: int) -> float:
    """PEFT's scale: alpha / r, or alpha / √r for rsLoRA; an entry of alpha_pattern replaces
    alpha."""
    patterns = (config.get("alpha_pattern") or {}).items()
    own = (alpha for pattern, alpha in patterns if re.match(rf"(.*\.)?({pattern})$", module))
    alpha = next(own, config["lora_alpha"])
    return float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)


def write_model(
    checkpoint: Checkpoint, path: Path, precision: Precision, *,
    describe: Callable[[gguf.GGUFWriter], None] = lambda w: w.add_tokenizer_model("none"),
) -> None:  # fmt: skip
    """Write a whole model. `describe` adds its name and vocabulary; by default it has none."""
    layout = checkpoint.layout
    with written(path, gguf.GGUFType.MODEL, layout.architecture.name) as writer:
        for key, value in layout.metadata.items():
            _add_value(writer, f"{writer.arch}.{key}", value)
        describe(writer)
        for name, tensor in checkpoint.tensors.items():
            _add_tensor(writer, name, tensor.read(precision))


def write_adapter(adapter: Adapter, path: Path) -> None:
    """Write a LoRA adapter in f32. With alpha 0 llama.cpp applies A and B without scaling."""
    with written(path, gguf.GGUFType.ADAPTER, adapter.architecture) as writer:
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 0.0)
        for pair in adapter.pairs:
            a = Source(stored=pair.a).read(Precision.EXACT)
            b = Source(stored=pair.b, pick=pair.pick).read(Precision.EXACT)
            _add_tensor(writer, f"{pair.gguf_name}.lora_a", a)
            _add_tensor(writer, f"{pair.gguf_name}.lora_b", b * np.float32(pair.scale))


@contextmanager
def written(path: Path, kind: str, architecture: str) -> Iterator[gguf.GGUFWriter]:
    """Complete or absent: a temporary name, then rename."""
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(str(part), architecture)
    writer.add_type(kind)
    try:
        yield writer
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    os.replace(part, path)


def _add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    """Add a number, a text or a list. Whole numbers are unsigned, as llama.cpp's sizes are."""
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        assert isinstance(value, int)
        writer.add_uint32(key, value)


def _add_tensor(writer: gguf.GGUFWriter, name: str, array: np.ndarray) -> None:
    if array.dtype == np.uint16:
        kind = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name, array.view(np.uint8), raw_dtype=kind)
    else:
        writer.add_tensor(name, array)
