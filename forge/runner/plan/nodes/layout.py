"""Lays the roles of `[cluster]` out on assumed nodes, as Ray would place them.

The first machine is the head, whose cards `placement` hands out. Each other node takes what it has
room for: ranks of the trainer first, then engines, then judges. Roles whose labels contradict each
other never share a node. The memory of the cards is checked as at home (`gpu_fit`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.config.schema import with_half_a_card
from forge.errors import MachineError
from forge.runner.plan.gpu_fit import fit
from forge.runner.plan.machine import CORES_PER_CARD
from forge.runner.plan.needs import needs_judges, needs_serving, needs_training
from forge.runner.plan.placement import Placement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from forge.config.schema import Experiment
    from forge.process.devices import Gpu
    from forge.runner.plan.machine import Machine

HEAD = "head"
HALVES = 2
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
    bytes_each: int | None
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
    cores_each: int
    labels: Mapping[str, str]
    needs_all: bool
    halves: bool = False
    """True if each takes half of a card."""
    """True if the run does not start while one of them has no room."""
    most_a_node: int | None = None
    """Most of them on one node; None for as many as have room."""

    def __str__(self) -> str:
        each = _count(self.gpus_each, "GPU") if self.gpus_each else _count(self.cores_each, "core")
        each = "half a GPU" if self.halves else each
        pairs = ", ".join(f"{key}={value}" for key, value in self.labels.items())
        return f"{each} each{f', labelled {pairs}' if pairs else ''}"


@dataclass(slots=True, kw_only=True)
class _Node:
    """A node while roles are laid out on it."""

    name: str
    gpus: tuple[Gpu, ...]
    free: list[Gpu]
    """Each card twice: its halves follow one another."""
    free_cores: int
    labels: dict[str, str] = field(default_factory=dict[str, str])
    taken: list[tuple[_Demand, int, int, tuple[Gpu, ...]]] = field(
        default_factory=list["tuple[_Demand, int, int, tuple[Gpu, ...]]"]
    )
    """Demand, number of the first child, children, cards."""

    def room(self, demand: _Demand) -> int:
        """Children of a role that still fit."""
        if any(self.labels.get(key, value) != value for key, value in demand.labels.items()):
            return 0
        if demand.gpus_each:
            room = len(self._free_for(demand)) // demand.gpus_each
        else:
            room = self.free_cores // demand.cores_each
        return room if demand.most_a_node is None else min(room, demand.most_a_node)

    def take(self, demand: _Demand, *, first: int, count: int) -> None:
        """Give room to children of a role."""
        cards = tuple(self._free_for(demand)[: count * demand.gpus_each])
        for card in cards if demand.halves else (*cards, *cards):
            self.free.remove(card)
        self.free_cores -= 0 if demand.gpus_each else count * demand.cores_each
        self.labels |= demand.labels
        self.taken.append((demand, first, count, cards))

    def idle(self) -> list[Gpu]:
        """Cards of which nothing is taken."""
        return [gpu for gpu in self.gpus if self.free.count(gpu) == HALVES]

    def _free_for(self, demand: _Demand) -> list[Gpu]:
        return self.free if demand.halves else self.idle()


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
            name=f"node {number}", gpus=gpus, free=[gpu for gpu in gpus for _ in range(HALVES)],
            free_cores=len(gpus) * CORES_PER_CARD,
        )
        for number, gpus in enumerate(machine.nodes, start=1)
    ]  # fmt: skip
    notes: list[str] = []
    if experiment.cluster.address is None:
        notes.append(f"without [cluster] only the first of {1 + len(nodes)} machines is used")
    for demand in _demands(experiment, placement):
        notes += _lay_out(experiment, machine, nodes, demand)
    planned = [_planned(experiment, node, placement) for node in nodes]
    return (_head(machine, placement), *planned), tuple(notes)


def _demands(experiment: Experiment, placement: Placement) -> Iterator[_Demand]:
    table, serve = experiment.cluster, experiment.serve
    if table.train_nodes and needs_training(experiment):
        yield _Demand(
            role="train", count=table.train_nodes, gpus_each=len(placement.train),
            cores_each=1, labels=table.train_labels, needs_all=True, most_a_node=1,
        )  # fmt: skip
    if table.serve and needs_serving(experiment):
        on_gpu = table.serve_on == "gpu"
        yield _Demand(
            role="serve", count=serve.replicas, gpus_each=serve.tensor_parallel * on_gpu,
            cores_each=serve.threads, labels=table.serve_labels, needs_all=True,
            halves=on_gpu and table.share_gpus,
        )  # fmt: skip
    if table.judges and needs_judges(experiment):
        on_gpu = table.judge_on == "gpu"
        yield _Demand(
            role="judge", count=table.judges, gpus_each=int(on_gpu), cores_each=1,
            labels=table.judge_labels, needs_all=False, halves=on_gpu and table.share_gpus,
        )  # fmt: skip


def _lay_out(
    experiment: Experiment, machine: Machine, nodes: Sequence[_Node], demand: _Demand
) -> Iterator[str]:
    """Fill nodes in order. Yields a warning about judges without room. Raises MachineError."""
    num_placed = 0
    for node in nodes:
        count = min(node.room(demand), demand.count - num_placed)
        if count:
            node.take(demand, first=num_placed, count=count)
            num_placed += count
    if num_placed == demand.count:
        return
    name = NAMES[demand.role]
    text = (
        f"{num_placed} of {demand.count} {name} ({demand}) have room on the "
        f"{_count(len(nodes), 'node')} beside the head of {machine.assumed}"
    )
    if demand.needs_all or not num_placed:
        raise MachineError(f"{experiment.name}: {text}; more nodes, or fewer {name}, are needed")
    yield f"{text}; the others start when a node joins"


def _planned(experiment: Experiment, node: _Node, head: Placement) -> NodePlan:
    serve, judges = list[tuple["Gpu", ...]](), list["Gpu"]()
    for demand, _, _, cards in node.taken:
        each = demand.gpus_each or 1
        if demand.role == "serve":
            serve += [cards[start : start + each] for start in range(0, len(cards), each)]
        elif demand.role == "judge":
            judges += cards
    layout = Placement(serve=tuple(serve), judge=tuple(judges), engine=head.engine)
    by_gpu: Mapping[str, Mapping[str, int]] = {}
    if experiment.cluster.share_gpus:
        serve_table = with_half_a_card(experiment.serve)
        experiment = experiment.model_copy(update={"serve": serve_table})
    if layout.gpus:
        try:
            by_gpu = fit(experiment, layout, users={}).bytes_by_gpu
        except MachineError as error:
            raise MachineError(f"{node.name}: {error}") from error
    roles = [
        _ranks(head, cards, number=first + 1)
        if demand.role == "train"
        else _role(demand.role, cards, by_gpu, first=first, count=count)
        for demand, first, count, cards in node.taken
    ]
    return _node_plan(node.name, node.gpus, roles, idle=node.idle(), labels=node.labels)


def _ranks(head: Placement, cards: tuple[Gpu, ...], *, number: int) -> NodeRole:
    """The trainer's part on its machine `number` (the head is 0): a rank needs what it needs
    there."""
    shares = [head.bytes_by_gpu.get(gpu.uuid, {}).get("train", 0) for gpu in head.train]
    return NodeRole(
        role="train", first=number, count=1, gpus=_indices(cards),
        bytes_each=max(shares, default=0) or None,
    )  # fmt: skip


def _head(machine: Machine, placement: Placement) -> NodePlan:
    by_role: dict[str, tuple[tuple[Gpu, ...], int]] = {
        "serve": (tuple(gpu for share in placement.serve for gpu in share), len(placement.serve)),
        "judge": (placement.judge, len(placement.judge)),
        "train": (placement.train, 1),
    }
    roles = [
        _role(role, cards, placement.bytes_by_gpu, first=0, count=count)
        for role, (cards, count) in by_role.items()
        if cards
    ]
    idle = [gpu for gpu in machine.gpus if not placement.roles_of(gpu.uuid)]
    return _node_plan(HEAD, machine.gpus, roles, idle=idle, labels={})


def _role(
    role: str,
    cards: tuple[Gpu, ...],
    by_gpu: Mapping[str, Mapping[str, int]],
    *,
    first: int,
    count: int,
) -> NodeRole:
    largest = max((by_gpu.get(gpu.uuid, {}).get(role, 0) for gpu in cards), default=0)
    return NodeRole(
        role=role, first=first, count=count, gpus=_indices(cards), bytes_each=largest or None
    )


def _node_plan(
    name: str,
    gpus: tuple[Gpu, ...],
    roles: Sequence[NodeRole],
    *,
    idle: Sequence[Gpu],
    labels: Mapping[str, str],
) -> NodePlan:
    return NodePlan(
        name=name, num_gpus=len(gpus), gpu=gpus[0].name, memory_bytes=gpus[0].memory_bytes,
        labels=dict(labels), roles=tuple(roles), idle=_indices(idle),
    )  # fmt: skip


def _indices(gpus: Sequence[Gpu]) -> tuple[int, ...]:
    return tuple(sorted({gpu.index for gpu in gpus}))


def _count(num: int, noun: str) -> str:
    return f"{num} {noun}" if num == 1 else f"{num} {noun}s"
