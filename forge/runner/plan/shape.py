"""Shape of a model before it is loaded: sizes of its parts, number of parameters.

A shape comes from the experiment (a tiny model), from `config.json` of a directory or of the hub's
cache, from the header of a GGUF file, or from the table of known hub names, so that a plan needs no
download. The shapes of plain decoders are computed here; for others transformers is asked
(`_measure`), once for each config.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from forge.config.schema import LoraTable, ModelTable, TinyModel
from forge.errors import ConfigError
from forge.process.environment import child_env
from forge.runner.weights.model_dir import CONFIG, config_dir, read_config
from forge.serve.architectures import no_llama, why_not_llama
from forge.store.layout import write_file
from forge.train.gguf import read_gguf

PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Values of `model_type` whose shapes `decoder` computes from a config."""
PLAIN_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
)  # fmt: skip
QK_NORMS = frozenset({"qwen3", "qwen3_moe", "afmoe"})
CHILD = "forge.train.trainer.model.measure"
"""Makes transformers' model on the meta device: takes 4 s on two cores, for 671 B parameters too.
"""
CHILD_TIMEOUT_S = 60.0
FORMAT = 2


class Matrices(NamedTuple):
    num: int
    params: int
    widths: int
    """Input and output widths of all, added up: an adapter of rank r has r · widths parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model for text, and of what else it loads."""

    model_type: str
    params: int
    linear: Mapping[str, Matrices]
    """Linear layers without the output head, by the last part of their names."""
    experts: Mapping[str, Matrices]
    """Fused experts by name, one for each sparse layer; empty for a dense model."""
    kv: tuple[tuple[int | None, int], ...]
    """Values of a token in the KV cache, by the window of their layers; None for no window."""
    hidden: int
    layers: int
    heads: int
    head_dim: int
    intermediate: int
    expert_intermediate: int
    active_experts: int
    """Experts that a token passes, shared ones included; 0 for a dense model."""
    vocab: int

    @property
    def expert_params(self) -> int:
        return sum(each.params for each in self.experts.values())

    @property
    def active_params(self) -> int:
        """Parameters that multiply a token: no embeddings, and of the experts its own."""
        head = self.vocab * self.hidden
        per_expert = 3 * self.hidden * self.expert_intermediate
        experts = self.sparse_layers * self.active_experts * per_expert
        return sum(each.params for each in self.linear.values()) + experts + head

    @property
    def quantized_params(self) -> int:
        """Parameters that are stored in 4 bits: linear layers and experts. Embeddings, norms, the
        output layer and routers are not."""
        return sum(each.params for each in self.linear.values()) + self.expert_params

    @property
    def kv_values(self) -> int:
        return sum(values for _, values in self.kv)

    @property
    def is_mixture(self) -> bool:
        return bool(self.experts)

    @property
    def sparse_layers(self) -> int:
        return max((each.num for each in self.experts.values()), default=0)

    def kv_of(self, context_tokens: int) -> int:
        return sum(
            values * min(context_tokens, window or context_tokens) for window, values in self.kv
        )

    def adapter_params(self, lora: LoraTable) -> int:
        """Parameters of a LoRA adapter: r · (in + out) for each matrix that it changes."""
        names = lora.target_modules
        wanted = self.linear if names == "all-linear" else [n.rpartition(".")[2] for n in names]
        adapted = [self.linear[name] for name in wanted if name in self.linear]
        fused = [name.rpartition(".")[2] for name in lora.target_parameters]
        adapted += [self.experts[name] for name in fused if name in self.experts]
        return lora.r * sum(each.widths for each in adapted)


