# pyright: strict
"""The host of a child as Ray makes it on a node: knows the node's address and its neighbours."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.cluster.connection import import_ray, list_nodes
from forge.cluster.host import Host
from forge.process.devices import VISIBILITY_VARIABLES, inventory

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
        take_priority()
        await super().hold(order)

    async def describe(self, needs: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        """Facts about this node, with its cards and the nice value of its children."""
        for name in VISIBILITY_VARIABLES:  # Ray hides all cards from a host that has none
            os.environ.pop(name, None)
        cards = [
            {"name": gpu.name, "used_bytes": gpu.memory_bytes - gpu.free_bytes}
            for gpu in inventory()
        ]
        return {**await super().describe(needs), "nice": take_priority(), "cards": cards}


def take_priority() -> int:
    """Gives this thread and what it starts the nice value and the OOM score of Ray's daemon, which
    started this process, where that is allowed; returns the nice value.

    Ray's workers have 15 and 1000: behind everything else on the node, and killed before the
    candidates of a judge that take too much memory.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, os.getppid()))
    with suppress(OSError):
        score = Path(f"/proc/{os.getppid()}/oom_score_adj").read_text()
        Path("/proc/self/oom_score_adj").write_text(score)
    return os.getpriority(os.PRIO_PROCESS, 0)
