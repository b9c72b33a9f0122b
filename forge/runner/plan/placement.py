"""Placement of the roles of a run on GPUs, from `[devices]` and the machine.

Pure. Four steps: the roles that the stages need, the number of cards of each (`_counts`), which
cards (`_lay_out`), and whether their memory suffices (`fit`), by the sums of `memory`. A role alone
on a card gets all it asks for. On a shared card an engine that takes a share of the memory (vllm)
is limited first. If even its minimum does not fit beside a step of the trainer, it sleeps while the
trainer steps. Activations are kept instead of recomputed where that costs the other roles nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from forge.config import schema
from forge.errors import MachineError
from forge.process.devices import Gpu, GpuUser, Vendor, matching
from forge.runner.plan.machine import CardBusy, Machine
from forge.runner.plan.memory import (
    ASLEEP_BYTES,
    ServeBytes,
    TrainBytes,
    judge_bytes,
    micro_batch,
    serve_bytes,
    train_bytes,
)
from forge.runner.plan.shape import ModelShape, model_shape
from forge.runner.weights.model_dir import config_dir
from forge.train.refusals import PACKED, text_config
from forge.views.text import count, gigabytes

Users = Mapping[str, tuple[GpuUser, ...]]
_Change = tuple[str, schema.Experiment, "Placement"]

ROLES = ("serve", "judge", "train")
CAN_SLEEP = frozenset({"vllm", "hf"})
TAKES_SHARE = frozenset({"vllm"})
"""Engines that take serve.memory_share of a card for any model."""
DRIVER_SHARE = 0.02
KEPT_PARTS = (0, 0.25, 0.5, 0.75)
KEPT_SHARE = 0.8
"""Share of a card that a trainer without recomputation may take: peaks were up to 9 % off."""
LESS_SLOTS, LESS_TOKENS, MORE_GPUS = 8, 1024, (2, 4, 8)
ROW_TOKENS = (65_536, 32_768, 16_384, 8192, 4096, 2048)
CARD_SIZES = (24, 40, 48, 80, 96, 141, 192, 288, *range(400, 4001, 200))
"""Changes that a refusal tries, and names if all cards have room with them."""
LESS, ROWS = f"micro_batch_tokens = {LESS_TOKENS}", "rows of"
WHOLE = "a row is not split over GPUs: torch's context_parallel does not split varlen_attn"
MAX_HEAD_DIM = 192
"""On some cards the flash kernel has no backward pass for wider heads; all are multiples of 8."""
MIN_CAPABILITY = (8, 0)
MIN_TORCH = (2, 10)
version = cache(metadata.version)
"""Version of a package; each question parses a file, and a plan asks hundreds of times."""


def needs_serving(experiment: schema.Experiment) -> bool:
    return any(not isinstance(stage, schema.SftStage) for stage in experiment.stage)


def needs_training(experiment: schema.Experiment) -> bool:
    return any(isinstance(stage, schema.TrainStage) for stage in experiment.stage)


def needs_pairs(experiment: schema.Experiment) -> bool:
    """True if a stage trains on pairs, or a tokenizer is trained on their texts."""
    stages = experiment.stage
    is_sft = any(isinstance(stage, schema.SftStage) and stage.source == "data" for stage in stages)
    return is_sft or experiment.model.init is not None


def makes_pairs(experiment: schema.Experiment) -> bool:
    return needs_pairs(experiment) and experiment.data.has_generated


def needs_judges(experiment: schema.Experiment) -> bool:
    """True if anything is judged: completions, or broken answers of generated pairs."""
    return needs_serving(experiment) or makes_pairs(experiment)


def serves_here(experiment: schema.Experiment) -> bool:
    """True if engines of the run are on this machine."""
    return needs_serving(experiment) and not (experiment.serve.url or experiment.cluster.serve)


def judges_here(experiment: schema.Experiment) -> bool:
    """True if judges of the run are on this machine."""
    return needs_judges(experiment) and not (experiment.judge.url or experiment.cluster.judges)


def num_ranks(experiment: schema.Experiment, cards: Sequence[Gpu]) -> int:
    """Ranks of the trainer, nodes included; `cards` are those on this machine."""
    return max(1, len(cards)) * (1 + experiment.cluster.train_nodes)


def turns_trained(experiment: schema.Experiment) -> int:
    is_trained = any(isinstance(stage, schema.GrpoStage) for stage in experiment.stage)
    return experiment.rollout.max_turns if is_trained else 1


def turns_played(experiment: schema.Experiment) -> int:
    return max(experiment.rollout.max_turns, experiment.eval.max_turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Cards by role, and the settings that make it fit its machine. Default: all on the CPU."""

    serve: tuple[tuple[Gpu, ...], ...] = ()
    judge: tuple[Gpu, ...] = ()
    train: tuple[Gpu, ...] = ()
    engine: str = "llama"
    parallel: str = "ddp"
    """Resolved `parallel = "auto"` of the stages."""
    recomputes: bool | int = True
    """Resolved `gradient_checkpointing` of the stages that leave it open, on GPUs."""
    sleeps: bool = False
    memory_share: float | None = None
    """Share of a card that an engine may take; None means serve.memory_share."""
    reasons: tuple[str, ...] = ()
    bytes_by_gpu: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict[str, Mapping[str, int]]
    )
    """Role to maximum bytes, by UUID."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return tuple({gpu.uuid: gpu for role in self.by_role().values() for gpu in role}.values())

    @property
    def shared(self) -> frozenset[str]:
        """UUIDs of cards with more than one process."""
        users = [gpu.uuid for role in self.by_role().values() for gpu in role]
        return frozenset(uuid for uuid in users if users.count(uuid) > 1)

    @property
    def shared_by_engines(self) -> frozenset[str]:
        """UUIDs of shared cards where engines sleep, or run each step under the card's lease, which
        costs an engine's step its overlap with the next: cards where judges time kernels."""
        timed = {gpu.uuid for gpu in self.judge}
        return self.shared if self.sleeps else self.shared & timed

    @property
    def serve_uuids(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(gpu.uuid for gpu in replica) for replica in self.serve)

    @property
    def train_uuids(self) -> tuple[str, ...]:
        return tuple(gpu.uuid for gpu in self.train)

    def on(self, gpus: Mapping[str, Gpu]) -> Placement:
        """The same on other cards, by the UUIDs of these."""
        return replace(
            self,
            serve=tuple(tuple(gpus[gpu.uuid] for gpu in replica) for replica in self.serve),
            judge=tuple(gpus[gpu.uuid] for gpu in self.judge),
            train=tuple(gpus[gpu.uuid] for gpu in self.train),
        )

    def roles_of(self, uuid: str) -> tuple[str, ...]:
        return tuple(r for r, gpus in self.by_role().items() if uuid in {g.uuid for g in gpus})

    def settled(self, table: schema.ServeTable) -> schema.ServeTable:
        """The table with the planned engine and its share of a card."""
        share = table.memory_share if self.memory_share is None else self.memory_share
        return table.model_copy(update={"engine": self.engine, "memory_share": share})

    def by_role(self) -> dict[str, tuple[Gpu, ...]]:
        serve = tuple(gpu for replica in self.serve for gpu in replica)
        return {"serve": serve, "judge": self.judge, "train": self.train}


