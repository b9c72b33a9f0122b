"""The plan of a run: processes on devices, predicted seconds, memory and disk; and its
requirements: disk, engine, problems, packages, sinks, and limits of the trainer.

`plan` depends only on the experiment, its problem files and the machine, and imports no torch. It
raises for what cannot work, before a run has a directory.

With `--assume 4x8xH100-80GB` the first machine is the head, whose cards `placement` hands out. Ray
chooses the places on the others: a plan checks how many nodes `[cluster]` needs at least, and the
memory of their cards as at home.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from forge.config.schema import (
    CHATML,
    SHARED,
    Experiment,
    GrpoStage,
    ModelTable,
    ServeTable,
    SftStage,
    TrainStage,
    is_hub_name,
    split_of,
    with_half_a_card,
)
from forge.data.chat import ChatTemplate
from forge.data.generator import is_ample
from forge.data.problems import in_split, load_problems
from forge.data.prompts.prompt_set import PromptSet, make_prompts
from forge.data.sources.splitting import digest_of
from forge.data.template import KEY, Template, absent_template, text_of, try_template
from forge.errors import ConfigError, MachineError
from forge.evalpool.cards import require_target
from forge.evalpool.site_packages import require_installed
from forge.process.devices import Gpu
from forge.records import Message, Problem, Split
from forge.records.verdict import rules_in_words
from forge.rollout.prompter import TemplatePrompter
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
    num_ranks,
    place,
    serves_here,
    turns_played,
    turns_trained,
)
from forge.runner.plan.shape import (
    check_model_path,
    config_dir,
    count_params,
    llama_refusal,
    lora_rank,
    model_shape,
    why_unknown,
)
from forge.serve.engines import ENGINES, GET_VLLM, check_adapters, check_engine, choose_engine
from forge.train.gguf import read_gguf
from forge.train.refusals import OWN_CODE, has_own_code, is_mixture, missing_package, refusals
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


SHARE = f'problems.num_heldout = "{SHARED}", by which evaluations are of what is trained on'

NO_SOURCE = Problem(problem_id="", source="", family="", level=0, split=Split.GRPO)
"""Its prompt is shorter than that of any problem."""


def require_disk(experiment: Experiment, machine: Machine) -> None:
    store = experiment.store
    if machine.free_disk_bytes < store.min_free_bytes:
        free = gigabytes(machine.free_disk_bytes, places=2)
        least = gigabytes(store.min_free_bytes, places=2)
        raise MachineError(
            f"{store.dir}: {free} of disk are free; a run stops below store.min_free_bytes = "
            f"{least}. Free some disk, or start a new run elsewhere with --store DIR"
        )


def require_engine(experiment: Experiment, machine: Machine, placement: Placement) -> None:
    """Raises MachineError or ConfigError if the engine is missing or cannot do the job. On this
    machine its interpreter is asked for versions and builds too."""
    serve = experiment.serve
    if not needs_serving(experiment) or serve.url:
        return
    folder = config_dir(experiment.model)
    if folder is not None and has_own_code(folder):
        raise ConfigError(f"model.path: found {OWN_CODE}; no engine runs it")
    chosen = serve.model_copy(update={"engine": placement.engine})
    check_adapters(chosen, max_lora_rank=lora_rank(experiment.model))
    refused = llama_refusal(experiment.model, context_tokens=serve.context_tokens)
    if placement.engine == "llama" and refused:
        raise ConfigError(f'serve.engine = "llama": {refused}')
    if experiment.cluster.serve:
        return  # nodes check their own installation
    if machine.is_here:
        gpus = [gpu for replica in placement.serve for gpu in replica]
        check_engine(chosen, gpus=gpus)
    elif placement.engine not in machine.engines:
        raise MachineError(
            f'serve.engine = "{placement.engine}" is not installed; '
            f"{ENGINES[placement.engine].advice}"
        )


def require_problems(experiment: Experiment, machine: Machine) -> Sequence[Problem] | None:
    """The problems; None if the numbers leave no doubt that there are some, and if they may be
    missing here: for another machine, or before a data set is fetched from the hub. Raises
    ConfigError if a stage has no problems."""
    table = experiment.problems
    if not table.has_others and is_ample(table):
        return None
    paths = [part.path for part in table.parts() if part.source != "generated" and part.path]
    missing = [path for path in paths if not path.exists()]
    if missing and (machine.assumed or all(is_hub_name(str(path)) for path in missing)):
        return None
    problems = load_problems(table, seed=experiment.seed)
    num_heldout = sum(problem.split is Split.HELDOUT for problem in problems)
    trains = any(isinstance(stage, GrpoStage) for stage in experiment.stage)
    for index, stage in enumerate(experiment.stage):
        is_own = isinstance(stage, SftStage) and stage.source != "data"
        if is_own or (isinstance(stage, SftStage) and not experiment.data.has_generated):
            continue  # its rows come from elsewhere
        split = Split(stage.kind) if isinstance(stage, TrainStage) else split_of(stage)
        is_evaluated = split is Split.HELDOUT or (split is Split.GRPO and experiment.eval.every)
        if is_evaluated and trains and not num_heldout and table.num_heldout != SHARED:
            raise ConfigError(
                f"problems: {len(problems)} problems, none of them held out, and stage {index} "
                f'({stage.kind}) evaluates; use = "heldout" or "both" for a source, or {SHARE}'
            )
        if not in_split(problems, split):
            is_drawn = table.heldout_levels is None and any(p.use == "both" for p in table.parts())
            if table.has_others and is_drawn and len(problems) == num_heldout:
                distinct = len({digest_of(problem) for problem in problems})
                found = f"{count(num_heldout, 'problem')} ({distinct} distinct)"
                raise ConfigError(
                    f"problems.num_heldout: found {found}, all held out, which leaves none for "
                    f"stage {index} ({stage.kind}); fewer held out, more distinct problems, or "
                    f"{SHARE}"
                )
            if table.has_others:
                raise ConfigError(
                    f"problems: {len(problems)} problems, and none of them for stage {index} "
                    f"({stage.kind}); levels and the sources' use divide them"
                )
            raise ConfigError(
                f"problems.sft_by_level: {table.sft_by_level} of {table.num_problems} problems, "
                f"{table.num_reserved} of them held out, leaves none for stage {index} "
                f"({stage.kind}); sft trains on that many problems of each chain length, grpo "
                "plays the rest"
            )
    return problems


def require_prompts(experiment: Experiment, machine: Machine) -> PromptSet | None:
    """The prompts, without facts about judges; None if a file is missing here that an assumed
    machine may have. Raises ConfigError if a template or the example of `[prompt]` cannot be used.
    """
    table = experiment.prompt
    named = (table.system, table.first, table.feedback, table.example or None)
    if machine.assumed and not all(path is None or path.exists() for path in named):
        return None
    return make_prompts(table)


def require_template(
    experiment: Experiment, prompts: PromptSet | None, problems: Sequence[Problem] | None = None
) -> tuple[str, ...]:
    """Lines about messages that are joined for the chat template of the model, and about room in
    the context, where the prompt of one of the problems must fit; none for a model that is not on
    this machine. Raises ConfigError if the tokenizer or the template cannot be used, or not for as
    many turns; or no prompt fits the context."""
    model = experiment.model
    folder = config_dir(model)
    if folder is None and model.is_gguf:
        template = _gguf_template(model)
        return (template.note,) if template and template.note else ()
    if folder is None or not (folder / "tokenizer.json").is_file():
        return ()
    thinking = experiment.prompt.thinking
    chat = ChatTemplate.load(folder, chat_template=model.chat_template, thinking=thinking)
    question, answer = (Message(role=role, content="") for role in ("user", "assistant"))
    found = [chat.template.note]
    if needs_serving(experiment) and turns_played(experiment) > 1:
        chat.prompt([question, answer, question])
    if needs_serving(experiment) and prompts is not None:
        prompter = TemplatePrompter(
            prompts=prompts, chat=chat, context_tokens=experiment.serve.context_tokens,
            max_completion_tokens=experiment.rollout.max_completion_tokens,
            tools=tuple(experiment.rollout.tools), max_calls=experiment.rollout.tool_calls,
            has_template=not experiment.serve.url,
        )  # fmt: skip
        turns = turns_trained(experiment)
        found.append(prompter.require_room(problems or [NO_SOURCE], max_turns=turns))
    return tuple(filter(None, found))


def _gguf_template(model: ModelTable) -> Template | None:
    """The template of a GGUF file that no model directory was made of; None for ChatML."""
    source = read_gguf(Path(model.path or "").expanduser())
    name, text = f"{source.path}: tokenizer.chat_template", source.chat_template
    if model.chat_template is not None:
        name, text = KEY, text_of(model.chat_template)
    if text is None:
        raise absent_template(source.path)
    return None if text == CHATML else try_template(name, text, source.special_tokens)


IPC = 'serve.weights: found "ipc"'
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = "expandable_segments:True"


def require_trainer(experiment: Experiment, placement: Placement, *, is_here: bool) -> None:
    """Refuses what the trainer cannot do with this model on these cards, or on this machine: one
    line for each stage and limit in a ConfigError, or a MachineError for a missing package."""
    model, folder = experiment.model, config_dir(experiment.model)
    shape = None if folder else model_shape(model)
    stages = enumerate(experiment.stage)
    trained = [(index, stage) for index, stage in stages if isinstance(stage, TrainStage)]
    lines = list[str]()
    for index, stage in trained:
        found = refusals(
            stage, model=model, model_dir=folder or Path(model.path or "").expanduser(),
            num_gpus=num_ranks(experiment, placement.train),
            has_experts=shape.is_mixture if shape else None,
        )  # fmt: skip
        lines += [line if line.startswith("model.") else f"stage.{index}.{line}" for line in found]
    if trained and experiment.serve.weights == "ipc":
        if shape.is_mixture if shape else is_mixture(folder or Path()):
            lines.append(f'{IPC} for a mixture of experts, whose files have other tensors; "files"')
        if not placement.train:
            lines.append(f'{IPC}, and the trainer has no GPU; "files", or devices.train = 1')
        for name in ALLOCATOR if is_here else ():
            if EXPANDABLE in os.environ.get(name, "").replace(" ", ""):
                lines.append(
                    f"{IPC}, and {name} has {EXPANDABLE}, memory that no other process can open; "
                    f'"files", or {name} without it'
                )
    if lines:
        raise ConfigError("\n".join(dict.fromkeys(lines)))
    for index, stage in trained if is_here else ():
        for name in ("transformers", "trl", "peft"):
            _require_package(name, f"stage {index}: training")
        if missing := missing_package(stage, model=model):
            raise MachineError(f"stage {index}: {missing}")


def require_packages(experiment: Experiment) -> None:
    """Requirements of judges, sinks and `[cluster]` on this machine. Nodes are asked later: a plan
    connects to nothing. Raises ConfigError, or MachineError for a missing package."""
    judge, address = experiment.judge, experiment.cluster.address
    if not judge.url:
        require_installed(judge.site_packages)
        require_target(judge.target)
    for name in experiment.sinks.to:
        _require_package(name, f'sinks.to = "{name}"')
    if address is not None:
        _require_package("ray", f'cluster.address = "{address}"')


def _require_package(name: str, needed_by: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise MachineError(
            f"{needed_by} needs {name}, which is not installed; "
            f"{sys.executable} -m pip install {name}"
        )
