"""Lays the roles of `[cluster]` out on the machines of `--assume 4x8xH100-80GB`, as Ray would.

The first machine is the head, whose cards `placement` hands out. Each other node takes what it has
room for: ranks of the trainer first, then engines, then judges. Roles whose labels contradict each
other never share a node. The memory of the cards is checked as at home (`fit`). Pure, without Ray.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from forge.config.schema import with_half_a_card
from forge.errors import MachineError
from forge.runner.plan.fit import fit
from forge.runner.plan.machine import CORES_PER_CARD
from forge.runner.plan.needs import needs_judges, needs_serving, needs_training
from forge.runner.plan.placement import Placement
from forge.views.text.numbers import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forge.config.schema import Experiment
    from forge.process.devices import Gpu
    from forge.runner.plan.machine import Machine

NAMES = {"train": "nodes for ranks", "serve": "engines", "judge": "judges"}
"""Names of children in messages, by role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRole:
    """Children of one role on a node."""

    role: str
    """`train`, `serve` or `judge`."""
    first: int
    """Number of its first child; the others follow."""
    count: int
    gpus: tuple[int, ...]
    """Indices of their cards on the node; empty on CPU cores."""
    bytes_each: int | None = None
    """Maximum memory on each card; None on the CPU, or if the model's size is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One machine of a cluster."""

    name: str
    """`head`, or `node 2`."""
    num_gpus: int
    gpu: str
    """Name of its cards."""
    memory_bytes: int
    """Memory of each card."""
    labels: Mapping[str, str]
    """Labels that its roles need."""
    roles: tuple[NodeRole, ...]
    idle: tuple[int, ...]
    """Indices of cards without a role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    """Children of a role that nodes are to take."""

    role: str
    count: int
    gpus_each: int
    """0 on CPU cores."""
    cores_each: int
    labels: Mapping[str, str]
    halves: bool = False
    """True if each takes half of a card."""

    def __str__(self) -> str:
        each = count(self.gpus_each, "GPU") if self.gpus_each else count(self.cores_each, "core")
        pairs = ", ".join(f"{key}={value}" for key, value in self.labels.items())
        each = "half a GPU" if self.halves else each
        return f"{each} each{f', labelled {pairs}' if pairs else ''}"


@dataclass(slots=True, kw_only=True)
class _Node:
    """A machine while roles are laid out on it."""

    name: str
    gpus: tuple[Gpu, ...]
    placed: Placement
    """Its cards by role."""
    roles: list[NodeRole] = field(default_factory=list["NodeRole"])
    labels: dict[str, str] = field(default_factory=dict[str, str])
    halves: list[Gpu] = field(default_factory=list["Gpu"])
    """Free halves of cards, in order."""
    cores: int = 0

    @property
    def idle(self) -> list[Gpu]:
        """Cards of which nothing is taken."""
        return [gpu for gpu in self.gpus if self.halves.count(gpu) == 2]

    def take(self, demand: _Demand, *, first: int) -> int:
        """Give room to the children from number `first` on; returns how many have it."""
        if any(self.labels.get(key, value) != value for key, value in demand.labels.items()):
            return 0
        free, each = self.halves if demand.halves else self.idle, demand.gpus_each
        room = len(free) // each if each else self.cores // demand.cores_each
        num = min(room, demand.count - first, 1 if demand.role == "train" else room)
        if not num:
            return 0
        cards = tuple(free[: num * each])
        for card in cards if demand.halves else (*cards, *cards):
            self.halves.remove(card)
        self.cores -= 0 if each else num * demand.cores_each
        self.labels |= demand.labels
        is_train = demand.role == "train"
        shares = tuple(cards[at : at + each] for at in range(0, len(cards), each or 1))
        held = shares if demand.role == "serve" else cards
        self.placed = replace(self.placed, **{demand.role: held})
        indices = tuple(sorted({gpu.index for gpu in cards}))
        self.roles.append(
            NodeRole(role=demand.role, first=first + is_train, count=num, gpus=indices)
        )
        return num

    def plan(self, sizes: Mapping[str, Mapping[str, int]]) -> NodePlan:
        """The node with the memory of each role, by UUID and role in `sizes`."""
        largest = {
            role: max(each.get(role, 0) for each in sizes.values()) or None
            for role in (NAMES if sizes else ())
        }
        roles = (replace(each, bytes_each=largest.get(each.role)) for each in self.roles)
        return NodePlan(
            name=self.name, num_gpus=len(self.gpus), gpu=self.gpus[0].name,
            memory_bytes=self.gpus[0].memory_bytes, labels=dict(self.labels), roles=tuple(roles),
            idle=tuple(gpu.index for gpu in self.idle),
        )  # fmt: skip


def plan_nodes(
    experiment: Experiment, machine: Machine, placement: Placement
) -> tuple[tuple[NodePlan, ...], tuple[str, ...]]:
    """The head and the other nodes of an assumed cluster, and warnings; nothing for one machine.

    Raises:
        MachineError: engines or all judges find no room, or do not fit the memory of a card.
    """
    if not machine.nodes:
        return (), ()
    nodes = [
        _Node(
            name=f"node {number}", gpus=gpus, halves=[gpu for gpu in gpus for _ in range(2)],
            cores=len(gpus) * CORES_PER_CARD, placed=Placement(engine=placement.engine),
        )
        for number, gpus in enumerate(machine.nodes, start=1)
    ]  # fmt: skip
    notes: list[str] = []
    if experiment.cluster.address is None:
        notes.append(f"without [cluster] only the first of {1 + len(nodes)} machines is used")
    for demand in _demands(experiment, placement):
        num = 0
        for node in nodes:
            num += node.take(demand, first=num)
        if num == demand.count:
            continue
        name = NAMES[demand.role]
        text = (
            f"{num} of {demand.count} {name} ({demand}) have room on the "
            f"{count(len(nodes), 'node')} beside the head of {machine.assumed}"
        )
        if demand.role != "judge" or not num:
            words = f"{text}; more nodes, or fewer {name}, are needed"
            raise MachineError(f"{experiment.name}: {words}")
        notes.append(f"{text}; the others start when a node joins")
    planned = [node.plan(_sizes(experiment, node, placement)) for node in nodes]
    return (_head(machine, placement), *planned), tuple(notes)


def _demands(experiment: Experiment, placement: Placement) -> Iterator[_Demand]:
    table, serve = experiment.cluster, experiment.serve
    if table.train_nodes and needs_training(experiment):
        yield _Demand(
            role="train", count=table.train_nodes, gpus_each=len(placement.train), cores_each=1,
            labels=table.train_labels,
        )  # fmt: skip
    if table.serve and needs_serving(experiment):
        on_gpu = table.serve_on == "gpu"
        yield _Demand(
            role="serve", count=serve.replicas, gpus_each=serve.tensor_parallel * on_gpu,
            cores_each=serve.threads, labels=table.serve_labels,
            halves=on_gpu and table.share_gpus,
        )  # fmt: skip
    if table.judges and needs_judges(experiment):
        on_gpu = table.judge_on == "gpu"
        yield _Demand(
            role="judge", count=table.judges, gpus_each=int(on_gpu), cores_each=1,
            labels=table.judge_labels, halves=on_gpu and table.share_gpus,
        )  # fmt: skip


def _sizes(experiment: Experiment, node: _Node, head: Placement) -> Mapping[str, Mapping[str, int]]:
    """Memory by card and role: a rank needs what it needs on the head. Raises MachineError."""
    if experiment.cluster.share_gpus:
        half = with_half_a_card(experiment.serve)
        experiment = experiment.model_copy(update={"serve": half})
    layout = replace(node.placed, train=())
    try:
        found = dict(fit(experiment, layout, users={}).bytes_by_gpu) if layout.gpus else {}
    except MachineError as error:
        raise MachineError(f"{node.name}: {error}") from error
    ranks = (head.bytes_by_gpu.get(gpu.uuid, {}).get("train", 0) for gpu in head.train)
    return {**found, "": {"train": max(ranks, default=0)}}


def _head(machine: Machine, placement: Placement) -> NodePlan:
    """The first machine, with the roles that a run has at home."""
    node = _Node(name="head", gpus=machine.gpus, placed=placement)
    node.halves = [
        gpu for gpu in machine.gpus for _ in range(2) if not placement.roles_of(gpu.uuid)
    ]
    for role, gpus in placement.by_role().items():
        num = {"serve": len(placement.serve), "train": 1}.get(role, len(gpus))
        indices = tuple(sorted({gpu.index for gpu in gpus}))
        if gpus:
            node.roles.append(NodeRole(role=role, first=0, count=num, gpus=indices))
    return node.plan(placement.bytes_by_gpu)
