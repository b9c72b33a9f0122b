"""A transformers model on one device: its weights, a separate adapter, the forward pass, and the KV
of all running sequences as one batch.

Owned by `engine`. Promises: refused weights leave the old ones in place; an adapter is never merged
(in bf16 that would lose most of a small one); a row's KV never depends on other rows; rows keep
their order. Sequences of different lengths share a batch by padding on the left, so that their
newest tokens are in one column.

Shapes: R rows, N new tokens of each row, V vocabulary, T columns, H heads, D size of a head.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer

from forge.errors import ConfigError
from forge.serve.checkpoint_files import check_names, holds_adapter, one_line, read_lora_config
from forge.serve.port import ADAPTER, FULL

NOT_LOADED = (
    OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, SafetensorError,
    StrictDataclassError,
)  # fmt: skip
"""Errors of transformers and PEFT for a directory that they cannot load."""


class HfModel:
    """A model's weights and its forward pass."""

    def __init__(self, model_dir: Path, *, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self._dtype = dtype
        self._base: Any = _read(model_dir, dtype).to(device)
        self._adapted: PeftModel | None = None
        self._num_adapters = 0
        self._shapes = _shapes(self._base.state_dict())
        self.num_vocab = int(self._base.config.get_text_config().vocab_size)

    def load_weights(self, path: Path) -> str:
        """Load a full checkpoint, or an adapter on the last one. Returns ADAPTER or FULL. Raises
        ConfigError and changes nothing if it is not complete or belongs to another model."""
        if holds_adapter(path):
            self._load_adapter(path)
            return ADAPTER
        new = _read(path, self._dtype).state_dict()
        found = _shapes(new)
        changed = (n for n in found | self._shapes if found.get(n) != self._shapes.get(n))
        if name := min(changed, default=None):
            raise ConfigError(
                f"{path}: another model than the one served: {name} is "
                f"{_shown(found.get(name))} ({_shown(self._shapes.get(name))} served)"
            )
        if self._adapted is not None:
            self._base, self._adapted = self._adapted.unload(), None
        self._base.load_state_dict(new)
        return FULL

    def _load_adapter(self, path: Path) -> None:
        name = f"v{self._num_adapters}"
        self._num_adapters += 1
        adapted = self._adapted
        try:
            config, stored = _open_adapter(path)
            with warnings.catch_warnings():
                # PEFT uses a deprecated name of transformers.
                warnings.simplefilter("ignore", FutureWarning)
                if adapted is None:
                    adapted = PeftModel(self._base, config, adapter_name=name)
                # Does not report missing tensors, which would stay random: checked below.
                adapted.load_adapter(str(path), adapter_name=name)
            needed = get_peft_model_state_dict(
                adapted, adapter_name=name, save_embedding_layers=False
            )
            check_names(path, found=stored, needed=frozenset(needed))
        except (*NOT_LOADED, ConfigError) as error:
            self._forget(adapted, name)
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{path}: the adapter cannot be served: {one_line(error)}") from error
        adapted.set_adapter(name)
        for old in [other for other in adapted.peft_config if other != name]:
            adapted.delete_adapter(old)
        adapted.requires_grad_(False)
        self._adapted = adapted.eval()

    def _forget(self, adapted: PeftModel | None, name: str) -> None:
        """Remove the parts of a refused adapter."""
        if adapted is None:
            return
        if self._adapted is None:
            self._base = adapted.unload()
        elif name in adapted.peft_config:
            adapted.delete_adapter(name)

    def prefill(self, tokens: list[int]) -> tuple[torch.Tensor, RowCache]:
        """Evaluate one sequence. Returns the logits after its last token [1, V] and its KV."""
        ids = torch.tensor([tokens], device=self.device)
        memory = RowCache(DynamicCache(), torch.zeros(1, dtype=torch.long, device=self.device))
        return self.forward(ids, memory, num_logits=1)[:, -1], memory

    def decode(self, tokens: list[int], memory: RowCache) -> torch.Tensor:
        """Evaluate one more token of each row. Returns the logits after it. [R, V]"""
        ids = torch.tensor(tokens, device=self.device)[:, None]
        return self.forward(ids, memory, num_logits=1)[:, -1]

    @torch.inference_mode()
    def forward(
        self, ids_RN: torch.Tensor, memory: RowCache, *, num_logits: int = 0
    ) -> torch.Tensor:
        """Evaluate N more tokens of each row and add their KV to the memory. Returns the logits of
        the last `num_logits` of them, 0 for all. [R, N, V]"""
        num_new = ids_RN.shape[1]
        places_RN = memory.lengths[:, None] + torch.arange(num_new, device=self.device)
        model: Any = self._base if self._adapted is None else self._adapted
        out = model(
            input_ids=ids_RN,
            attention_mask=memory.mask(num_new=num_new),
            position_ids=places_RN,
            past_key_values=memory.cache,
            use_cache=True,
            logits_to_keep=num_logits,
        )
        memory.lengths = memory.lengths + num_new
        return out.logits

    def move(self, device: torch.device) -> None:
        """Move all weights to another device."""
        (self._base if self._adapted is None else self._adapted).to(device)

    @property
    def gpu_bytes(self) -> int:
        """GPU memory held by torch; 0 on a CPU."""
        return torch.cuda.memory_reserved() if self.device.type == "cuda" else 0


def _read(path: Path, dtype: torch.dtype) -> Any:
    """Load a checkpoint on the CPU. Raises ConfigError if it is not complete."""
    try:
        read: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        model, report = read
    except NOT_LOADED as error:
        raise ConfigError(
            f"{path}: not a checkpoint that can be served: {one_line(error)}"
        ) from error
    # A mixture's config may have this option of training; with a cache its mask has another length.
    if getattr(model.config, "output_router_logits", False):
        model.config.output_router_logits = False
    # Only a warning reports missing tensors, which would stay random.
    for what in ("missing_keys", "mismatched_keys"):
        if names := sorted(map(str, report.get(what) or ())):
            kind = what.removesuffix("_keys")
            raise ConfigError(f"{path}: {len(names)} tensors {kind}, the first is {names[0]}")
    return model.eval().requires_grad_(False)


def _open_adapter(path: Path) -> tuple[PeftConfig, frozenset[str]]:
    """The adapter's config and the names of its tensors."""
    read_lora_config(path)
    config = PeftConfig.from_pretrained(str(path))
    config.inference_mode = True
    with safe_open(path / "adapter_model.safetensors", framework="pt") as file:
        return config, frozenset(file.keys())


def _shapes(state: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in state.items()}


def _shown(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


@dataclass(slots=True, eq=False)
class RowCache:
    """KV of the rows, one [R, H, T, D] pair for each layer, padded on the left; and each row's
    length."""

    cache: DynamicCache
    lengths: torch.Tensor
    """Number of each row's tokens in the cache. [R]"""

    @property
    def num_columns(self) -> int:
        """Width of the cache: T."""
        return self.cache.get_seq_length()

    def mask(self, *, num_new: int) -> torch.Tensor:
        """Attention mask: 1 for a row's own columns and the `num_new` ones. [R, T + num_new]"""
        columns = torch.arange(self.num_columns + num_new, device=self.lengths.device)
        return (columns >= self.num_columns - self.lengths[:, None]).long()

    def repeat(self, times: int) -> None:
        """Repeat the only row `times` times."""
        self.cache.batch_repeat_interleave(times)
        self.lengths = self.lengths.repeat_interleave(times)

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows, and the columns that only those used."""
        index = torch.tensor(rows, dtype=torch.long, device=self.lengths.device)
        self.cache.batch_select_indices(index)
        self.lengths = self.lengths[index]
        unused = self.num_columns - int(self.lengths.max())
        if unused:
            for layer in _layers(self.cache):
                assert layer.keys is not None
                assert layer.values is not None
                layer.keys, layer.values = layer.keys[:, :, unused:], layer.values[:, :, unused:]

    def join(self, other: RowCache) -> None:
        """Append the rows of another cache."""
        columns = max(self.num_columns, other.num_columns)
        mine, theirs = columns - self.num_columns, columns - other.num_columns
        for layer, added in zip(_layers(self.cache), _layers(other.cache), strict=True):
            layer.keys = torch.cat([_widened(layer.keys, mine), _widened(added.keys, theirs)])
            layer.values = torch.cat([_widened(layer.values, mine), _widened(added.values, theirs)])
        self.lengths = torch.cat([self.lengths, other.lengths])


def _layers(cache: DynamicCache) -> list[DynamicLayer]:
    """The layers, all of one kind, since the cache is made without a config."""
    layers = [layer for layer in cache.layers if type(layer) is DynamicLayer]
    assert len(layers) == len(cache.layers)
    return layers


def _widened(kv_RHTD: torch.Tensor | None, columns: int) -> torch.Tensor:
    assert kv_RHTD is not None
    return pad(kv_RHTD, (0, 0, columns, 0))
