"""The order for a host on a node, and the child that the host starts for it.

Made by the supervisor, sent through the broker as JSON, read on the node. The child is the one that
`open_pool`, `open_replicas` or `open_trainer` starts at home; servers have a second listener for
the supervisor (`process.server.listening`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from forge.config.schema import JudgeTable
from forge.evalpool.capacity import GPU_CAPACITY, seat_cores
from forge.evalpool.keeper import judge_spec
from forge.evalpool.pool import CPU_CAPACITY
from forge.process.child import ChildSpec
from forge.process.devices import Gpu
from forge.serve.replicas import spec_elsewhere
from forge.train.handle import ranks_spec

WORK = "work"
"""Directory of a child's own files, in its host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    run: str
    """Name of the run, for the claim on the node's GPUs."""
    name: str
    role: str
    """judge of the pool, engine of a replica, or trainer: ranks of one."""
    index: int
    token: str
    """Token of the run, which the child asks for."""
    sources: str
    """Digest of the supervisor's sources, which the node's must equal."""
    num_gpus: int
    shares_gpu: bool = False
    """True if its card may have another child of the run."""
    settings: Mapping[str, Any]
    """The table of the role, as JSON, and what else its child needs."""
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Directories and files that the child needs, by the key of its config: paths of the
    supervisor, which the broker replaces by the directories on the node that it copied them to."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The part of a node that a host has."""

    ip: str
    folder: Path
    """Private directory for the child's socket and log."""
    gpus: Sequence[Gpu]
    num_neighbours: int
    """Hosts of the same kind that the node has room for, with which its cores are shared."""

    @property
    def work(self) -> Path:
        path = self.folder / WORK
        path.mkdir(exist_ok=True)
        return path

    @property
    def uuids(self) -> list[str]:
        return [gpu.uuid for gpu in self.gpus]


def child_of(order: Order, place: Place) -> ChildSpec:
    """The child of an order on this node. Raises MachineError if the node cannot run it."""
    spec = {"judge": _judge, "engine": _engine, "trainer": _trainer}[order.role](order, place)
    network = {"host": place.ip, "token": order.token}
    return replace(spec, config={**spec.config, "network": network})


def _judge(order: Order, place: Place) -> ChildSpec:
    gpu = place.gpus[0] if place.gpus else None
    cores = sorted(os.sched_getaffinity(0))
    number = order.index if gpu is None else gpu.index
    return judge_spec(
        order.name,
        table=JudgeTable.model_validate(order.settings["table"]),
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


def _engine(order: Order, place: Place) -> ChildSpec:
    return spec_elsewhere(
        order.settings, index=order.index, model_dir=order.files["model_dir"],
        folder=place.folder, work=place.work, gpus=place.uuids, shares_gpu=order.shares_gpu,
    )  # fmt: skip


def _trainer(order: Order, place: Place) -> ChildSpec:
    return ranks_spec(
        order.name, order.settings["job"], files=order.files, address=place.ip,
        folder=place.folder, work=place.work, gpus=place.uuids,
    )  # fmt: skip
