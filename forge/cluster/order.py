# pyright: strict
"""The order for a host on a node, and the child that the host starts for it.

Made by the supervisor, sent through the broker as JSON, read on the node. The child is the one that
`open_pool` starts at home, with a second listener for the supervisor (`process.server.network`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

from forge.config.schema import JudgeTable
from forge.evalpool.capacity import GPU_CAPACITY, seat_cores
from forge.evalpool.links import judge_spec
from forge.evalpool.pool import CPU_CAPACITY

if TYPE_CHECKING:
    from forge.process.child import ChildSpec
    from forge.process.devices import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One child to start on a node."""

    run: str
    """Name of the run, for the claim on the node's GPUs."""
    name: str
    """Name of the child: `judge-3`."""
    index: int
    """Its number among the children of its role."""
    token: str
    """Token of the run, which the child asks for."""
    sources: str
    """Digest of the supervisor's sources, which the node's must equal."""
    num_gpus: int
    settings: Mapping[str, Any]
    """The table of the role, as JSON."""

    def to_json(self) -> dict[str, Any]:
        """JSON, which `Order(**...)` reads."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The part of a node that a host has."""

    ip: str
    folder: Path
    """Private directory for the child's socket and log."""
    gpus: Sequence[Gpu]
    """The cards that Ray gave to the host."""
    num_neighbours: int
    """Hosts of the same kind that the node has room for, with which its cores are shared."""


def judge_child(order: Order, place: Place) -> ChildSpec:
    """The child of a judge on this node, for the supervisor on another one."""
    gpu = place.gpus[0] if place.gpus else None
    cores = sorted(os.sched_getaffinity(0))
    number = order.index if gpu is None else gpu.index
    spec = judge_spec(
        order.name,
        table=JudgeTable.model_validate(order.settings),
        socket_dir=place.folder,
        log_dir=place.folder,
        threads=1,
        capacity=CPU_CAPACITY if gpu is None else GPU_CAPACITY,
        gpu=gpu,
        cores=seat_cores(
            cores,
            seat=number,
            num_seats=max(1, place.num_neighbours),
            offset=crc32(order.run.encode()),
        ),
    )
    return with_network(spec, order, place)


def with_network(spec: ChildSpec, order: Order, place: Place) -> ChildSpec:
    """The child with a listener for the supervisor."""
    network = {"host": place.ip, "token": order.token}
    return replace(spec, config={**spec.config, "network": network})