def decoder(config: Mapping[str, Any]) -> ModelShape:
    """Shape of a decoder with grouped attention, a gated MLP or fused experts, as transformers
    makes the types in `PLAIN` and `KNOWN`."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    heads, vocab = config["num_attention_heads"], config["vocab_size"]
    inner, kind = config["intermediate_size"], config["model_type"]
    kv_heads = config.get("num_key_value_heads") or heads
    head = config.get("head_dim") or hidden // heads
    query, keys = heads * head, kv_heads * head
    num_experts, expert = config.get("num_experts", 0), config.get("moe_intermediate_size", 0)
    num_sparse = layers - config.get("num_dense_layers", 0) if num_experts else 0
    mlps = [(layers - num_sparse, inner)]
    mlps += [(num_sparse, expert)] * config.get("num_shared_experts", 0)
    linear = {
        "q_proj": _matrices(layers, hidden, query), "k_proj": _matrices(layers, hidden, keys),
        "v_proj": _matrices(layers, hidden, keys), "o_proj": _matrices(layers, query, hidden),
    }  # fmt: skip
    for name in ("gate_proj", "up_proj", "down_proj"):
        parts = [_matrices(num, hidden, width) for num, width in mlps if num]
        if name == "gate_proj" and kind == "afmoe":
            parts.append(_matrices(layers, hidden, query))  # the gate of its attention
        if parts:
            linear[name] = Matrices(*map(sum, zip(*parts, strict=True)))
    experts: dict[str, Matrices] = {}
    for name, width in {"gate_up_proj": 2 * expert, "down_proj": expert}.items():
        if num_sparse:
            every = _matrices(num_sparse * num_experts, hidden, width)
            experts[name] = every._replace(num=num_sparse)
    norms = (2 * layers + 1) * hidden + layers * 2 * head * (kind in QK_NORMS)
    biases = layers * (query + 2 * keys) if kind == "qwen2" else 0
    embeddings = vocab * hidden * (1 if config.get("tie_word_embeddings") else 2)
    matrices = sum(each.params for each in (*linear.values(), *experts.values()))
    return ModelShape(
        model_type=kind, linear=linear, experts=experts, kv=((None, layers * 2 * keys),),
        params=embeddings + norms + biases + matrices + num_sparse * num_experts * hidden,
        hidden=hidden, layers=layers, heads=heads, head_dim=head, vocab=vocab,
        intermediate=inner, expert_intermediate=expert * bool(num_sparse),
        active_experts=config.get("num_experts_per_tok", 0) * bool(num_sparse),
    )  # fmt: skip


def _matrices(num: int, width: int, other: int) -> Matrices:
    return Matrices(num, num * width * other, num * (width + other))


def _qwen3(hidden: int, layers: int, heads: int, inner: int, *, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "qwen3", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": inner, "vocab_size": 151_936, "tie_word_embeddings": tied,
    }  # fmt: skip


_LLAMA_8B = {
    **_qwen3(4096, 32, 32, 14_336, tied=False), "model_type": "llama", "vocab_size": 128_256,
}  # fmt: skip
_QWEN3_30B_A3B = {
    **_qwen3(2048, 48, 32, 6144, tied=False), "model_type": "qwen3_moe", "num_key_value_heads": 4,
    "num_experts": 128, "moe_intermediate_size": 768, "num_experts_per_tok": 8,
}  # fmt: skip
_TRINITY_MINI = {
    **_QWEN3_30B_A3B, "model_type": "afmoe", "num_hidden_layers": 32, "vocab_size": 200_192,
    "moe_intermediate_size": 1024, "num_shared_experts": 1, "num_dense_layers": 2,
}  # fmt: skip
_SMOLLM2_135M = {
    **_qwen3(576, 30, 9, 1536, tied=True), "model_type": "llama", "num_key_value_heads": 3,
    "head_dim": 64, "vocab_size": 49_152,
}  # fmt: skip

KNOWN: dict[str, dict[str, Any]] = {
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
    "smollm2-135m": _SMOLLM2_135M,
    "trinity-mini": _TRINITY_MINI,
}
"""Configs by name without owner, in lower case. A longer name `<known>-...` has the same one."""


def model_shape(model: ModelTable) -> ModelShape | None:
    """The shape of a model; None if `why_unknown`. Raises ConfigError for a config or a GGUF file
    that cannot be used."""
    found = _find(model)
    return found if isinstance(found, ModelShape) else None


def why_unknown(model: ModelTable) -> str:
    found = _find(model)
    return found if isinstance(found, str) else ""


def _find(model: ModelTable) -> ModelShape | str:
    if model.init:
        return tiny_shape(model.tiny)
    if folder := config_dir(model):
        return _shape_of(read_config(folder), where=str(folder / CONFIG))
    name = model.path or ""
    if model.is_gguf:
        return _shape_of(read_gguf(Path(name).expanduser()).config(), where=name)
    last = name.rpartition("/")[2].lower()
    fitting = [known for known in KNOWN if last == known or last.startswith(f"{known}-")]
    return decoder(KNOWN[max(fitting, key=len)]) if fitting else "not on this machine"


def count_params(model: ModelTable) -> int | None:
    """Parameters of a run's model, by its shape or else by its files; None without either."""
    folder = Path(model.path or "").expanduser()
    if model.is_gguf and folder.is_file():
        return read_gguf(folder).num_params
    if shape := model_shape(model):
        return shape.params
    files = list(folder.glob("*.safetensors")) if model.path and folder.is_dir() else []
    return sum(map(_params_of, files)) or None