def place(experiment: schema.Experiment, machine: Machine, *, engine: str = "llama") -> Placement:
    """Places the roles of an experiment on the cards of a machine, with this engine. Raises
    MachineError: too few cards, or too little memory on them; the message has the sums."""
    cards = _allowed(experiment, machine)
    counts, reasons = _counts(experiment, num_cards=len(cards))
    if experiment.devices.gpus == "auto" and cards != list(machine.gpus):
        last = ", ".join(str(gpu.index) for gpu in cards if gpu.uuid in machine.busy)
        reasons.append(f"devices.gpus = auto: GPU {last} last, since other processes use it")
    if sum(counts.values()) == 0:
        reasons += _unpacked(experiment, ())
        return Placement(engine=engine, reasons=tuple(reasons))
    placed = _lay_out(experiment, machine, cards, counts)
    if experiment.serve.tensor_parallel > 1 and any(
        gpu.uuid in placed.shared for replica in placed.serve for gpu in replica
    ):
        raise MachineError(
            f"serve.tensor_parallel = {experiment.serve.tensor_parallel}: the engine shares GPUs "
            "with another role, and ranks that wait for a GPU block each other; 1 is allowed, or "
            "more GPUs"
        )
    reasons += _unpacked(experiment, placed.train)
    placed = replace(placed, engine=engine, reasons=tuple(reasons))
    return fit(experiment, placed, users=machine.gpu_users)


