"""`[serve]`: the engines that answer, ours or somebody else's."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import PathValue, Positive, Table

SERVE_URL = re.compile(r"https?://[^/\s]+(/[^\s?#]*)?|unix:/\S+")


class ServeTable(Table):
    """`[serve]`: the model answering."""

    engine: Literal["auto", "llama", "vllm", "hf"] = "auto"
    """Inference engine. auto: on GPUs the first of vllm, llama (built for GPUs) and hf that is
    installed; without, llama."""
    url: list[str] = Field(default_factory=list)
    """OpenAI-compatible servers that answer instead of engines of this run, for evaluations: their
    weights cannot be changed. http://HOST:PORT[/PATH], or unix:/PATH."""
    api_key_env: str | None = None
    """Environment variable with the key that url asks for."""
    model_name: str | None = None
    """The model's name at url; absent means the only one there."""
    replicas: Positive = 1
    """Engine processes."""
    threads: Positive = 1
    """CPU threads a replica."""
    slots: Annotated[int, Field(ge=1, le=256)] = 32
    """Sequences decoded together in a replica."""
    max_concurrency: Positive | None = None
    """Most rollouts in a replica at once that rollout.groups_in_flight = "auto" may come to; absent
    means that the load alone decides."""
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.85
    """vllm: of a GPU's memory, for weights and KV cache together."""
    tensor_parallel: Positive = 1
    """vllm: GPUs that one replica is spread over."""
    eager: bool = False
    """vllm: run without CUDA graphs; starts sooner, decodes slower."""
    sleep: Literal["auto", "never", "always"] = "auto"
    """Free an engine's GPU memory while the trainer steps on the same card. auto: where both do not
    fit side by side."""
    context_tokens: Annotated[int, Field(ge=64)] = 1280
    """Prompt and completion of one sequence together."""
    precision: Literal["exact", "fast"] = "exact"
    """exact: f32 weights and KV, no flash attention, equal to transformers. fast: bf16 weights, f16
    KV.
    """
    python: PathValue | None = None
    """Interpreter of the engine's child; absent means ours."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to the child's environment."""
    start_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Until /health must answer; absent means the engine's own time."""
    request_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """For one completion request."""
