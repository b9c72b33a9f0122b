# pyright: strict
"""Placing hosts on nodes by resources and labels. Called by the broker."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from forge.cluster.connection import cause_line, list_nodes
from forge.cluster.node_host import NodeHost
from forge.cluster.survey import NO_FORGE

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

UNAVAILABLE_PAUSE_S = 1.0
"""Pause before a host is asked or placed again whose connection broke: Ray decides whether its node
is lost."""


@dataclass(slots=True, eq=False)
class HeldActor:
    """A host and its running call of `hold`."""

    actor: Any = None
    """None before it is placed."""
    holding: Any = None


class Places:
    """The nodes of a cluster besides this one."""

    def __init__(self, ray: Any) -> None:
        """`ray`: the package, connected."""
        self._ray = ray
        self._here = str(ray.get_runtime_context().get_node_id())

    async def place(self, hosted: HeldActor, body: Mapping[str, Any]) -> bool:
        """Make a host on a node with the resources and labels. False if no node has room in time.
        Raises RayError if its node lacks forge."""
        labels = {"ray.io/node-id": f"!in({self._here})"} | body["labels"]
        num_gpus = gpus_of(body["order"])
        with anyio.move_on_after(body["room_s"]):
            while True:
                hosted.actor = self.new_host(body["num_cpus"], num_gpus, labels)
                try:
                    await hosted.actor.ready.remote()
                    return True
                except self._ray.exceptions.RayError as error:
                    if NO_FORGE in str(error):
                        raise
                    logger.warning("%s was not made: %s", body["id"], cause_line(error))
                # Ray may choose a node whose loss it does not know yet.
                self._ray.kill(hosted.actor)
                await anyio.sleep(UNAVAILABLE_PAUSE_S)
        return False

    def new_host(self, num_cpus: int, num_gpus: float, labels: dict[str, str]) -> Any:
        """An actor, which Ray makes once a node has room."""
        host = self._ray.remote(NodeHost).options(
            num_cpus=num_cpus, num_gpus=num_gpus, label_selector=labels, max_restarts=0
        )
        return host.remote(is_on_gpu=num_gpus > 0)

    def no_room(self, body: Mapping[str, Any]) -> str:
        """Message that a host has no room: its needs, and the nodes."""
        order, nodes = body["order"], list_nodes(self._ray)
        num_gpus = gpus_of(order)
        needs = [f"{num_gpus:g} GPU" if num_gpus else f"{body['num_cpus']:g} CPU"]
        needs += [f"{key}={value}" for key, value in body["labels"].items()]
        return (
            f"{order['name']}: no node has room within {body['room_s']:g} s (needs "
            f"{', '.join(needs)}); the nodes are {'; '.join(map(str, nodes))}"
        )


def gpus_of(order: Mapping[str, Any]) -> float:
    """GPUs that a host asks Ray for: half of a card if it shares one."""
    return order["num_gpus"] / 2 if order["shares_gpu"] else order["num_gpus"]
