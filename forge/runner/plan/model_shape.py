"""Shape of a model before it is loaded: sizes of its parts, and its number of parameters.

It comes from the experiment (a tiny model), from `config.json` of a directory or of the hub's
cache, from the header of a GGUF file, or from the table of known hub names, so that a plan needs no
download.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.serve.architectures import no_llama, why_not_llama
from forge.train.gguf import made_dir, read_gguf

if TYPE_CHECKING:
    from forge.config.schema import LoraTable, ModelTable, TinyModel

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A decoder with grouped attention and a gated MLP: Qwen3, Llama, mixtures of experts."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of a dense layer's MLP."""
    vocab: int
    is_tied: bool
    experts: int = 0
    """Experts in each sparse layer; 0 for a dense model."""
    expert_intermediate: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    """Layers of a mixture without experts."""
    gated_attention: bool = False
    model_type: str = "qwen3"
    """`model_type` of config.json."""

    @property
    def params(self) -> int:
        """Number of parameters, with the norms of the residual stream, queries and keys."""
        embeddings = self.vocab * self.hidden * (1 if self.is_tied else 2)
        norms = (2 * self.layers + 1) * self.hidden + 2 * self.layers * self.head_dim
        return embeddings + norms + self.layers * self._attention + self._mlps

    @property
    def expert_params(self) -> int:
        """Parameters of the fused experts."""
        return 3 * self.sparse_layers * self.experts * self.hidden * self.expert_intermediate

    @property
    def quantized_params(self) -> int:
        """Parameters that are stored in 4 bits: linear layers and experts. Embeddings, norms, the
        output layer and routers are not."""
        return self.linear_params + self.expert_params

    @property
    def linear_params(self) -> int:
        """Parameters of plain linear layers, to which "all-linear" refers."""
        return self.layers * self._attention + self._mlps - self.expert_params - self._routers

    @property
    def kv_values(self) -> int:
        """Values in the KV cache of one token, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def is_mixture(self) -> bool:
        """True for a mixture of experts."""
        return self.experts > 0

    def adapter_params(self, lora: LoraTable) -> int:
        """Parameters of a LoRA adapter: r · (in + out) for each matrix that it changes."""
        names = lora.target_modules
        wanted = ATTENTION + MLP if names == "all-linear" else names
        num_dense = self.dense_layers if self.is_mixture else self.layers
        total = 0
        for name, widths in self._matrices().items():
            if name in wanted:
                total += sum(widths) * (self.layers if name in ATTENTION else num_dense)
        for name in lora.target_parameters:
            inner = self.expert_intermediate * (2 if "gate_up" in name else 1)
            total += self.sparse_layers * self.experts * (self.hidden + inner)
        return lora.r * total

    @property
    def sparse_layers(self) -> int:
        """Layers with experts."""
        return self.layers - self.dense_layers if self.is_mixture else 0

    @property
    def _routers(self) -> int:
        return self.sparse_layers * self.experts * self.hidden

    @property
    def _attention(self) -> int:
        query = self.heads * self.head_dim
        num_query = 3 if self.gated_attention else 2  # queries, output, gate
        return self.hidden * (num_query * query + 2 * self.kv_heads * self.head_dim)

    @property
    def _mlps(self) -> int:
        dense = 3 * self.hidden * self.intermediate
        if not self.is_mixture:
            return self.layers * dense
        shared = self.shared_experts * 3 * self.hidden * self.expert_intermediate
        sparse = self.sparse_layers * shared + self.expert_params + self._routers
        return self.dense_layers * dense + sparse

    def _matrices(self) -> dict[str, tuple[int, int]]:
        """Input and output width of each linear layer of a dense block."""
        query, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "q_proj": (self.hidden, query),
            "k_proj": (self.hidden, kv),
            "v_proj": (self.hidden, kv),
            "o_proj": (query, self.hidden),
            "gate_proj": (self.hidden, self.intermediate),
            "up_proj": (self.hidden, self.intermediate),
            "down_proj": (self.intermediate, self.hidden),
        }


def _qwen3(hidden: int, layers: int, heads: int, intermediate: int, *, tied: bool) -> ModelShape:
    return ModelShape(
        hidden=hidden, layers=layers, heads=heads, kv_heads=8, head_dim=128,
        intermediate=intermediate, vocab=151_936, is_tied=tied,
    )  # fmt: skip


_LLAMA_8B = ModelShape(
    hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, intermediate=14_336,
    vocab=128_256, is_tied=False, model_type="llama",
)  # fmt: skip
_QWEN3_30B_A3B = ModelShape(
    hidden=2048, layers=48, heads=32, kv_heads=4, head_dim=128, intermediate=6144, vocab=151_936,
    is_tied=False, experts=128, expert_intermediate=768, model_type="qwen3_moe",
)  # fmt: skip
_TRINITY_MINI = ModelShape(
    hidden=2048, layers=32, heads=32, kv_heads=4, head_dim=128, intermediate=6144, vocab=200_192,
    is_tied=False, experts=128, expert_intermediate=1024, shared_experts=1, dense_layers=2,
    gated_attention=True, model_type="afmoe",
)  # fmt: skip

KNOWN: dict[str, ModelShape] = {
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 12_288, tied=False),
    "qwen3-14b": _qwen3(5120, 40, 40, 17_408, tied=False),
    "qwen3-32b": _qwen3(5120, 64, 64, 25_600, tied=False),
    "qwen3-30b-a3b": _QWEN3_30B_A3B,
    "qwen3-coder-30b-a3b": _QWEN3_30B_A3B,
    "llama-3.1-8b": _LLAMA_8B,
    "kernelllm": _LLAMA_8B,
    "trinity-mini": _TRINITY_MINI,
}
"""Shapes by name without owner, in lower case. A longer name `<known>-...` has the same shape."""


def model_shape(model: ModelTable) -> ModelShape | None:
    """The shape of a model; None without a local `config.json` or a known name. Uses no network."""
    if model.init:
        return tiny_shape(model.tiny)
    if folder := config_dir(model):
        return read_shape(folder / "config.json")
    name = model.path or ""
    if model.is_gguf:
        return _shape_of(read_gguf(Path(name).expanduser()).config())
    if Path(name).expanduser().is_dir():
        return None
    last = name.rpartition("/")[2].lower()
    fitting = [known for known in KNOWN if last == known or last.startswith(f"{known}-")]
    return KNOWN[max(fitting, key=len)] if fitting else None


def config_dir(model: ModelTable) -> Path | None:
    """Folder with the `config.json` of a model: its directory, or the hub's cache. None for a
    random model, or without one on this machine."""
    if model.init or not model.path:
        return None
    if model.is_gguf:
        folders = (made_dir(model.revision or ""),)
    else:
        folders = (Path(model.path).expanduser(), *_cached(model.path))
    return next((each for each in folders if (each / "config.json").is_file()), None)


def tiny_shape(tiny: TinyModel) -> ModelShape:
    """Shape of the model that `init = "tiny"` makes."""
    return ModelShape(
        hidden=tiny.hidden_size, layers=tiny.num_layers, heads=tiny.num_heads,
        kv_heads=tiny.num_kv_heads, head_dim=tiny.head_dim, intermediate=tiny.intermediate_size,
        vocab=tiny.vocab_size, is_tied=tiny.tie_word_embeddings,
    )  # fmt: skip


def read_shape(path: Path) -> ModelShape | None:
    """Shape in a `config.json` of transformers; None for other kinds of models."""
    try:
        return _shape_of(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _shape_of(found: dict[str, Any]) -> ModelShape:
    """Shape in the values of a `config.json`."""
    found = found.get("text_config", found)
    heads = int(found["num_attention_heads"])
    hidden = int(found["hidden_size"])
    experts = int(found.get("num_experts") or found.get("num_local_experts") or 0)
    return ModelShape(
        hidden=hidden,
        layers=int(found["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(found.get("num_key_value_heads") or heads),
        head_dim=int(found.get("head_dim") or hidden // heads),
        intermediate=int(found["intermediate_size"]),
        vocab=int(found["vocab_size"]),
        is_tied=bool(found.get("tie_word_embeddings", False)),
        experts=experts,
        expert_intermediate=int(found.get("moe_intermediate_size") or 0),
        shared_experts=int(found.get("num_shared_experts") or 0),
        dense_layers=int(found.get("num_dense_layers") or 0),
        gated_attention=found.get("model_type") == "afmoe",
        model_type=str(found.get("model_type", "")),
    )


def model_type(model_dir: Path) -> str | None:
    """`model_type` in the `config.json` of a directory; None without one."""
    try:
        return json.loads((model_dir / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def llama_refusal(model: ModelTable, *, context_tokens: int) -> str | None:
    """The reason why the llama engine does not serve a model; None if it does, or if the model is
    not on this machine and unknown."""
    if folder := config_dir(model):
        return refusal_of(folder, context_tokens=context_tokens)
    shape = model_shape(model)
    return no_llama(shape.model_type) if shape and shape.model_type else None


def refusal_of(model_dir: Path, *, context_tokens: int) -> str | None:
    """The same for a directory."""
    try:
        config = dict[str, Any](json.loads((model_dir / "config.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    is_named = "model_type" in config
    return why_not_llama(config, context_tokens=context_tokens) if is_named else None


def lora_rank(model: ModelTable, *, adapter: Path | None = None) -> int:
    """Largest rank of the adapters to serve: the one to train, `model.adapter` and `adapter`; 0 for
    none."""
    given = [adapter_rank(folder) for folder in (model.adapter, adapter) if folder is not None]
    return max([*given, model.lora.r if model.lora else 0], default=0)


def adapter_rank(folder: Path) -> int:
    """Rank of a PEFT adapter; 0 if its config does not say."""
    try:
        return int(json.loads((folder / "adapter_config.json").read_text())["r"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _cached(name: str) -> list[Path]:
    """Snapshots of a hub name on this machine, newest first. Read without the hub's library, which
    takes 0.3 s to import; the cache's layout is documented and stable."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    folder = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    if not name or not folder.is_dir():
        return []
    return sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
