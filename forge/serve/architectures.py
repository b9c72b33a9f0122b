"""The architectures that llama.cpp computes as transformers does: facts about each `model_type`,
and the layout of a model in a GGUF file, from its config.json.

Read by `checkpoint`, and by `forge.serve.engines` for the names alone: nothing is imported here.
Names of tensors come from `gguf`'s maps; this table holds what they do not: shapes, biases, order
of rows, and settings that llama.cpp has compiled in. Promise: a setting that llama.cpp would
compute differently is a ConfigError of one line, or limits the context (`Layout.exact_tokens`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forge.errors import ConfigError

Facts = Mapping[str, Any]

SHAPES = {
    "token_embd": "vocab hidden", "output_norm": "hidden", "output": "vocab hidden",
    "attn_norm": "hidden", "post_attention_norm": "hidden", "ffn_norm": "hidden",
    "post_ffw_norm": "hidden",
    "attn_q": "queries hidden", "attn_k": "keys hidden", "attn_v": "keys hidden",
    "attn_qkv": "qkv hidden", "attn_output": "hidden queries",
    "attn_q_norm": "head", "attn_k_norm": "head", "attn_sinks": "heads",
    "ffn_gate": "inner hidden", "ffn_up": "inner hidden", "ffn_down": "hidden inner",
    "ffn_gate_inp": "experts hidden", "ffn_gate_exps": "experts expert hidden",
    "ffn_up_exps": "experts expert hidden", "ffn_down_exps": "experts hidden expert",
    "ffn_gate_inp_shexp": "hidden", "ffn_gate_shexp": "shared hidden",
    "ffn_up_shexp": "shared hidden", "ffn_down_shexp": "hidden shared",
}  # fmt: skip
"""Shape of each kind of tensor, by its GGUF name; a kind that is not here is no weight."""
DENSE = frozenset({"ffn_gate", "ffn_up", "ffn_down"})
"""Kinds that a mixture of experts lacks."""
QKV = "attn_q attn_k attn_v"
QKVO = f"{QKV} attn_output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Facts about a `model_type` of transformers."""

    name: str
    """llama.cpp's name."""
    shapes: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Shapes that differ from SHAPES; None for a kind that this model_type lacks."""
    biases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Kinds with a bias, by the key of the config that turns it on; "" for always."""
    activation: str = "silu"
    needs: Facts = field(default_factory=dict[str, Any])
    """Values that llama.cpp has compiled in, by key of the config. An absent key has that value,
    unless `defaults` says otherwise."""
    defaults: Facts = field(default_factory=dict[str, Any])
    """transformers' defaults of keys that a config.json may lack."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further metadata: key of the GGUF file by key of the config."""
    is_permuted: bool = False
    """True if llama.cpp rotates neighbours where transformers rotates halves of a head, so that the
    rows of queries and keys are reordered."""
    adds_one: bool = False
    """True if transformers multiplies by 1 + the weight of a norm."""
    rope: str = "default linear yarn"
    """Types of rotary embedding that llama.cpp computes for it."""
    is_partial: bool = False
    """True if a part of a head may be rotated."""
    window_every: int = 0
    """Sliding windows in all layers but each n-th; 0 if llama.cpp computes none."""


