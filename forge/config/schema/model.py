"""`[model]`: the model to train and serve."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import PathValue, Positive, Share, Table


class TinyModel(Table):
    """`[model.tiny]`: sizes of the random Qwen3 model that `init = "tiny"` makes."""

    hidden_size: Annotated[int, Field(ge=32, le=4096)] = 128
    """Width of the residual stream."""
    num_layers: Annotated[int, Field(ge=1, le=64)] = 4
    """Number of transformer blocks."""
    num_heads: Annotated[int, Field(ge=1, le=64)] = 4
    """Number of attention heads."""
    num_kv_heads: Annotated[int, Field(ge=1, le=64)] = 2
    """Number of key-value heads; a divisor of num_heads."""
    head_dim: Annotated[int, Field(ge=8, le=256)] = 64
    """Width of an attention head. The llama engine is twice as fast with 64 as with 32."""
    initializer_range: Annotated[float, Field(gt=0, le=1)] = 0.06
    """Standard deviation of the random weights. With 0.06 a model of this size learns to copy in
    half the steps that 0.02 needs."""
    intermediate_size: Annotated[int, Field(ge=32)] = 384
    """Width of the MLP."""
    vocab_size: Annotated[int, Field(ge=300, le=65536)] = 1024
    """Size of the BPE vocabulary, trained on the run's own data; special tokens included."""
    max_context_tokens: Annotated[int, Field(ge=128)] = 4096
    """Number of positions that the model supports."""
    tie_word_embeddings: bool = True
    """Use the input embedding as the output layer."""


class LoraTable(Table):
    """`[model.lora]`: train an adapter instead of all weights."""

    r: Positive = 16
    """Rank of the adapter."""
    alpha: Annotated[float, Field(gt=0)] = 32.0
    """Scale of the adapter: the update is alpha / r · B·A."""
    dropout: Share = 0.0
    """Dropout rate of the adapter's input, for modules; parameters are adapted without dropout."""
    target_modules: list[str] | Literal["all-linear"] = "all-linear"
    """Names of the modules that get an adapter."""
    target_parameters: list[str] = Field(default_factory=list)
    """Names of parameters that get an adapter although they are not a module's weight, such as the
    fused experts of a mixture: ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]."""


class QuantizeTable(Table):
    """`[model.quantize]`: train an adapter on 4-bit weights (QLoRA), the fused experts of a mixture
    included."""

    bits: Literal[4] = 4
    """Bits of a stored weight, in NF4."""
    double_quant: bool = True
    """Quantize the scales too."""
    compute_dtype: Literal["bfloat16"] = "bfloat16"
    """Type of the matrix products."""


class ModelTable(Table):
    """`[model]`: the model to train and serve."""

    init: Literal["tiny"] | None = None
    """Make a random model, with the sizes of [model.tiny], instead of loading one."""
    path: str | None = None
    """Local directory or hub name of the model. Exactly one of init and path; neither with
    serve.url: the server is asked by messages, and forge needs no tokenizer."""
    revision: str | None = None
    """Hub revision of the model; recorded with the run."""
    adapter: PathValue | None = None
    """Directory of a PEFT adapter to start from."""
    tiny: TinyModel = TinyModel()
    """Sizes for init = "tiny"."""
    lora: LoraTable | None = None
    """Adapter training; absent means that all weights are trained."""
    quantize: QuantizeTable | None = None
    """Weights in 4 bits; needs [model.lora] and a GPU."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Type of the trainer's weights. auto: float32 if all weights are trained, bfloat16 under an
    adapter."""
    trust_remote_code: bool = False
    """Run Python code from the model's directory."""

    @property
    def is_absent(self) -> bool:
        """True if only a server has the model."""
        return self.init is None and self.path is None
