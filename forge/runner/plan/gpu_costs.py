"""GPU memory of each role, estimated from the shape of the model. `gpu_fit` adds it up by card.

Estimates are a little high on purpose: a run that passes the plan should not end with CUDA out of
memory. The measured peak of a trainer is in its metrics (`train/peak_bytes/max`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.config.schema import SftStage
from forge.evalpool import capacity

if TYPE_CHECKING:
    from forge.config.schema import GrpoStage, ModelTable, ProblemsTable, ServeTable
    from forge.runner.plan.model_shape import ModelShape

CONTEXT_BYTES = 900 << 20
"""A process with torch on a card: CUDA context, cuBLAS workspace, rounding of the allocator."""
GRAPH_BYTES = 2 << 30
"""vLLM's CUDA graphs and the activations of its largest batch."""
ASLEEP_BYTES = 1536 << 20
"""An engine that sleeps keeps its context and graphs."""
LARGE_TENSOR_BYTES = 4 << 30
"""Inputs and outputs of concurrent candidates, a quarter of the capacity, at the sizes of a GPU."""
JUDGE_SHARE = 0.1
"""Share of the card for inputs and results that a judge keeps."""
BITS4_BYTES = 0.56
"""Bytes of a weight in NF4, with its doubly quantised scales."""
LOGIT_TILE = (4096, 32_768)
"""Tokens by vocabulary entries of the logits that TRL's output layer holds at a time."""
KEYS_PER_TOKEN = 4
"""Maximum, if prefixes are shared: `forge.train.trainer.packed.sequences`."""
SLACK = 1.15
"""Factor on activations, for fragmentation and the buffers of matrix products."""
NUM_ADAPTERS = 4
"""Adapters in an engine at a time: running turns keep the adapter that they began with."""
LEAST_CONTEXTS = 4
"""Sequences of full length that must fit an engine for it to be useful."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBytes:
    """GPU memory of one rank of the trainer."""

    resident: int
    """Between steps: weights, gradient buffers, optimizer state, context."""
    peak: int
    """Maximum during a step."""


def train_bytes(
    stage: SftStage | GrpoStage,
    model: ModelTable,
    shape: ModelShape,
    *,
    num_gpus: int,
    parallel: str,
    context_tokens: int,
) -> TrainBytes:
    """GPU memory of a rank of the trainer.

    Args:
        num_gpus: number of ranks.
        parallel: `ddp` or `fsdp2`; without effect on a single rank.
        context_tokens: context of the engine, and so the length of the longest sample.
    """
    state = _state_bytes(stage, model, shape)
    if parallel == "fsdp2" and num_gpus > 1:
        state = state / num_gpus + 2 * 4 * shape.params / shape.layers
    resident = CONTEXT_BYTES + int(state)
    tokens = _tokens(stage, context_tokens=context_tokens)
    activations = _activation_bytes(stage, model, shape, tokens=tokens)
    return TrainBytes(resident=resident, peak=resident + int(SLACK * activations))


def _state_bytes(stage: SftStage | GrpoStage, model: ModelTable, shape: ModelShape) -> float:
    """Weights, gradients, both moments, and a reference model if the KL term needs one."""
    moments = 2 if stage.optimizer == "adamw_8bit" else 8
    has_reference = not isinstance(stage, SftStage) and stage.beta > 0
    if model.lora is None:
        if model.dtype == "bfloat16":
            return shape.params * (2 + 2 + min(moments, 4) + 2 * has_reference)
        # f32 master weights and gradients; autocast keeps a bf16 copy of the weights.
        return shape.params * (4 + 4 + moments + 2 + 4 * has_reference)
    num_trained = shape.adapter_params(model.lora)
    if model.quantize is not None:
        # An adapter of 4-bit weights is in bf16, and so are its gradients and moments.
        rest = shape.params - shape.quantized_params
        adapter = num_trained * (2 + 2 + min(moments, 4))
        return shape.quantized_params * BITS4_BYTES + rest * 2 + adapter
    adapter = num_trained * (4 + 4 + moments)
    return shape.params * (4 if model.dtype == "float32" else 2) + adapter


def _activation_bytes(
    stage: SftStage | GrpoStage, model: ModelTable, shape: ModelShape, *, tokens: int
) -> float:
    stream = 2 if model.lora is not None or model.dtype == "bfloat16" else 4
    inner = shape.intermediate
    if shape.is_mixture:
        inner = max(inner, 10 * shape.expert_intermediate)  # active experts, sorted apart
    block = tokens * 2 * (12 * shape.hidden + 6 * shape.heads * shape.head_dim + 5 * inner)
    saved = tokens * shape.hidden * stream * shape.layers
    if stage.gradient_checkpointing is False:
        saved += block * (shape.layers - 1)
    logits = 4 * min(tokens, LOGIT_TILE[0]) * min(shape.vocab, LOGIT_TILE[1])
    if model.lora is None:
        logits += 4 * shape.vocab * shape.hidden  # its gradient is summed separately, in f32
    saved_keys, keys = _key_bytes(stage, shape, tokens=tokens)
    experts = _expert_bytes(stage, model, shape)
    return saved + saved_keys + block + keys + logits + experts


def _expert_bytes(stage: SftStage | GrpoStage, model: ModelTable, shape: ModelShape) -> float:
    """Copies of fused experts under an adapter, in bf16: those of a layer that are expanded from 4
    bits; W + B·A, and its gradient. Without recomputation every layer keeps one for the backward
    pass."""
    if model.lora is None or not shape.is_mixture:
        return 0
    is_adapted, is_quantized = bool(model.lora.target_parameters), model.quantize is not None
    copies = (2 * is_adapted + is_quantized) / max(shape.sparse_layers, 1)
    if stage.gradient_checkpointing is False:
        copies += is_adapted or is_quantized
    return 2 * shape.expert_params * copies


def _key_bytes(
    stage: SftStage | GrpoStage, shape: ModelShape, *, tokens: int
) -> tuple[float, float]:
    """Keys and values that sequences with shared prefixes gather: bytes saved for the backward
    pass, and bytes in the current layer, with the gradient of every head before they are summed."""
    if stage.packing is not True or shape.is_mixture:
        return 0, 0
    num = KEYS_PER_TOKEN * tokens
    gathered = 2 * num * shape.kv_values / shape.layers
    expanded = 2 * num * 2 * shape.heads * shape.head_dim
    saved = gathered * (shape.layers - 1) if stage.gradient_checkpointing is False else 0
    return saved, 2 * gathered + expanded


def _tokens(stage: SftStage | GrpoStage, *, context_tokens: int) -> int:
    """Tokens of a rank's largest micro-batch: a sequence above the budget is one alone."""
    longest = stage.max_length if isinstance(stage, SftStage) else context_tokens
    return max(stage.micro_batch_tokens, longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBytes:
    """GPU memory on one card of a replica."""

    least: int
    """With less the engine does not start, or serves only a few sequences."""
    full: int
    """With a KV cache for all slots."""
    fixed: int
    """Without a KV cache: weights, context, graphs."""


def serve_bytes(
    serve: ServeTable, model: ModelTable, shape: ModelShape, *, engine: str, num_gpus: int
) -> ServeBytes:
    """GPU memory of an engine on each of its `num_gpus` cards."""
    width = 4 if serve.precision == "exact" else 2
    adapters = 0 if model.lora is None else NUM_ADAPTERS * 2 * shape.adapter_params(model.lora)
    fixed = CONTEXT_BYTES + (shape.params * width + adapters) / num_gpus
    if engine == "vllm":
        fixed += GRAPH_BYTES
    context = shape.kv_of(serve.context_tokens) * width / num_gpus
    least = min(serve.slots, LEAST_CONTEXTS) if engine == "vllm" else serve.slots
    full = int(fixed + serve.slots * context)
    return ServeBytes(least=int(fixed + least * context), full=full, fixed=int(fixed))


def judge_bytes(problems: ProblemsTable, *, memory_bytes: int) -> int:
    """GPU memory of a judge at full capacity, on a card of this size."""
    has_own_sizes = any(
        part.source != "generated" and not (part.overrides or part.shapes)
        for part in problems.parts()
    )
    is_large = problems.sizes == "gpu" or has_own_sizes
    tensors = LARGE_TENSOR_BYTES * is_large + int(JUDGE_SHARE * memory_bytes)
    return capacity.num_contexts(memory_bytes=memory_bytes) * capacity.CONTEXT_BYTES + tensors
