"""The architectures that llama.cpp computes as transformers does: facts about each `model_type`,
and the layout of a model in a GGUF file, from its config.json.

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
MAX_LAYERS = 512
"""Compiled into llama.cpp, which aborts on more."""
CELL_BLOCK = 256
"""llama.cpp rounds a sequence's cells up to this."""
QKV = "attn_q attn_k attn_v"
QKVO = f"{QKV} attn_output"
MLP = "ffn_gate ffn_up ffn_down"
NORMS = "attn_norm ffn_norm output_norm"
GELU_TANH = "gelu_pytorch_tanh gelu_new"


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Facts about a `model_type` of transformers. A text may list several values."""

    name: str
    """llama.cpp's name."""
    shapes: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """Shapes that differ from SHAPES; None for a kind that this model_type lacks."""
    biases: Mapping[str, str] = field(default_factory=dict[str, str])
    """Kinds with a bias, by the key of the config that turns it on; "" for always."""
    activation: str = "silu"
    needs: Facts = field(default_factory=dict[str, Any])
    """Values that llama.cpp has compiled in, by key of the config. An absent key has that value,
    unless `defaults` says otherwise; None and False are the same."""
    defaults: Facts = field(default_factory=dict[str, Any])
    """transformers' defaults of keys that a config.json may lack."""
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])
    """Further numbers: key of the GGUF file to key of the config."""
    needs_head: bool = False
    """True if llama.cpp wants an output head even if it is the embedding."""
    is_permuted: bool = False
    """True if llama.cpp rotates neighbours where transformers rotates halves of a head, so that the
    rows of queries and keys are reordered."""
    is_interleaved: bool = False
    """True if experts are transposed, with gates and inputs in alternate rows."""
    adds_one: bool = False
    """True if transformers multiplies by 1 + the weight of a norm."""
    rope: str = "default linear yarn"
    """Types of rotary embedding that llama.cpp computes for it."""
    rotated: float | None = None
    """Default share of a head that is rotated; None if it is always the whole."""
    rotates_all_but: int = 0
    """Rotary embedding in all layers but each n-th; 0 for all."""
    window_every: int = 0
    """Sliding windows in all layers but each n-th; 0 if llama.cpp computes none."""
    layers_of_27b: int = 0
    """Number of layers by which llama.cpp knows the model with another scale of attention."""


