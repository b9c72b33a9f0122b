"""Checks that the roles of a layout fit the memory of their cards, and limits the engine if needed.

A role alone on a card gets all it asks for. On a shared card an engine that takes a share of the
memory (vllm) is limited first. If even its minimum does not fit beside a step of the trainer, it
sleeps while the trainer steps. If that does not suffice, the plan is refused with the sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forge.config.schema import EvalStage
from forge.errors import ConfigError, MachineError
from forge.runner.plan.gpu_costs import (
    ASLEEP_BYTES,
    TrainBytes,
    judge_bytes,
    serve_bytes,
    train_bytes,
)
from forge.runner.plan.model_shape import model_shape
from forge.runner.plan.needs import num_ranks
from forge.runner.plan.packing import settled
from forge.views.text.numbers import gigabytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forge.config.schema import Experiment
    from forge.process.devices import Gpu, GpuUser
    from forge.runner.plan.gpu_costs import ServeBytes
    from forge.runner.plan.model_shape import ModelShape
    from forge.runner.plan.placement import Placement

CAN_SLEEP = frozenset({"vllm", "hf"})
TAKES_SHARE = frozenset({"vllm"})
"""Engines that take serve.memory_share of a card for any model."""
DRIVER_SHARE = 0.02
"""Share of a card that the driver keeps."""
NO_TRAINER = TrainBytes(resident=0, peak=0)


class CardBusy(MachineError):
    """Other processes hold too much memory of a card."""


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
    serve_fixed: int
    """Part of it without a KV cache."""
    judge: int
    train: TrainBytes
    """Zeros without a rank on this card."""
    users: tuple[GpuUser, ...]

    @property
    def room(self) -> int:
        """Memory for this run: what other users of the card leave."""
        usable = int(self.gpu.memory_bytes * (1 - DRIVER_SHARE))
        return min(usable, self.gpu.free_bytes) if self.users else usable


def fit(
    experiment: Experiment, placed: Placement, *, users: Mapping[str, tuple[GpuUser, ...]]
) -> Placement:
    """Sets what makes the roles fit the memory of their cards. A model of unknown shape is not
    checked.

    Args:
        placed: the cards of each role, and the engine.
        users: other processes by card.

    Raises:
        ConfigError: `serve.sleep = "always"` with an engine that cannot sleep.
        CardBusy: it would fit without the other processes.
        MachineError: it does not fit; the message has the sums.
    """
    shape = model_shape(experiment.model)
    if shape is None:
        reason = f"{experiment.model.path}: unknown size, so GPU memory is not checked"
        return replace(placed, reasons=(*placed.reasons, reason)) if placed.gpus else placed
    if experiment.serve.sleep == "always" and placed.engine not in CAN_SLEEP and placed.serve:
        raise ConfigError(
            f'serve.sleep = "always": engine {placed.engine} cannot sleep; "auto" or "never" is '
            "allowed"
        )
    experiment = settled(experiment, gpus=placed.train)
    placed = _with_parallel(experiment, placed, shape)
    serve = serve_bytes(
        experiment.serve, experiment.model, shape,
        engine=placed.engine, num_gpus=experiment.serve.tensor_parallel,
    )  # fmt: skip
    train = _train_bytes(experiment, placed, shape) if placed.train else NO_TRAINER
    loads = [
        _load(experiment, placed, gpu, serve, train, users=users.get(gpu.uuid, ()))
        for gpu in placed.gpus
    ]
    return _settle(experiment, placed, loads)


def _with_parallel(experiment: Experiment, placed: Placement, shape: ModelShape) -> Placement:
    """ddp if a whole trainer fits a card, else fsdp2, unless a stage sets it; and the reason."""
    stages = [stage for stage in experiment.stage if not isinstance(stage, EvalStage)]
    demanded = {stage.parallel for stage in stages} - {"auto"}
    num = num_ranks(experiment, placed.train)
    if not placed.train or num < 2 or demanded:
        return replace(placed, parallel="fsdp2" if demanded == {"fsdp2"} else "ddp")
    smallest = min(gpu.memory_bytes for gpu in placed.train)
    need = _train_bytes(experiment, placed, shape).peak
    if need <= smallest * (1 - DRIVER_SHARE) or experiment.model.quantize is not None:
        parallel, why = "ddp", f"ddp, {gigabytes(need)} on each"
    else:
        parallel, why = "fsdp2", f"fsdp2, since ddp needs {gigabytes(need)} on each"
    reasons = (*placed.reasons, f"trainer on {num} GPUs: {why}")
    return replace(placed, parallel=parallel, reasons=reasons)


def _train_bytes(experiment: Experiment, placed: Placement, shape: ModelShape) -> TrainBytes:
    """GPU memory of a rank in the stage that needs the most."""
    ranks = [
        train_bytes(
            stage, experiment.model, shape, num_gpus=num_ranks(experiment, placed.train),
            parallel=placed.parallel, context_tokens=experiment.serve.context_tokens,
        )
        for stage in experiment.stage
        if not isinstance(stage, EvalStage)
    ]  # fmt: skip
    return max(ranks, key=lambda rank: rank.peak)


def _load(
    experiment: Experiment,
    placed: Placement,
    gpu: Gpu,
    serve: ServeBytes,
    train: TrainBytes,
    *,
    users: tuple[GpuUser, ...],
) -> _CardLoad:
    num_replicas = sum(gpu in replica for replica in placed.serve)
    full = num_replicas * serve.full
    if placed.engine in TAKES_SHARE and num_replicas:
        full = int(experiment.serve.memory_share * gpu.memory_bytes)
    judge = judge_bytes(experiment.problems, memory_bytes=gpu.memory_bytes)
    return _CardLoad(
        gpu=gpu,
        num_replicas=num_replicas,
        serve_least=num_replicas * serve.least,
        serve_full=full,
        serve_fixed=num_replicas * serve.fixed,
        judge=judge if gpu in placed.judge else 0,
        train=train if gpu in placed.train else NO_TRAINER,
        users=users,
    )


def _settle(experiment: Experiment, placed: Placement, loads: list[_CardLoad]) -> Placement:
    serving = [load for load in loads if load.num_replicas]
    sleep, share = experiment.serve.sleep, experiment.serve.memory_share
    is_tight = any(load.room - load.judge - load.train.peak < load.serve_least for load in serving)
    # Sleep helps only where the trainer is on the engine's card.
    may_sleep = placed.engine in CAN_SLEEP and any(load.train.peak for load in serving)
    sleeps = may_sleep and (sleep == "always" or (sleep == "auto" and is_tight))
    takes_share = placed.engine in TAKES_SHARE
    for load in loads:
        _require(experiment, load, sleeps=sleeps, takes_share=takes_share)
    for load in serving if takes_share else ():
        room = load.room - load.judge - (load.train.resident if sleeps else load.train.peak)
        share = min(share, math.floor(100 * room / load.gpu.memory_bytes) / 100)
    most = max((load.num_replicas for load in serving), default=0)
    return replace(
        placed,
        sleeps=sleeps,
        memory_share=share / most if takes_share and most else None,
        bytes_by_gpu={
            load.gpu.uuid: _by_role(load, share if takes_share else None) for load in loads
        },
        reasons=(*placed.reasons, *_reasons(experiment, share, sleeps=sleeps)),
    )


def _reasons(experiment: Experiment, share: float, *, sleeps: bool) -> Iterator[str]:
    if share < experiment.serve.memory_share:
        yield (
            f"the engine takes {share:.0%} of its GPU instead of serve.memory_share = "
            f"{experiment.serve.memory_share:.0%}: more does not fit beside the other roles"
        )
    if sleeps and experiment.serve.sleep == "auto":
        yield "the engine sleeps while the trainer steps: together they do not fit the GPU"
    elif sleeps:
        yield "the engine sleeps while the trainer steps (serve.sleep = always)"


def _require(experiment: Experiment, load: _CardLoad, *, sleeps: bool, takes_share: bool) -> None:
    """Raises MachineError or CardBusy if a card has too little memory."""
    serve = load.serve_least if takes_share else load.serve_full
    while_stepping = (ASLEEP_BYTES if serve and sleeps else serve) + load.train.peak
    need = max(while_stepping, serve + load.train.resident) + load.judge
    sums = {"serve": serve, "judge": load.judge, "train": load.train.peak}
    named = f"{experiment.name}: GPU {load.gpu.index} ({load.gpu.name})"
    if need > load.room:
        asleep = ", the engine asleep while the trainer steps" if sleeps else ""
        listed = ", ".join(f"{role} {gigabytes(part)}" for role, part in sums.items() if part)
        kind = CardBusy if load.users else MachineError
        raise kind(
            f"{named} needs {gigabytes(need)} ({listed}{asleep}); "
            f"{_memory_and_advice(experiment, load, serve=serve)}"
        )
    if load.serve_full < serve:  # only if it takes a share
        raise MachineError(
            f"{named}: the engine needs {gigabytes(serve)}; serve.memory_share = "
            f"{experiment.serve.memory_share:g} of the GPU is {gigabytes(load.serve_full)}. "
            f"Raise the share, or: {_smaller_engine(experiment)}"
        )


def _largest(experiment: Experiment, load: _CardLoad, *, serve: int) -> str:
    """The largest part of a card's load, with the keys that make it smaller."""
    faster = 'serve.precision = "fast" halves them'
    if experiment.serve.precision == "fast":
        faster = "serve.tensor_parallel spreads them; [model.quantize] is the trainer's alone"
    fewer = "a larger GPU"  # 4-bit weights cannot be sharded
    if experiment.model.quantize is None:
        table = "[model.quantize]" if experiment.model.lora else "[model.lora]"
        fewer = f"{table}, or devices.train of more GPUs with fsdp2"
    state, step = load.train.resident, load.train.peak - load.train.resident
    smaller = 'problems.sizes = "small", ' * (experiment.problems.sizes == "gpu")
    parts = {
        f"the engine's weights ({faster})": load.serve_fixed,
        "the KV cache (serve.slots, serve.context_tokens)": serve - load.serve_fixed,
        f"the judge ({smaller}devices.judge on a GPU of its own, judge.url)": load.judge,
        f"the trainer's weights and state ({fewer})": state,
        "a step's activations (micro_batch_tokens)": step,
    }
    name = max(parts, key=parts.__getitem__)
    return f"{gigabytes(parts[name])} are {name}"


