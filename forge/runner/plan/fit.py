"""Fits the roles of a layout into the memory of their cards, or refuses it with what would fit.

A role alone on a card gets all it asks for. On a shared card an engine that takes a share of the
memory (vllm) is limited first. If even its minimum does not fit beside a step of the trainer, it
sleeps while the trainer steps. Activations are kept instead of recomputed where that costs the
other roles nothing. The sums are those of `memory`.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from forge.config.schema import EvalStage, LoraTable, QuantizeTable
from forge.errors import ConfigError, MachineError
from forge.runner.plan.memory import (
    ASLEEP_BYTES,
    ServeBytes,
    TrainBytes,
    judge_bytes,
    micro_batch,
    serve_bytes,
    train_bytes,
)
from forge.runner.plan.needs import num_ranks
from forge.runner.plan.packing import settled
from forge.runner.plan.shape import model_shape
from forge.views.text.numbers import gigabytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from forge.config.schema import Experiment
    from forge.process.devices import Gpu, GpuUser
    from forge.runner.plan.placement import Placement
    from forge.runner.plan.shape import ModelShape

    Users = Mapping[str, tuple[GpuUser, ...]]

CAN_SLEEP = frozenset({"vllm", "hf"})
TAKES_SHARE = frozenset({"vllm"})
"""Engines that take serve.memory_share of a card for any model."""
DRIVER_SHARE = 0.02
"""Share of a card that the driver keeps."""
KEPT_PARTS = (0, 0.25, 0.5, 0.75)
"""Parts of the blocks that are recomputed, tried in order."""
KEPT_SHARE = 0.8
"""Share of a card that a trainer without recomputation may take: peaks were up to 9 % off."""
LESS_SLOTS, LESS_TOKENS, MORE_GPUS = 8, 1024, (2, 4, 8)
CARD_SIZES = (24, 40, 48, 80, 96, 141, 192, 288, *range(400, 4001, 200))
"""Changes that a refusal tries, and names if all cards have room with them."""


class CardBusy(MachineError):
    """Other processes hold too much memory of a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CardLoad:
    """Memory that one card has to provide, by role."""

    gpu: Gpu
    serve: ServeBytes
    """Need of its replicas together."""
    num_replicas: int
    judge: int
    train: TrainBytes
    """Zeros without a rank on this card."""
    users: tuple[GpuUser, ...]

    @property
    def room(self) -> int:
        """Memory for this run: what other users of the card leave."""
        usable = int(self.gpu.memory_bytes * (1 - DRIVER_SHARE))
        return min(usable, self.gpu.free_bytes) if self.users else usable

    def need(self, *, sleeps: bool, takes_share: bool) -> int:
        """Least memory at the moment that takes the most."""
        serve = self.serve.least if takes_share else self.serve.full
        stepping = (ASLEEP_BYTES if serve and sleeps else serve) + self.train.peak
        return max(stepping, serve + self.train.resident) + self.judge


