"""`[devices]`, `[serve]` and `[cluster]`: the GPUs of a run, its inference engines or servers
instead, and other machines that work for it, as nodes of a Ray cluster.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field

from forge.config.schema.base import NumProcesses, PathValue, Positive, Table

SERVE_URL = re.compile(r"https?://[^/\s]+(/[^\s?#]*)?|unix:/\S+")


NumGpus = Annotated[int, Field(ge=0)] | Literal["auto"]


class DevicesTable(Table):
    """`[devices]`: the GPUs of each role. Empty means CPU only."""

    gpus: list[str] | Literal["auto"] | None = Field(
        default=None,
        json_schema_extra={"allowed": '"auto", or a list of strings such as ["0", "1"]'},
    )
    """GPUs of the run, by UUID or index; auto means all visible ones, absent means none."""
    train: NumGpus = 0
    """GPUs of the trainer. auto: chosen by the plan, which prints its reason."""
    serve: NumGpus = 0
    """GPUs of the replicas together. auto: chosen by the plan, which prints its reason."""
    judge: NumGpus = 0
    """GPUs of the judges, one judge per GPU. auto: chosen by the plan, which prints its reason."""
    share: Literal["never", "auto", "always"] = "auto"
    """Sharing of a GPU by several roles. auto: if there are fewer GPUs than roles and their memory
    suffices."""


class ServeTable(Table):
    """`[serve]`: inference engines."""

    engine: Literal["auto", "llama", "vllm", "hf"] = "auto"
    """Inference engine. auto: with GPUs the first installed of vllm, llama (if built for GPUs) and
    hf; without GPUs llama."""
    url: list[str] = Field(default_factory=list)
    """OpenAI-compatible servers that replace the run's own engines, for evaluations and searches:
    http://HOST:PORT[/PATH] or unix:/PATH."""
    api_key_env: str | None = None
    """Environment variable that holds the API key for url."""
    model_name: str | None = None
    """Name of the model at url; absent means the only one there."""
    replicas: NumProcesses = 1
    """Number of engine processes."""
    threads: Positive = 1
    """CPU threads per replica."""
    slots: Annotated[int, Field(ge=1, le=256)] = 32
    """Sequences that a replica decodes at the same time."""
    memory_share: Annotated[float, Field(gt=0, le=1)] = 0.85
    """Share of a GPU's memory for weights and KV cache together; vllm only."""
    tensor_parallel: Positive = 1
    """GPUs per replica, for tensor parallelism; vllm only."""
    eager: bool = False
    """Run without CUDA graphs, which starts sooner and decodes more slowly; vllm only."""
    context_tokens: Annotated[int, Field(ge=64)] = 1280
    """Maximum length of a sequence, prompt and completion together."""
    precision: Literal["exact", "fast"] = "exact"
    """Precision of the engine. exact: float32 weights and KV cache, no flash attention; logprobs
    equal those of transformers. fast: bfloat16 weights, float16 KV cache."""
    weights: Literal["files", "ipc"] = "files"
    """Way of new weights from the trainer to engines. ipc: in the memory of its first GPU, which
    engines on this machine read (CUDA IPC), without files; vllm, all weights of a model that is no
    mixture. Those of checkpoints are files. An engine that ends in between ends the attempt."""
    python: PathValue | None = None
    """Python interpreter of the engines; absent means forge's own."""
    env: dict[str, str] = Field(default_factory=dict)
    """Additional environment variables of the engines."""
    start_timeout_s: Annotated[float, Field(gt=0)] | None = None
    """Maximum time from start until /health answers; absent means the engine's own default."""
    request_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """Maximum time for one completion request."""

    @property
    def num_servers(self) -> int:
        """Replicas, or servers behind URLs."""
        return len(self.url) or self.replicas


CLUSTER_ADDRESS = re.compile(r"auto|(ray://)?(\[[0-9a-fA-F:]+\]|[^/\s:]+):\d{1,5}")


SHARED_MEMORY = 0.5
"""Share of a card's memory for an engine that shares it."""


def with_half_a_card(serve: ServeTable) -> ServeTable:
    """`[serve]` for an engine on a card that it shares."""
    share = min(serve.memory_share, SHARED_MEMORY)
    return serve.model_copy(update={"memory_share": share})


class ClusterTable(Table):
    """`[cluster]`: other machines that work for a run, as nodes of a Ray cluster."""

    address: str | None = None
    """Ray cluster whose nodes work for the run: auto, if this machine is one of them, HOST:PORT of
    its head, or ray://HOST:PORT. Absent means this machine alone."""
    judges: Annotated[int, Field(ge=0, le=1024)] = 0
    """Judges on other nodes, which replace those of this machine. Those that find no room start
    when a node has some, or joins. 0: this machine judges."""
    judge_on: Literal["gpu", "cpu"] = "gpu"
    """Resource that each judge takes on its node: a GPU, or a CPU core without a GPU."""
    judge_labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels that a node needs to have judges: { role = "judge" }, or
    { "ray.io/accelerator-type" = "H100" }. Values may be "!x" or "in(a,b)", as in Ray."""
    serve: bool = False
    """Run the engines of [serve] on other nodes: serve.replicas of them, each on one node, to which
    weights travel through Ray's object store."""
    serve_on: Literal["gpu", "cpu"] = "gpu"
    """Resource that each engine takes on its node: serve.tensor_parallel GPUs, or serve.threads CPU
    cores."""
    serve_labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels that a node needs to have engines, as in judge_labels."""
    share_gpus: bool = False
    """A judge and an engine, or two of either, may have one GPU of a node together: each takes half
    of one from Ray, and an engine at most half of its memory."""
    train_nodes: Annotated[int, Field(ge=0, le=1024)] = 0
    """Nodes that train together with this machine, each with as many ranks as it: devices.train
    GPUs, or a rank on the CPU."""
    train_labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels that a node needs to train, as in judge_labels."""
