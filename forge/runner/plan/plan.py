"""The plan of a run: processes on devices, predicted seconds, memory and disk.

`plan` depends only on the experiment, its problem files and the machine, and imports no torch. It
raises for what cannot work, before a run has a directory.

With `--assume 4x8xH100-80GB` the first machine is the head, whose cards `placement` hands out. Ray
chooses the places on the others: a plan checks how many nodes `[cluster]` needs at least, and the
memory of their cards as at home.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forge.config import schema
from forge.data.problems import in_split
from forge.errors import MachineError
from forge.process.devices import Gpu
from forge.records import Split
from forge.records.verdict import rules_in_words
from forge.runner.plan import requirements
from forge.runner.plan.duration import PhasePlan, load_rates, predict_disk_bytes, predict_phases
from forge.runner.plan.machine import CORES_PER_CARD, Machine, this_machine
from forge.runner.plan.placement import (
    Placement,
    fit,
    judges_here,
    makes_pairs,
    needs_judges,
    needs_serving,
    needs_training,
    place,
    serves_here,
)
from forge.runner.plan.shape import count_params, llama_refusal, model_shape, why_unknown
from forge.runner.weights.model_dir import check_model_path
from forge.serve.engines import GET_VLLM, choose_engine
from forge.views.text import count, gigabytes, minutes, parameters, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    name: str
    params: int | None
    cores: int
    processes: tuple[ProcessPlan, ...]
    elsewhere: tuple[ProcessPlan, ...] = ()
    phases: tuple[PhasePlan, ...]
    memory_bytes: int | None
    """Host memory of all processes here; None if the model's size is unknown."""
    disk_bytes: int | None
    notes: tuple[str, ...]
    reasons: tuple[str, ...] = ()
    assumed: str = ""
    placement: Placement = field(default_factory=Placement)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.placement.gpus

    @property
    def wall_s(self) -> float | None:
        return _total([phase.wall_s for phase in self.phases])

    def to_json(self) -> dict[str, Any]:
        plain = asdict(replace(self, placement=Placement()))
        del plain["placement"]
        return {**plain, "engine": self.placement.engine, "wall_s": self.wall_s}


def plan(experiment: schema.Experiment, *, machine: Machine | None = None) -> Plan:
    """Plans a run on a machine; the default is this machine. Raises ConfigError if problems cannot
    be loaded, a stage has none, or the trainer cannot do a stage; MachineError if GPUs, disk, an
    engine or a package are missing."""
    if machine is None:
        machine = this_machine(experiment.store.dir, serve=experiment.serve)
    check_model_path(experiment.model, is_here=not machine.assumed)
    engine, why = _engine(experiment, machine)
    placement = place(experiment, machine, engine=engine)
    elsewhere, node_notes = processes_elsewhere(experiment, machine, placement)
    requirements.require_disk(experiment, machine)
    requirements.require_engine(experiment, machine, placement)
    prompts = requirements.require_prompts(experiment, machine)
    loaded = requirements.require_problems(experiment, machine)
    adapted = requirements.require_template(experiment, prompts, loaded)
    requirements.require_trainer(experiment, placement, is_here=machine.is_here)
    if machine.is_here:
        requirements.require_packages(experiment)
    shares = experiment.problems.num_heldout == schema.SHARED
    num_heldout = experiment.problems.num_reserved
    if loaded is not None:
        num_heldout = len(in_split(loaded, Split.HELDOUT))
    problems = experiment.problems.model_copy(update={"num_heldout": num_heldout})
    experiment = experiment.model_copy(update={"problems": problems})
    params = count_params(experiment.model)
    here = list(processes_here(experiment, placement=placement, params=params))
    memory = _total([process.memory_bytes for process in here])
    disk = predict_disk_bytes(experiment, params=params)
    rates = load_rates(experiment, placement)
    phases = predict_phases(
        experiment, machine=machine, params=params, placement=placement, shares=shares,
        rates=rates,
    )  # fmt: skip
    planned = [placement.bytes_by_gpu.get(gpu.uuid, {}).get("train", 0) for gpu in placement.train]
    most = gigabytes(max(planned, default=0))
    peaks = [
        f"{name}: {rate.run} peaked at {gigabytes(rate.peak_bytes)} of a GPU, {most} planned"
        for name, rate in rates.items()
        if rate.peak_bytes is not None
    ]
    notes = [
        *([f"no problem is held out: {requirements.SHARE}"] if shares else []),
        *_notes(experiment, placement, machine=machine, memory=memory, disk=disk),
        *node_notes,
    ]
    return Plan(
        name=experiment.name, params=params, cores=machine.cores, processes=tuple(here),
        elsewhere=tuple(elsewhere), phases=tuple(phases), disk_bytes=disk, notes=tuple(notes),
        memory_bytes=None if memory is None else int(memory),
        reasons=(*adapted, *why, *placement.reasons, *_shared(experiment, placement), *peaks),
        assumed=machine.assumed, placement=placement,
    )  # fmt: skip


