"""What things cost on a GPU: bytes of its memory, by role. Pure; `placement` adds them up by card.

Estimates from the shape of the model, made to be a little high: a run that the plan lets start
should not end with CUDA out of memory. What a trainer took in the end is in its metrics
(`train/peak_bytes/max`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forge.config.schema import SftStage
from forge.evalpool import capacity as contexts

if TYPE_CHECKING:
    from forge.config.schema import GrpoStage, ModelTable, ProblemsTable, ServeTable
    from forge.runner.plan.model_shape import ModelShape

CONTEXT_BYTES = 900 << 20
"""Of a process with torch on a card: CUDA context, cuBLAS workspace, the allocator's rounding."""
GRAPH_BYTES = 2 << 30
"""vLLM's CUDA graphs and the activations of its largest batch."""
ASLEEP_BYTES = 1536 << 20
"""What an engine keeps on the card while it sleeps: context, graphs."""
LARGE_TENSOR_BYTES = 4 << 30
"""Inputs and outputs of the candidates that run at once, a quarter of them, where problems are made
for a GPU's clock."""
JUDGE_SHARE = 0.1
"""Of the card, for inputs and results that a judge keeps."""
BITS4_BYTES = 0.56
"""Of a weight in NF4, its doubly quantised scales included."""
LOGIT_TILE = (4096, 32_768)
"""Tokens by vocabulary entries: what TRL's output layer holds of the logits at once."""
KEYS_PER_TOKEN = 4
"""At most, where prefixes are shared: `forge.train.trainer.grpo.prefixes`."""
SLACK = 1.15
"""Of activations: fragmentation, buffers of the products."""
NUM_ADAPTERS = 4
"""In an engine at once: old turns end on the old one."""
LEAST_CONTEXTS = 4
"""Sequences of full length that an engine must have room for, to be of use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBytes:
    """Of one rank."""

    resident: int
    """Between steps: weights, gradients' buffers, optimizer state, context."""
    peak: int
    """In the middle of a step."""


def train_bytes(
    stage: SftStage | GrpoStage,
    model: ModelTable,
    shape: ModelShape,
    *,
    num_gpus: int,
    parallel: str,
    context_tokens: int,
) -> TrainBytes:
    """What a rank of the trainer needs.

    Args:
        num_gpus: ranks.
        parallel: `ddp` or `fsdp2`; of one rank it does not matter.
        context_tokens: of the engine, and so of the longest sample.
    """
    state = _state_bytes(stage, model, shape)
    if parallel == "fsdp2" and num_gpus > 1:
        state = state / num_gpus + 2 * 4 * shape.params / shape.layers
    resident = CONTEXT_BYTES + int(state)
    tokens = _tokens(stage, num_gpus=num_gpus, context_tokens=context_tokens)
    activations = _activation_bytes(stage, model, shape, tokens=tokens)
    return TrainBytes(resident=resident, peak=resident + int(SLACK * activations))


def _state_bytes(stage: SftStage | GrpoStage, model: ModelTable, shape: ModelShape) -> float:
    """Weights, gradients, both moments; a reference model where the KL term wants one."""
    moments = 2 if stage.optimizer == "adamw_8bit" else 8
    has_reference = not isinstance(stage, SftStage) and stage.beta > 0
    if model.lora is None:
        if model.dtype == "bfloat16":
            return shape.params * (2 + 2 + min(moments, 4) + 2 * has_reference)
        # f32 master weights and gradients; autocast keeps a bf16 copy of the weights.
        return shape.params * (4 + 4 + moments + 2 + 4 * has_reference)
    adapter = shape.adapter_params(model.lora) * (4 + 4 + moments)
    if model.quantize is not None:
        rest = shape.params - shape.linear_params
        return shape.linear_params * BITS4_BYTES + rest * 2 + adapter
    return shape.params * (4 if model.dtype == "float32" else 2) + adapter


