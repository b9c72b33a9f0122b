"""What a run will do, before anything starts: processes on devices, predicted seconds, memory and
disk.

`plan` is pure in the experiment, its problem files and the machine, imports no torch, and raises
for what cannot work: so `forge plan` says it, and a run before it has a directory. `forge plan`
prints it, `run` and `resume` call it first. Predictions are for CPU runs; a GPU phase has none.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from forge.config.schema import EvalStage, Experiment, GrpoStage, SftStage
from forge.data.generator import is_ample
from forge.data.problems import load_problems
from forge.data.splits import in_split
from forge.errors import ConfigError, MachineError
from forge.records import Split
from forge.runner import costs
from forge.runner.machine import Machine, this_machine
from forge.runner.predict import PhasePlan, is_served, predict_disk_bytes, predict_phases

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.process.devices import Gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """One process of the run."""

    name: str
    device: str
    """GPU UUIDs, or `cpu`."""
    threads: int
    memory_bytes: int | None
    stages: str
    """When it lives: `all`, or the stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The whole."""

    name: str
    params: int | None
    cores: int
    processes: tuple[ProcessPlan, ...]
    phases: tuple[PhasePlan, ...]
    memory_bytes: int | None
    """At the widest moment."""
    disk_bytes: int | None
    notes: tuple[str, ...]
    """What is allowed and unwise."""

    @property
    def cpu_s(self) -> float | None:
        """Seconds of one core, all phases together."""
        return _total([phase.cpu_s for phase in self.phases])

    @property
    def wall_s(self) -> float | None:
        """Seconds on this machine's cores."""
        return _total([phase.wall_s for phase in self.phases])

    def to_json(self) -> dict[str, Any]:
        """What `forge plan --json` prints."""
        return {**asdict(self), "cpu_s": self.cpu_s, "wall_s": self.wall_s}


def plan(experiment: Experiment, *, machine: Machine | None = None) -> Plan:
    """Lays a run out on a machine (this one, unless given).

    Raises:
        ConfigError: problems cannot be loaded, or a stage has none.
        MachineError: GPUs, disk or an engine are missing.
    """
    machine = this_machine(experiment.store.dir) if machine is None else machine
    gpus = _assign(experiment, machine)
    _require(experiment, machine)
    _require_problems(experiment)
    params = costs.count_params(experiment.model)
    processes = tuple(_processes(experiment, gpus=gpus, params=params))
    phases = tuple(predict_phases(experiment, machine=machine, params=params))
    memory = _total([process.memory_bytes for process in processes])
    disk = predict_disk_bytes(experiment, params=params)
    return Plan(
        name=experiment.name,
        params=params,
        cores=machine.cores,
        processes=processes,
        phases=phases,
        memory_bytes=None if memory is None else int(memory),
        disk_bytes=disk,
        notes=tuple(_notes(experiment, machine=machine, memory=memory, disk=disk)),
    )


def _assign(experiment: Experiment, machine: Machine) -> dict[str, tuple[Gpu, ...]]:
    """Cards by role: serve first, then judge, then train, in the order in which they were given."""
    devices = experiment.devices
    wanted = {role: int(getattr(devices, role)) for role in ("serve", "judge", "train")}
    allowed = list(machine.gpus)
    if isinstance(devices.gpus, list):
        allowed = [_find(name, machine.gpus) for name in devices.gpus]
    total = sum(wanted.values())
    if total > len(allowed):
        split = ", ".join(f"{role} {num}" for role, num in wanted.items() if num)
        has = f"this machine has {len(machine.gpus)}"
        if len(allowed) < len(machine.gpus):
            has = f"devices.gpus names {len(allowed)}"
        raise MachineError(
            f"{experiment.name} needs {total} {'GPU' if total == 1 else 'GPUs'} ({split}); {has}. "
            f'"forge plan" shows the split; experiments/quickstart.toml needs none.'
        )
    cards = iter(allowed)
    return {role: tuple(next(cards) for _ in range(num)) for role, num in wanted.items()}


def _find(name: str, gpus: tuple[Gpu, ...]) -> Gpu:
    for gpu in gpus:
        if name in (str(gpu.index), gpu.uuid):
            return gpu
    there = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in gpus) or "none"
    raise MachineError(f'devices.gpus: found "{name}"; the GPUs of this machine are: {there}')


