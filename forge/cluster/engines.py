# pyright: strict
"""Engines of a run on other nodes, as `serve.replica` starts and restarts them.

A node that is lost ends its engines; each is started again on any node with room, with the current
weights. While there is none, the other engines generate and publishes go on without it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from forge.cluster.judges import MARGIN_S
from forge.cluster.order import Role
from forge.serve.client import ReplicaClient
from forge.serve.elsewhere import settings_elsewhere
from forge.serve.engines import start_timeout_s

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from forge.cluster.cluster import Cluster
    from forge.config.schema import ClusterTable, ServeTable
    from forge.process.child import ChildSpec
    from forge.serve.elsewhere import EngineElsewhere, OpenEngineElsewhere


def engines_elsewhere(
    cluster: Cluster, table: ClusterTable, serve: ServeTable
) -> OpenEngineElsewhere:
    """Starts the engine of a replica on a node."""
    return partial(_open_engine, cluster, table, serve)


@asynccontextmanager
async def _open_engine(
    cluster: Cluster, table: ClusterTable, serve: ServeTable, spec: ChildSpec
) -> AsyncGenerator[EngineElsewhere]:
    on_gpu = table.serve_on == "gpu"
    async with cluster.host(
        spec.name,
        role=Role.ENGINE,
        index=int(spec.name.rpartition("-")[2]),
        settings=settings_elsewhere(spec, serve),
        num_gpus=serve.tensor_parallel if on_gpu else 0,
        num_cpus=0 if on_gpu else serve.threads,
        shares_gpu=on_gpu and table.share_gpus,
        labels=table.serve_labels,
        files={"model_dir": Path(spec.config["model_dir"])},
        ready_s=start_timeout_s(serve) + MARGIN_S,
    ) as hosted:
        client = ReplicaClient(
            hosted.url, name=spec.name, timeout_s=serve.request_timeout_s, token=cluster.token
        )
        async with client:
            hosted.client = client
            yield hosted
