"""The plan of a run: processes on devices, predicted seconds, memory and disk.

`plan` depends only on the experiment, its problem files and the machine, and imports no torch. It
raises for what cannot work, before a run has a directory. `forge plan` prints it; `run` and
`resume` call it first. Times are predicted for CPU phases only; for GPUs the memory of each card is
checked (`placement`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from forge.config.schema import EvalStage, Experiment, GrpoStage, SftStage
from forge.config.schema.problems import SHARED
from forge.data.problems import in_split
from forge.records import Split
from forge.records.rules import rules_in_words
from forge.runner.plan.duration import PhasePlan, predict_disk_bytes, predict_phases
from forge.runner.plan.machine import Machine, this_machine
from forge.runner.plan.model_files import check_model_path
from forge.runner.plan.needs import makes_pairs, needs_judges, needs_serving, needs_training
from forge.runner.plan.nodes import NodePlan, plan_nodes
from forge.runner.plan.packing import reasons
from forge.runner.plan.placement import Placement, place
from forge.runner.plan.rates import Rate, load_rates
from forge.runner.plan.requirements import (
    SHARE,
    require_disk,
    require_engine,
    require_packages,
    require_problems,
    require_prompts,
    require_template,
    require_trainer,
)
from forge.runner.plan.shape import count_params, llama_refusal, model_shape, why_unknown
from forge.serve.engines import GET_VLLM, choose_engine
from forge.views.text.numbers import count, gigabytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forge.config.schema import ServeTable
    from forge.config.schema.training import ModelTable
    from forge.process.devices import Gpu

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """A process of the run."""

    name: str
    device: str
    """GPU UUIDs, or `cpu`."""
    threads: int
    memory_bytes: int | None
    stages: str
    """Stages that need it, or `all`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPlan:
    """A card in use."""

    index: int
    uuid: str
    name: str
    memory_bytes: int
    roles: tuple[str, ...]
    bytes_by_role: Mapping[str, int]
    """Maximum bytes by role; empty if the model's size is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run."""

    name: str
    params: int | None
    cores: int
    processes: tuple[ProcessPlan, ...]
    phases: tuple[PhasePlan, ...]
    memory_bytes: int | None
    """Sum over all processes; None if the model's size is unknown."""
    disk_bytes: int | None
    notes: tuple[str, ...]
    """Warnings: allowed, but unwise."""
    cards: tuple[CardPlan, ...] = ()
    reasons: tuple[str, ...] = ()
    """Messages that explain choices the experiment left open."""
    nodes: tuple[NodePlan, ...] = ()
    """Machines of an assumed cluster, the head first; empty for one machine."""
    assumed: str = ""
    """Argument of `--assume`; empty for this machine."""
    placement: Placement = field(default_factory=Placement)
    """The placement that a run uses."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every card in use once."""
        return self.placement.gpus

    @property
    def cpu_s(self) -> float | None:
        """Seconds of one core, over all phases."""
        return _total([phase.cpu_s for phase in self.phases])

    @property
    def wall_s(self) -> float | None:
        """Seconds on the machine's cores, over all phases."""
        return _total([phase.wall_s for phase in self.phases])

    def to_json(self) -> dict[str, Any]:
        """The output of `forge plan --json`."""
        plain = asdict(replace(self, placement=Placement()))
        del plain["placement"]
        totals = {"cpu_s": self.cpu_s, "wall_s": self.wall_s}
        return {**plain, "engine": self.placement.engine, **totals}


