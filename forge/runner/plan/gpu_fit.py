"""Checks that the roles of a layout fit the memory of their cards, and limits the engine if needed.

A role alone on a card gets all it asks for. On a shared card an engine that takes a share of the
memory (vllm) is limited first. If even its minimum does not fit beside a step of the trainer, it
sleeps while the trainer steps. If that does not suffice, the plan is refused with the sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forge.config.schema import EvalStage
from forge.errors import ConfigError, MachineError
from forge.runner.plan.gpu_costs import ASLEEP_BYTES, judge_bytes, serve_bytes, train_bytes
from forge.runner.plan.model_shape import model_shape
from forge.runner.plan.prefix_sharing import settled
from forge.views.text.numbers import gigabytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forge.config.schema import Experiment
    from forge.process.devices import Gpu
    from forge.process.gpu_users import GpuUser
    from forge.runner.plan.gpu_costs import ServeBytes, TrainBytes
    from forge.runner.plan.layout import Layout
    from forge.runner.plan.model_shape import ModelShape

CAN_SLEEP = frozenset({"vllm", "hf"})
TAKES_SHARE = frozenset({"vllm"})
"""Engines that take serve.memory_share of a card for any model."""
DRIVER_SHARE = 0.02
"""Share of a card that the driver keeps."""


class CardBusy(MachineError):
    """Other processes hold too much memory of a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Settings with which a layout fits its cards."""

    parallel: str = "ddp"
    """Resolved `parallel = "auto"` of the stages."""
    sleeps: bool = False
    """True if engines free their memory while the trainer steps."""
    memory_share: float | None = None
    """Share of a card that an engine may take; None means serve.memory_share."""
    bytes_by_gpu: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict[str, Mapping[str, int]]
    )
    """UUID to role (`serve`, `judge`, `train`) to maximum bytes."""
    reasons: tuple[str, ...] = ()
    """Messages that explain choices the experiment left open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CardLoad:
    """Memory that one card has to provide."""

    gpu: Gpu
    num_replicas: int
    """Replicas on this card."""
    serve_least: int
    """Minimum of its replicas together."""
    serve_full: int
    """Full need of its replicas together."""
    judge: int
    train: TrainBytes | None
    users: tuple[GpuUser, ...]

    @property
    def room(self) -> int:
        """Memory for this run: what other users of the card leave."""
        usable = int(self.gpu.memory_bytes * (1 - DRIVER_SHARE))
        return min(usable, self.gpu.free_bytes) if self.users else usable

    @property
    def train_peak(self) -> int:
        return self.train.peak if self.train else 0

    @property
    def train_resident(self) -> int:
        return self.train.resident if self.train else 0


def fit(
    experiment: Experiment,
    layout: Layout,
    *,
    engine: str,
    users: Mapping[str, tuple[GpuUser, ...]],
) -> Fit:
    """Fits a layout to the memory of its cards. A model of unknown shape is not checked.

    Args:
        engine: the engine that serves.
        users: other processes by card.

    Raises:
        ConfigError: `serve.sleep = "always"` with an engine that cannot sleep.
        CardBusy: it would fit without the other processes.
        MachineError: it does not fit; the message has the sums.
    """
    shape = model_shape(experiment.model)
    if shape is None:
        reason = f"{experiment.model.path}: unknown size, so GPU memory is not checked"
        return Fit(reasons=(reason,) if layout.gpus else ())
    if experiment.serve.sleep == "always" and engine not in CAN_SLEEP and layout.serve:
        raise ConfigError(
            f'serve.sleep = "always": engine {engine} cannot sleep; "auto" or "never" is allowed'
        )
    experiment = settled(experiment, gpus=layout.train)
    parallel, why = _parallel(experiment, layout, shape)
    serve = experiment.serve
    need = serve_bytes(
        serve, experiment.model, shape, engine=engine, num_gpus=serve.tensor_parallel
    )
    train = _train_bytes(experiment, layout, shape, parallel=parallel) if layout.train else None
    loads = [
        _load(experiment, layout, gpu, need, train, engine=engine, users=users.get(gpu.uuid, ()))
        for gpu in layout.gpus
    ]
    return _settle(experiment, loads, engine=engine, parallel=parallel, reasons=why)


