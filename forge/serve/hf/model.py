"""A transformers model on one device: its weights, a separate adapter, the forward pass, and the KV
and recurrent states of all running sequences as one batch.

Promises: refused weights leave the old ones in place; an adapter is never merged (in bf16 that
would lose most of a small one); a row's KV never depends on other rows; rows keep their order.
Sequences of different lengths share a batch by padding on the left, so that their newest tokens are
in one column.

Shapes: R rows, N new tokens of each row, V vocabulary, T columns, H heads, D size of a head.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from peft import PeftConfig, PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from torch.nn.functional import pad
from transformers import AutoConfig, DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from forge.errors import ConfigError
from forge.serve.checkpoint_files import check_names, holds_adapter, one_line, read_lora_config

NOT_LOADED = (
    OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError, SafetensorError,
    StrictDataclassError,
)  # fmt: skip
"""Errors of transformers and PEFT for a directory that they cannot load."""
KV = ("keys", "values")


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

    def load_weights(self, path: Path) -> None:
        """Load a full checkpoint, or an adapter on the last one. Raises ConfigError and changes
        nothing if it is not complete or belongs to another model."""
        if holds_adapter(path):
            return self._load_adapter(path)
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
        if adapted is None:
            return
        if self._adapted is None:
            self._base = adapted.unload()
        elif name in adapted.peft_config:
            adapted.delete_adapter(name)

    def prefill(self, tokens: list[int]) -> tuple[torch.Tensor, RowCache]:
        """Evaluate one sequence. Returns the logits after its last token [1, V] and its KV."""
        ids = torch.tensor([tokens], device=self.device)
        lengths = torch.zeros(1, dtype=torch.long, device=self.device)
        memory = RowCache(empty_cache(self._base.config), lengths)
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
        (self._base if self._adapted is None else self._adapted).to(device)


def _read(path: Path, dtype: torch.dtype) -> Any:
    """Load a checkpoint on the CPU. Raises ConfigError if it is not complete."""
    try:
        read: Any = _class_of(path).from_pretrained(
            path, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        model, report = read
    except NOT_LOADED as error:
        raise ConfigError(
            f"{path}: not a checkpoint that can be served: {one_line(error)}"
        ) from error
    # A mixture's config may have this option of training; with a cache its mask has another length.
    text = model.config.get_text_config()
    if getattr(text, "output_router_logits", False):
        text.output_router_logits = False
    # Only a warning reports missing tensors, which would stay random.
    for what in ("missing_keys", "mismatched_keys"):
        if names := sorted(map(str, report.get(what) or ())):
            kind = what.removesuffix("_keys")
            raise ConfigError(f"{path}: {len(names)} tensors {kind}, the first is {names[0]}")
    return model.eval().requires_grad_(False)


def _class_of(path: Path) -> Any:
    """The class that the trainer loads the model with, whose names of modules an adapter has."""
    names = AutoConfig.from_pretrained(path, local_files_only=True).architectures or ("",)
    generates = names[0].endswith(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"))
    found = getattr(transformers, names[0], None) if generates else None
    return found or transformers.AutoModelForCausalLM


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


def empty_cache(config: Any) -> DynamicCache:
    """A cache for one row. Layers with a window keep every column too, since rows of different
    lengths lie in different columns; the model's mask hides the others."""
    cache = DynamicCache(config=config)
    for place, layer in enumerate(cache.layers):
        if type(layer) is DynamicSlidingWindowLayer:
            cache.layers[place] = DynamicLayer()
        elif type(layer) is LinearAttentionAndSlidingWindowAttentionLayer:
            cache.layers[place] = LinearAttentionAndFullAttentionLayer(layer.number_of_states)
    return cache


@dataclass(slots=True, eq=False)
class RowCache:
    """Memory of the rows: for an attention layer a [R, H, T, D] pair, padded on the left; for a
    layer with a state its tensors, [R, ...] each; and each row's length."""

    cache: DynamicCache
    lengths: torch.Tensor
    """Number of each row's tokens in the cache. [R]"""

    @property
    def num_columns(self) -> int:
        return self.cache.get_seq_length()

    def mask(self, *, num_new: int) -> torch.Tensor:
        """Attention mask: 1 for a row's own columns and the `num_new` ones. [R, T + num_new]"""
        columns = torch.arange(self.num_columns + num_new, device=self.lengths.device)
        return (columns >= self.num_columns - self.lengths[:, None]).long()

    def repeat(self, times: int) -> None:
        for held, name in self._tensors():
            held[name] = held[name].repeat_interleave(times, dim=0)
        self.lengths = self.lengths.repeat_interleave(times)

    def keep(self, rows: list[int]) -> None:
        """Drop all other rows, and the columns that only those used."""
        index = torch.tensor(rows, dtype=torch.long, device=self.lengths.device)
        self.lengths = self.lengths[index]
        unused = self.num_columns - int(self.lengths.max())
        for held, name in self._tensors():
            kept = held[name][index]
            held[name] = kept[:, :, unused:] if name in KV else kept

    def join(self, other: RowCache) -> None:
        columns = max(self.num_columns, other.num_columns)
        mine, theirs = columns - self.num_columns, columns - other.num_columns
        pairs = zip(self._tensors(), other._tensors(), strict=True)
        for (held, name), (added, _) in list(pairs):
            first, last = held[name], added[name]
            if name in KV:
                first, last = _widened(first, mine), _widened(last, theirs)
            held[name] = torch.cat([first, last])
        self.lengths = torch.cat([self.lengths, other.lengths])

    def _tensors(self) -> Iterator[tuple[dict[Any, Any], str | int]]:
        """Each tensor that has a row dimension, as the dict that holds it and its key there."""
        for layer in self.cache.layers:
            if isinstance(layer, DynamicLayer):
                yield from ((vars(layer), name) for name in KV)
            if isinstance(layer, LinearAttentionLayer):
                for states in (layer.conv_states, layer.recurrent_states):
                    yield from ((states, i) for i, state in states.items() if state is not None)


def _widened(kv_RHTD: torch.Tensor, columns: int) -> torch.Tensor:
    return pad(kv_RHTD, (0, 0, columns, 0))