def plan(experiment: Experiment, *, machine: Machine | None = None) -> Plan:
    """Plans a run on a machine; the default is this machine.

    Raises:
        ConfigError: problems cannot be loaded, a stage has
            none, or the trainer cannot do a stage.
        MachineError: GPUs, disk, an engine or a package are missing.
    """
    if machine is None:
        machine = this_machine(experiment.store.dir, serve=experiment.serve)
    check_model_path(experiment.model, is_here=not machine.assumed)
    engine, why = _engine(experiment, machine)
    placement = place(experiment, machine, engine=engine)
    unpacked = reasons(experiment, gpus=placement.train)
    placement = replace(placement, reasons=(*why, *placement.reasons, *unpacked))
    nodes, without_room = plan_nodes(experiment, machine, placement)
    require_disk(experiment, machine)
    require_engine(experiment, machine, placement)
    prompts = require_prompts(experiment, machine)
    loaded = require_problems(experiment, machine)
    adapted = require_template(experiment, prompts, loaded)
    require_trainer(experiment, placement, is_here=machine.is_here)
    if machine.is_here:
        require_packages(experiment)
    shares = experiment.problems.num_heldout == SHARED
    num_heldout = experiment.problems.num_reserved
    if loaded is not None:
        num_heldout = len(in_split(loaded, Split.HELDOUT))
    problems = experiment.problems.model_copy(update={"num_heldout": num_heldout})
    experiment = experiment.model_copy(update={"problems": problems})
    params = count_params(experiment.model)
    processes = tuple(_processes(experiment, placement=placement, params=params))
    rates = load_rates(experiment, placement)
    phases = predict_phases(
        experiment, machine=machine, params=params, placement=placement, shares=shares,
        rates=rates,
    )  # fmt: skip
    memory = _total([process.memory_bytes for process in processes])
    disk = predict_disk_bytes(experiment, params=params)
    notes = _notes(experiment, placement, machine=machine, memory=memory, disk=disk)
    if shares:
        notes = (f"no problem is held out: {SHARE}", *notes)
    return Plan(
        name=experiment.name,
        params=params,
        cores=machine.cores,
        processes=processes,
        phases=tuple(phases),
        memory_bytes=None if memory is None else int(memory),
        disk_bytes=disk,
        notes=(*notes, *without_room),
        nodes=nodes,
        cards=tuple(
            CardPlan(
                index=gpu.index,
                uuid=gpu.uuid,
                name=gpu.name,
                memory_bytes=gpu.memory_bytes,
                roles=placement.roles_of(gpu.uuid),
                bytes_by_role=placement.bytes_by_gpu.get(gpu.uuid, {}),
            )
            for gpu in placement.gpus
        ),
        reasons=(*adapted, *placement.reasons, *_peaks(rates, placement)),
        assumed=machine.assumed,
        placement=placement,
    )


def _peaks(rates: Mapping[str, Rate], placement: Placement) -> Iterator[str]:
    """Memory that earlier trainers took on these cards, beside the plan's."""
    planned = [placement.bytes_by_gpu.get(gpu.uuid, {}).get("train", 0) for gpu in placement.train]
    most = gigabytes(max(planned, default=0))
    for name, rate in rates.items():
        if rate.peak_bytes is not None:
            peak = gigabytes(rate.peak_bytes)
            yield f"{name}: {rate.run} peaked at {peak} of a GPU, {most} planned"


def _engine(experiment: Experiment, machine: Machine) -> tuple[str, tuple[str, ...]]:
    """The engine that serves, and the reason if the experiment leaves it open."""
    serve, devices = experiment.serve, experiment.devices
    if not needs_serving(experiment) or serve.url or experiment.cluster.serve:
        return "llama" if serve.engine == "auto" else serve.engine, ()
    gpus = machine.gpus if devices.gpus and devices.serve else ()
    refused = llama_refusal(experiment.model, context_tokens=serve.context_tokens)
    name, why = choose_engine(serve, gpus=gpus, installed=machine.engines, no_llama=refused)
    return name, (f"serve.engine = auto: {name} ({why})",) if serve.engine == "auto" else ()


def _processes(
    experiment: Experiment, *, placement: Placement, params: int | None
) -> Iterator[ProcessPlan]:
    serve, judge = experiment.serve, experiment.judge
    played = [stage.kind for stage in experiment.stage if not isinstance(stage, SftStage)]
    judged = ["prepare", *played] if makes_pairs(experiment) else played
    trained = [stage for stage in experiment.stage if not isinstance(stage, EvalStage)]

    def process(
        name: str, gpus: tuple[Gpu, ...], kinds: list[str], size: int | None, threads: int = 1
    ) -> ProcessPlan:
        device = ", ".join(gpu.uuid for gpu in gpus) or "cpu"
        return ProcessPlan(
            name=name, device=device, threads=threads, memory_bytes=size,
            stages=", ".join(dict.fromkeys(kinds)),
        )  # fmt: skip

    yield process("supervisor", (), ["all"], SUPERVISOR_BYTES)
    if needs_serving(experiment) and not (serve.url or experiment.cluster.serve):
        on_cpu = params and replica_bytes(serve, experiment.model, params=params)
        for index in range(serve.replicas):
            gpus = placement.serve[index] if placement.serve else ()
            size = GPU_PROCESS_BYTES if gpus else on_cpu
            yield process(f"serve-{index}", gpus, played, size, serve.threads)
    if needs_judges(experiment) and not (judge.url or experiment.cluster.judges):
        for index in range(len(placement.judge) or judge.workers):
            yield process(
                f"judge-{index}", placement.judge[index : index + 1], judged, JUDGE_BYTES
            )  # fmt: skip
    if trained:
        size = params and TORCH_PROCESS_BYTES + params * TRAIN_BYTES_PER_PARAM
        if placement.train:
            size = len(placement.train) * GPU_PROCESS_BYTES
            size += 4 * (params or 0) * (experiment.model.lora is None)  # gathered to publish
        threads = max(stage.threads for stage in trained)
        yield process("trainer", placement.train, [each.kind for each in trained], size, threads)