def _parallel(
    experiment: Experiment, layout: Layout, shape: ModelShape
) -> tuple[str, tuple[str, ...]]:
    """ddp if a whole trainer fits a card, else fsdp2, unless a stage sets it; and the reason."""
    stages = [stage for stage in experiment.stage if not isinstance(stage, EvalStage)]
    demanded = {stage.parallel for stage in stages} - {"auto"}
    if len(layout.train) < 2 or demanded:
        return ("fsdp2" if demanded == {"fsdp2"} else "ddp"), ()
    smallest = min(gpu.memory_bytes for gpu in layout.train)
    need = _train_bytes(experiment, layout, shape, parallel="ddp").peak
    num = len(layout.train)
    if need <= smallest * (1 - DRIVER_SHARE) or experiment.model.quantize is not None:
        return "ddp", (f"trainer on {num} GPUs: ddp, {gigabytes(need)} on each",)
    return "fsdp2", (f"trainer on {num} GPUs: fsdp2, since ddp needs {gigabytes(need)} on each",)


def _train_bytes(
    experiment: Experiment, layout: Layout, shape: ModelShape, *, parallel: str
) -> TrainBytes:
    """GPU memory of a rank in the stage that needs the most."""
    ranks = [
        train_bytes(
            stage,
            experiment.model,
            shape,
            num_gpus=len(layout.train),
            parallel=parallel,
            context_tokens=experiment.serve.context_tokens,
        )
        for stage in experiment.stage
        if not isinstance(stage, EvalStage)
    ]
    return max(ranks, key=lambda rank: rank.peak)


def _load(
    experiment: Experiment,
    layout: Layout,
    gpu: Gpu,
    need: ServeBytes,
    train: TrainBytes | None,
    *,
    engine: str,
    users: tuple[GpuUser, ...],
) -> _CardLoad:
    num_replicas = sum(gpu in replica for replica in layout.serve)
    full = num_replicas * need.full
    if engine in TAKES_SHARE and num_replicas:
        full = int(experiment.serve.memory_share * gpu.memory_bytes)
    judge = judge_bytes(experiment.problems, memory_bytes=gpu.memory_bytes)
    return _CardLoad(
        gpu=gpu,
        num_replicas=num_replicas,
        serve_least=num_replicas * need.least,
        serve_full=full,
        judge=judge if gpu in layout.judge else 0,
        train=train if gpu in layout.train else None,
        users=users,
    )


def _settle(
    experiment: Experiment,
    loads: list[_CardLoad],
    *,
    engine: str,
    parallel: str,
    reasons: tuple[str, ...],
) -> Fit:
    serving = [load for load in loads if load.num_replicas]
    # Sleep helps only where the trainer is on the engine's card.
    may_sleep = engine in CAN_SLEEP and experiment.serve.sleep != "never"
    must_sleep = experiment.serve.sleep == "always"
    rooms = {load.gpu.uuid: load.room - load.judge - load.train_peak for load in serving}
    is_tight = any(rooms[load.gpu.uuid] < load.serve_least for load in serving)
    has_both = any(load.train is not None for load in serving)
    sleeps = may_sleep and has_both and (must_sleep or is_tight)
    if sleeps:
        rooms = {load.gpu.uuid: load.room - load.judge - load.train_resident for load in serving}
    for load in loads:
        _require(experiment, load, sleeps=sleeps, engine=engine)
    share, bounded = experiment.serve.memory_share, False
    if engine in TAKES_SHARE:
        for load in serving:
            fits = math.floor(100 * rooms[load.gpu.uuid] / load.gpu.memory_bytes) / 100
            bounded = bounded or fits < share
            share = min(share, fits)
    return Fit(
        parallel=parallel,
        sleeps=sleeps,
        memory_share=share / max(load.num_replicas for load in serving)
        if engine in TAKES_SHARE and serving
        else None,
        bytes_by_gpu={load.gpu.uuid: _by_role(load, share, engine=engine) for load in loads},
        reasons=(*reasons, *_reasons(experiment, share if bounded else None, sleeps=sleeps)),
    )


