"""Placement of the roles of a run on GPUs, from `[devices]` and the machine.

Pure. `plan` shows the placement, `run` hands the cards out. Three steps: the number of cards of
each role (`_counts`), which cards (`_lay_out`), and whether their memory suffices (`fit`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from forge.config.schema import SftStage
from forge.errors import MachineError
from forge.process.devices import matching
from forge.runner.plan.fit import fit
from forge.runner.plan.needs import needs_judges, needs_serving, needs_training

if TYPE_CHECKING:
    from forge.config.schema import Experiment, ServeTable
    from forge.process.devices import Gpu
    from forge.runner.plan.machine import Machine

ROLES = ("serve", "judge", "train")
"""Roles, in the order of taking cards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Cards by role, and the settings that make it fit its machine. Default: all on the CPU."""

    serve: tuple[tuple[Gpu, ...], ...] = ()
    """Cards of each replica."""
    judge: tuple[Gpu, ...] = ()
    """One card for each judge."""
    train: tuple[Gpu, ...] = ()
    """One card for each rank of the trainer."""
    engine: str = "llama"
    """Resolved `serve.engine`."""
    parallel: str = "ddp"
    """Resolved `parallel = "auto"` of the stages."""
    recomputes: bool | int = True
    """Resolved `gradient_checkpointing` of the stages that leave it open, on GPUs."""
    sleeps: bool = False
    """True if engines free their memory while the trainer steps."""
    memory_share: float | None = None
    """Share of a card that an engine may take; None means serve.memory_share."""
    reasons: tuple[str, ...] = ()
    """Messages that explain choices the experiment left open."""
    bytes_by_gpu: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict[str, Mapping[str, int]]
    )
    """UUID to role (`serve`, `judge`, `train`) to maximum bytes."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every card in use once, in the order of the roles."""
        return tuple({gpu.uuid: gpu for role in self.by_role().values() for gpu in role}.values())

    @property
    def shared(self) -> frozenset[str]:
        """UUIDs of cards with more than one process, which work there under the card's lease."""
        users = [gpu.uuid for role in self.by_role().values() for gpu in role]
        return frozenset(uuid for uuid in users if users.count(uuid) > 1)

    @property
    def serve_uuids(self) -> tuple[tuple[str, ...], ...]:
        """UUIDs by replica."""
        return tuple(tuple(gpu.uuid for gpu in replica) for replica in self.serve)

    @property
    def train_uuids(self) -> tuple[str, ...]:
        """UUIDs by rank."""
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
        """Roles on a card."""
        return tuple(
            role for role, gpus in self.by_role().items() if uuid in {gpu.uuid for gpu in gpus}
        )

    def settled(self, table: ServeTable) -> ServeTable:
        """The table with the planned engine and its share of a card."""
        found: dict[str, object] = {"engine": self.engine}
        if self.memory_share is not None:
            found["memory_share"] = self.memory_share
        return table.model_copy(update=found)

    def by_role(self) -> dict[str, tuple[Gpu, ...]]:
        """Cards of each role."""
        serve = tuple(gpu for replica in self.serve for gpu in replica)
        return {"serve": serve, "judge": self.judge, "train": self.train}


def place(experiment: Experiment, machine: Machine, *, engine: str = "llama") -> Placement:
    """Places the roles of an experiment on the cards of a machine.

    Args:
        engine: the engine that serves, on which the memory depends.

    Raises:
        MachineError: too few cards, or too little memory on them; the message has the sums.
    """
    cards = _allowed(experiment, machine)
    counts, reasons = _counts(experiment, num_cards=len(cards))
    if experiment.devices.gpus == "auto" and cards != list(machine.gpus):
        last = ", ".join(str(gpu.index) for gpu in cards if gpu.uuid in machine.busy)
        reasons.append(f"devices.gpus = auto: GPU {last} last, since other processes use it")
    if sum(counts.values()) == 0:
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
    reasons += [
        f"GPU {gpu.index} has {', '.join(roles)} (devices.share = {experiment.devices.share})"
        for gpu in placed.gpus
        if len(roles := placed.roles_of(gpu.uuid)) > 1
    ]
    placed = replace(placed, engine=engine, reasons=tuple(reasons))
    return fit(experiment, placed, users=machine.gpu_users)


def judge_cards(experiment: Experiment, machine: Machine) -> tuple[Gpu, ...]:
    """The cards that judges would have, whatever fits on them: all cards, if the roles need more
    than there are. Empty for judges on the CPU or elsewhere.

    Raises:
        MachineError: judges need a card, and the machine or `devices.gpus` has none.
    """
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


def _allowed(experiment: Experiment, machine: Machine) -> list[Gpu]:
    names = experiment.devices.gpus
    if names is None:
        return []
    if names == "auto":
        return sorted(machine.gpus, key=lambda gpu: gpu.uuid in machine.busy)
    found = [_find(name, machine) for name in names]
    for number, gpu in enumerate(found):
        if gpu in found[:number]:
            raise MachineError(
                f"devices.gpus: {names[number]} is GPU {gpu.index} again; each GPU is allowed once"
            )
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


def _counts(experiment: Experiment, *, num_cards: int) -> tuple[dict[str, int], list[str]]:
    """Number of cards by role, and the reasons for those left open. Unneeded roles get none."""
    devices, serve = experiment.devices, experiment.serve
    needed = {
        "serve": needs_serving(experiment) and not (serve.url or experiment.cluster.serve),
        "judge": needs_judges(experiment)
        and not (experiment.judge.url or experiment.cluster.judges),
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


def _dividing(experiment: Experiment, num: int) -> int:
    """Largest number of ranks on each machine, up to `num`, that divides every sft batch."""
    sizes = [stage.batch_size for stage in experiment.stage if isinstance(stage, SftStage)]
    machines = 1 + experiment.cluster.train_nodes
    found = [k for k in range(1, num + 1) if all(size % (k * machines) == 0 for size in sizes)]
    return max(found, default=1)


def _lay_out(
    experiment: Experiment, machine: Machine, cards: list[Gpu], counts: Mapping[str, int]
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
    experiment: Experiment, machine: Machine, *, num_allowed: int, counts: Mapping[str, int]
) -> MachineError:
    shares = experiment.devices.share != "never"
    total = max(counts.values()) if shares else sum(counts.values())
    split = ", ".join(f"{role} {num}" for role, num in counts.items() if num)
    split += ", which may share" if shares else ""
    has = f"{machine.title} has {len(machine.gpus)}"
    if num_allowed < len(machine.gpus):
        has = f"devices.gpus names {num_allowed}"
    if machine.hidden_gpus:
        has += f" ({machine.hidden_gpus})"
    advice = (
        '"forge plan --assume 8xH100-80GB" plans for another machine; '
        '"forge init quickstart" writes one that needs no GPU.'
    )
    if num_allowed and experiment.devices.share == "never" and max(counts.values()) <= num_allowed:
        advice = '[devices] share = "auto" lets roles share a GPU if its memory suffices.'
    return MachineError(
        f"{experiment.name} needs {total} {'GPU' if total == 1 else 'GPUs'} ({split}); {has}. "
        f"{advice}"
    )
