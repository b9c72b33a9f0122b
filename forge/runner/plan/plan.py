"""The plan of a run: processes on devices, predicted seconds, memory and disk.

`plan` depends only on the experiment, its problem files and the machine, and imports no torch. It
raises for what cannot work, before a run has a directory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from rich.console import RenderableType

from forge.config.schema import SHARED, Experiment, GrpoStage, TrainStage
from forge.data.problems import in_split
from forge.process.devices import Gpu
from forge.records import Split
from forge.records.rules import rules_in_words
from forge.runner.plan.duration import PhasePlan, load_rates, predict_disk_bytes, predict_phases
from forge.runner.plan.machine import Machine, this_machine
from forge.runner.plan.placement import Placement, place, serves_here
from forge.runner.plan.processes import ProcessPlan, processes_elsewhere, processes_here
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
from forge.runner.plan.shape import count_params, llama_refusal, why_unknown
from forge.runner.weights.model_dir import check_model_path
from forge.serve.engines import GET_VLLM, choose_engine
from forge.views.text import gigabytes, minutes, parameters, size


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


def plan(experiment: Experiment, *, machine: Machine | None = None) -> Plan:
    """Plans a run on a machine; the default is this machine. Raises ConfigError if problems cannot
    be loaded, a stage has none, or the trainer cannot do a stage; MachineError if GPUs, disk, an
    engine or a package are missing."""
    if machine is None:
        machine = this_machine(experiment.store.dir, serve=experiment.serve)
    check_model_path(experiment.model, is_here=not machine.assumed)
    engine, why = _engine(experiment, machine)
    placement = place(experiment, machine, engine=engine)
    elsewhere, node_notes = processes_elsewhere(experiment, machine, placement)
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
        *([f"no problem is held out: {SHARE}"] if shares else []),
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
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

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


def _engine(experiment: Experiment, machine: Machine) -> tuple[str, tuple[str, ...]]:
    serve, devices = experiment.serve, experiment.devices
    if not serves_here(experiment):
        return "llama" if serve.engine == "auto" else serve.engine, ()
    gpus = machine.gpus if devices.gpus and devices.serve else ()
    refused = llama_refusal(experiment.model, context_tokens=serve.context_tokens)
    name, why = choose_engine(serve, gpus=gpus, installed=machine.engines, no_llama=refused)
    return name, (f"serve.engine = auto: {name} ({why})",) if serve.engine == "auto" else ()


def _shared(experiment: Experiment, placement: Placement) -> Iterator[str]:
    for gpu in placement.gpus:
        held = placement.bytes_by_gpu.get(gpu.uuid, {})
        roles = placement.roles_of(gpu.uuid)
        parts = [f"{role} {size(held[role])}" if role in held else role for role in roles]
        if len(roles) > 1:
            share = f"devices.share = {experiment.devices.share}"
            yield f"GPU {gpu.index} has {', '.join(parts)} of {size(gpu.memory_bytes)} ({share})"


def _notes(
    experiment: Experiment, placement: Placement, *, machine: Machine, memory: float | None,
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
        busy = stage.threads if isinstance(stage, TrainStage) else 0
        busy += serve.replicas * serve.threads * isinstance(stage, GrpoStage)
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
