"""Processes of a run: on this machine, and on the nodes of an assumed cluster.

A plan has a row for each. With `--assume 4x8xH100-80GB` the first machine is the head, whose cards
`placement` hands out; the others are laid out as Ray would lay out `[cluster]`: each node takes
what it has room for, ranks of the trainer first, then engines, then judges. Roles whose labels
contradict each other never share a node. The memory of its cards is checked as at home. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from forge.config.schema import SftStage, TrainStage, with_half_a_card
from forge.errors import MachineError
from forge.runner.plan.machine import CORES_PER_CARD
from forge.runner.plan.placement import (
    Placement,
    fit,
    makes_pairs,
    needs_judges,
    needs_serving,
    needs_training,
)
from forge.runner.plan.shape import model_shape
from forge.views.text.numbers import count

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from forge.config.schema import Experiment, ServeTable
    from forge.config.schema.training import ModelTable
    from forge.process.devices import Gpu
    from forge.runner.plan.machine import Machine

SUPERVISOR_BYTES = 200 << 20
TORCH_PROCESS_BYTES = 450 << 20
"""Host memory of a process after the import of torch, triton or transformers."""
JUDGE_BYTES = 2 * TORCH_PROCESS_BYTES
"""Oracle and zygote. Runners share the zygote's pages."""
REPLICA_BYTES = 250 << 20
GPU_PROCESS_BYTES = 4 << 30
"""Host memory of a process whose model is on a GPU: torch, pinned buffers, a file being read."""
TRAIN_BYTES_PER_PARAM = 16
"""On the CPU: f32 weights, gradients and two Adam moments."""
NAMES = {"train": "nodes for ranks", "serve": "engines", "judge": "judges"}
"""Names of children in messages, by role."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """A process of the run, or several of one role on a node."""

    name: str
    device: str
    """`cpu`, `GPU 0-3`, `node 2 (role=judge): GPU 0-7`."""
    stages: str
    """Stages that need it, or `all`."""
    memory_bytes: int | None = None
    """Host memory; None if the model's size is unknown, or on a node."""
    gpu_bytes: int | None = None
    """Maximum memory on each card; None on the CPU, or if the model's size is unknown."""
    card_bytes: int | None = None
    """Memory of its smallest card; None on the CPU."""


def _cards(gpus: Sequence[int]) -> str:
    return f"GPU {spans(gpus)}" if gpus else "cpu"


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: `0-3, 6`."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def stages_of(experiment: Experiment) -> dict[str, str]:
    """Kinds of stages that need a role, by role."""
    played = [stage.kind for stage in experiment.stage if not isinstance(stage, SftStage)]
    judged = ["prepare", *played] if makes_pairs(experiment) else played
    trained = [stage.kind for stage in experiment.stage if isinstance(stage, TrainStage)]
    kinds = {"serve": played, "judge": judged, "train": trained}
    return {role: ", ".join(dict.fromkeys(found)) for role, found in kinds.items()}


def processes_here(
    experiment: Experiment, *, placement: Placement, params: int | None
) -> Iterator[ProcessPlan]:
    """Processes on this machine, or on the head of a cluster."""
    serve, judge, stages = experiment.serve, experiment.judge, stages_of(experiment)

    def process(name: str, role: str, gpus: tuple[Gpu, ...], memory: int | None) -> ProcessPlan:
        sizes = [placement.bytes_by_gpu.get(gpu.uuid, {}).get(role, 0) for gpu in gpus]
        sharing = sum(gpus == each for each in placement.serve) if role == "serve" else 1
        return ProcessPlan(
            name=name, stages=stages[role], memory_bytes=memory,
            device=_cards([gpu.index for gpu in gpus]),
            gpu_bytes=max(sizes, default=0) // max(sharing, 1) or None,
            card_bytes=min((gpu.memory_bytes for gpu in gpus), default=None),
        )  # fmt: skip

    yield ProcessPlan(name="supervisor", device="cpu", stages="all", memory_bytes=SUPERVISOR_BYTES)
    if needs_serving(experiment) and not (serve.url or experiment.cluster.serve):
        on_cpu = params and replica_bytes(serve, experiment.model, params=params)
        for index in range(serve.replicas):
            gpus = placement.serve[index] if placement.serve else ()
            yield process(f"serve-{index}", "serve", gpus, GPU_PROCESS_BYTES if gpus else on_cpu)
    if needs_judges(experiment) and not (judge.url or experiment.cluster.judges):
        for index in range(len(placement.judge) or judge.workers):
            gpus = placement.judge[index : index + 1]
            yield process(f"judge-{index}", "judge", gpus, JUDGE_BYTES)
    if needs_training(experiment):
        size = params and TORCH_PROCESS_BYTES + params * TRAIN_BYTES_PER_PARAM
        if placement.train:
            size = len(placement.train) * GPU_PROCESS_BYTES
            size += 4 * (params or 0) * (experiment.model.lora is None)  # gathered to publish
        yield process("trainer", "train", placement.train, size)