def _params_of(file: Path) -> int:
    """Values in a safetensors file, by the shapes in its header. Raises ConfigError."""
    from safetensors import SafetensorError, safe_open

    try:
        opened: Any = safe_open(file, framework="np")
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{file}: {error}") from error
    with opened as tensors:
        return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118


def tiny_shape(tiny: TinyModel) -> ModelShape:
    return decoder({
        "model_type": "qwen3", "hidden_size": tiny.hidden_size, "head_dim": tiny.head_dim,
        "num_hidden_layers": tiny.num_layers, "num_attention_heads": tiny.num_heads,
        "num_key_value_heads": tiny.num_kv_heads, "intermediate_size": tiny.intermediate_size,
        "vocab_size": tiny.vocab_size, "tie_word_embeddings": tiny.tie_word_embeddings,
    })  # fmt: skip


def _shape_of(config: dict[str, Any], *, where: str) -> ModelShape | str:
    kind = str(config["model_type"])
    has_biases = config.get("attention_bias") or config.get("mlp_bias")
    has_window = config.get("sliding_window") and config.get("use_sliding_window", True)
    has_default = kind == "qwen3" and not config.get("head_dim")
    has_lists = any(isinstance(value, list) for key, value in config.items() if key in PLAIN_KEYS)
    if kind in PLAIN and not (has_biases or has_window or has_default or has_lists):
        missing = [key for key in PLAIN_KEYS if config.get(key) is None]
        if missing:
            raise ConfigError(f"{where}: lacks {', '.join(missing)}")
        return decoder(config)
    found = _measure(json.dumps(config, sort_keys=True))
    if "refused" in found:
        raise ConfigError(f"{where}: {found['refused']}")
    if "unknown" in found:
        return str(found["unknown"])
    sizes: dict[str, Any] = {**found, "kv": tuple((window, num) for window, num in found["kv"])}
    for key in ("linear", "experts"):
        sizes[key] = {name: Matrices(*each) for name, each in found[key].items()}
    return ModelShape(model_type=kind, **sizes)


@cache
def _measure(config: str) -> dict[str, Any]:
    """The child's answer: a shape, or `refused` or `unknown` with the reason. Shapes are kept in
    `$XDG_CACHE_HOME/forge/shapes/`, by config and version of transformers."""
    try:
        name = f"{config} {version('transformers')} {version('torch')} {FORMAT}"
    except PackageNotFoundError as error:
        return {"unknown": f"{error.name} is not installed"}
    home = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "forge" / "shapes"
    kept = home / f"{hashlib.sha256(name.encode()).hexdigest()}.json"
    with suppress(OSError, ValueError, TypeError):  # a damaged file is made again
        shape = json.loads(kept.read_text())
        if set(shape) >= {"params", "linear", "experts", "kv"}:
            return shape
    found = _ask(config)
    if "params" in found:
        with suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            write_file(kept, json.dumps(found))
    return found


def _ask(config: str) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", CHILD], env=child_env(threads=1), input=config,
            capture_output=True, text=True, timeout=CHILD_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"unknown": f"transformers needs more than {CHILD_TIMEOUT_S:.0f} s to make it"}
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return {"unknown": f"transformers does not make it: {said[:300]}"}
    return json.loads(done.stdout)


def llama_refusal(model: ModelTable, *, context_tokens: int) -> str | None:
    """The reason why the llama engine does not serve a model; None if it does, or if the model is
    not on this machine and unknown. Raises as `read_config`."""
    if folder := config_dir(model):
        return why_not_llama(read_config(folder), context_tokens=context_tokens)
    shape = model_shape(model)
    return no_llama(shape.model_type) if shape and shape.model_type else None
