"""GPU memory of a trainer's rank, an engine and a judge, by a formula from the shape of the model.

    peak of a rank = context + weights + moments + gradients + step
    step           = activations that are kept + the larger of: the output layer,
                                                  a layer's backward pass

Bytes of a layer's activations were counted on fake tensors (torch 2.13, transformers' Qwen3 under
autocast to bf16, PEFT's adapters); the sums are 1 to 9 % above the peaks that were measured on
H100s and H200s (`tests/runner/plan/test_memory.py` has them). `placement` adds them up by card.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from forge.config.schema import GrpoStage, ModelTable, ProblemsTable, ServeTable, SftStage
from forge.evalpool import capacity
from forge.runner.plan.shape import PLAIN, QK_NORMS, ModelShape

CONTEXT_BYTES = 900 << 20
"""A process with torch on a card: CUDA context, cuBLAS workspace, rest of the allocator."""
GRAPH_BYTES = 2 << 30
"""vLLM's CUDA graphs and the activations of its largest batch."""
ASLEEP_BYTES = 1536 << 20
"""An engine that sleeps keeps its context and graphs."""
LARGE_TENSOR_BYTES = 4 << 30
"""Inputs and outputs of concurrent candidates, a quarter of the capacity, at the sizes of a GPU."""
JUDGE_SHARE = 0.1
BITS4_BYTES = 0.56
LOGIT_TILE = (4096, 32_768)
"""Tokens by vocabulary entries of the f32 logits that the output layer holds at a time."""
KEYS_PER_TOKEN, SFT_KEYS_PER_TOKEN = 4, 2
"""Keys that a layer gathers for a token if prefixes are shared: the maximum, which
`train.trainer.packed.sequences` keeps; and that of rows which have half of their tokens in common.
"""
NUM_ADAPTERS = 4
"""Adapters in an engine at a time: running turns keep the adapter that they began with."""
LEAST_CONTEXTS = 4
"""Sequences of full length that must fit an engine for it to be useful."""
ADAPTED_EXPERTS = 4 / 3
"""Copies of a layer's experts, in bf16, under an adapter on experts: both changed matrices and a
gradient of the second."""


class _Layer(NamedTuple):
    """Bytes of a layer's activations for each token, and each value of the width that is named."""

    stream: int
    """Input, as wide as the model, which is kept although the layer is recomputed."""
    hidden: int
    """Tensors as wide as the model that are kept for a backward pass, the input included."""
    queries: int
    inner: int
    inner_gradient: int
    """Gradients as wide as the MLP, in a backward pass."""


LAYERS = {
    "f32": _Layer(4, 26, 14, 8, 4),
    "bf16": _Layer(2, 16, 14, 8, 4),
    "adapter": _Layer(2, 22, 16, 8, 6),
}
"""By the type of the trained weights. An adapter in f32 keeps its inputs too."""
COMPILED = {"f32": {"hidden": 12, "inner": 6}, "bf16": {"hidden": 8, "inner": 6}}
"""The same of compiled layers, where it differs: measured (SmolLM2-135M's shape, H200)."""
KEYS, QK_NORM = 6, 6
"""Bytes of keys and values; and those of queries and keys without norms of them, which are less."""
HIDDEN_GRADIENT, HEAD = 16, 28
"""Bytes a token and hidden value: gradients of a layer's backward pass; the output layer's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBytes:
    """GPU memory of one rank of the trainer, by part."""

    context: int = 0
    weights: int = 0
    optimizer: int = 0
    """Both moments, and DDP's buffers of gradients."""
    gradients: int = 0
    step: int = 0
    """More at the peak of a step: activations, logits, weights that are cast or gathered."""

    copy: int = 0
    """A copy of the weights that engines read between steps."""

    @property
    def resident(self) -> int:
        return self.context + self.weights + self.optimizer + self.copy

    @property
    def peak(self) -> int:
        return self.resident - self.copy + max(self.gradients + self.step, self.copy)

    def with_copy(self, num_bytes: int, *, is_beside_a_step: bool, readers: int) -> TrainBytes:
        """With a copy of the weights that engines read between steps, or also beside one; and the
        contexts of so many engines of other cards that read it."""
        step, context = self.step + num_bytes * is_beside_a_step, (1 + readers) * self.context
        return replace(self, copy=num_bytes, step=step, context=context)


def train_bytes(
    stage: SftStage | GrpoStage, model: ModelTable, shape: ModelShape, *, num_gpus: int,
    parallel: str, tokens: int, is_whole: bool = False, recomputes: bool | int = True,
) -> TrainBytes:  # fmt: skip
    """GPU memory of a rank of the trainer.

    Args:
        tokens: tokens of the rank's largest micro-batch.
        is_whole: True if it is the only one of a step, whose gradients grow while its activations
            shrink.
        recomputes: the value of an absent `gradient_checkpointing`.
    """
    shards = parallel == "fsdp2" and num_gpus > 1
    loaded = 2 if model.dtype == "bfloat16" else 4
    trained, width = shape.params, 4 if shards else loaded  # accelerate makes trained shards f32
    frozen = 0.0
    if model.lora is not None:
        # TRL keeps an adapter of 4-bit weights in bf16, and so its gradients and moments.
        trained, width = shape.adapter_params(model.lora), 4 if model.quantize is None else 2
        in_4_bits = shape.quantized_params if model.quantize is not None else 0
        frozen = in_4_bits * BITS4_BYTES
        frozen += (shape.params - in_4_bits) * (4 if model.dtype == "float32" else 2)
    elif not isinstance(stage, SftStage) and stage.beta > 0:
        frozen = loaded * shape.params  # the reference
    moments = 2 if stage.optimizer == "adamw_8bit" else 8
    parts = {
        "weights": frozen + width * trained,
        "optimizer": min(moments, 2 * width) * trained,
        "gradients": width * trained,
    }
    if shards:
        held = 0 if stage.offload else 1 / num_gpus
        parts = {name: size * held for name, size in parts.items()}
    elif num_gpus > 1:
        parts["optimizer"] += width * trained
    kind = "adapter" if model.lora else "bf16" if width == 2 or shards else "f32"
    asked = stage.gradient_checkpointing
    asked = recomputes if asked is None else asked
    num_kept = 0 if asked is True else max(shape.layers - int(asked), 0)
    step = _step_bytes(stage, model, shape, kind=kind, tokens=tokens, num_kept=num_kept)
    if shards:  # two layers are gathered, and the gradient of one, which is summed in f32
        step += (2 * 2 + 2 + 4) * shape.params / shape.layers + 2 * shape.vocab * shape.hidden
    if is_whole:
        step = max(step - parts["gradients"], 0)
    sizes = {name: int(size) for name, size in (parts | {"step": step}).items()}
    return TrainBytes(context=CONTEXT_BYTES, **sizes)