def fit(experiment: Experiment, placed: Placement, *, users: Users) -> Placement:
    """Sets what makes the roles fit the memory of their cards. A model of unknown shape is not
    checked.

    Args:
        placed: the cards of each role, and the engine.
        users: other processes by card.

    Raises:
        ConfigError: `serve.sleep = "always"` with an engine that cannot sleep.
        CardBusy: it would fit without the other processes.
        MachineError: it does not fit; the message has the sums, and what would fit.
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
    found = _fitted(experiment, placed, shape, users=users)
    return _keeping_activations(experiment, found, shape, users=users)


def _fitted(
    experiment: Experiment, placed: Placement, shape: ModelShape, *, users: Users
) -> Placement:
    """`fit` with the placement's own choice of recomputation."""
    placed = _with_parallel(experiment, placed, shape)
    loads = _loads(experiment, placed, shape, users=users)
    serving = [load for load in loads if load.num_replicas]
    takes_share, sleep = placed.engine in TAKES_SHARE, experiment.serve.sleep
    is_tight = any(load.need(sleeps=False, takes_share=takes_share) > load.room for load in serving)
    # Sleep helps only where the trainer is on the engine's card.
    may_sleep = placed.engine in CAN_SLEEP and any(load.train.peak for load in serving)
    sleeps = may_sleep and (sleep == "always" or (sleep == "auto" and is_tight))
    for load in loads:
        if load.need(sleeps=sleeps, takes_share=takes_share) > load.room:
            raise _refusal(experiment, placed, shape, load, sleeps=sleeps)
    share = experiment.serve.memory_share
    for load in serving if takes_share else ():
        if share * load.gpu.memory_bytes < load.serve.least:
            least = math.ceil(100 * load.serve.least / load.gpu.memory_bytes) / 100
            raise MachineError(
                f"{_name(experiment, load)}: the engine needs {gigabytes(load.serve.least)}; "
                f"serve.memory_share = {experiment.serve.memory_share:g} of the GPU is "
                f"{gigabytes(int(share * load.gpu.memory_bytes))}; {least:g} would fit"
            )
    for load in serving if takes_share else ():
        room = load.room - load.judge - (load.train.resident if sleeps else load.train.peak)
        share = min(share, math.floor(100 * room / load.gpu.memory_bytes) / 100)
    most = max((load.num_replicas for load in serving), default=0)
    reasons = _reasons(experiment, share, sleeps=sleeps)
    return replace(
        placed,
        sleeps=sleeps,
        memory_share=share / most if takes_share and most else None,
        bytes_by_gpu={
            load.gpu.uuid: _by_role(load, share if takes_share else None) for load in loads
        },
        reasons=(*placed.reasons, *reasons),
    )


def _keeping_activations(
    experiment: Experiment, found: Placement, shape: ModelShape, *, users: Users
) -> Placement:
    """The placement with as few recomputed blocks as leave all else as it is, if a stage leaves
    them open: a step without any is shorter by a forward pass, a quarter of its work."""
    stages = [stage for stage in experiment.stage if not isinstance(stage, EvalStage)]
    if not found.train or all(stage.gradient_checkpointing is not None for stage in stages):
        return found
    if shape.is_mixture:  # no peak of one that keeps activations was measured yet
        return found
    smallest = min(gpu.memory_bytes for gpu in found.train)
    for part in KEPT_PARTS:
        num = round(part * shape.layers)
        try:
            asked = replace(found, recomputes=num or False)
            kept = _fitted(experiment, asked, shape, users=users)
        except MachineError:
            continue
        peak = max(kept.bytes_by_gpu[gpu.uuid]["train"] for gpu in kept.train)
        same = (kept.sleeps, kept.memory_share) == (found.sleeps, found.memory_share)
        if same and peak <= KEPT_SHARE * smallest:
            which = f"of all but {num} blocks" if num else "of all blocks"
            reason = (
                f"gradient_checkpointing absent: activations {which} are kept, {gigabytes(peak)} "
                f"of {gigabytes(smallest)} at the peak"
            )
            return replace(kept, reasons=(*found.reasons, reason))
    return found


def _with_parallel(experiment: Experiment, placed: Placement, shape: ModelShape) -> Placement:
    """ddp if a whole trainer fits a card, else fsdp2, unless a stage sets it; and the reason."""
    stages = [stage for stage in experiment.stage if not isinstance(stage, EvalStage)]
    demanded = {"fsdp2" if stage.offload else stage.parallel for stage in stages} - {"auto"}
    num = num_ranks(experiment, placed.train)
    if not placed.train or num < 2 or demanded or placed.recomputes is not True:
        kept = placed.parallel if not demanded else "ddp"
        return replace(placed, parallel="fsdp2" if demanded == {"fsdp2"} else kept)
    smallest = min(gpu.memory_bytes for gpu in placed.train)
    need = _train_bytes(experiment, placed, shape, num=num).peak
    if need <= smallest * (1 - DRIVER_SHARE) or experiment.model.quantize is not None:
        parallel, why = "ddp", f"ddp, {gigabytes(need)} on each"
    else:
        parallel, why = "fsdp2", f"fsdp2, since ddp needs {gigabytes(need)} on each"
    reasons = (*placed.reasons, f"trainer on {num} GPUs: {why}")
    return replace(placed, parallel=parallel, reasons=reasons)