_LLAMA = Architecture(
    name="llama", is_permuted=True, rope="default linear yarn llama3",
    biases={"attention_bias": QKVO, "mlp_bias": MLP},
)  # fmt: skip
_QK_NORMS = {"attn_q_norm": "queries", "attn_k_norm": "keys"}
_OLMO: dict[str, Any] = {"shapes": _QK_NORMS, "needs": {"attention_bias": False}}
_EVERY_LAYER = {"mlp_only_layers": [], "decoder_sparse_step": 1}
_GEMMA = {"head_dim": 256, "tie_word_embeddings": True, "max_position_embeddings": 8192}
_ONE_WAY = {"attention_bias": False, "use_bidirectional_attention": False}
_NO_WINDOW = {"use_sliding_window": False}
ARCHITECTURES: dict[str, Architecture] = {
    "arcee": Architecture(
        name="arcee", is_permuted=True, activation="relu2",
        needs={"attention_bias": False, "mlp_bias": False},
    ),
    "cohere2": Architecture(
        name="cohere2", window_every=4, metadata={"logit_scale": "logit_scale"}, rope="default",
        needs={"attention_bias": False, "tie_word_embeddings": True},
    ),
    "ernie4_5": Architecture(
        name="ernie4_5", needs={"use_bias": False}, rope="default",
        defaults={"tie_word_embeddings": True, "rope_theta": 5e5, "head_dim": 128},
    ),
    "gemma": Architecture(
        name="gemma", adds_one=True, activation=f"{GELU_TANH} gelu", defaults=_GEMMA,
        needs=_ONE_WAY,
    ),
    "gemma2": Architecture(
        name="gemma2", adds_one=True, activation=GELU_TANH, window_every=2, layers_of_27b=46,
        rope="default", needs=_ONE_WAY,
        defaults={**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                  "sliding_window": 4096, "query_pre_attn_scalar": 256},
        metadata={"attn_logit_softcapping": "attn_logit_softcapping",
                  "final_logit_softcapping": "final_logit_softcapping"},
    ),
    "gemma3_text": Architecture(
        name="gemma3", adds_one=True, activation=GELU_TANH, window_every=6, layers_of_27b=62,
        rope="default linear",
        needs={**_ONE_WAY, "attn_logit_softcapping": None, "final_logit_softcapping": None},
        defaults={**_GEMMA, "max_position_embeddings": 131_072, "rope_theta": 1e6,
                  "rope_local_base_freq": 1e4, "query_pre_attn_scalar": 256,
                  "sliding_window": 4096, "num_attention_heads": 8, "num_key_value_heads": 4,
                  "rms_norm_eps": 1e-6, "vocab_size": 262_208},
    ),
    "glm4": Architecture(
        name="glm4", rotated=0.5, rope="default", biases={"attention_bias": QKV},
        shapes={"attn_qkv": None, "ffn_up": "fused hidden"},
    ),
    "gpt_oss": Architecture(
        name="gpt-oss", window_every=2, is_interleaved=True, needs_head=True,
        biases={"": f"{QKVO} ffn_gate_inp ffn_gate_exps ffn_up_exps ffn_down_exps"},
        needs={"attention_bias": True, "swiglu_limit": 7.0, "swiglu_alpha": 1.702},
        defaults={"rope_theta": 150_000.0},
    ),
    "granite": Architecture(
        name="granite", is_permuted=True, biases={"attention_bias": QKVO, "mlp_bias": MLP},
        metadata={"attention.scale": "attention_multiplier", "logit_scale": "logits_scaling",
                  "embedding_scale": "embedding_multiplier",
                  "residual_scale": "residual_multiplier"},
        defaults={"attention_multiplier": 1.0, "logits_scaling": 1.0, "embedding_multiplier": 1.0,
                  "residual_multiplier": 1.0},
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "nemotron": Architecture(
        name="nemotron", adds_one=True, activation="relu2", rotated=0.5, needs_head=True,
        biases={"": NORMS, "attention_bias": QKVO, "mlp_bias": "ffn_up ffn_down"}, rope="default",
    ),
    "olmo2": Architecture(name="olmo2", needs_head=True, **_OLMO),
    "olmo3": Architecture(name="olmo2", needs_head=True, window_every=4, rope="default", **_OLMO),
    "olmoe": Architecture(
        name="olmoe", needs_head=True, shapes=_QK_NORMS,
        needs={"attention_bias": False, "clip_qkv": None, "norm_topk_prob": False},
    ),
    "phi": Architecture(
        name="phi2", activation=GELU_TANH, rotated=0.5, needs={"qk_layernorm": False},
        needs_head=True, shapes={"attn_qkv": None, "ffn_norm": None}, rope="default",
        biases={"": f"{QKVO} ffn_up ffn_down attn_norm output_norm output"},
    ),
    "phi3": Architecture(
        name="phi3", rotated=1.0, rope="default longrope su",
        shapes={"ffn_up": "fused hidden", "attn_q": None, "attn_k": None, "attn_v": None},
    ),
    "qwen2": Architecture(name="qwen2", biases={"": QKV}, defaults=_NO_WINDOW),
    "qwen2_moe": Architecture(
        name="qwen2moe", biases={"": QKV}, needs_head=True, defaults=_NO_WINDOW,
        needs={**_EVERY_LAYER, "norm_topk_prob": False, "qkv_bias": True},
    ),
    "qwen3": Architecture(
        name="qwen3", needs={"attention_bias": False}, defaults={**_NO_WINDOW, "head_dim": 128},
    ),
    "qwen3_moe": Architecture(
        name="qwen3moe", needs={**_EVERY_LAYER, "norm_topk_prob": True, "attention_bias": False},
        defaults={**_NO_WINDOW, "norm_topk_prob": False},
    ),
    "seed_oss": Architecture(
        name="seed_oss", biases={"attention_bias": QKV},
        needs={"attention_out_bias": False, "mlp_bias": False},
        defaults={"attention_bias": True, "head_dim": 128},
    ),
    "smollm3": Architecture(
        name="smollm3", is_permuted=True, rotates_all_but=4,
        needs={"attention_bias": False, "mlp_bias": False},
        defaults={**_NO_WINDOW, "tie_word_embeddings": True, "rope_theta": 2e6},
    ),
    "stablelm": Architecture(
        name="stablelm", rotated=0.25, needs_head=True, rope="default",
        needs={"use_parallel_residual": False, "qk_layernorm": False},
        shapes=dict.fromkeys(_QK_NORMS), biases={"": NORMS, "use_qkv_bias": QKV},
    ),
    "starcoder2": Architecture(
        name="starcoder2", activation=GELU_TANH, needs={"use_bias": True},
        biases={"": f"{QKVO} {NORMS} ffn_up ffn_down"}, defaults={"tie_word_embeddings": True},
    ),
}  # fmt: skip
"""By `model_type` of config.json."""
WITH_IMAGES = {"gemma3": "gemma3_text"}
"""Models whose text alone is served, with the `model_type` of their `text_config`."""


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
        return self.metadata["block_count"]

    @property
    def vocab_size(self) -> int:
        return self.metadata["vocab_size"]

    def check_context(self, context_tokens: int, *, where: str) -> None:
        """Raise ConfigError for a context in which llama.cpp computes something else."""
        if self.exact_tokens is not None and context_tokens > self.exact_tokens:
            raise ConfigError(
                f"{where}: llama.cpp computes this model as transformers does up to"
                f" {self.exact_tokens} tokens; serve.context_tokens is {context_tokens}"
            )

    def heads_of(self, gguf_name: str) -> int:
        """Number of heads whose rows of a tensor are reordered; 0 for none."""
        kind = gguf_name.split(".")[-2]
        if not self.architecture.is_permuted or kind not in ("attn_q", "attn_k"):
            return 0
        return self.metadata["attention.head_count" + ("_kv" if kind == "attn_k" else "")]


def read_layout(
    config: Facts, *, where: str, kinds: Mapping[str, Sequence[str]] | None = None
) -> Layout:
    """Read a transformers config (keys of 4.x and 5.x).

    Args:
        where: prefix of error messages.
        kinds: GGUF names of all tensors of each of llama.cpp's architectures, with `{bid}`; without
            them the layout has no shapes.
    """
    found = str(config.get("model_type"))
    if found in WITH_IMAGES:
        text = config.get("text_config")
        config = {**config, **(text if isinstance(text, dict) else {})}
        found = WITH_IMAGES[found]
    if (architecture := ARCHITECTURES.get(found)) is None:
        raise ConfigError(f"{where}: {no_llama(found)}")
    names = kinds[architecture.name] if kinds else ()
    return _ConfigReader(architecture, config, where).layout(names)


def no_llama(model_type: str) -> str | None:
    """The reason why the llama engine serves no model of a type; None if it does."""
    served = sorted({*ARCHITECTURES, *WITH_IMAGES})
    if model_type in served:
        return None
    return f"model_type is {model_type!r}; llama serves {', '.join(served)}; hf and vllm others"


def why_not_llama(config: Facts, *, context_tokens: int) -> str | None:
    """The reason why the llama engine does not serve a model; None if it does."""
    try:
        read_layout(config, where="config.json").check_context(context_tokens, where="config.json")
    except ConfigError as error:
        return str(error)
    return None


class _ConfigReader:
    """A config with its architecture's defaults."""

    def __init__(self, architecture: Architecture, config: Facts, where: str) -> None:
        self.architecture, self.where = architecture, where
        self.config = {**architecture.defaults, **config}
        self.is_tied = bool(self.config.get("tie_word_embeddings", False))
        self.constants: dict[str, tuple[float, ...]] = {}
        self.limits: list[int] = []

    def layout(self, names: Sequence[str]) -> Layout:
        try:
            self._check_compiled()
            sizes = self._sizes()
            self._check_scale(sizes)
            metadata = {**self._common(sizes), **self._rope(sizes), **self._window(sizes)}
            shapes = self._shapes(names, sizes)
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise ConfigError(f"{self.where}: not a usable config: {error!r}") from error
        return Layout(
            architecture=self.architecture, metadata=metadata, shapes=shapes,
            constants=self.constants, is_tied=self.is_tied,
            exact_tokens=min(self.limits, default=None),
        )  # fmt: skip

    def _check_compiled(self) -> None:
        """Compare with what llama.cpp has compiled in."""
        for key, allowed in self.architecture.needs.items():
            self._require(key, self.config.get(key, allowed) or False, allowed or False)
        allowed = self.architecture.activation.split()
        found = self.config.get("hidden_activation") or self.config.get("hidden_act")
        self._require("hidden_act", found or allowed[0], *allowed)
        every, rotated = self.architecture.rotates_all_but, self.config.get("no_rope_layers")
        if every and rotated:
            compiled = [int((i + 1) % every != 0) for i in range(len(rotated))]
            self._require("no_rope_layers", list(map(int, rotated)), compiled)

    def _check_scale(self, sizes: Mapping[str, int]) -> None:
        """Gemma's scale of attention is compiled in, by the number of layers."""
        if scalar := self.config.get("query_pre_attn_scalar"):
            is_27b = sizes["layers"] == self.architecture.layers_of_27b
            compiled = sizes["hidden"] // sizes["heads"] if is_27b else sizes["head"]
            self._require("query_pre_attn_scalar", int(scalar), compiled)

    def _require(self, key: str, found: object, *allowed: object) -> None:
        if found not in allowed:
            names = " or ".join(repr(each) for each in allowed)
            raise ConfigError(f"{self.where}: {key} is {found!r}; the llama engine needs {names}")

    def _sizes(self) -> dict[str, int]:
        config = self.config
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        head = int(config.get("head_dim") or hidden // heads)
        kv_heads = int(config.get("num_key_value_heads") or heads)
        experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
        inner, layers = int(config["intermediate_size"]), int(config["num_hidden_layers"])
        if not 1 <= layers <= MAX_LAYERS:
            raise ValueError(f"num_hidden_layers is {layers}; allowed is 1 to {MAX_LAYERS}")
        if heads < 1 or kv_heads < 1 or heads % kv_heads or head < 2 or head % 2:
            raise ValueError(f"{heads} heads, {kv_heads} of keys, of {head} values")
        if experts and not 1 <= int(config["num_experts_per_tok"]) <= experts:
            raise ValueError(f"num_experts_per_tok is {config['num_experts_per_tok']}")
        return {
            "vocab": int(config["vocab_size"]), "hidden": hidden, "inner": inner,
            "fused": 2 * inner, "heads": heads, "kv_heads": kv_heads, "head": head,
            "queries": heads * head, "keys": kv_heads * head,
            "qkv": (heads + 2 * kv_heads) * head, "experts": experts,
            "expert": int(config.get("moe_intermediate_size") or inner),
            "shared": int(config.get("shared_expert_intermediate_size") or 0),
            "layers": layers,
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
            name = next((name for name in names if name in config), "rms_norm_eps")
            found["attention.layer_norm_epsilon"] = float(config[name])
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
        part = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor")
        if self.architecture.rotated is None:
            self._require("partial_rotary_factor", part or 1.0, 1.0)
        part = float(part or self.architecture.rotated or 1.0)
        theta = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
        size = int(sizes["head"] * part)
        if size < 2 or size % 2:
            raise ValueError(f"{size} values of a head are rotated")
        found: dict[str, Any] = {"rope.dimension_count": size, "rope.freq_base": theta}
        if local := local or config.get("rope_local_base_freq"):
            found["rope.freq_base_swa"] = float(local)
        if kind == "llama3":
            factors = _llama3_factors(rope, theta=theta, head=sizes["head"])
            self.constants["rope_freqs.weight"] = factors
        elif kind in ("longrope", "su"):
            found |= self._longrope(rope, size)
        elif kind != "default":
            found["rope.scaling.type"] = kind
            found["rope.scaling.factor"] = float(rope["factor"])
        if kind == "yarn":
            found |= self._yarn(rope)
        return found

    def _longrope(self, rope: Facts, size: int) -> dict[str, Any]:
        """Two lists of divisors. transformers chooses by the length of a text, llama.cpp by that of
        the context, so that both agree up to the first length."""
        for which in ("long", "short"):
            factors = tuple(float(each) for each in rope[f"{which}_factor"])
            if len(factors) != size // 2:
                raise ValueError(f"{which}_factor has {len(factors)} numbers, not {size // 2}")
            self.constants[f"rope_factors_{which}.weight"] = factors
        key = "original_max_position_embeddings"
        first = int(rope.get(key) or self.config[key])
        self.limits.append(first // CELL_BLOCK * CELL_BLOCK)
        factor = float(rope.get("factor") or self.config["max_position_embeddings"] / first)
        scale = math.sqrt(1 + math.log(factor) / math.log(first)) if factor > 1 else 1.0
        return {
            "rope.scaling.original_context_length": first,
            "rope.scaling.attn_factor": float(rope.get("attention_factor") or scale),
        }

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
        window = int(config.get("sliding_window") or 0)
        if window < 1 or config.get("use_sliding_window", True) is False:
            return {}
        layers = config.get("layer_types") or [
            "full_attention" if every and (i + 1) % every == 0 else "sliding_attention"
            for i in range(sizes["layers"])
        ]
        pattern = [kind == "sliding_attention" for kind in layers]
        if not any(pattern):
            return {}
        if not every:
            self.limits.append(window)
            return {}
        return {"attention.sliding_window": window, "attention.sliding_window_pattern": pattern}

    def _shapes(self, names: Sequence[str], sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Shapes of all tensors, blocks in order."""
        lacks = DENSE if sizes["experts"] else {k for k in SHAPES if "exp" in k or "gate_inp" in k}
        if self.is_tied and not self.architecture.needs_head:
            lacks = {*lacks, "output"}
        shapes = {**SHAPES, **dict.fromkeys(lacks), **self.architecture.shapes}
        biases = self.architecture.biases.items()
        biased = {k for key, kinds in biases if not key or self.config.get(key)
                  for k in kinds.split()}  # fmt: skip
        found: dict[str, tuple[int, ...]] = {}
        whole = [name for name in names if "{bid}" not in name]
        blocks = [
            name.format(bid=block)
            for block in range(sizes["layers"])
            for name in names
            if "{bid}" in name
        ]
        for name in whole + blocks:
            kind = name.rpartition(".")[2]
            if (shape := shapes.get(kind)) is None:
                continue
            numbers = tuple(sizes[each] for each in shape.split())
            found[f"{name}.weight"] = numbers
            if kind in biased:
                found[f"{name}.bias"] = numbers[:-1] or numbers
        return found


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