_LLAMA = Architecture(
    name="llama", is_permuted=True, rope="default linear yarn llama3",
    biases={"attention_bias": QKVO, "mlp_bias": "ffn_gate ffn_up ffn_down"},
)  # fmt: skip
_GEMMA: Facts = {"head_dim": 256, "tie_word_embeddings": True, "hidden_activation": None}
ARCHITECTURES: dict[str, Architecture] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": Architecture(name="qwen2", biases={"": QKV}, defaults={"use_sliding_window": False}),
    "qwen3": Architecture(
        name="qwen3", biases={"attention_bias": QKVO}, needs={"attention_bias": False},
        defaults={"use_sliding_window": False, "head_dim": 128},
    ),
}  # fmt: skip
"""By `model_type` of config.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A model in a GGUF file. Models with equal layouts can exchange weights in place."""

    architecture: Architecture
    metadata: Facts
    """Keys without the architecture's prefix, with their values."""
    shapes: Mapping[str, tuple[int, ...]]
    """All tensors that come from the checkpoint, by GGUF name."""
    constants: Mapping[str, tuple[float, ...]]
    """Tensors that the config determines."""
    is_tied: bool
    """True if the output head is the embedding."""
    exact_tokens: int | None
    """Longest context that llama.cpp computes as transformers does; None for any."""

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return self.metadata["block_count"]

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding."""
        return self.metadata["vocab_size"]

    def heads_of(self, gguf_name: str) -> int:
        """Number of heads whose rows of a tensor are reordered; 0 for none."""
        kind = gguf_name.split(".")[-2]
        if not self.architecture.is_permuted or kind not in ("attn_q", "attn_k"):
            return 0
        return self.metadata["attention.head_count" + ("_kv" if kind == "attn_k" else "")]


def read_layout(config: Facts, *, kinds: Mapping[str, Sequence[str]], where: str) -> Layout:
    """Read a transformers config (keys of 4.x and 5.x).

    Args:
        kinds: GGUF names of all tensors of each of llama.cpp's architectures, with `{bid}`.
        where: prefix of error messages.
    """
    found = config.get("model_type")
    architecture = ARCHITECTURES.get(str(found))
    if architecture is None:
        raise ConfigError(f"{where}: model_type is {found!r}; {served_by_llama()}")
    return _ConfigReader(architecture, config, where).layout(kinds[architecture.name])


def served_by_llama() -> str:
    """All values of model_type that the llama engine serves, for error messages."""
    return f"the llama engine serves {', '.join(sorted(ARCHITECTURES))}; hf and vllm serve others"


class _ConfigReader:
    """A config with its architecture's defaults."""

    def __init__(self, architecture: Architecture, config: Facts, where: str) -> None:
        self.architecture, self.where = architecture, where
        self.config = {**architecture.defaults, **config}
        self.constants: dict[str, tuple[float, ...]] = {}
        self.limits: list[int] = []

    def layout(self, names: Sequence[str]) -> Layout:
        for key, allowed in self.architecture.needs.items():
            self._require(key, self.config.get(key, allowed), allowed)
        activation = self.architecture.activation
        act = self.config.get("hidden_activation") or self.config.get("hidden_act")
        self._require("hidden_act", act or activation, activation)
        try:
            sizes = self._sizes()
            metadata = {**self._common(sizes), **self._rope(sizes), **self._window(sizes)}
            shapes = self._shapes(names, sizes)
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ConfigError(f"{self.where}: not a usable config: {error!r}") from error
        return Layout(
            architecture=self.architecture,
            metadata=metadata,
            shapes=shapes,
            constants=self.constants,
            is_tied="output.weight" not in shapes,
            exact_tokens=min(self.limits, default=None),
        )

    def _require(self, key: str, found: object, *allowed: object) -> None:
        if found not in allowed:
            names = " or ".join(repr(each) for each in allowed)
            raise ConfigError(f"{self.where}: {key} is {found!r}; the llama engine needs {names}")

    def _sizes(self) -> dict[str, int]:
        config = self.config
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        head = int(config.get("head_dim") or hidden // heads)
        kv_heads = int(config.get("num_key_value_heads") or heads)
        experts = config.get("num_experts") or config.get("num_local_experts") or 0
        inner = int(config["intermediate_size"])
        return {
            "vocab": int(config["vocab_size"]), "hidden": hidden, "inner": inner,
            "fused": 2 * inner, "heads": heads, "kv_heads": kv_heads, "head": head,
            "queries": heads * head, "keys": kv_heads * head,
            "qkv": (heads + 2 * kv_heads) * head, "experts": int(experts),
            "expert": int(config.get("moe_intermediate_size") or inner),
            "shared": int(config.get("shared_expert_intermediate_size") or 0),
            "layers": int(config["num_hidden_layers"]),
        }  # fmt: skip

    def _common(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        config = self.config
        found: dict[str, Any] = {
            "context_length": int(config["max_position_embeddings"]),
            "embedding_length": sizes["hidden"],
            "block_count": sizes["layers"],
            "feed_forward_length": sizes["inner"],
            "attention.head_count": sizes["heads"],
            "attention.head_count_kv": sizes["kv_heads"],
            "attention.key_length": sizes["head"],
            "attention.value_length": sizes["head"],
            "vocab_size": sizes["vocab"],
        }
        if "rms_norm_eps" in config:
            found["attention.layer_norm_rms_epsilon"] = float(config["rms_norm_eps"])
        else:
            names = ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
            found["attention.layer_norm_epsilon"] = float(
                next(config[name] for name in names if name in config)
            )
        if sizes["experts"]:
            found["expert_count"] = sizes["experts"]
            found["expert_used_count"] = int(config["num_experts_per_tok"])
            found["expert_feed_forward_length"] = sizes["expert"]
        if sizes["shared"]:
            found["expert_shared_feed_forward_length"] = sizes["shared"]
        for key, name in self.architecture.metadata.items():
            found[key] = float(config[name])
        return found

    def _rope(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """Metadata of the rotary embedding, of all layers or of those without a window."""
        config = self.config
        given = config.get("rope_parameters") or config.get("rope_scaling") or {}
        rope = given.get("full_attention", given)
        local = given.get("sliding_attention", {}).get("rope_theta")
        kind = rope.get("rope_type") or rope.get("type") or "default"
        self._require("rope_type", kind, *self.architecture.rope.split())
        part = rope.get("partial_rotary_factor", config.get("partial_rotary_factor")) or 1.0
        if not self.architecture.is_partial:
            self._require("partial_rotary_factor", part, 1.0)
        theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
        found: dict[str, Any] = {
            "rope.dimension_count": int(sizes["head"] * part),
            "rope.freq_base": theta,
        }
        if local := local or config.get("rope_local_base_freq"):
            found["rope.freq_base_swa"] = float(local)
        if kind == "llama3":
            factors = _llama3_factors(rope, theta=theta, head=sizes["head"])
            self.constants["rope_freqs.weight"] = factors
        elif kind != "default":
            found["rope.scaling.type"] = kind
            found["rope.scaling.factor"] = float(rope["factor"])
        if kind == "yarn":
            found |= self._yarn(rope)
        return found

    def _yarn(self, rope: Facts) -> dict[str, Any]:
        for key in ("attention_factor", "mscale", "mscale_all_dim"):
            self._require(f"rope_parameters.{key}", rope.get(key), None)
        self._require("rope_parameters.truncate", rope.get("truncate", True), True)
        first = rope.get("original_max_position_embeddings")
        return {
            "rope.scaling.original_context_length": int(
                first or self.config["max_position_embeddings"]
            ),
            "rope.scaling.yarn_beta_fast": float(rope.get("beta_fast") or 32),
            "rope.scaling.yarn_beta_slow": float(rope.get("beta_slow") or 1),
        }

    def _window(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        config, every = self.config, self.architecture.window_every
        window = config.get("sliding_window")
        if not window or config.get("use_sliding_window", True) is False:
            return {}
        layers = config.get("layer_types") or [
            "full_attention" if every and (i + 1) % every == 0 else "sliding_attention"
            for i in range(sizes["layers"])
        ]
        pattern = [kind == "sliding_attention" for kind in layers]
        if not any(pattern):
            return {}
        if not every:
            self.limits.append(int(window))
            return {}
        return {
            "attention.sliding_window": int(window),
            "attention.sliding_window_pattern": pattern,
        }

    def _shapes(self, names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors, blocks in order."""
        lacks = DENSE if sizes["experts"] else {k for k in SHAPES if "exp" in k or "gate_inp" in k}
        if self.config.get("tie_word_embeddings", False):
            lacks = {*lacks, "output"}
        wanted = {**dict.fromkeys(lacks), **self.architecture.shapes}
        biased = self._biased()
        found: dict[str, tuple[int, ...]] = {}
        for name in names:
            kind = name.rpartition(".")[2]
            shape = wanted[kind] if kind in wanted else SHAPES.get(kind)
            if shape is None:
                continue
            numbers = tuple(sizes[each] for each in shape.split())
            for block in range(sizes["layers"] if "{bid}" in name else 1):
                full = name.format(bid=block)
                found[f"{full}.weight"] = numbers
                if kind in biased:
                    found[f"{full}.bias"] = numbers[:-1] if len(numbers) > 1 else numbers
        return found

    def _biased(self) -> set[str]:
        biases = self.architecture.biases.items()
        return {
            k for key, kinds in biases if not key or self.config.get(key) for k in kinds.split()
        }


def _llama3_factors(rope: Facts, *, theta: float, head: int) -> tuple[float, ...]:
    """Divisors of the frequencies of Llama 3.1: low ones by `factor`, high ones by 1, those
    between by an interpolation."""
    factor, low, high = (
        float(rope[key]) for key in ("factor", "low_freq_factor", "high_freq_factor")
    )
    first = float(rope["original_max_position_embeddings"])
    found: list[float] = []
    for i in range(0, head, 2):
        turns = first / (2 * math.pi * theta ** (i / head))  # in the first context
        smooth = min(1.0, max(0.0, (turns - low) / (high - low)))
        found.append(1.0 / ((1.0 - smooth) / factor + smooth))
    return tuple(found)