def _unpacked(experiment: schema.Experiment, gpus: Sequence[Gpu]) -> Iterator[str]:
    for index, stage in enumerate(experiment.stage):
        is_open = isinstance(stage, schema.TrainStage) and stage.packing == "auto"
        if is_open and (why := why_not_packed(experiment.model, gpus=gpus)):
            yield f"stage.{index}.packing = auto: false ({why})"


def judge_cards(experiment: schema.Experiment, machine: Machine) -> tuple[Gpu, ...]:
    """The cards that judges would have, whatever fits on them: all cards, if the roles need more
    than there are. Empty for judges on the CPU or elsewhere. Raises MachineError if judges need a
    card and there is none."""
    cards = _allowed(experiment, machine)
    counts, _ = _counts(experiment, num_cards=len(cards))
    if not counts["judge"]:
        return ()
    try:
        return _lay_out(experiment, machine, cards, counts).judge
    except MachineError:
        if not cards:
            raise
        return tuple(cards)


def _allowed(experiment: schema.Experiment, machine: Machine) -> list[Gpu]:
    names = experiment.devices.gpus
    if names is None:
        return []
    if names == "auto":
        return sorted(machine.gpus, key=lambda gpu: gpu.uuid in machine.busy)
    found = list[Gpu]()
    for name in names:
        if (gpu := _find(name, machine)) in found:
            raise MachineError(
                f"devices.gpus: {name} is GPU {gpu.index} again; each GPU is allowed once"
            )
        found.append(gpu)
    return found


def _find(name: str, machine: Machine) -> Gpu:
    found = matching(machine.gpus, name)
    if len(found) == 1:
        return found[0]
    present = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in machine.gpus) or "none"
    hidden = f"; {machine.hidden_gpus}" if machine.hidden_gpus else ""
    whole = "; only whole GPUs can be used" if name.startswith("MIG-") else ""
    raise MachineError(
        f'devices.gpus: found "{name}"; the GPUs of {machine.title} are: {present}{whole}{hidden}'
    )


def _counts(experiment: schema.Experiment, *, num_cards: int) -> tuple[dict[str, int], list[str]]:
    """Number of cards by role, and the reasons for those left open. Unneeded roles get none."""
    devices, serve = experiment.devices, experiment.serve
    needed = {
        "serve": serves_here(experiment),
        "judge": judges_here(experiment),
        "train": needs_training(experiment),
    }
    least = {"serve": serve.replicas * serve.tensor_parallel, "judge": 1, "train": 1}
    asked = {role: getattr(devices, role) if needed[role] else 0 for role in ROLES}
    reasons = [
        f"{role} gets no GPU: no stage needs it, or a URL provides it"
        for role in ROLES
        if getattr(devices, role) and not needed[role]
    ]
    counts = {role: least[role] if asked[role] == "auto" else asked[role] for role in ROLES}
    open_roles = [role for role in ROLES if asked[role] == "auto"]
    spare = num_cards - sum(counts.values())
    if devices.share == "always":
        spread = {"judge": num_cards, "train": _dividing(experiment, num_cards)}
        counts.update({role: num for role, num in spread.items() if role in open_roles})
    elif spare < 0 and "train" in open_roles and devices.share == "auto":
        counts["train"] = _dividing(experiment, max(1, num_cards - counts["serve"]))
    elif spare > 0:
        for_train = spare - spare // 3 if "judge" in open_roles else spare
        if "train" in open_roles:
            whole = _dividing(experiment, counts["train"] + for_train)
            spare -= whole - counts["train"]
            counts["train"] = whole
        counts["judge"] += spare if "judge" in open_roles else 0
    for role in open_roles:
        why = " (serve.replicas x serve.tensor_parallel)" if role == "serve" else ""
        reasons.append(f"devices.{role} = auto: {counts[role]} of {num_cards}{why}")
    return counts, reasons