def _step_bytes(
    stage: SftStage | GrpoStage, model: ModelTable, shape: ModelShape, *, kind: str, tokens: int,
    num_kept: int,
) -> float:  # fmt: skip
    """Maximum of a forward and backward pass: at the output layer or in the last decoder layer.
    `num_kept` layers are not recomputed."""
    each, hidden, queries = LAYERS[kind], shape.hidden, shape.heads * shape.head_dim
    if stage.compile:
        each = each._replace(**COMPILED.get(kind, {}))
    normed = 0 if shape.model_type in PLAIN - QK_NORMS else QK_NORM
    kv = shape.kv_values / shape.layers
    inner = max(shape.intermediate, shape.active_experts * shape.expert_intermediate)
    shares = stage.packing is True and not shape.is_mixture  # a shared prefix is computed once
    num_keys = (SFT_KEYS_PER_TOKEN if isinstance(stage, SftStage) else KEYS_PER_TOKEN) * shares
    layer = each.hidden * hidden + each.inner * inner
    layer += (each.queries - QK_NORM + normed) * queries + (KEYS - QK_NORM + normed) * kv / 2
    layer += 2 * num_keys * kv  # gathered, in bf16
    layer += 2 * 2 * shape.active_experts * hidden  # a token's row for each expert, in and out
    gradient = HIDDEN_GRADIENT * hidden + each.inner_gradient * inner + 4 * num_keys * queries
    stream = each.stream * hidden
    kept = num_kept * layer + (shape.layers - num_kept) * stream
    cast = 2 * shape.params if kind == "f32" else 0  # autocast's copy of the weights
    head = 4 * shape.vocab * hidden if model.lora is None else 0  # its gradient, in f32
    tile = 4 * min(tokens, LOGIT_TILE[0]) * min(shape.vocab, LOGIT_TILE[1])
    at_head = cast + tile + tokens * HEAD * hidden
    in_layer = tokens * (gradient + (0 if num_kept else layer - stream))
    in_layer += cast * num_kept / shape.layers
    if model.lora is not None and (model.lora.target_parameters or model.quantize is not None):
        # Experts are expanded or changed a layer at a time, and kept where it is not recomputed.
        copies = ADAPTED_EXPERTS if model.lora.target_parameters else 1
        copies += max(min(num_kept, shape.sparse_layers) - 1, 0)
        in_layer += copies * 2 * shape.expert_params / max(shape.sparse_layers, 1)
    return tokens * kept + head + max(at_head, in_layer)


def micro_batch(
    stage: SftStage | GrpoStage, *, num_gpus: int, context_tokens: int, num_samples: int
) -> tuple[int, bool]:
    """Tokens of a rank's largest micro-batch, in which a row above the budget is alone; and True if
    it surely is the only one of a step. A grpo step has `num_samples`, as long as the context."""
    is_sft = isinstance(stage, SftStage)
    longest = stage.max_length if is_sft else context_tokens
    rows = -(-(stage.batch_size if is_sft else num_samples) // num_gpus)
    most = max(stage.micro_batch_tokens, longest)
    return min(most, rows * longest), rows * longest <= most


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBytes:
    least: int = 0
    """With less the engine does not start, or serves only a few sequences."""
    full: int = 0
    """With a KV cache for all slots."""


def serve_bytes(
    serve: ServeTable, model: ModelTable, shape: ModelShape, *, engine: str
) -> ServeBytes:
    width, num_gpus = 4 if serve.precision == "exact" else 2, serve.tensor_parallel
    adapters = 0 if model.lora is None else NUM_ADAPTERS * 2 * shape.adapter_params(model.lora)
    fixed = CONTEXT_BYTES + (shape.params * width + adapters) / num_gpus
    fixed += GRAPH_BYTES if engine == "vllm" else 0
    context = shape.kv_of(serve.context_tokens) * width / num_gpus
    least = min(serve.slots, LEAST_CONTEXTS) if engine == "vllm" else serve.slots
    return ServeBytes(least=int(fixed + least * context), full=int(fixed + serve.slots * context))


def judge_bytes(problems: ProblemsTable, *, memory_bytes: int) -> int:
    has_own_sizes = any(
        part.source != "generated" and not (part.overrides or part.shapes)
        for part in problems.parts()
    )
    is_large = problems.sizes == "gpu" or has_own_sizes
    tensors = LARGE_TENSOR_BYTES * is_large + int(JUDGE_SHARE * memory_bytes)
    return capacity.num_contexts(memory_bytes=memory_bytes) * capacity.CONTEXT_BYTES + tensors
