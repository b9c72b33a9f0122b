# pyright: strict
"""The host of a child as Ray makes it on a node: knows the node's address and its neighbours."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from forge.cluster.connection import import_ray, list_nodes
from forge.cluster.host import Host
from forge.process.devices import VISIBILITY_VARIABLES, inventory
from forge.process.lease import take_parents_priority

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class NodeHost(Host):
    """A host in a Ray actor."""

    def __init__(self, *, is_on_gpu: bool) -> None:
        """Read the node's facts from Ray. `is_on_gpu`: its neighbours are those on GPUs."""
        ray = import_ray()
        here = next(node for node in list_nodes(ray) if node.is_here)
        super().__init__(here.ip, int(here.gpus if is_on_gpu else here.cpus))

    async def hold(self, order: Mapping[str, Any]) -> None:
        """Start the child, with the priority of Ray's daemon, and wait for its end."""
        take_parents_priority()
        await super().hold(order)

    async def describe(self, needs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Facts about this node, with its cards and the nice value of its children."""
        for name in VISIBILITY_VARIABLES:  # Ray hides all cards from a host that has none
            os.environ.pop(name, None)
        cards = [
            {"name": gpu.name, "used_bytes": gpu.memory_bytes - gpu.free_bytes}
            for gpu in inventory()
        ]
        return {**await super().describe(needs), "nice": take_parents_priority(), "cards": cards}