def _dividing(experiment: schema.Experiment, num: int) -> int:
    sizes = [stage.batch_size for stage in experiment.stage if isinstance(stage, schema.SftStage)]
    machines = 1 + experiment.cluster.train_nodes
    found = [k for k in range(1, num + 1) if all(size % (k * machines) == 0 for size in sizes)]
    return max(found, default=1)


def _lay_out(
    experiment: schema.Experiment, machine: Machine, cards: list[Gpu], counts: Mapping[str, int]
) -> Placement:
    """Roles get disjoint cards if there are enough. Else judges share the engines' cards before
    anything shares the trainer's, which are the busiest."""
    num_serve, num_judge, num_train = (counts[role] for role in ROLES)
    share, num = experiment.devices.share, len(cards)
    if share == "always" and max(counts.values()) <= num:
        serve, judge, train = cards[:num_serve], cards[:num_judge], cards[:num_train]
    elif sum(counts.values()) <= num:
        serve = cards[:num_serve]
        judge = cards[num_serve : num_serve + num_judge]
        train = cards[num_serve + num_judge :][:num_train]
    elif share == "auto" and max(counts.values()) <= num:
        serve, train = cards[:num_serve], cards[num - num_train :]
        judge = sorted(cards, key=lambda gpu: (gpu in train, gpu in serve))[:num_judge]
    else:
        raise _too_few(experiment, machine, num_allowed=num, counts=counts)
    return Placement(
        serve=_shares(serve, experiment.serve.replicas, experiment.serve.tensor_parallel),
        judge=tuple(judge),
        train=tuple(train),
    )


