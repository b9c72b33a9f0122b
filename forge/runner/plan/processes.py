"""Processes of a run: on this machine, and on the nodes of an assumed cluster.

With `--assume 4x8xH100-80GB` the first machine is the head, whose cards `placement` hands out. Ray
chooses the places on the others: a plan checks how many nodes `[cluster]` needs at least, and the
memory of their cards as at home. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from forge.config.schema import (
    Experiment,
    ModelTable,
    ServeTable,
    SftStage,
    TrainStage,
    with_half_a_card,
)
from forge.errors import MachineError
from forge.process.devices import Gpu
from forge.runner.plan.machine import CORES_PER_CARD, Machine
from forge.runner.plan.placement import (
    Placement,
    fit,
    judges_here,
    makes_pairs,
    needs_judges,
    needs_serving,
    needs_training,
    serves_here,
)
from forge.runner.plan.shape import model_shape
from forge.views.text import count

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    name: str
    device: str
    """`cpu`, `GPU 0-3`, or what each needs of a node: `Ray cluster "auto": 1 GPU each`."""
    stages: str
    memory_bytes: int | None = None
    gpu_bytes: int | None = None
    """Maximum memory on each card; None on the CPU, or if the model's size is unknown."""
    card_bytes: int | None = None


def spans(numbers: Sequence[int]) -> str:
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def stages_of(experiment: Experiment) -> dict[str, str]:
    played = [stage.kind for stage in experiment.stage if not isinstance(stage, SftStage)]
    judged = ["prepare", *played] if makes_pairs(experiment) else played
    trained = [stage.kind for stage in experiment.stage if isinstance(stage, TrainStage)]
    kinds = {"serve": played, "judge": judged, "train": trained}
    return {role: ", ".join(dict.fromkeys(found)) for role, found in kinds.items()}


def processes_here(
    experiment: Experiment, *, placement: Placement, params: int | None
) -> Iterator[ProcessPlan]:
    serve, judge, stages = experiment.serve, experiment.judge, stages_of(experiment)

    def process(name: str, role: str, gpus: tuple[Gpu, ...], memory: int | None) -> ProcessPlan:
        sizes = [placement.bytes_by_gpu.get(gpu.uuid, {}).get(role, 0) for gpu in gpus]
        sharing = sum(gpus == each for each in placement.serve) if role == "serve" else 1
        return ProcessPlan(
            name=name, stages=stages[role], memory_bytes=memory,
            device=f"GPU {spans([gpu.index for gpu in gpus])}" if gpus else "cpu",
            gpu_bytes=max(sizes, default=0) // max(sharing, 1) or None,
            card_bytes=min((gpu.memory_bytes for gpu in gpus), default=None),
        )  # fmt: skip

    yield ProcessPlan(name="supervisor", device="cpu", stages="all", memory_bytes=SUPERVISOR_BYTES)
    if serves_here(experiment):
        on_cpu = params and replica_bytes(serve, experiment.model, params=params)
        for index in range(serve.replicas):
            gpus = placement.serve[index] if placement.serve else ()
            yield process(f"serve-{index}", "serve", gpus, GPU_PROCESS_BYTES if gpus else on_cpu)
    if judges_here(experiment):
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
    width, shape = 4 if serve.precision == "exact" else 2, model_shape(model)
    kv = serve.slots * shape.kv_of(serve.context_tokens) * width if shape else 0
    return REPLICA_BYTES + params * width + kv


@dataclass(frozen=True, slots=True, kw_only=True)
class _Demand:
    role: str
    count: int
    gpus_each: int
    cores_each: int
    labels: Mapping[str, str]
    halves: bool = False

    def __str__(self) -> str:
        each = count(self.gpus_each, "GPU") if self.gpus_each else count(self.cores_each, "core")
        each = "half a GPU" if self.halves else each
        labels = ", ".join(f"{key}={value}" for key, value in self.labels.items())
        return f"{each} each{f', labelled {labels}' if labels else ''}"

    def nodes(self, cards: int) -> int:
        """Nodes that they need at least, of so many cards each. Raises MachineError."""
        has = cards * (1 + self.halves) if self.gpus_each else cards * CORES_PER_CARD
        room = has // (self.gpus_each or self.cores_each)
        if not room:
            raise MachineError(f"{NAMES[self.role]}: {self}, and a node has {count(cards, 'GPU')}")
        return self.count if self.role == "train" else math.ceil(self.count / room)