def replica_bytes(serve: ServeTable, model: ModelTable, *, params: int) -> int:
    """Host memory of one engine on the CPU: weights and KV cache."""
    width, shape = 4 if serve.precision == "exact" else 2, model_shape(model)
    kv = serve.slots * shape.kv_of(serve.context_tokens) * width if shape else 0
    return REPLICA_BYTES + params * width + kv


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
        each = "half a GPU" if self.halves else each
        return f"{each} each{f', labelled {_pairs(self.labels)}' if self.labels else ''}"


def _pairs(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


@dataclass(slots=True, kw_only=True)
class _Node:
    """A machine while roles are laid out on it."""

    name: str
    cards: tuple[Gpu, ...]
    cores: int
    halves: list[Gpu]
    """Free halves of cards, in order."""
    labels: dict[str, str] = field(default_factory=dict[str, str])
    placed: Placement
    taken: list[tuple[_Demand, int, int, tuple[int, ...]]] = field(
        default_factory=list["tuple[_Demand, int, int, tuple[int, ...]]"]
    )
    """Number of the first child, how many, and the indices of their cards."""

    @property
    def idle(self) -> list[Gpu]:
        """Cards of which nothing is taken."""
        return [gpu for gpu in self.cards if self.halves.count(gpu) == 2]

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
        shares = tuple(cards[at : at + each] for at in range(0, len(cards), each or 1))
        held = shares if demand.role == "serve" else cards
        self.placed = replace(self.placed, **{demand.role: held})
        self.taken.append((demand, first, num, tuple(sorted({gpu.index for gpu in cards}))))
        return num


def processes_elsewhere(
    experiment: Experiment, machine: Machine, placement: Placement
) -> tuple[list[ProcessPlan], list[str]]:
    """Processes on nodes of a Ray cluster, laid out if they are assumed, and notes.

    Raises:
        MachineError: engines or all judges find no room, or do not fit the memory of a card.
    """
    demands = list(_demands(experiment, placement))
    if not machine.nodes:
        where, stages = f'Ray cluster "{experiment.cluster.address}"', stages_of(experiment)
        return [
            ProcessPlan(
                name=f"{each.count} {NAMES[each.role]}", device=f"{where}: {each}",
                stages=stages[each.role],
            )
            for each in demands
        ], []  # fmt: skip
    nodes = [
        _Node(
            name=f"node {number}", cards=gpus, halves=[gpu for gpu in gpus for _ in range(2)],
            cores=len(gpus) * CORES_PER_CARD, placed=Placement(engine=placement.engine),
        )
        for number, gpus in enumerate(machine.nodes, start=1)
    ]  # fmt: skip
    notes: list[str] = []
    if experiment.cluster.address is None:
        notes.append(f"without [cluster] only the first of {1 + len(nodes)} machines is used")
    for demand in demands:
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
    notes += [
        f"{node.name}: GPU {spans([gpu.index for gpu in node.idle])} idle"
        for node in nodes
        if node.idle
    ]
    return [each for node in nodes for each in _planned(experiment, node, placement)], notes


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


def _planned(experiment: Experiment, node: _Node, head: Placement) -> Iterator[ProcessPlan]:
    """Rows of a node; a rank needs the memory that it needs on the head. Raises MachineError."""
    if experiment.cluster.share_gpus:
        half = with_half_a_card(experiment.serve)
        experiment = experiment.model_copy(update={"serve": half})
    layout = replace(node.placed, train=())
    try:
        sizes = list(fit(experiment, layout, users={}).bytes_by_gpu.values() if layout.gpus else ())
    except MachineError as error:
        raise MachineError(f"{node.name}: {error}") from error
    sizes += [{"train": head.bytes_by_gpu.get(gpu.uuid, {}).get("train", 0)} for gpu in head.train]
    where = f"{node.name} ({_pairs(node.labels)})" if node.labels else node.name
    for demand, first, num, gpus in node.taken:
        role = demand.role
        last = f" to {role}-{first + num - 1}" if num > 1 else ""
        yield ProcessPlan(
            name="trainer" if role == "train" else f"{role}-{first}{last}",
            stages=stages_of(experiment)[role], device=f"{where}: {_cards(gpus)}",
            gpu_bytes=max((each.get(role, 0) for each in sizes), default=0) * bool(gpus) or None,
            card_bytes=node.cards[0].memory_bytes if gpus else None,
        )  # fmt: skip