def _memory_and_advice(experiment: Experiment, load: _CardLoad, *, serve: int) -> str:
    memory = gigabytes(load.gpu.memory_bytes)
    if load.users:
        others = ", ".join(map(str, load.users))
        return (
            f"{gigabytes(load.gpu.free_bytes)} of {memory} are free: {others}. "
            "Wait for them to end, or name other GPUs in devices.gpus"
        )
    is_shared = sum(map(bool, (load.num_replicas, load.judge, load.train.peak))) > 1
    alone = ". A GPU for each role would help" * is_shared
    return f"it has {memory}; {_largest(experiment, load, serve=serve)}{alone}"


def _smaller_engine(experiment: Experiment) -> str:
    """Advice for an engine that is too large."""
    if experiment.serve.tensor_parallel == 1:
        return "serve.tensor_parallel spreads a replica over GPUs; fewer serve.slots save memory"
    return "Fewer serve.slots or a smaller serve.context_tokens would help"


def _by_role(load: _CardLoad, share: float | None) -> dict[str, int]:
    serve = load.serve_full
    if share is not None and load.num_replicas:
        serve = int(share * load.gpu.memory_bytes)
    parts = {"serve": serve, "judge": load.judge, "train": load.train.peak}
    return {role: part for role, part in parts.items() if part}