def replica_bytes(serve: ServeTable, model: ModelTable, *, params: int) -> int:
    """Host memory of one engine on the CPU: weights and KV cache."""
    width, shape = 4 if serve.precision == "exact" else 2, model_shape(model)
    kv = serve.slots * shape.kv_of(serve.context_tokens) * width if shape else 0
    return REPLICA_BYTES + params * width + kv


def _notes(
    experiment: Experiment,
    placement: Placement,
    *,
    machine: Machine,
    memory: float | None,
    disk: int | None,
) -> Iterator[str]:
    if placement.engine == "hf" and experiment.serve.engine == "auto":
        yield f"vLLM is not installed: transformers serves, many times slower; {GET_VLLM}"
    if memory is not None and memory > machine.memory_bytes:
        yield (
            f"needs about {gigabytes(memory)} of memory; "
            f"{machine.title} has {gigabytes(machine.memory_bytes)}"
        )
    if machine.others and not placement.gpus:
        names = "; ".join(machine.others)
        yield f"these cores are in use: {names}; the times of this plan will not hold"
    room = machine.free_disk_bytes - experiment.store.min_free_bytes
    if disk is not None and disk > room:
        yield f"needs about {gigabytes(disk)} of disk; {gigabytes(room)} are available"
    devices, serve = experiment.devices, experiment.serve
    for index, stage in enumerate(experiment.stage):
        busy = 0 if isinstance(stage, EvalStage) else stage.threads
        busy += serve.replicas * serve.threads * isinstance(stage, GrpoStage)
        if busy > machine.cores and not devices.train:
            name = f"{stage.kind}-{index}"
            yield f"{name}: trainer and engine have {busy} threads for {machine.cores} cores"
    if ":" in experiment.judge.rules:
        yield f"judges: {rules_in_words(experiment.judge.rules)}"
    if experiment.judge.url:
        yield f"judges are external: {', '.join(experiment.judge.url)}"
    yield from _elsewhere(experiment, placement)
    if serve.url:
        weights = "get each version" if needs_training(experiment) else "keep their own weights"
        yield f"servers are external and {weights}: {', '.join(serve.url)}"
    if devices.gpus is not None and not (devices.train or devices.serve or devices.judge):
        yield "devices.gpus is set, but train, serve and judge are 0: everything runs on the CPU"
    if devices.gpus is None and machine.gpus:
        yield (
            f"{machine.title} has {len(machine.gpus)} GPU(s), which this experiment does not use: "
            'devices.gpus, train, serve and judge = "auto" would'
        )
    if not machine.assumed and machine.hidden_gpus and devices.gpus:
        yield machine.hidden_gpus
    for gpu in machine.gpus if devices.gpus else ():
        for user in machine.gpu_users.get(gpu.uuid, ()):
            yield f"GPU {gpu.index}: {user}, which disturbs the timing of kernels there"
    if why := why_unknown(experiment.model):
        yield f"{experiment.model.path or '[model]'}: size unknown: {why}"


def _elsewhere(experiment: Experiment, placement: Placement) -> Iterator[str]:
    """A line for each role on other nodes."""
    table, serve = experiment.cluster, experiment.serve
    where = f'nodes of the Ray cluster "{table.address}"'
    card = "half a GPU" if table.share_gpus else "a GPU"
    if table.judges and needs_judges(experiment):
        each = card if table.judge_on == "gpu" else "a CPU core"
        yield f"up to {count(table.judges, 'judge')} on {where}, {each} each" + _labels(
            table.judge_labels
        )
    if table.serve and needs_serving(experiment):
        cards = card if serve.tensor_parallel == 1 else f"{serve.tensor_parallel} GPUs"
        each = cards if table.serve_on == "gpu" else count(serve.threads, "CPU core")
        yield f"{count(serve.replicas, 'engine')} on {where}, {each} each" + _labels(
            table.serve_labels
        )
    if table.train_nodes:
        ranks = count(len(placement.train) or 1, "more rank")
        yield f"the trainer has {ranks} on each of {table.train_nodes} {where}" + _labels(
            table.train_labels
        )


def _labels(labels: Mapping[str, str]) -> str:
    pairs = ", ".join(f"{key}={value}" for key, value in labels.items())
    return f", labelled {pairs}" if pairs else ""


def _total(values: list[Any]) -> float | None:
    return None if any(value is None for value in values) else sum(values)