def _train_bytes(
    experiment: Experiment, placed: Placement, shape: ModelShape, *, num: int
) -> TrainBytes:
    """GPU memory of a rank in the stage that needs the most."""
    rollout = experiment.rollout
    samples = rollout.groups_per_step * rollout.group_size * rollout.max_turns
    ranks = list[TrainBytes]()
    for stage in settled(experiment, gpus=placed.train).stage:
        if not isinstance(stage, EvalStage):
            tokens, is_whole = micro_batch(
                stage, num_gpus=num, context_tokens=experiment.serve.context_tokens,
                num_samples=samples,
            )  # fmt: skip
            ranks.append(
                train_bytes(
                    stage, experiment.model, shape, num_gpus=num, parallel=placed.parallel,
                    tokens=tokens, is_whole=is_whole, recomputes=placed.recomputes,
                )
            )  # fmt: skip
    return max(ranks, key=lambda rank: rank.peak)


def _loads(
    experiment: Experiment, placed: Placement, shape: ModelShape, *, users: Users
) -> list[_CardLoad]:
    each = serve_bytes(experiment.serve, experiment.model, shape, engine=placed.engine)
    num = num_ranks(experiment, placed.train)
    train = _train_bytes(experiment, placed, shape, num=num) if placed.train else TrainBytes()
    found = list[_CardLoad]()
    for gpu in placed.gpus:
        count = sum(gpu in replica for replica in placed.serve)
        judge = judge_bytes(experiment.problems, memory_bytes=gpu.memory_bytes)
        full = count * each.full
        if placed.engine in TAKES_SHARE and count:
            full = int(experiment.serve.memory_share * gpu.memory_bytes)
        serve = ServeBytes(least=count * each.least, full=full, fixed=count * each.fixed)
        found.append(
            _CardLoad(
                gpu=gpu, serve=serve, num_replicas=count, users=users.get(gpu.uuid, ()),
                judge=judge if gpu in placed.judge else 0,
                train=train if gpu in placed.train else TrainBytes(),
            )
        )  # fmt: skip
    return found


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


def _name(experiment: Experiment, load: _CardLoad) -> str:
    return f"{experiment.name}: GPU {load.gpu.index} ({load.gpu.name})"


def _refusal(
    experiment: Experiment, placed: Placement, shape: ModelShape, load: _CardLoad, *, sleeps: bool
) -> MachineError:
    """The error for a card with too little memory: the sums, and what would fit."""
    takes_share = placed.engine in TAKES_SHARE
    serve = load.serve.least if takes_share else load.serve.full
    sums = {"serve": serve, "judge": load.judge, "train": load.train.peak}
    listed = ", ".join(f"{role} {gigabytes(part)}" for role, part in sums.items() if part)
    asleep = ", the engine asleep while the trainer steps" if sleeps else ""
    memory = gigabytes(load.gpu.memory_bytes)
    need = load.need(sleeps=sleeps, takes_share=takes_share)
    words = f"{_name(experiment, load)} needs {gigabytes(need)} ({listed}{asleep}); "
    if load.users:
        others = ", ".join(map(str, load.users))
        return CardBusy(
            f"{words}{gigabytes(load.gpu.free_bytes)} of {memory} are free: {others}. "
            "Wait for them to end, or name other GPUs in devices.gpus"
        )
    may_sleep = placed.engine in CAN_SLEEP and experiment.serve.sleep != "never"
    fits = [
        name
        for name, changed, there in _changes(experiment, placed)
        if all(
            each.need(sleeps=may_sleep and each.train.peak > 0, takes_share=takes_share)
            <= each.room
            and (each.serve.full >= each.serve.least or not takes_share)
            for each in _loads(changed, there, shape, users={})
        )
    ]
    kinds = {re.sub(r"\d+", "", name): name for name in reversed(fits)}  # the smallest of a kind
    would = "; ".join(name for name in fits if name in kinds.values())
    return MachineError(f"{words}it has {memory}. Would fit: {would}")