def render(plan: Plan) -> RenderableType:
    params = "size unknown" if plan.params is None else f"{parameters(plan.params)} parameters"
    where = f"assumed: {plan.assumed}" if plan.assumed else f"{plan.cores} cores"
    processes = Table(
        "process", "device", "memory", "of a GPU", "stages", box=None, pad_edge=False
    )  # fmt: skip
    for each in (*plan.processes, *plan.elsewhere):
        on_card = f"{size(each.gpu_bytes)} of {size(each.card_bytes)}" if each.card_bytes else ""
        memory = "" if each in plan.elsewhere else size(each.memory_bytes)
        processes.add_row(each.name, each.device, memory, on_card, each.stages)
    processes.add_row("total", "", size(plan.memory_bytes), "", "", style="bold")
    phases = Table("phase", "work", box=None, pad_edge=False)
    phases.add_column("wall", justify="right")
    phases.add_column("by")
    for each in plan.phases:
        phases.add_row(each.name, each.work, minutes(each.wall_s), each.basis)
    phases.add_row("total", "", minutes(plan.wall_s), "", style="bold")
    return Group(
        Text(f"{plan.name}: {params}, {where}", style="bold"),
        *(Text(), processes, Text(), phases, Text(), Text(f"disk: {size(plan.disk_bytes)}")),
        *(Text(f"· {reason}") for reason in plan.reasons),
        *(Text(f"! {note}", style="yellow") for note in plan.notes),
    )


def _engine(experiment: schema.Experiment, machine: Machine) -> tuple[str, tuple[str, ...]]:
    serve, devices = experiment.serve, experiment.devices
    if not serves_here(experiment):
        return "llama" if serve.engine == "auto" else serve.engine, ()
    gpus = machine.gpus if devices.gpus and devices.serve else ()
    refused = llama_refusal(experiment.model, context_tokens=serve.context_tokens)
    name, why = choose_engine(serve, gpus=gpus, installed=machine.engines, no_llama=refused)
    return name, (f"serve.engine = auto: {name} ({why})",) if serve.engine == "auto" else ()


def _shared(experiment: schema.Experiment, placement: Placement) -> Iterator[str]:
    for gpu in placement.gpus:
        held = placement.bytes_by_gpu.get(gpu.uuid, {})
        roles = placement.roles_of(gpu.uuid)
        parts = [f"{role} {size(held[role])}" if role in held else role for role in roles]
        if len(roles) > 1:
            share = f"devices.share = {experiment.devices.share}"
            yield f"GPU {gpu.index} has {', '.join(parts)} of {size(gpu.memory_bytes)} ({share})"


