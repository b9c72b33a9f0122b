"""`[cluster]`: other machines that work for a run, as nodes of a Ray cluster."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from forge.config.schema.base import Table

if TYPE_CHECKING:
    from forge.config.schema.serving import ServeTable

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
    judges: Annotated[int, Field(ge=0)] = 0
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
    train_nodes: Annotated[int, Field(ge=0)] = 0
    """Nodes that train together with this machine, each with as many ranks as it: devices.train
    GPUs, or a rank on the CPU."""
    train_labels: dict[str, str] = Field(default_factory=dict[str, str])
    """Labels that a node needs to train, as in judge_labels."""
