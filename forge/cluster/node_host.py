# pyright: strict
"""The host of a child as Ray makes it on a node: knows the node's address and its neighbours."""

from __future__ import annotations

from forge.cluster.connection import import_ray, list_nodes
from forge.cluster.host import Host


class NodeHost(Host):
    """A host in a Ray actor."""

    def __init__(self, *, is_on_gpu: bool) -> None:
        """Read the node's facts from Ray. `is_on_gpu`: its neighbours are those on GPUs."""
        ray = import_ray()
        here = next(node for node in list_nodes(ray) if node.is_here)
        super().__init__(here.ip, int(here.gpus if is_on_gpu else here.cpus))