def processes_elsewhere(
    experiment: Experiment, machine: Machine, placement: Placement
) -> tuple[list[ProcessPlan], list[str]]:
    """A row for each role on nodes of a Ray cluster, and notes. Raises MachineError if ranks,
    engines or all judges find no room on assumed nodes, or do not fit the memory of a card."""
    demands, notes, sizes = list(_demands(experiment, placement)), list[str](), dict[str, int]()
    if machine.num_nodes:
        notes += _room(experiment, machine, demands)
        sizes = _card_bytes(experiment, machine, placement, demands)
    where, stages = f'Ray cluster "{experiment.cluster.address}"', stages_of(experiment)
    return [
        ProcessPlan(
            name=f"{each.count} {NAMES[each.role]}", device=f"{where}: {each}",
            stages=stages[each.role], gpu_bytes=sizes.get(each.role),
            card_bytes=machine.gpus[0].memory_bytes if each.role in sizes else None,
        )
        for each in demands
    ], notes  # fmt: skip


def _room(experiment: Experiment, machine: Machine, demands: Sequence[_Demand]) -> list[str]:
    """A note if some assumed nodes are idle, or some judges have no room."""
    if experiment.cluster.address is None:
        return [f"without [cluster] only the first of {1 + machine.num_nodes} machines is used"]
    needed, least = (_num_nodes(each, cards=len(machine.gpus)) for each in (demands, demands[:-1]))
    judges_wait = bool(demands) and demands[-1].role == "judge" and least < machine.num_nodes
    found = f"{count(machine.num_nodes, 'node')} beside the head of {machine.assumed}"
    listed = "; ".join(f"{each.count} {NAMES[each.role]}, {each}" for each in demands)
    if needed > machine.num_nodes:
        text = f"{count(needed, 'node')} would have room for {listed}; found {found}"
        if not judges_wait:
            raise MachineError(f"{experiment.name}: {text}")
        return [f"{text}: the other judges start when a node joins"]
    idle = machine.num_nodes - needed
    return [f"{idle} of {found} idle"] if idle else []


def _num_nodes(demands: Sequence[_Demand], *, cards: int) -> int:
    """Nodes that are needed at least: for each role, for all cards and all cores, and for each
    label, of which a node has one value."""

    def least(found: Sequence[_Demand]) -> int:
        num_cores = sum(each.count * each.cores_each for each in found if not each.gpus_each)
        num_cards = sum(each.count * each.gpus_each / (1 + each.halves) for each in found)
        shares = num_cards / cards, num_cores / (cards * CORES_PER_CARD)
        return max([math.ceil(max(shares)), *(each.nodes(cards) for each in found)])

    by_label = dict[str, dict[str, list[_Demand]]]()
    for each in demands:
        for key, value in each.labels.items():
            by_label.setdefault(key, {}).setdefault(value, []).append(each)
    return max([least(demands), *(sum(map(least, of.values())) for of in by_label.values())])


def _card_bytes(
    experiment: Experiment, machine: Machine, head: Placement, demands: Sequence[_Demand]
) -> dict[str, int]:
    """Memory on a card of a node by role; of a rank as on the head. Raises MachineError."""
    on = {each.role for each in demands if each.gpus_each}
    serve = (machine.gpus[: experiment.serve.tensor_parallel],) if "serve" in on else ()
    judge = machine.gpus[:1] if "judge" in on else ()
    layouts = [Placement(serve=serve), Placement(judge=judge)]
    if experiment.cluster.share_gpus:
        half = with_half_a_card(experiment.serve)
        experiment = experiment.model_copy(update={"serve": half})
        layouts = [Placement(serve=serve, judge=judge)]
    rows = [head.bytes_by_gpu.get(gpu.uuid, {}).get("train", 0) for gpu in head.train]
    sizes = {"train": max(rows, default=0)} if "train" in on else {}
    for layout in layouts:
        try:
            placed = fit(experiment, replace(layout, engine=head.engine), users={})
        except MachineError as error:
            raise MachineError(f"nodes: {error}") from error
        for held in placed.bytes_by_gpu.values() if layout.gpus else ():
            sizes |= held
    return sizes


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