def _require(experiment: Experiment, machine: Machine) -> None:
    store, serve = experiment.store, experiment.serve
    if machine.free_disk_bytes < store.min_free_bytes:
        raise MachineError(
            f"{store.dir}: {machine.free_disk_bytes / 1e9:.2f} GB of disk are free; a run stops "
            f"below store.min_free_bytes = {store.min_free_bytes / 1e9:.2f} GB. Free some; a new "
            f"run can lie elsewhere with --set store.dir=DIR"
        )
    engine = "llama" if serve.engine == "auto" else serve.engine
    if is_served(experiment) and not serve.python and engine not in machine.engines:
        raise MachineError(f'serve.engine = "{engine}" is not installed; "make setup" compiles it')


def _require_problems(experiment: Experiment) -> None:
    """Loads them where a run could lack some; from numbers that leave no doubt, it does not."""
    table = experiment.problems
    if table.source == "generated" and is_ample(table):
        return
    problems = load_problems(table, seed=experiment.seed)
    for index, stage in enumerate(experiment.stage):
        split = {SftStage: Split.SFT, GrpoStage: Split.GRPO}.get(type(stage), Split.HELDOUT)
        if not in_split(problems, split):
            raise ConfigError(
                f"problems.sft_by_level: {table.sft_by_level} of {table.num_problems} problems, "
                f"{table.num_heldout} of them held out, leaves none for stage {index} "
                f"({stage.kind}); sft sees the answers of these many by chain length, grpo plays "
                "the rest"
            )


def _processes(
    experiment: Experiment, *, gpus: dict[str, tuple[Gpu, ...]], params: int | None
) -> Iterator[ProcessPlan]:
    serve, judge = experiment.serve, experiment.judge
    num_judges = 0 if judge.url else len(gpus["judge"]) or judge.workers
    yield ProcessPlan(
        name="supervisor", device="cpu", threads=1, memory_bytes=costs.SUPERVISOR_BYTES,
        stages="all",
    )  # fmt: skip
    for index in range(serve.replicas if is_served(experiment) else 0):
        size = params and costs.replica_bytes(serve, experiment.model, params=params)
        share = _share(gpus["serve"], index, serve.replicas)
        yield ProcessPlan(
            name=f"serve-{index}", device=_device(share), threads=serve.threads,
            memory_bytes=size, stages="eval, grpo",
        )  # fmt: skip
    for index in range(num_judges):
        yield ProcessPlan(
            name=f"judge-{index}", device=_device(gpus["judge"][index : index + 1]), threads=1,
            memory_bytes=costs.JUDGE_BYTES, stages="prepare, eval, grpo",
        )  # fmt: skip
    trained = [stage for stage in experiment.stage if not isinstance(stage, EvalStage)]
    if trained:
        size = params and costs.TORCH_PROCESS_BYTES + params * costs.TRAIN_BYTES_PER_PARAM
        yield ProcessPlan(
            name="trainer", device=_device(gpus["train"]),
            threads=max(stage.threads for stage in trained), memory_bytes=size,
            stages=", ".join(dict.fromkeys(stage.kind for stage in trained)),
        )  # fmt: skip


def _share(gpus: tuple[Gpu, ...], index: int, num: int) -> tuple[Gpu, ...]:
    """The cards of one replica: an equal part, or one card shared by several replicas."""
    if len(gpus) >= num:
        each = len(gpus) // num
        return gpus[index * each : (index + 1) * each]
    return (gpus[index % len(gpus)],) if gpus else ()


def _device(gpus: tuple[Gpu, ...]) -> str:
    return ", ".join(gpu.uuid for gpu in gpus) or "cpu"


def _notes(
    experiment: Experiment, *, machine: Machine, memory: float | None, disk: int | None
) -> Iterator[str]:
    if memory is not None and memory > machine.memory_bytes:
        yield (
            f"needs about {memory / 1e9:.1f} GB of memory; "
            f"this machine has {machine.memory_bytes / 1e9:.1f} GB"
        )
    room = machine.free_disk_bytes - experiment.store.min_free_bytes
    if disk is not None and disk > room:
        yield f"needs about {disk / 1e9:.1f} GB of disk; {room / 1e9:.1f} GB may be used"
    for index, stage in enumerate(experiment.stage):
        busy = 0 if isinstance(stage, EvalStage) else stage.threads
        busy += experiment.serve.replicas * experiment.serve.threads * isinstance(stage, GrpoStage)
        if busy > machine.cores and not experiment.devices.train:
            yield (
                f"{stage.kind}-{index}: trainer and engine have {busy} threads "
                f"for {machine.cores} cores"
            )
    if experiment.judge.url:
        yield f"judges of other machines or processes: {', '.join(experiment.judge.url)}"
    if experiment.model.path and costs.count_params(experiment.model) is None:
        yield f"{experiment.model.path} is no directory here: nothing is predicted for it"


def _total(values: list[Any]) -> float | None:
    return None if any(value is None for value in values) else sum(values)