def _reasons(experiment: Experiment, share: float | None, *, sleeps: bool) -> Iterator[str]:
    if share is not None:
        yield (
            f"the engine takes {share:.0%} of its GPU instead of serve.memory_share = "
            f"{experiment.serve.memory_share:.0%}: more does not fit beside the other roles"
        )
    if sleeps and experiment.serve.sleep == "auto":
        yield "the engine sleeps while the trainer steps: together they do not fit the GPU"
    elif sleeps:
        yield "the engine sleeps while the trainer steps (serve.sleep = always)"


def _require(experiment: Experiment, load: _CardLoad, *, sleeps: bool, engine: str) -> None:
    """Raises MachineError or CardBusy if a card has too little memory."""
    serve = load.serve_least if engine in TAKES_SHARE else load.serve_full
    serve = serve if load.num_replicas else 0
    while_stepping = (ASLEEP_BYTES if serve and sleeps else serve) + load.train_peak + load.judge
    while_playing = serve + load.train_resident + load.judge
    need = max(while_stepping, while_playing)
    sums = {"serve": serve, "judge": load.judge, "train": load.train_peak}
    named = f"{experiment.name}: GPU {load.gpu.index} ({load.gpu.name})"
    if need > load.room:
        asleep = ", the engine asleep while the trainer steps" if sleeps else ""
        listed = ", ".join(f"{role} {gigabytes(part)}" for role, part in sums.items() if part)
        kind = CardBusy if load.users else MachineError
        raise kind(
            f"{named} needs {gigabytes(need)} ({listed}{asleep}); {_memory_of(load)}. "
            f"{_advice(experiment, load)}"
        )
    share = experiment.serve.memory_share
    if engine in TAKES_SHARE and load.serve_full < serve:
        raise MachineError(
            f"{named}: the engine needs {gigabytes(serve)}; serve.memory_share = {share:g} of the "
            f"GPU is {gigabytes(load.serve_full)}"
        )


def _memory_of(load: _CardLoad) -> str:
    """The card's memory and its other users."""
    if not load.users:
        return f"it has {gigabytes(load.gpu.memory_bytes)}"
    others = ", ".join(map(str, load.users))
    return (
        f"{gigabytes(load.gpu.free_bytes)} of {gigabytes(load.gpu.memory_bytes)} are free: {others}"
    )


def _advice(experiment: Experiment, load: _CardLoad) -> str:
    if load.users:
        return "Wait for them to end, or name other GPUs in devices.gpus"
    if load.train is not None and load.train_resident > load.room:
        return "More GPUs for devices.train with fsdp2, or [model.lora], would help"
    if load.train is not None and (load.num_replicas or load.judge):
        return "A GPU for each role, a smaller micro_batch_tokens, or [model.lora] would help"
    if load.train is not None:
        return (
            "A smaller micro_batch_tokens, more GPUs for devices.train, or [model.lora] would help"
        )
    if experiment.serve.tensor_parallel == 1 and load.num_replicas:
        return "serve.tensor_parallel spreads a replica over GPUs; fewer serve.slots save memory"
    return "Fewer serve.slots or a smaller serve.context_tokens would help"


def _by_role(load: _CardLoad, share: float, *, engine: str) -> dict[str, int]:
    serve = int(share * load.gpu.memory_bytes) if engine in TAKES_SHARE else load.serve_full
    if not load.num_replicas:
        serve = 0
    parts = {"serve": serve, "judge": load.judge, "train": load.train_peak}
    return {role: part for role, part in parts.items() if part}