def _activation_bytes(
    stage: SftStage | GrpoStage, model: ModelTable, shape: ModelShape, *, tokens: int
) -> float:
    stream = 2 if model.lora is not None or model.dtype == "bfloat16" else 4
    inner = shape.intermediate
    if shape.is_mixture:
        inner = max(inner, 10 * shape.expert_intermediate)  # active ones, kept apart by sorting
    block = tokens * 2 * (12 * shape.hidden + 6 * shape.heads * shape.head_dim + 5 * inner)
    saved = tokens * shape.hidden * stream * shape.layers
    if stage.gradient_checkpointing is False:
        saved += block * (shape.layers - 1)
    logits = 4 * min(tokens, LOGIT_TILE[0]) * min(shape.vocab, LOGIT_TILE[1])
    if model.lora is None:
        logits += 4 * shape.vocab * shape.hidden  # its gradient is summed up in f32, apart
    saved_keys, keys = _key_bytes(stage, shape, tokens=tokens)
    experts = 0
    if model.lora is not None and model.lora.target_parameters and shape.is_mixture:
        # PEFT writes W + B·A of a layer's experts out, and their gradient.
        experts = 2 * 2 * shape.expert_params / max(shape.layers - shape.dense_layers, 1)
    return saved + saved_keys + block + keys + logits + experts


def _key_bytes(
    stage: SftStage | GrpoStage, shape: ModelShape, *, tokens: int
) -> tuple[float, float]:
    """Of the keys and values that samples with shared prefixes gather: kept for later, and in the
    layer at work, where gradients come to them, of every head before they are summed."""
    if isinstance(stage, SftStage) or stage.share_prefixes is not True:
        return 0, 0
    num = KEYS_PER_TOKEN * tokens
    gathered = 2 * num * shape.kv_values / shape.layers
    expanded = 2 * num * 2 * shape.heads * shape.head_dim
    saved = gathered * (shape.layers - 1) if stage.gradient_checkpointing is False else 0
    return saved, 2 * gathered + expanded


def _tokens(stage: SftStage | GrpoStage, *, num_gpus: int, context_tokens: int) -> int:
    """Of the widest micro-batch of a rank: a row longer than the budget has one of its own."""
    if stage.micro_batch_tokens is not None:
        longest = stage.max_length if isinstance(stage, SftStage) else context_tokens
        return max(stage.micro_batch_tokens, longest)
    assert isinstance(stage, SftStage), "grpo has a default"
    return -(-stage.batch_size // num_gpus) * stage.max_length


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeBytes:
    """Of one card of a replica."""

    least: int
    """Below this the engine does not start, or serves a handful of sequences."""
    full: int
    """With a cache for all slots."""


def serve_bytes(
    serve: ServeTable, model: ModelTable, shape: ModelShape, *, engine: str, num_gpus: int
) -> ServeBytes:
    """What an engine needs on each of its `num_gpus` cards."""
    width = 4 if serve.precision == "exact" else 2
    adapters = 0 if model.lora is None else NUM_ADAPTERS * 2 * shape.adapter_params(model.lora)
    fixed = CONTEXT_BYTES + (shape.params * width + adapters) / num_gpus
    if engine == "vllm":
        fixed += GRAPH_BYTES
    context = serve.context_tokens * shape.kv_values * width / num_gpus
    least = min(serve.slots, LEAST_CONTEXTS) if engine == "vllm" else serve.slots
    return ServeBytes(
        least=int(fixed + least * context),
        full=int(fixed + serve.slots * context),
    )


def judge_bytes(problems: ProblemsTable, *, memory_bytes: int) -> int:
    """What a judge holds on a card of this size, with all seats taken."""
    is_large = problems.sizes == "gpu" or (problems.source == "dir" and not problems.overrides)
    tensors = LARGE_TENSOR_BYTES * is_large + int(JUDGE_SHARE * memory_bytes)
    capacity = contexts.GPU_CAPACITY
    num_contexts = capacity + contexts.num_ready(capacity, memory_bytes=memory_bytes)
    num_contexts += contexts.num_oracles(memory_bytes=memory_bytes)
    num_contexts += contexts.num_started(memory_bytes=memory_bytes)
    return num_contexts * contexts.CONTEXT_BYTES + tensors