def _shares(cards: list[Gpu], num_replicas: int, num_each: int) -> tuple[tuple[Gpu, ...], ...]:
    """Cards of each replica: an equal part, or one card that several replicas share."""
    if not cards:
        return ()
    if len(cards) % num_replicas and num_replicas % len(cards):
        raise MachineError(
            f"serve.replicas: {num_replicas} on {len(cards)} GPUs; equally many replicas on each "
            "GPU, or GPUs for each replica, are allowed"
        )
    each = max(1, len(cards) // num_replicas)
    if each != num_each:
        raise MachineError(
            f"serve.tensor_parallel = {num_each}: {num_replicas} replicas on {len(cards)} GPUs "
            f"have {each} each; devices.serve = {num_replicas * num_each} gives each {num_each}"
        )
    return tuple(
        tuple(cards[(index * each + offset) % len(cards)] for offset in range(each))
        for index in range(num_replicas)
    )


def _too_few(
    experiment: schema.Experiment, machine: Machine, *, num_allowed: int, counts: Mapping[str, int]
) -> MachineError:
    shares, most = experiment.devices.share != "never", max(counts.values())
    needed = count(most if shares else sum(counts.values()), "GPU")
    split = ", ".join(f"{role} {num}" for role, num in counts.items() if num)
    split += ", which may share" if shares else ""
    has = f"{machine.title} has {len(machine.gpus)}"
    if num_allowed < len(machine.gpus):
        has = f"devices.gpus names {num_allowed}"
    has += f" ({machine.hidden_gpus})" if machine.hidden_gpus else ""
    advice = (
        '"forge plan --assume 8xH100-80GB" plans for another machine; '
        '"forge init quickstart" writes one that needs no GPU.'
    )
    if not shares and num_allowed >= most:
        advice = '[devices] share = "auto" lets roles share a GPU if its memory suffices.'
    return MachineError(f"{experiment.name} needs {needed} ({split}); {has}. {advice}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _CardLoad:
    """Memory that one card has to provide, by role."""

    gpu: Gpu
    serve: ServeBytes
    num_replicas: int
    judge: int
    train: TrainBytes
    """Zeros without a rank on this card."""
    users: tuple[GpuUser, ...]
    takes_share: bool

    @property
    def room(self) -> int:
        """Memory for this run: what other users of the card leave."""
        usable = int(self.gpu.memory_bytes * (1 - DRIVER_SHARE))
        return min(usable, self.gpu.free_bytes) if self.users else usable

    @property
    def least_serve(self) -> int:
        """An engine that takes a share can do with less than all slots need."""
        return self.serve.least if self.takes_share else self.serve.full

    def need(self, *, sleeps: bool) -> int:
        """Least memory at the moment that takes the most."""
        serve = self.least_serve
        stepping = (ASLEEP_BYTES if serve and sleeps else serve) + self.train.peak
        return max(stepping, serve + self.train.resident) + self.judge


def fit(experiment: schema.Experiment, placed: Placement, *, users: Users) -> Placement:
    """Sets what makes the roles fit the memory of their cards, beside the users of these. A model
    of unknown shape is not checked. Raises MachineError, with the sums and what would fit; CardBusy
    if it would fit without the other users."""
    shape = model_shape(experiment.model)
    if shape is None:
        reason = f"{experiment.model.path}: unknown size, so GPU memory is not checked"
        return replace(placed, reasons=(*placed.reasons, reason))
    sums = _Fit(experiment, shape, users)
    placed = sums.with_parallel(placed)
    return sums.keeping_activations(sums.fitted(placed), placed)


@dataclass(frozen=True, slots=True)
class _Fit:
    experiment: schema.Experiment
    shape: ModelShape
    users: Users

    def fitted(self, placed: Placement) -> Placement:
        """`fit` with the placement's own choice of recomputation."""
        loads, takes_share = self.loads(placed), placed.engine in TAKES_SHARE
        serving = [load for load in loads if load.num_replicas]
        is_tight = any(load.need(sleeps=False) > load.room for load in serving)
        # Sleep helps only where the trainer is on the engine's card.
        may_sleep = placed.engine in CAN_SLEEP and any(load.train.peak for load in serving)
        sleeps = may_sleep and is_tight
        for load in loads:
            if load.need(sleeps=sleeps) > load.room:
                raise self.refusal(placed, load, sleeps=sleeps)
        asked = share = self.experiment.serve.memory_share
        for load in serving if takes_share else ():
            memory = load.gpu.memory_bytes
            if asked * memory < load.serve.least:
                least = math.ceil(100 * load.serve.least / memory) / 100
                raise MachineError(
                    f"{self.experiment.name}: GPU {load.gpu.index} ({load.gpu.name}): the engine "
                    f"needs {gigabytes(load.serve.least)}; serve.memory_share = {asked:g} of the "
                    f"GPU is {gigabytes(int(asked * memory))}; {least:g} would fit"
                )
            room = load.room - load.judge - (load.train.resident if sleeps else load.train.peak)
            share = min(share, math.floor(100 * room / memory) / 100)
        sizes = dict[str, Mapping[str, int]]()
        for load in loads:
            takes = int(share * load.gpu.memory_bytes) if takes_share else load.serve.full
            parts = {"serve": takes * bool(load.num_replicas), "judge": load.judge}
            parts["train"] = load.train.peak
            sizes[load.gpu.uuid] = {role: part for role, part in parts.items() if part}
        reasons = list(placed.reasons)
        if share < asked:
            reasons.append(
                f"the engine takes {share:.0%} of its GPU instead of serve.memory_share = "
                f"{asked:.0%}: more does not fit beside the other roles"
            )
        if sleeps:
            reasons.append("the engine sleeps while the trainer steps: both do not fit the GPU")
        most = max((load.num_replicas for load in serving), default=0)
        return replace(
            placed, sleeps=sleeps, memory_share=share / most if takes_share and most else None,
            bytes_by_gpu=sizes, reasons=tuple(reasons),
        )  # fmt: skip

    def keeping_activations(self, found: Placement, placed: Placement) -> Placement:
        """The placement with as few recomputed blocks as leave all else as it is, if a stage leaves
        them open: a step without any is shorter by a forward pass, a quarter of its work."""
        is_open = any(stage.gradient_checkpointing is None for stage in self._trained)
        # No peak of a mixture that keeps activations was measured yet.
        if not found.train or not is_open or self.shape.is_mixture:
            return found
        smallest = min(gpu.memory_bytes for gpu in found.train)
        for part in KEPT_PARTS:
            num = round(part * self.shape.layers)
            try:
                kept = self.fitted(replace(placed, recomputes=num or False))
            except MachineError:
                continue
            peak = max(kept.bytes_by_gpu[gpu.uuid]["train"] for gpu in kept.train)
            same = (kept.sleeps, kept.memory_share) == (found.sleeps, found.memory_share)
            if same and peak <= KEPT_SHARE * smallest:
                which = f"of all but {num} blocks" if num else "of all blocks"
                reason = (
                    f"gradient_checkpointing absent: activations {which} are kept, "
                    f"{gigabytes(peak)} of {gigabytes(smallest)} at the peak"
                )
                return replace(kept, reasons=(*found.reasons, reason))
        return found

    @property
    def _trained(self) -> list[schema.SftStage | schema.GrpoStage]:
        return [stage for stage in self.experiment.stage if isinstance(stage, schema.TrainStage)]

    def with_parallel(self, placed: Placement) -> Placement:
        """ddp if a whole trainer fits a card, else fsdp2, unless a stage sets it."""
        parallels = {"fsdp2" if stage.offload else stage.parallel for stage in self._trained}
        demanded, num = parallels - {"auto"}, num_ranks(self.experiment, placed.train)
        if not placed.train or num < 2 or demanded:
            return replace(placed, parallel="fsdp2" if demanded == {"fsdp2"} else "ddp")
        smallest = min(gpu.memory_bytes for gpu in placed.train)
        need = self._train_bytes(placed).peak
        parallel, why = "fsdp2", f"fsdp2, since ddp needs {gigabytes(need)} on each"
        if need <= smallest * (1 - DRIVER_SHARE) or self.experiment.model.quantize is not None:
            parallel, why = "ddp", f"ddp, {gigabytes(need)} on each"
        reasons = (*placed.reasons, f"trainer on {num} GPUs: {why}")
        return replace(placed, parallel=parallel, reasons=reasons)

    def _train_bytes(self, placed: Placement) -> TrainBytes:
        if not placed.train:
            return TrainBytes()
        rollout, serve, model = (
            self.experiment.rollout, self.experiment.serve, self.experiment.model
        )  # fmt: skip
        num = num_ranks(self.experiment, placed.train)
        samples = rollout.groups_per_step * rollout.group_size * rollout.max_turns
        ranks = list[TrainBytes]()
        for stage in self._trained:
            tokens, is_whole = micro_batch(
                stage, num_gpus=num, context_tokens=serve.context_tokens, num_samples=samples
            )
            packing = is_packed(stage, model, gpus=placed.train)
            rank = train_bytes(
                stage.model_copy(update={"packing": packing}), model, self.shape,
                num_gpus=num, parallel=placed.parallel, tokens=tokens, is_whole=is_whole,
                recomputes=placed.recomputes,
            )  # fmt: skip
            if stage.kind == "grpo" and serve.weights == "ipc":
                rank = rank.with_copy(
                    (4 if serve.precision == "exact" else 2) * self.shape.params,
                    is_beside_a_step=rollout.max_staleness > 0,
                    readers=sum(gpu != placed.train[0] for each in placed.serve for gpu in each),
                )
            ranks.append(rank)
        return max(ranks, key=lambda rank: rank.peak)

    def loads(self, placed: Placement) -> list[_CardLoad]:
        serve, takes_share = self.experiment.serve, placed.engine in TAKES_SHARE
        each = serve_bytes(serve, self.experiment.model, self.shape, engine=placed.engine)
        train, found = self._train_bytes(placed), list[_CardLoad]()
        for gpu in placed.gpus:
            num = sum(gpu in replica for replica in placed.serve)
            full = num * each.full
            if takes_share and num:
                full = int(serve.memory_share * gpu.memory_bytes)
            judge = judge_bytes(self.experiment.problems, memory_bytes=gpu.memory_bytes)
            found.append(
                _CardLoad(
                    gpu=gpu, serve=ServeBytes(least=num * each.least, full=full), num_replicas=num,
                    judge=judge if gpu in placed.judge else 0, users=self.users.get(gpu.uuid, ()),
                    train=train if gpu in placed.train else TrainBytes(), takes_share=takes_share,
                )
            )  # fmt: skip
        return found

    def refusal(self, placed: Placement, load: _CardLoad, *, sleeps: bool) -> MachineError:
        """The error for a card with too little memory: the sums, and what would fit."""
        sums = {"serve": load.least_serve, "judge": load.judge, "train": load.train.peak}
        listed = ", ".join(f"{role} {gigabytes(part)}" for role, part in sums.items() if part)
        asleep = ", the engine asleep while the trainer steps" if sleeps else ""
        memory, need = gigabytes(load.gpu.memory_bytes), gigabytes(load.need(sleeps=sleeps))
        words = f"{self.experiment.name}: GPU {load.gpu.index} ({load.gpu.name}) needs {need} "
        words += f"({listed}{asleep}); "
        if load.users:
            others = ", ".join(map(str, load.users))
            return CardBusy(
                f"{words}{gigabytes(load.gpu.free_bytes)} of {memory} are free: {others}. "
                "Wait for them to end, or name other GPUs in devices.gpus"
            )
        may_sleep = placed.engine in CAN_SLEEP
        fits = [
            name
            for name, changed, there in _changes(self.experiment, placed)
            if all(
                each.need(sleeps=may_sleep and each.train.peak > 0) <= each.room
                and each.serve.full >= each.least_serve
                for each in _Fit(changed, self.shape, {}).loads(there)
            )
        ]
        if LESS in fits or not load.train.peak:  # no single row is too long
            fits = [name for name in fits if not name.startswith(ROWS)]
        kinds = {re.sub(r"\d+", "", name): name for name in reversed(fits)}  # the mildest of a kind
        would = "; ".join(name for name in fits if name in kinds.values())
        why = f" ({WHOLE})" if ROWS in would else ""
        return MachineError(f"{words}it has {memory}. Would fit: {would}{why}")


def _changes(experiment: schema.Experiment, placed: Placement) -> Iterator[_Change]:
    """Changes that take less memory, the mildest first, then cards of any size. One that changes
    nothing here fits as little as before."""
    model, serve, sharded = experiment.model, experiment.serve, replace(placed, parallel="fsdp2")

    def put(table: str, **keys: Any) -> schema.Experiment:
        new = getattr(experiment, table).model_copy(update=keys)
        return experiment.model_copy(update={table: new})

    def staged(*, rows: int | None = None, **keys: Any) -> schema.Experiment:
        stages = list(experiment.stage)
        for index, stage in enumerate(stages):
            if isinstance(stage, schema.SftStage) and rows:
                stage = stage.model_copy(update={"max_length": min(stage.max_length, rows)})
            if isinstance(stage, schema.TrainStage):
                stages[index] = stage.model_copy(update=keys)
        context = min(serve.context_tokens, rows or serve.context_tokens)
        return put("serve", context_tokens=context).model_copy(update={"stage": stages})

    if placed.shared:
        judges, ranks = (
            tuple(replace(gpu, uuid=f"{role} {gpu.uuid}") for gpu in gpus)
            for role, gpus in (("judge", placed.judge), ("train", placed.train))
        )
        yield "a GPU for each role", experiment, replace(placed, judge=judges, train=ranks)
    yield 'serve.precision = "fast"', put("serve", precision="fast"), placed
    for num in MORE_GPUS if placed.engine == "vllm" and not placed.shared else ():
        if num > serve.tensor_parallel:
            yield f"serve.tensor_parallel = {num}", put("serve", tensor_parallel=num), placed
    if serve.slots > LESS_SLOTS and placed.engine not in TAKES_SHARE:
        yield f"serve.slots = {LESS_SLOTS}", put("serve", slots=LESS_SLOTS), placed
    yield 'problems.sizes = "small"', put("problems", sizes="small"), placed
    yield LESS, staged(micro_batch_tokens=LESS_TOKENS), placed
    for num in ROW_TOKENS if placed.train else ():
        yield f"{ROWS} {num} tokens", staged(rows=num, micro_batch_tokens=LESS_TOKENS), placed
    if placed.train and model.quantize is None:
        for num in (num for num in MORE_GPUS if num > len(placed.train)):
            more = (replace(placed.train[0], uuid=f"more-{k}") for k in range(num))
            train = (*placed.train, *more)[:num]
            yield f"devices.train = {num} (fsdp2)", experiment, replace(sharded, train=train)
        if len(placed.train) > 1:
            yield "offload = true", staged(offload=True), sharded
    if model.lora:
        yield "[model.quantize]", put("model", quantize=schema.QuantizeTable()), placed
    elif placed.train:
        key, small = 'optimizer = "adamw_8bit"', staged(optimizer="adamw_8bit")
        yield key, small, placed
        yield "[model.lora]", put("model", lora=schema.LoraTable()), placed
        half = {"model": model.model_copy(update={"dtype": "bfloat16"})}
        yield f'model.dtype = "bfloat16" with {key}', small.model_copy(update=half), placed
    for size in CARD_SIZES:
        larger = {gpu.uuid: replace(gpu, memory_bytes=size * 10**9) for gpu in placed.gpus}
        yield f"GPUs of {size} GB", experiment, placed.on(larger)


def is_packed(
    stage: schema.SftStage | schema.GrpoStage, model: schema.ModelTable, *, gpus: Sequence[Gpu],
    model_dir: Path | None = None,
) -> bool:  # fmt: skip
    """`packing` of a stage: "auto" is true wherever packing is known to work."""
    if stage.packing != "auto":
        return stage.packing
    return not why_not_packed(model, gpus=gpus, model_dir=model_dir)


def why_not_packed(
    model: schema.ModelTable, *, gpus: Sequence[Gpu], model_dir: Path | None = None
) -> str:
    """Why this model's sequences are not packed on these cards of the trainer; empty if they are.
    `model_dir`: the model to train, once it is on this machine."""
    if any(gpu.vendor is not Vendor.NVIDIA for gpu in gpus):
        return "not tested on AMD"
    if any(gpu.capability is not None and gpu.capability < MIN_CAPABILITY for gpu in gpus):
        return "its kernel needs Ampere or later"
    found = re.match(r"(\d+)\.(\d+)", version("torch"))
    if gpus and found and tuple(map(int, found.groups())) < MIN_TORCH:
        return f"its kernel needs torch {'.'.join(map(str, MIN_TORCH))}"
    if model.quantize is not None:
        return "not tested with 4-bit weights"
    kind, width, folder = "", 0, model_dir or config_dir(model)
    if folder:  # without `model_shape`, which may ask transformers and block a run's loop
        config = text_config(folder)
        kind = str(config.get("model_type"))
        heads = config.get("num_attention_heads") or 1
        width = config.get("head_dim") or (config.get("hidden_size") or 0) // heads
    elif shape := model_shape(model):
        kind, width = shape.model_type, shape.head_dim
    if not (kind and width):
        return "the shape of the model is unknown"
    if kind not in PACKED:
        return f"not tested with {kind}"
    if gpus and (width > MAX_HEAD_DIM or width % 8):
        return f"its kernel does not support a head width of {width}"
    return ""
