"""`[model]`: what is trained and served, and in which form."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import PathValue, Positive, Share, Table


class TinyModel(Table):
    """`[model.tiny]`: sizes of the random Qwen3 model that `init = "tiny"` makes."""

    hidden_size: Annotated[int, Field(ge=32, le=4096)] = 128
    """Width of the residual stream."""
    num_layers: Annotated[int, Field(ge=1, le=64)] = 4
    """Transformer blocks."""
    num_heads: Annotated[int, Field(ge=1, le=64)] = 4
    """Attention heads."""
    num_kv_heads: Annotated[int, Field(ge=1, le=64)] = 2
    """Key-value heads; divides num_heads."""
    head_dim: Annotated[int, Field(ge=8, le=256)] = 64
    """Width of a head. The llama engine is twice as fast with 64 as with 32."""
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.06
    """Standard deviation of the random weights; 0.06 learns to copy in half of the steps that 0.02
    takes at these sizes."""
    intermediate_size: Annotated[int, Field(ge=32)] = 384
    """Width of the MLP."""
    vocab_size: Annotated[int, Field(ge=300, le=65536)] = 1024
    """Entries of the BPE tokenizer, trained on the run's own data, special tokens included."""
    max_context_tokens: Annotated[int, Field(ge=128)] = 4096
    """Positions the model is made for."""
    tie_word_embeddings: bool = True
    """Share the input embedding with the output layer."""


class LoraTable(Table):
    """`[model.lora]`: train an adapter instead of all weights."""

    r: Positive = 16
    """Rank."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scaling numerator: the update is alpha / r · B·A."""
    dropout: Share = 0.0
    """Dropout on the adapter's input."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Module names that get an adapter."""
    target_parameters: list[str] = Field(default_factory=list)
    """Names of parameters that get one without being a module's weight, as the fused experts of a
    mixture: ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]."""


class QuantizeTable(Table):
    """`[model.quantize]`: train an adapter on a base of 4 bits (QLoRA)."""

    bits: Literal[4] = 4
    """Of a stored weight, as NF4."""
    double_quant: bool = True
    """Quantise the scales too."""
    compute_dtype: Literal["bfloat16"] = "bfloat16"
    """Of the products."""


class ModelTable(Table):
    """`[model]`: what is trained and served."""

    init: Literal["tiny"] | None = None
    """Make a random model instead of loading one; sizes in [model.tiny]."""
    path: str | None = None
    """A local directory or a hub name. Exactly one of init and path."""
    revision: str | None = None
    """Hub revision; recorded with the run."""
    adapter: PathValue | None = None
    """Directory of a PEFT adapter to start from."""
    tiny: TinyModel = TinyModel()
    """Sizes for init = "tiny"."""
    lora: LoraTable | None = None
    """Adapter training; absent means all weights."""
    quantize: QuantizeTable | None = None
    """The base in 4 bits; needs [model.lora] and a GPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of the trainer's weights. auto: f32 where all are trained, bf16 under an adapter."""
    trust_remote_code: bool = False
    """Let the model directory run its own Python."""