def _changes(
    experiment: Experiment, placed: Placement
) -> Iterator[tuple[str, Experiment, Placement]]:
    """Names of changes that take less memory, with the experiment and the cards that they give; the
    mildest first, then cards of any size."""
    model, serve = experiment.model, experiment.serve

    def changed(name: str, table: str, **keys: Any) -> tuple[str, Experiment, Placement]:
        old = getattr(experiment, table)
        new = (
            old.model_copy(update=keys)
            if table != "stage"
            else [each.model_copy(update=keys) if each.kind != "eval" else each for each in old]
        )
        return name, experiment.model_copy(update={table: new}), placed

    if placed.shared:
        judges, ranks = (
            tuple(replace(gpu, uuid=f"{role} {gpu.uuid}") for gpu in gpus)
            for role, gpus in (("judge", placed.judge), ("train", placed.train))
        )
        yield "a GPU for each role", experiment, replace(placed, judge=judges, train=ranks)
    if placed.serve and serve.precision == "exact":
        yield changed('serve.precision = "fast"', "serve", precision="fast")
    if placed.engine == "vllm" and serve.tensor_parallel == 1 and not placed.shared:
        for num in MORE_GPUS if placed.serve else ():
            yield changed(f"serve.tensor_parallel = {num}", "serve", tensor_parallel=num)
    if placed.serve and serve.slots > LESS_SLOTS and placed.engine not in TAKES_SHARE:
        yield changed(f"serve.slots = {LESS_SLOTS}", "serve", slots=LESS_SLOTS)
    if placed.judge and experiment.problems.sizes == "gpu":
        yield changed('problems.sizes = "small"', "problems", sizes="small")
    if placed.train:
        name = f"micro_batch_tokens = {LESS_TOKENS}"
        yield changed(name, "stage", micro_batch_tokens=LESS_TOKENS)
        if model.quantize is None:
            for num in (num for num in MORE_GPUS if num > len(placed.train)):
                more = [replace(placed.train[0], uuid=f"more-{k}") for k in range(num)]
                train = (*placed.train, *more)[:num]
                yield (
                    f"devices.train = {num} (fsdp2)", experiment,
                    replace(placed, train=train, parallel="fsdp2"),
                )  # fmt: skip
        if model.quantize is None and len(placed.train) > 1:
            name, changes, _ = changed("offload = true", "stage", offload=True)
            yield name, changes, replace(placed, parallel="fsdp2")
        if not model.lora:
            yield changed('optimizer = "adamw_8bit"', "stage", optimizer="adamw_8bit")
            yield changed("[model.lora]", "model", lora=LoraTable())
            _, small, _ = changed("", "stage", optimizer="adamw_8bit")
            table = model.model_copy(update={"dtype": "bfloat16"})
            name = 'model.dtype = "bfloat16" with optimizer = "adamw_8bit"'
            yield name, small.model_copy(update={"model": table}), placed
        elif model.quantize is None:
            yield changed("[model.quantize]", "model", quantize=QuantizeTable())
    for size in CARD_SIZES:
        larger = {gpu.uuid: replace(gpu, memory_bytes=size * 10**9) for gpu in placed.gpus}
        yield f"GPUs of {size} GB", experiment, placed.on(larger)


def _by_role(load: _CardLoad, share: float | None) -> dict[str, int]:
    serve = load.serve.full
    if share is not None and load.num_replicas:
        serve = int(share * load.gpu.memory_bytes)
    parts = {"serve": serve, "judge": load.judge, "train": load.train.peak}
    return {role: part for role, part in parts.items() if part}