def _notes(
    experiment: schema.Experiment, placement: Placement, *, machine: Machine, memory: float | None,
    disk: int | None,
) -> Iterator[str]:  # fmt: skip
    devices, serve, title = experiment.devices, experiment.serve, machine.title
    if placement.engine == "hf" and serve.engine == "auto":
        yield f"vLLM is not installed: transformers serves, many times slower; {GET_VLLM}"
    if memory is not None and memory > machine.memory_bytes:
        has = gigabytes(machine.memory_bytes)
        yield f"needs about {gigabytes(memory)} of memory; {title} has {has}"
    if machine.others and not placement.gpus:
        names = "; ".join(machine.others)
        yield f"these cores are in use: {names}; the times of this plan will not hold"
    room = machine.free_disk_bytes - experiment.store.min_free_bytes
    if disk is not None and disk > room:
        yield f"needs about {gigabytes(disk)} of disk; {gigabytes(room)} are available"
    for index, stage in enumerate(experiment.stage):
        busy = stage.threads if isinstance(stage, schema.TrainStage) else 0
        busy += serve.replicas * serve.threads * isinstance(stage, schema.GrpoStage)
        if busy > machine.cores and not devices.train:
            name = stage.label(index)
            yield f"{name}: trainer and engine have {busy} threads for {machine.cores} cores"
    if ":" in experiment.judge.rules:
        yield f"judges: {rules_in_words(experiment.judge.rules)}"
    if experiment.judge.url:
        yield f"judges are external: {', '.join(experiment.judge.url)}"
    if serve.url:
        yield f"servers are external and keep their own weights: {', '.join(serve.url)}"
    if devices.gpus is not None and not (devices.train or devices.serve or devices.judge):
        yield "devices.gpus is set, but train, serve and judge are 0: everything runs on the CPU"
    if devices.gpus is None and machine.gpus:
        yield (
            f"{title} has {len(machine.gpus)} GPU(s), which this experiment does not use: "
            'devices.gpus, train, serve and judge = "auto" would'
        )
    if not machine.assumed and machine.hidden_gpus and devices.gpus:
        yield machine.hidden_gpus
    for gpu in machine.gpus if devices.gpus else ():
        for user in machine.gpu_users.get(gpu.uuid, ()):
            yield f"GPU {gpu.index}: {user}, which disturbs the timing of kernels there"
    if why := why_unknown(experiment.model):
        yield f"{experiment.model.path or '[model]'}: size unknown: {why}"


def _total(parts: list[Any]) -> Any:
    return None if any(part is None for part in parts) else sum(parts)


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


def stages_of(experiment: schema.Experiment) -> dict[str, str]:
    played = [stage.kind for stage in experiment.stage if not isinstance(stage, schema.SftStage)]
    judged = ["prepare", *played] if makes_pairs(experiment) else played
    trained = [stage.kind for stage in experiment.stage if isinstance(stage, schema.TrainStage)]
    kinds = {"serve": played, "judge": judged, "train": trained}
    return {role: ", ".join(dict.fromkeys(found)) for role, found in kinds.items()}


def processes_here(
    experiment: schema.Experiment, *, placement: Placement, params: int | None
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


def replica_bytes(serve: schema.ServeTable, model: schema.ModelTable, *, params: int) -> int:
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
    experiment: schema.Experiment, machine: Machine, placement: Placement
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


def _room(experiment: schema.Experiment, machine: Machine, demands: Sequence[_Demand]) -> list[str]:
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
    experiment: schema.Experiment, machine: Machine, head: Placement, demands: Sequence[_Demand]
) -> dict[str, int]:
    """Memory on a card of a node by role; of a rank as on the head. Raises MachineError."""
    on = {each.role for each in demands if each.gpus_each}
    serve = (machine.gpus[: experiment.serve.tensor_parallel],) if "serve" in on else ()
    judge = machine.gpus[:1] if "judge" in on else ()
    layouts = [Placement(serve=serve), Placement(judge=judge)]
    if experiment.cluster.share_gpus:
        half = schema.with_half_a_card(experiment.serve)
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


def _demands(experiment: schema.Experiment, placement: Placement) -> Iterator[_Demand]:
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
